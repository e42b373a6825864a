package admin_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestHome requires that / leads browsers to the page, and tells programs where things are.
func TestHome(t *testing.T) {
	s := newListener(t)
	f := func(accept string, status int, want string) {
		t.Helper()
		req := httptest.NewRequest("GET", "/", nil)
		if accept != "" {
			req.Header.Set("Accept", accept)
		}
		rec := httptest.NewRecorder()
		s.engine.ServeHTTP(rec, req)
		s.doc.CheckAnswer(t, req, rec)
		if rec.Code != status || !strings.Contains(rec.Header().Get("Location")+rec.Body.String(), want) {
			t.Errorf("%q: %d %q %s", accept, rec.Code, rec.Header().Get("Location"), rec.Body)
		}
	}
	f("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", http.StatusFound, "ui")
	f("*/*", http.StatusOK, `"page":"/ui"`)
	f("", http.StatusOK, `"ready":"/ready"`)
	f("application/json", http.StatusOK, `"name":"conductor"`)
}
