package rpc

import (
	"context"
	"crypto/tls"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"example.com/conductor/conductor/server"
)

// wire is a connection whose messages are bounded while they come:
//
//	client --Read--> frames --> arrival: memory, time --> grpc --tap--> claim
//
// grpc tells of a message once all of it is there, and lets a client send all that its first bytes announce. So a wire reads
// along: it reserves memory for a message when its length has come, before grpc sees the length. If there is none, grpc sees an
// empty message in its place, and the call is refused with what receive returns.
//
// Invariants:
//
//  1. What grpc holds of messages that are not complete, that wait in a stream, or whose calls have not ended, is reserved in
//     the budget, but for the bytes that are free to each call.
//  2. Read ends with the header of a new stream, and grpc asks the tap before it reads on. So the newest arrival is the one
//     that the tap is about.
//
// One goroutine reads; the tap runs on it. Other methods may be called by any.
type wire struct {
	net.Conn
	limits *arrivals
	frames frameScanner // of the reader
	ahead  []byte       // read, and not scanned yet; of the reader
	buffer []byte       // the memory of ahead

	mu       sync.Mutex
	arrivals map[uint32]*arrival // by stream; guarded by mu
	newest   *arrival            // nil once it is claimed; guarded by mu
	data     *arrival            // of the frame under way; guarded by mu
	watch    *time.Timer         // looks for late messages; guarded by mu
	watching bool                // guarded by mu
}

// readAtOnce is how many bytes a wire reads at once. It stands in for grpc's own buffer.
const readAtOnce = 32 << 10

func newWire(c net.Conn, limits *arrivals) *wire {
	w := &wire{Conn: c, limits: limits, arrivals: make(map[uint32]*arrival)}
	w.frames = newFrameScanner(w)
	return w
}

// Read implements net.Conn. It returns no byte behind the header of a new stream.
func (w *wire) Read(p []byte) (n int, err error) {
	if len(w.ahead) == 0 {
		if w.buffer == nil {
			w.buffer = make([]byte, readAtOnce)
		}
		if n, err = w.Conn.Read(w.buffer); n == 0 {
			return 0, err // an error behind bytes comes again
		}
		w.ahead = w.buffer[:n]
	}
	n = w.scan(w.ahead[:min(len(p), len(w.ahead))])
	copy(p, w.ahead[:n])
	w.ahead = w.ahead[n:]
	return n, nil
}

// scan scans bytes up to the header of a new stream, and returns how many these are.
func (w *wire) scan(p []byte) (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.newest != nil { // grpc or the guard has refused it
		delete(w.arrivals, w.newest.stream)
		w.newest = nil
	}
	n = w.frames.scan(p)
	if len(w.arrivals) > 0 && !w.watching && w.limits.patience > 0 {
		w.watching = true
		if w.watch == nil {
			w.watch = time.AfterFunc(w.limits.lookEvery(), w.cutLate)
		} else {
			w.watch.Reset(w.limits.lookEvery())
		}
	}
	return n
}

// cutLate ends the calls whose messages do not come.
func (w *wire) cutLate() {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	for _, a := range w.arrivals {
		if a == w.newest {
			continue // nobody waits for it: the next read forgets it
		}
		switch took := now.Sub(a.since); {
		case took >= w.limits.patience && a.waitsForClient():
			a.cut(reasonLate)
		case took >= 2*w.limits.patience && a.Err() != nil: // grpc may have refused it after the tap
			a.forget()
		}
	}
	if w.watching = len(w.arrivals) > 0; w.watching {
		w.watch.Reset(w.limits.lookEvery())
	}
}

// Close implements net.Conn.
func (w *wire) Close() error {
	w.mu.Lock()
	if w.watch != nil {
		w.watch.Stop()
	}
	w.mu.Unlock()
	return w.Conn.Close()
}

// openStream, beginData, takeData, endStream and resetStream implement frameHandler. w.mu is held.
func (w *wire) openStream(id uint32, ends bool) {
	w.newest = &arrival{on: w, stream: id, ended: ends, since: time.Now()}
	w.arrivals[id] = w.newest
}

func (w *wire) beginData(id uint32) {
	if w.data = w.arrivals[id]; w.data != nil {
		w.data.countFrame()
	}
}

func (w *wire) takeData(stretch []byte) {
	if w.data != nil {
		w.data.take(stretch)
	}
}

func (w *wire) endStream(id uint32) {
	if a := w.arrivals[id]; a != nil {
		a.ended = true
	}
}

func (w *wire) resetStream(id uint32) { w.endStream(id) } // grpc ends the call

// claim returns the context of the call that the tap is about, which a late message ends.
func (w *wire) claim(ctx context.Context, flow string, long bool) (context.Context, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	a := w.newest
	if a == nil {
		return ctx, errNoHeader
	}
	w.newest = nil
	a.flow, a.long = flow, long
	if a.Context = ctx; a.long || !a.ended && !endsStream(w.ahead, a.stream) { // else it cannot be late
		a.Context, a.cancel = context.WithCancel(ctx)
	}
	return a, nil
}

// errNoHeader refuses a call whose header the wire has not seen.
var errNoHeader = status.Error(codes.Internal, "BUG: a call without a header")

// RemoteAddr implements net.Conn.
func (w *wire) RemoteAddr() net.Addr { return wireAddr{w.Conn.RemoteAddr(), w} }

// wireAddr is the address of a client with its wire: grpc hands on no more of a connection.
type wireAddr struct {
	net.Addr
	wire *wire
}

// wiredCredentials wraps the connections of a server, those with TLS once they are plain.
type wiredCredentials struct {
	credentials.TransportCredentials
	limits *arrivals
}

// newCredentials returns the credentials of a server; secured is nil without TLS.
func newCredentials(secured *tls.Config, limits *arrivals) credentials.TransportCredentials {
	if secured == nil {
		return wiredCredentials{insecure.NewCredentials(), limits}
	}
	return wiredCredentials{credentials.NewTLS(secured), limits}
}

// ServerHandshake implements credentials.TransportCredentials.
func (c wiredCredentials) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := c.TransportCredentials.ServerHandshake(raw)
	if err != nil {
		return nil, nil, err
	}
	return newWire(conn, c.limits), info, nil
}

// Clone implements credentials.TransportCredentials.
func (c wiredCredentials) Clone() credentials.TransportCredentials {
	return wiredCredentials{c.TransportCredentials.Clone(), c.limits}
}

// neighbour returns the part of an address that bounds count by.
func neighbour(a net.Addr) string {
	host, _, _ := net.SplitHostPort(a.String())
	return server.Neighbourhood(host)
}
