package server

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gin-gonic/gin"

	"example.com/conductor/internal/must"
)

func appendTo(path string) func() (io.WriteCloser, error) {
	return func() (io.WriteCloser, error) {
		return os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	}
}

func newAccessLog(t *testing.T, opts AccessLogOptions) *AccessLog {
	t.Helper()
	l, err := NewAccessLog(opts)
	must.Succeed(t, err)
	return l
}

func contents(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	must.Succeed(t, err)
	return string(data)
}

// site is a server with an access log and a few routes.
func site(l *AccessLog) *gin.Engine {
	gin.SetMode(gin.ReleaseMode)
	r := gin.New()
	r.HandleMethodNotAllowed = true
	r.Use(func(g *gin.Context) {
		defer func() {
			if recover() != nil {
				g.AbortWithStatus(http.StatusInternalServerError)
			}
		}()
		g.Next()
	})
	r.Use(l.Middleware("X-Trace-ID", "model"))
	r.GET("/health", func(g *gin.Context) { g.Status(http.StatusOK) })
	r.GET("/metrics", func(g *gin.Context) { g.Status(http.StatusOK) })
	r.GET("/panic", func(*gin.Context) { panic("no") })
	r.POST("/query", func(g *gin.Context) {
		g.Set("model", g.Query("model"))
		time.Sleep(1500 * time.Microsecond)
		g.JSON(http.StatusNotFound, gin.H{})
	})
	return r
}

func visit(h http.Handler, method, target string, trace ...string) int {
	r := httptest.NewRequest(method, target, nil)
	if trace != nil {
		r.Header["X-Trace-Id"] = trace
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Code
}

// TestAccessLogLine compares whole lines: keys, their order, times, durations,
// and what stands where there is nothing to say.
func TestAccessLogLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "access.log")
		run := func(zone *time.Location, ask func(http.Handler)) string {
			os.Remove(path)
			l := newAccessLog(t, AccessLogOptions{Open: appendTo(path), Zone: zone})
			ask(site(l))
			if err := l.Close(); err != nil || l.Dropped() != 0 {
				t.Errorf("close: %v, dropped %d", err, l.Dropped())
			}
			return contents(t, path)
		}
		f := func(status int, want, method, target string, trace ...string) {
			t.Helper()
			time.Sleep(time.Until(time.Now().Truncate(time.Minute).Add(time.Minute + 7*time.Millisecond)))
			want = time.Now().UTC().Format("{\"ts\":\"2006-01-02T15:04:05.000Z\",") + want + "\n"
			got := run(nil, func(h http.Handler) {
				if code := visit(h, method, target, trace...); code != status {
					t.Errorf("%s %s: %d", method, target, code)
				}
			})
			if got != want {
				t.Errorf("%s %s\ngot  %swant %s", method, target, got, want)
			}
		}
		f(200, `"trace_id":"abc","method":"GET","path":"/health","model":"-","status":200,"duration_ms":0}`, "GET", "/health", "abc", "def")
		f(200, `"trace_id":"-","method":"GET","path":"/health","model":"-","status":200,"duration_ms":0}`, "GET", "/health?q=1")
		f(200, `"trace_id":"","method":"GET","path":"/health","model":"-","status":200,"duration_ms":0}`, "GET", "/health", "")
		f(200, `"trace_id":"-","method":"GET","path":"/health","model":"-","status":200,"duration_ms":0}`, "GET", "/health", "ä")
		f(200, `"trace_id":"`+strings.Repeat("x", 1024)+`","method":"GET","path":"/health","model":"-","status":200,"duration_ms":0}`,
			"GET", "/health", strings.Repeat("x", 1025))
		f(404, `"trace_id":"-","method":"POST","path":"/query","model":"llama","status":404,"duration_ms":1.5}`, "POST",
			"/query?model=llama")
		f(404, `"trace_id":"-","method":"POST","path":"/query","model":"<a>\"\né","status":404,"duration_ms":1.5}`, "POST",
			"/query?model=%3Ca%3E%22%0A%C3%A9")
		f(404, `"trace_id":"-","method":"GET","path":"unknown","model":"-","status":404,"duration_ms":0}`, "GET", "/query/")
		f(405, `"trace_id":"-","method":"DELETE","path":"/query","model":"-","status":405,"duration_ms":0}`, "DELETE", "/query")
		f(500, `"trace_id":"-","method":"GET","path":"/panic","model":"-","status":500,"duration_ms":0}`, "GET", "/panic")

		if got := run(nil, func(h http.Handler) { visit(h, "GET", "/metrics") }); got != "" {
			t.Errorf("a scrape is logged: %s", got)
		}
		want := time.Now().UTC().Add(-9*time.Hour/2).Format(`{"ts":"2006-01-02T15:04:05.000`) + `-04:30",`
		got := run(time.FixedZone("", -9*3600/2), func(h http.Handler) { visit(h, "GET", "/health") })
		if !strings.HasPrefix(got, want) {
			t.Errorf("local time: %s, want %s", got, want)
		}
		want = time.Now().UTC().Format(`{"ts":"2006-01-02T15:04:05.000`) + `+00:00",`
		if got := run(time.UTC, func(h http.Handler) { visit(h, "GET", "/health") }); !strings.HasPrefix(got, want) {
			t.Errorf("local time in London: %s, want %s", got, want)
		}
	})
}

