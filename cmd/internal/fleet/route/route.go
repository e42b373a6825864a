// Package route is a TCP route between a publisher and its readers that can be
// disturbed: cut, held up, pointed elsewhere, or made to spoil replays. The route does
// not parse the bytes that pass.
package route

import (
	"net"
	"sync"
	"time"
)

// Spoil says what becomes of a new connection.
type Spoil struct {
	After   int  // bytes from the publisher that pass before the connection is cut; 0 is all
	Swallow bool // nothing reaches the publisher
}

// Route listens on a port of its own and carries connections to a target. All
// methods are safe for concurrent use.
type Route struct {
	listener net.Listener
	tasks    sync.WaitGroup

	mu     sync.Mutex
	target string
	held   time.Time // nothing passes until then
	spoil  func() Spoil
	open   map[net.Conn]bool
	closed bool
}

// Open begins a route to a target, host:port.
func Open(target string) (*Route, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	r := &Route{listener: l, target: target, open: make(map[net.Conn]bool)}
	r.tasks.Go(r.accept)
	return r, nil
}

// Addr is where readers connect to, host:port.
func (r *Route) Addr() string { return r.listener.Addr().String() }

// Cut ends every connection.
func (r *Route) Cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for c := range r.open {
		c.Close()
	}
}

// Turn cuts and lets new connections go to another target.
func (r *Route) Turn(target string) {
	r.mu.Lock()
	r.target = target
	r.mu.Unlock()
	r.Cut()
}

// Hold lets nothing pass for a while; it arrives afterwards.
func (r *Route) Hold(d time.Duration) {
	r.mu.Lock()
	r.held = time.Now().Add(d)
	r.mu.Unlock()
}

// Spoil asks f about each new connection, nil about none.
func (r *Route) Spoil(f func() Spoil) {
	r.mu.Lock()
	r.spoil = f
	r.mu.Unlock()
}

// Close ends the route and waits for its goroutines.
func (r *Route) Close() {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	r.listener.Close()
	r.Cut()
	r.tasks.Wait()
}

func (r *Route) accept() {
	for {
		c, err := r.listener.Accept()
		if err != nil {
			return
		}
		r.tasks.Go(func() { r.carry(c) })
	}
}

// enter registers a connection; false once the route is closed.
func (r *Route) enter(c net.Conn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.closed {
		r.open[c] = true
	}
	return !r.closed
}

func (r *Route) leave(c net.Conn) {
	r.mu.Lock()
	delete(r.open, c)
	r.mu.Unlock()
	c.Close()
}

// carry takes one connection both ways until either side ends it.
func (r *Route) carry(reader net.Conn) {
	defer r.leave(reader)
	if !r.enter(reader) {
		return
	}
	r.mu.Lock()
	target, spoil := r.target, Spoil{}
	if r.spoil != nil {
		spoil = r.spoil()
	}
	r.mu.Unlock()
	publisher, err := net.Dial("tcp", target)
	if err != nil {
		return
	}
	defer r.leave(publisher)
	if !r.enter(publisher) {
		return
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.pump(publisher, reader, 0, spoil.Swallow)
		publisher.Close()
	}()
	r.pump(reader, publisher, spoil.After, false)
	reader.Close()
	publisher.Close()
	<-done
}

// pump copies until an end, or until limit bytes have passed if that is set.
func (r *Route) pump(dst, src net.Conn, limit int, swallow bool) {
	buf := make([]byte, 32<<10)
	for passed := 0; ; {
		n, err := src.Read(buf)
		if err != nil {
			return
		}
		r.mu.Lock()
		held := time.Until(r.held)
		r.mu.Unlock()
		if held > 0 {
			<-time.After(held)
		}
		if swallow {
			continue
		}
		if limit > 0 {
			n = min(n, limit-passed)
		}
		if _, err := dst.Write(buf[:n]); err != nil {
			return
		}
		if passed += n; limit > 0 && passed >= limit {
			return
		}
	}
}
