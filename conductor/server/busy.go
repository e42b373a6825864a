package server

import (
	"context"
	"net"
	"net/http"
	"sync"
	"time"
)

// busy knows the connections that have a request, or have not had one yet.
type busy struct {
	mu    sync.Mutex
	conns map[net.Conn]struct{} // guarded by mu
}

// note is the ConnState of a server.
func (b *busy) note(c net.Conn, state http.ConnState) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.conns == nil {
		b.conns = make(map[net.Conn]struct{})
	}
	if state == http.StateNew || state == http.StateActive {
		b.conns[c] = struct{}{}
	} else {
		delete(b.conns, c)
	}
}

// wait waits until there are none, for a duration at most.
func (b *busy) wait(ctx context.Context, most time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	pace := time.NewTicker(5 * time.Millisecond)
	defer pace.Stop()
	for {
		b.mu.Lock()
		n := len(b.conns)
		b.mu.Unlock()
		if n == 0 {
			return
		}
		select {
		case <-pace.C:
		case <-ctx.Done():
			return
		}
	}
}
