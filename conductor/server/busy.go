package server

import (
	"context"
	"hash/maphash"
	"net"
	"net/http"
	"sync"
	"time"
)

// busy knows the connections that have a request, or have not had one yet. The server calls noteState twice a request, so
// connections are spread over parts with locks of their own.
type busy struct {
	seed  maphash.Seed
	parts [32]busyPart
}

type busyPart struct {
	mu    sync.Mutex
	conns map[net.Conn]struct{} // guarded by mu
	_     [48]byte              // the next part is on a cache line of its own
}

func newBusy() *busy {
	b := &busy{seed: maphash.MakeSeed()}
	for i := range b.parts {
		b.parts[i].conns = make(map[net.Conn]struct{})
	}
	return b
}

// noteState is the ConnState of a server.
func (b *busy) noteState(c net.Conn, state http.ConnState) {
	p := &b.parts[maphash.Comparable(b.seed, c)%uint64(len(b.parts))]
	p.mu.Lock()
	defer p.mu.Unlock()
	if state == http.StateNew || state == http.StateActive {
		p.conns[c] = struct{}{}
	} else {
		delete(p.conns, c)
	}
}

// isEmpty reports whether there are no such connections.
func (b *busy) isEmpty() bool {
	for i := range b.parts {
		p := &b.parts[i]
		p.mu.Lock()
		n := len(p.conns)
		p.mu.Unlock()
		if n > 0 {
			return false
		}
	}
	return true
}

// awaitEmpty waits until there are no such connections, but not longer than a duration.
func (b *busy) awaitEmpty(ctx context.Context, most time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	pace := time.NewTicker(5 * time.Millisecond)
	defer pace.Stop()
	for !b.isEmpty() {
		select {
		case <-pace.C:
		case <-ctx.Done():
			return
		}
	}
}
