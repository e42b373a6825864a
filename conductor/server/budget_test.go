package server

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/gin-gonic/gin"
)

// TestUnfinishedBodiesHoldNoDecoder sends the start of a body whose window is 8 MiB: it gets no decoder, which takes so much,
// before the end, and gives it back behind it.
func TestUnfinishedBodiesHoldNoDecoder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		budget := NewBudget(1 << 20)
		router := gin.New()
		var sent *codedBody
		router.POST("/", Decoded(1<<20), budget.Bound, func(g *gin.Context) {
			sent = g.Request.Body.(*exchange).sent.(*codedBody)
			text, err := io.ReadAll(g.Request.Body)
			if err != nil || len(text) != 100_000 || sent.coding != nil {
				t.Errorf("%d bytes, %v, with a decoder: %t", len(text), err, sent.coding != nil)
			}
		})
		start := []byte("\x28\xb5\x2f\xfd\x00\x68" + "\x82\x1a\x06 ") // and a block of 50,000 spaces
		r, w := io.Pipe()
		request := httptest.NewRequest(http.MethodPost, "/", r)
		request.Header.Set("Content-Encoding", "zstd")
		ended := make(chan bool)
		go func() { router.ServeHTTP(httptest.NewRecorder(), request); close(ended) }()
		w.Write(start)
		if synctest.Wait(); sent.coding != nil {
			t.Error("a body that is not there has a decoder")
		}
		if n := budget.bytes.Stats().Used; n < unfinished {
			t.Errorf("it reserves %d bytes", n)
		}
		w.Write([]byte("\x83\x1a\x06 ")) // the last block
		w.Close()
		<-ended
	})
}

// TestUnfinishedBodiesCount sends small bodies that do not end, until there is no memory for a further one. Bodies that have
// arrived whole cost nothing, and make room.
func TestUnfinishedBodiesCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const most = 1 << 20
		budget := NewBudget(most)
		answer := make(chan struct{})
		release := sync.OnceFunc(func() { close(answer) })
		defer release()
		router := gin.New()
		router.POST("/", budget.Bound, func(g *gin.Context) {
			if _, err := io.ReadAll(g.Request.Body); err != nil {
				g.Status(http.StatusServiceUnavailable)
				return
			}
			<-answer
		})
		var last *httptest.ResponseRecorder
		send := func(body io.Reader) (status func() int) {
			w := httptest.NewRecorder()
			w.Code, last = 0, w
			go router.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/", body))
			synctest.Wait()
			return func() int { synctest.Wait(); return w.Code }
		}
		used := func() int64 { return budget.bytes.Stats().Used }

		var open []*io.PipeWriter
		for {
			r, w := io.Pipe()
			defer r.Close()
			status := send(r)
			go w.Write(make([]byte, 4000))
			if status() != 0 {
				break
			}
			if open = append(open, w); len(open) > most/unfinished {
				t.Fatalf("%d bodies of 4,000 bytes are unfinished, and %d bytes are reserved", len(open), used())
			}
		}
		if n := int64(len(open)); n < 4 || used() < n*unfinished || used() > most/2 || budget.Refused() != 1 {
			t.Errorf("%d unfinished bodies reserve %d bytes, %d refused", n, used(), budget.Refused())
		}
		if last.Header().Get("Connection") != "close" {
			t.Error("net/http waits for the rest of a body that is refused")
		}
		for _, w := range open {
			w.Close()
		}
		if synctest.Wait(); used() != 0 { // though none is answered
			t.Errorf("bodies that are there reserve %d bytes", used())
		}
		whole := send(strings.NewReader("whole"))
		release()
		if whole() != http.StatusOK || used() != 0 {
			t.Errorf("a whole body: %d, and %d bytes are reserved at the end", whole(), used())
		}
	})
}