// TestAccessLogNone holds that a server without an access log is one.
func TestAccessLogNone(t *testing.T) {
	var l *AccessLog
	if code := visit(site(l), "GET", "/health"); code != 200 {
		t.Errorf("%d", code)
	}
	if err := errors.Join(l.Reopen(), l.Close()); err != nil || l.Dropped() != 0 {
		t.Error(err)
	}
	want := errors.New("no such directory")
	if l, err := NewAccessLog(AccessLogOptions{Open: func() (io.WriteCloser, error) { return nil, want }}); l != nil || err != want {
		t.Errorf("%v, %v", l, err)
	}
}

// TestAccessLogDelay holds that a line is in the file within a second, many
// lines at once, and none before its time.
func TestAccessLogDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "access.log")
		l := newAccessLog(t, AccessLogOptions{Open: appendTo(path)})
		defer l.Close()
		for range 3 {
			before := contents(t, path)
			l.appendLine([]byte("a line\n"))
			synctest.Wait()
			if got := contents(t, path); got != before {
				t.Errorf("written at once: %q", got)
			}
			time.Sleep(time.Second)
			synctest.Wait()
			if got := contents(t, path); got != before+"a line\n" {
				t.Errorf("after a second: %q", got)
			}
		}
		lines := strings.Repeat("x", accessChunk/2-1) + "\n"
		l.appendLine([]byte(lines))
		l.appendLine([]byte(lines))
		synctest.Wait()
		if got := contents(t, path); !strings.HasSuffix(got, lines+lines) {
			t.Errorf("a chunk waits: %d bytes are in the file", len(got))
		}
	})
}

// TestAccessLogReopen renames the file under the log, as log rotation does.
func TestAccessLogReopen(t *testing.T) {
	dir := t.TempDir()
	path, old := filepath.Join(dir, "access.log"), filepath.Join(dir, "access.log.1")
	must.Succeed(t, os.WriteFile(path, []byte("before\n"), 0o644))
	broken := errors.New("no more files")
	open := appendTo(path)
	l := newAccessLog(t, AccessLogOptions{Open: func() (io.WriteCloser, error) {
		if open == nil {
			return nil, broken
		}
		return open()
	}})
	l.appendLine([]byte("1\n"))
	must.Succeed(t, os.Rename(path, old))
	open = nil
	if err := l.Reopen(); err != broken {
		t.Errorf("reopen: %v", err)
	}
	l.appendLine([]byte("2\n"))
	open = appendTo(path)
	must.Succeed(t, l.Reopen())
	if got := contents(t, old); got != "before\n1\n2\n" {
		t.Errorf("old file: %q", got)
	}
	l.appendLine([]byte("3\n"))
	must.Report(t, errors.Join(l.Close(), l.Close()))
	if got := contents(t, path); got != "3\n" {
		t.Errorf("new file: %q", got)
	}
	l.appendLine([]byte("4\n"))
	if err := l.Reopen(); err == nil || l.Dropped() != 1 {
		t.Errorf("after Close: %v, dropped %d", err, l.Dropped())
	}
}

// TestAccessLogFullDevice writes to the device that is always full.
func TestAccessLogFullDevice(t *testing.T) {
	if _, err := os.Stat("/dev/full"); err != nil {
		must.Skip(t, "this system has no /dev/full")
	}
	path := "/dev/full"
	var said []error
	l := newAccessLog(t, AccessLogOptions{
		Open:   func() (io.WriteCloser, error) { return os.OpenFile(path, os.O_APPEND|os.O_WRONLY|os.O_CREATE, 0o644) },
		Report: func(err error) { said = append(said, err) },
	})
	h := site(l)
	for range 3 {
		if code := visit(h, "GET", "/health"); code != 200 {
			t.Errorf("request: %d", code)
		}
		if err := l.Reopen(); err != nil { // writes what waits
			t.Error(err)
		}
	}
	if l.Dropped() != 3 {
		t.Errorf("dropped %d, want 3", l.Dropped())
	}
	path = filepath.Join(t.TempDir(), "access.log")
	must.Succeed(t, l.Reopen())
	visit(h, "GET", "/health")
	if err := l.Close(); err != nil || strings.Count(contents(t, path), "\n") != 1 {
		t.Errorf("%v, %q", err, contents(t, path))
	}
	if len(said) != 2 || said[0] == nil || said[1] != nil {
		t.Errorf("reported %v, want one error and its end", said)
	}
}

