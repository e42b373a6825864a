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

	"example.com/conductor/conductor/body"
	"example.com/conductor/conductor/server"
)

// wire is a connection whose messages are bounded while they come:
//
//	client --Read--> frames --> arrival: memory, time --> grpc --tap--> claim
//	client <--Write-- ends of answers <-- grpc
//
// grpc tells of a message once all of it is there, and lets a client send all that its first bytes announce. So a wire reads
// along: it reserves memory for a message when its length has come, before grpc sees the length. If there is none, grpc sees an
// empty message in its place, and the call is refused with what receive returns.
//
// grpc keeps an answer until its client gives a window for it, which may be long after it has told of the end of the call. So
// the wire also looks for the ends of streams in what grpc writes.
//
// Invariants:
//
//  1. An arrival is a call that grpc counts among the streams of the connection, until it has ended and the end of its answer is
//     written, or the newest header. Read ends with the header of a new stream, and grpc decides about it before it reads on: it
//     asks the tap, and for the end of the context, Done, of a call that it takes on. What it did not take on is forgotten with
//     the next read.
//  2. grpc gets data only for an arrival that has memory for it. Data of a call that has ended, was refused, or has more to say
//     than it may goes to noStream, even if grpc still has the stream because its client does not read.
//  3. What an arrival has reserved is the sum of its messages that wait, and changes by the message that comes or goes: no other
//     client can take what it holds. A call whose client has not sent all of it counts besides; 32 KiB of each other call are free.
//     Each call counts once more, as long as it is an arrival.
//  4. A call that the server may have to end has a cancel: it waits for its client to send, or to read.
//
// One goroutine reads; the tap runs on it. Another one writes. Other methods may be called by any.
type wire struct {
	net.Conn
	limits *arrivals
	frames frameScanner // of the reader
	buffer []byte       // the memory of scanned and ahead; of the reader
	// Read from the client: scanned is what grpc gets next, ahead is what comes behind it. Of the reader.
	scanned, ahead []byte
	failed         error // of the last read; of the reader

	written endScanner // of the writer

	mu       sync.Mutex
	arrivals map[uint32]*arrival // by stream; guarded by mu
	newest   *arrival            // whose header the last read ended with, nil for none; guarded by mu
	watch    *time.Timer         // looks for late messages; guarded by mu
	watching bool                // guarded by mu
}

// How many bytes a wire reads at once, at least a frame. It begins with readAtFirst, as much as grpc's own buffer would have. A
// connection that fills this with one read has larger messages, such as a query of 8,192 tokens with its 33 KB, and gets readLater.
const (
	readAtFirst = 32 << 10
	readLater   = 64 << 10
)

func newWire(c net.Conn, limits *arrivals) *wire {
	w := &wire{Conn: c, limits: limits, arrivals: make(map[uint32]*arrival)}
	w.frames.handler = w
	return w
}

// Read implements net.Conn. It returns whole frames, or parts of them if p is short, and none behind the header of a new stream.
func (w *wire) Read(p []byte) (int, error) {
	for len(w.scanned) == 0 {
		if n := w.scan(); n > 0 {
			w.scanned, w.ahead = w.ahead[:n], w.ahead[n:]
		} else if w.failed == nil {
			w.readAhead()
		} else if len(w.ahead) > 0 {
			w.scanned, w.ahead = w.ahead, nil // less than a frame
		} else {
			return 0, w.failed
		}
	}
	n := copy(p, w.scanned)
	w.scanned = w.scanned[n:]
	return n, nil
}

// Write implements net.Conn. What grpc writes it keeps in one buffer of the connection, and no longer by stream.
func (w *wire) Write(p []byte) (int, error) {
	for stream, rest := w.written.next(p); stream != 0; stream, rest = w.written.next(rest) {
		w.mu.Lock()
		w.endAnswer(stream)
		w.mu.Unlock()
	}
	return w.Conn.Write(p)
}

// endAnswer tells that grpc keeps nothing more of the answer to a call. w.mu is held.
func (w *wire) endAnswer(stream uint32) {
	if a := w.arrivals[stream]; a != nil {
		a.answered = true
		a.forgetOver()
	}
}

