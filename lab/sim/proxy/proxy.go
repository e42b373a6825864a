// Package proxy is a TCP proxy between a publisher and its readers that can be
// disturbed: cut, held up, pointed elsewhere, or made to spoil replays. The proxy does
// not parse the bytes that pass.
package proxy

import (
	"maps"
	"net"
	"sync"
	"time"
)

// Spoil is the fate of a new connection.
type Spoil struct {
	After   int  // bytes from the publisher that pass before the connection is cut; 0 is all
	Swallow bool // nothing reaches the publisher
}

// Proxy listens on a port of its own and carries connections to a target. All
// methods are safe for concurrent use.
type Proxy struct {
	listener net.Listener
	tasks    sync.WaitGroup

	mu     sync.Mutex
	target string
	held   time.Time     // nothing passes until then
	moved  chan struct{} // closed when held changes
	spoil  func() Spoil
	barred func(reader net.Conn) bool // nil for none
	bars   uint64                     // calls of Bar
	open   map[net.Conn]bool          // true for a reader's, false for the publisher's
	closed bool
}

// Open begins a proxy to a target, host:port.
func Open(target string) (*Proxy, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &Proxy{listener: l, target: target, open: make(map[net.Conn]bool), moved: make(chan struct{})}
	p.tasks.Go(p.accept)
	return p, nil
}

// Addr is where readers connect to, host:port.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Cut ends every connection.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.open {
		c.Close()
	}
}

// Turn cuts and lets new connections go to another target.
func (p *Proxy) Turn(target string) {
	p.mu.Lock()
	p.target = target
	p.mu.Unlock()
	p.Cut()
}

// Bar cuts the connections of the readers that f names, and refuses new ones of them; nil names none.
// What passes does not wait for f.
func (p *Proxy) Bar(f func(reader net.Conn) bool) {
	p.mu.Lock()
	p.barred = f
	p.bars++
	open := maps.Clone(p.open)
	p.mu.Unlock()
	for c, reads := range open {
		if f != nil && reads && f(c) {
			c.Close()
		}
	}
}

// Hold lets nothing pass for a while from now on; it arrives afterwards. Another call moves
// the end, also for what waits.
func (p *Proxy) Hold(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.held = time.Now().Add(d)
	close(p.moved)
	p.moved = make(chan struct{})
}

// await returns once nothing is held.
func (p *Proxy) await() {
	for {
		p.mu.Lock()
		left, moved := time.Until(p.held), p.moved
		p.mu.Unlock()
		if left <= 0 {
			return
		}
		select {
		case <-time.After(left):
		case <-moved:
		}
	}
}

// Spoil asks f about each new connection, nil about none.
func (p *Proxy) Spoil(f func() Spoil) {
	p.mu.Lock()
	p.spoil = f
	p.mu.Unlock()
}

// Close ends the proxy and waits for its goroutines.
func (p *Proxy) Close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.listener.Close()
	p.Hold(0)
	p.Cut()
	p.tasks.Wait()
}

func (p *Proxy) accept() {
	for {
		c, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.tasks.Go(func() { p.carry(c) })
	}
}

// enter registers a connection; false for a barred reader, and once the proxy is closed.
func (p *Proxy) enter(c net.Conn, reads bool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for allowed := uint64(0); reads && p.barred != nil && allowed != p.bars; {
		f, n := p.barred, p.bars
		p.mu.Unlock()
		barred := f(c)
		p.mu.Lock()
		if barred {
			return false
		}
		allowed = n
	}
	if !p.closed {
		p.open[c] = reads
	}
	return !p.closed
}

func (p *Proxy) leave(c net.Conn) {
	p.mu.Lock()
	delete(p.open, c)
	p.mu.Unlock()
	c.Close()
}

// carry takes one connection both ways until either side ends it.
func (p *Proxy) carry(reader net.Conn) {
	defer p.leave(reader)
	if !p.enter(reader, true) {
		return
	}
	p.mu.Lock()
	target, spoil := p.target, Spoil{}
	if p.spoil != nil {
		spoil = p.spoil()
	}
	p.mu.Unlock()
	publisher, err := net.Dial("tcp", target)
	if err != nil {
		return
	}
	defer p.leave(publisher)
	if !p.enter(publisher, false) {
		return
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.pump(publisher, reader, 0, spoil.Swallow)
		publisher.Close()
	}()
	p.pump(reader, publisher, spoil.After, false)
	reader.Close()
	publisher.Close()
	<-done
}

// pump copies until an end, or until limit bytes have passed if that is set.
func (p *Proxy) pump(dst, src net.Conn, limit int, swallow bool) {
	buf := make([]byte, 32<<10)
	for passed := 0; ; {
		n, err := src.Read(buf)
		if err != nil {
			return
		}
		p.await()
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
