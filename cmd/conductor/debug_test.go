package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"example.com/conductor/internal/must"
)

// TestProfiles takes profiles as go tool pprof does. Only one of a kind is taken at a time, and one
// whose client goes away ends.
func TestProfiles(t *testing.T) {
	t.Parallel()
	p := serveProcess(t, "")
	for _, path := range []string{"heap", "goroutine", "allocs", "profile?seconds=1", "conductor"} {
		resp, err := http.Get(p.url + "/debug/pprof/" + path)
		must.Succeed(t, err)
		answer, err := io.ReadAll(resp.Body)
		must.Succeed(t, err)
		resp.Body.Close()
		switch packed := strings.HasPrefix(string(answer), "\x1f\x8b"); {
		case path == "conductor" && resp.StatusCode != http.StatusNotFound:
			t.Errorf("a profile that is not there: %d", resp.StatusCode)
		case path != "conductor" && (resp.StatusCode != http.StatusOK || !packed):
			t.Errorf("%s: %d %.100q", path, resp.StatusCode, answer)
		}
	}
	if status, answer := get(p.url + "/debug/pprof/goroutine?debug=1"); status != http.StatusOK ||
		!strings.Contains(answer, "goroutine profile: total") {
		t.Errorf("%d %.100s", status, answer)
	}
	for _, bad := range []string{"profile?seconds=0", "profile?seconds=61", "trace?seconds=x", "heap?debug=3"} {
		if status, answer := get(p.url + "/debug/pprof/" + bad); status != http.StatusBadRequest || !strings.Contains(answer, `"field":"`) {
			t.Errorf("%s: %d %s", bad, status, answer)
		}
	}
	ctx, leave := context.WithCancel(t.Context())
	left := make(chan struct{})
	go func() {
		defer close(left)
		for ctx.Err() == nil {
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url+"/debug/pprof/trace?seconds=60", nil)
			must.Report(t, err)
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				return
			}
			resp.Body.Close()
			if resp.StatusCode != http.StatusServiceUnavailable { // one of those below was there first
				t.Errorf("a trace of a minute ends: %d", resp.StatusCode)
				return
			}
		}
	}()
	trace := func() (int, string) { return get(p.url + "/debug/pprof/trace?seconds=1") }
	eventually(t, "two traces are taken side by side", func() (string, bool) {
		status, answer := trace()
		return fmt.Sprint(status), status == http.StatusServiceUnavailable && strings.Contains(answer, `"busy"`)
	})
	leave()
	<-left
	eventually(t, "the trace goes on without its client", func() (string, bool) {
		status, _ := trace()
		return fmt.Sprint(status), status == http.StatusOK
	})
}
