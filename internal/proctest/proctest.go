// Package proctest holds what tests need that start programs: what a program says, what a server
// answers, and waiting for either.
package proctest

import (
	"bytes"
	"io"
	"net/http"
	"sync"
	"testing"
	"time"
)

// Transcript is text that one goroutine writes and others read.
type Transcript struct {
	mu   sync.Mutex
	text bytes.Buffer // guarded by mu
}

// Write implements io.Writer.
func (l *Transcript) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

// String returns what was written so far.
func (l *Transcript) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// Get returns status and body of an answer, or 0 and the error.
func Get(url string) (int, string) {
	resp, err := http.Get(url)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, string(body)
}

// Eventually waits until right reports true. It fails the test after four minutes, with what right
// returned last: a busy machine is no failure.
func Eventually(t *testing.T, what string, right func() (string, bool)) {
	t.Helper()
	deadline := time.After(4 * time.Minute)
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	for {
		got, ok := right()
		if ok {
			return
		}
		select {
		case <-again.C:
		case <-deadline:
			t.Fatalf("%s: %s", what, got)
		}
	}
}