// readAhead reads what comes behind the part of a frame that is there. ahead without further room shows that the last read filled the
// buffer.
func (w *wire) readAhead() {
	if filled := len(w.ahead) == cap(w.ahead); w.buffer == nil {
		w.buffer = make([]byte, readAtFirst)
	} else if filled && len(w.buffer) < readLater {
		w.buffer = make([]byte, readLater)
	}
	have := copy(w.buffer, w.ahead)
	n, err := w.Conn.Read(w.buffer[have:])
	w.ahead = w.buffer[:have+n]
	if n == 0 { // an error behind bytes comes again
		w.failed = err
	}
}

// scan scans the frames ahead, up to the header of a new stream, and returns how many bytes these are.
func (w *wire) scan() (n int) {
	if len(w.ahead) == 0 {
		return 0
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if a := w.newest; a != nil && !a.counted.Load() { // grpc or the guard has refused it
		a.forget()
	}
	w.newest = nil
	for n < len(w.ahead) {
		length, opened := w.frames.next(w.ahead[n:])
		n += length
		if length == 0 || opened {
			break
		}
	}
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

// cutLate ends the calls whose messages do not come. A call without a cancel waits for nobody: its message came with its header.
func (w *wire) cutLate() {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	for _, a := range w.arrivals {
		if a.cancel != nil && now.Sub(a.since) >= w.limits.patience && a.waitsForClient() {
			a.cut(reasonLate)
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
	for stream, a := range w.arrivals {
		if w.endAnswer(stream); !a.counted.Load() {
			a.forget()
		}
	}
	w.mu.Unlock()
	return w.Conn.Close()
}

// openStream, takeData, endStream and dropStream implement frameHandler. w.mu is held.
func (w *wire) openStream(id uint32, ends bool) {
	w.newest = &arrival{on: w, stream: id, ended: ends}
	w.newest.waiting = w.newest.first[:0]
	w.arrivals[id] = w.newest
}

func (w *wire) takeData(id uint32, data []byte, ends bool) (pass bool) {
	a := w.arrivals[id]
	return a != nil && a.takeFrame(data, ends)
}

func (w *wire) endStream(id uint32) {
	if a := w.arrivals[id]; a != nil {
		a.end()
	}
}

func (w *wire) dropStream(id uint32) {
	w.endStream(id)
	w.endAnswer(id) // grpc ends the call, and sends nothing more
}

// claim returns the context of the call that the tap is about.
func (w *wire) claim(ctx context.Context, flow string, kind methodKind) (context.Context, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	a := w.newest
	if a == nil || a.Context != nil {
		return ctx, errNoHeader
	}
	memory, answer := w.limits.budget.NewHold(flow), w.limits.budget.NewHold(flow)
	waits := !a.ended && !endsStream(w.ahead, a.stream)
	if answer.Await() != nil || waits && !kind.long && memory.Await() != nil { // long calls are few
		answer.Free()
		w.limits.refused.WithLabelValues(reasonMemory).Inc()
		return ctx, statusOf(body.ErrMemory)
	}
	a.kind, a.flow, a.memory, a.answer = kind, flow, memory, answer
	if a.Context = ctx; kind.stream || waits { // else nobody waits for its client
		a.Context, a.cancel = context.WithCancel(ctx)
		a.since = time.Now()
	}
	return a, nil
}

// errNoHeader refuses a call whose header the wire has not seen.
var errNoHeader = status.Error(codes.Internal, "BUG: a call without a header")

// RemoteAddr implements net.Conn. grpc asks for it once for a connection.
func (w *wire) RemoteAddr() net.Addr {
	a := w.Conn.RemoteAddr()
	text := a.String()
	return wireAddr{a, w, text, neighbour(text)}
}

// wireAddr is the address of a client with its wire: grpc hands on no more of a connection.
type wireAddr struct {
	net.Addr
	wire      *wire
	text      string // made once for all calls
	neighbour string // the part that bounds count by
}

// String implements net.Addr.
func (a wireAddr) String() string { return a.text }

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
func neighbour(address string) string {
	host, _, _ := net.SplitHostPort(address)
	return server.Neighbourhood(host)
}