// small is a file with room for some bytes.
type small struct {
	data []byte
	room int
}

func (s *small) Close() error { return nil }
func (s *small) Write(p []byte) (int, error) {
	n := min(len(p), s.room-len(s.data))
	s.data = append(s.data, p[:n]...)
	if n < len(p) {
		return n, errors.New("no space left")
	}
	return n, nil
}

// TestAccessLogTornLine holds that a line the disk took half of does not spoil
// the next one.
func TestAccessLogTornLine(t *testing.T) {
	f := func(room int, want string, dropped uint64) {
		t.Helper()
		file := &small{room: room}
		l := newAccessLog(t, AccessLogOptions{Open: func() (io.WriteCloser, error) { return file, nil }})
		l.appendLine([]byte("first\nsecond\nthird\n"))
		l.out.Lock()
		l.writeLines()
		file.room = 1000
		l.appendLine([]byte("fourth\n"))
		l.writeLines()
		l.out.Unlock()
		l.Close()
		if got := string(file.data); got != want || l.Dropped() != dropped {
			t.Errorf("room for %d: %q, dropped %d", room, got, l.Dropped())
		}
	}
	f(0, "fourth\n", 3)
	f(6, "first\nfourth\n", 2)
	f(8, "first\nse\nfourth\n", 2)
	f(18, "first\nsecond\nthird\nfourth\n", 1)
	f(19, "first\nsecond\nthird\nfourth\n", 0)
}

// stuck is a file that blocks every write until its release.
type stuck struct {
	small
	free chan struct{}
}

func (s *stuck) Write(p []byte) (int, error) {
	<-s.free
	return s.small.Write(p)
}

// TestAccessLogStuckDisk holds that requests go on while the disk hangs, and
// that what waits is bounded.
func TestAccessLogStuckDisk(t *testing.T) {
	file := &stuck{small{room: 1 << 40}, make(chan struct{})}
	l := newAccessLog(t, AccessLogOptions{Open: func() (io.WriteCloser, error) { return file, nil }})
	h := site(l)
	trace := strings.Repeat("x", accessText)
	const requests = 3 * accessPending / accessText
	for range requests {
		visit(h, "GET", "/health", trace)
	}
	l.mu.Lock()
	waiting := len(l.pending)
	l.mu.Unlock()
	if waiting > accessPending || waiting < accessPending/2 || l.Dropped() == 0 {
		t.Errorf("%d bytes wait, %d lines dropped", waiting, l.Dropped())
	}
	close(file.free)
	l.Close()
	if lines := strings.Count(string(file.data), "\n"); uint64(lines)+l.Dropped() != requests {
		t.Errorf("%d lines and %d dropped are not %d requests", lines, l.Dropped(), requests)
	}
}

// TestAccessLogRotation logs from many sides while the file is renamed again and
// again; every line ends up whole, in exactly one file.
func TestAccessLogRotation(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "access.log")
	l := newAccessLog(t, AccessLogOptions{Open: appendTo(path)})
	h := site(l)
	const writers, each = 8, 200
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for i := range each {
				visit(h, "GET", "/health", fmt.Sprintf("%d.%d", w, i))
			}
		})
	}
	for i := range 20 {
		must.Report(t, os.Rename(path, fmt.Sprintf("%s.%d", path, i)))
		must.Report(t, l.Reopen())
	}
	wg.Wait()
	l.Close()
	seen := map[string]int{}
	files, err := filepath.Glob(path + "*")
	if err != nil || len(files) != 21 {
		t.Fatal(files, err)
	}
	for _, name := range files {
		for line := range strings.Lines(contents(t, name)) {
			var one struct {
				TraceID string `json:"trace_id"`
			}
			if err := json.Unmarshal([]byte(line), &one); err != nil {
				t.Fatalf("%s: %q: %v", name, line, err)
			}
			seen[one.TraceID]++
		}
	}
	for w := range writers {
		for i := range each {
			if id := fmt.Sprintf("%d.%d", w, i); seen[id] != 1 {
				t.Errorf("%s is there %d times", id, seen[id])
			}
		}
	}
	if l.Dropped() != 0 || len(seen) != writers*each {
		t.Errorf("dropped %d, %d lines", l.Dropped(), len(seen))
	}
}
