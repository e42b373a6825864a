package access

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"example.com/conductor/internal/must"
)

// TestTransportFollowsNoRedirect asks a server that sends its clients elsewhere, with a client that follows: no other server is
// asked, because the Transport would show it the token.
func TestTransportFollowsNoRedirect(t *testing.T) {
	token := filepath.Join(t.TempDir(), "token")
	must.Succeed(t, os.WriteFile(token, []byte("secret\n"), 0o600))
	elsewhere := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		t.Errorf("another server is asked, with %q", r.Header.Get("Authorization"))
	}))
	defer elsewhere.Close()
	to, err := NewTransport(ClientFiles{TokenFile: token}, http.DefaultTransport.(*http.Transport))
	must.Succeed(t, err)
	for _, status := range []int{http.StatusFound, http.StatusTemporaryRedirect} {
		server := httptest.NewServer(http.RedirectHandler(elsewhere.URL, status))
		resp, err := (&http.Client{Transport: to}).Post(server.URL, "text/plain", strings.NewReader("body"))
		if err == nil {
			resp.Body.Close()
			t.Errorf("%d: the answer is %s", status, resp.Status)
		}
		server.Close()
	}
}
