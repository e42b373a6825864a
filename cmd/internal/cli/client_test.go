package cli

import (
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"example.com/conductor/conductor/access"
)

// TestBaseOf requires that a token leaves this machine in the clear only if the user writes http.
func TestBaseOf(t *testing.T) {
	f := func(text, token, want string) {
		t.Helper()
		flags := ClientFlags{Files: access.ClientFiles{TokenFile: token}}
		if got, err := flags.BaseOf(text); err != nil || got != want {
			t.Errorf("%s with the token %q: %s %v, want %s", text, token, got, err, want)
		}
	}
	f("conductor.example", "", "http://conductor.example:13333")
	f("conductor.example", "a.token", "https://conductor.example:13333")
	f("10.0.0.1:80", "a.token", "https://10.0.0.1:80")
	f("http://conductor.example:13333", "a.token", "http://conductor.example:13333")
	f("localhost:13333", "a.token", "http://localhost:13333")
	f("::1", "a.token", "http://[::1]:13333")
}

// TestRefused words answers that are not 200.
func TestRefused(t *testing.T) {
	f := func(want, token string, status int, body string) {
		t.Helper()
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(status)
			io.WriteString(w, body)
		}))
		defer s.Close()
		c := NewClient(s.URL, nil)
		c.token = token
		want = strings.ReplaceAll(want, "AT", s.Listener.Addr().String())
		if err := c.Get(t.Context(), "/services", nil); err == nil || err.Error() != want {
			t.Errorf("%d %s: %v\nwant %s", status, body, err, want)
		}
	}
	f("AT answers only clients that it knows: send a token with --token-file, or show a certificate with --cert and --key", "", 401,
		`{"error":"this needs a token"}`)
	f("AT does not accept the token in a.token: the token is not known", "a.token", 401, `{"error":"the token is not known"}`)
	f("AT refuses: this needs the role admin; send the token of a client that may with --token-file", "", 403,
		`{"error":"this needs the role admin"}`)
	f("AT refuses: this needs the role admin; the client of the token in a.token may not", "a.token", 403,
		`{"error":"this needs the role admin"}`)
	f("http://AT/services answers 400: no such model", "", 400, `{"error":"no such model"}`)
	f("http://AT/services answers 404: check that a Conductor of this version listens there", "", 404, "not found")

	secure := httptest.NewUnstartedServer(http.NotFoundHandler())
	secure.Config.ErrorLog = log.New(io.Discard, "", 0)
	secure.StartTLS()
	defer secure.Close()
	at := secure.Listener.Addr().String()
	if err := NewClient("http://"+at, nil).Get(t.Context(), "/services", nil); err == nil ||
		err.Error() != at+" speaks TLS: name it as https://"+at {
		t.Errorf("without TLS: %v", err)
	}
}
