package access

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
)

// TestOnlyLocalNames holds which names a listener without credentials answers to.
func TestOnlyLocalNames(t *testing.T) {
	h := OnlyLocalNames(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	f := func(reached, host string, secured bool, want int) {
		t.Helper()
		at := &net.TCPAddr{IP: net.ParseIP(reached), Port: 1}
		r := httptest.NewRequestWithContext(context.WithValue(t.Context(), http.LocalAddrContextKey, at), http.MethodGet, "/", nil)
		if r.Host = host; secured {
			r.TLS = new(tls.ConnectionState)
		}
		w := httptest.NewRecorder()
		if h.ServeHTTP(w, r); w.Code != want {
			t.Errorf("%q at %s: %d %s, want %d", host, reached, w.Code, w.Body, want)
		}
	}
	for _, local := range []string{"localhost", "LOCALHOST.:1", "127.0.0.1:1", "127.1.2.3", "[::1]:1", ""} {
		f("127.0.0.1", local, false, http.StatusOK)
	}
	for _, foreign := range []string{"evil.example", "evil.example:1", "localhost.evil.example", "10.0.0.1", "x@localhost", "0.0.0.0"} {
		f("127.0.0.1", foreign, false, http.StatusForbidden)
		f("::1", foreign, false, http.StatusForbidden)
		f("127.0.0.1", foreign, true, http.StatusOK)
		f("10.0.0.2", foreign, false, http.StatusOK)
	}
}
