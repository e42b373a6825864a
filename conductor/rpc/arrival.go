package rpc

import (
	"context"
	"encoding/binary"
	"errors"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/proto"

	"example.com/conductor/conductor/server"
)

// arrivals bounds the messages that come over the connections of a server.
type arrivals struct {
	budget   *server.Budget
	most     int64         // bytes of a message
	patience time.Duration // time for a message, 0 for any
	refused  *prometheus.CounterVec
}

// Why a message is not waited for, or not taken.
const (
	reasonMemory = "memory" // there is none for it
	reasonLate   = "late"   // it takes longer than the patience
	reasonCrumbs = "crumbs" // it comes in so small frames that they take more memory than it
	reasonUnread = "unread" // the client does not take those of the server
)

// lookEvery is the pause between two looks for late messages.
func (l *arrivals) lookEvery() time.Duration { return max(l.patience/4, time.Millisecond) }

const (
	prefixLength = 5 // of a message: whether it is compressed, and its length
	// mostPacked is how many bytes a compressed one may become.
	mostPacked = 1032
	// A message may come in so many frames, and in one more for so many of its bytes. Each costs grpc some 100 bytes.
	freeFrames    = 64
	bytesPerFrame = 256
)

// arrival is the messages of one call, as they come, and the context of the call from its claim on. wire.mu guards what its
// methods change, unless they say otherwise.
type arrival struct {
	context.Context
	on     *wire
	stream uint32
	flow   string
	long   bool               // the client may send several messages, whenever it likes
	cancel context.CancelFunc // nil if all of the call was there at once
	late   atomic.Bool        // cut has ended the call

	since   time.Time // the call began, or the message under way
	prefix  [prefixLength]byte
	have    int    // bytes of it
	left    uint32 // bytes of the message
	size    uint32 // of the message, in all
	frames  int    // of the message under way
	ended   bool   // nothing more comes
	ignored bool   // what more comes
	got     bool   // a message, in all or in part
	packed  bool   // the message that came last is compressed
	refusal error  // why the message that came last was not taken
	held    func() // gives back what is reserved; nil for nothing
	// Of a long call: the bytes of the messages that its handler has not received yet, the oldest first, and their sum.
	waiting []uint32
	bytes   int64
}

// waitsForClient reports whether the call cannot go on before its client sends more.
func (a *arrival) waitsForClient() bool {
	return !a.ended && !a.ignored && (!a.long || a.have > 0 || a.left > 0)
}

// take reads along in the messages of the call.
func (a *arrival) take(p []byte) {
	for len(p) > 0 && !a.ignored {
		if a.left > 0 {
			n := min(uint32(len(p)), a.left)
			a.left -= n
			p = p[n:]
			continue
		}
		if a.have == 0 && a.long {
			a.since, a.frames = time.Now(), 1
		}
		n := copy(a.prefix[a.have:], p)
		if a.have += n; a.have < prefixLength {
			return
		}
		a.have = 0
		a.takePrefix(p[:n])
		p = p[n:]
	}
}

// takePrefix reserves memory for a message whose prefix is complete. rest is the part of the prefix that grpc has not seen.
func (a *arrival) takePrefix(rest []byte) {
	if a.got && !a.long || a.Err() != nil {
		a.refuse(errMessages, rest)
		return
	}
	a.got = true
	a.size = binary.BigEndian.Uint32(a.prefix[1:])
	a.packed = a.prefix[0] != 0
	a.bytes += int64(a.size)
	if a.long {
		a.waiting = append(a.waiting, a.size)
		a.bytes += prefixLength
	}
	bytes := a.bytes
	if int64(a.size) > a.on.limits.most {
		a.ignored = true // grpc refuses it
		return
	}
	if a.packed {
		bytes += min(int64(a.size)*mostPacked, a.on.limits.most)
	}
	if err := a.reserve(bytes); err != nil {
		a.on.limits.refused.WithLabelValues(reasonMemory).Inc()
		a.refuse(err, rest)
		return
	}
	a.left = a.size
}

// refuse makes the message under way an empty one.
func (a *arrival) refuse(why error, rest []byte) {
	a.refusal, a.ignored = why, true
	if len(rest) < prefixLength { // grpc has a part of the length, and would wait for the message
		a.end(why)
	}
	clear(rest)
}

// reserve reserves memory for all messages of the call, in place of what was reserved before.
func (a *arrival) reserve(bytes int64) (err error) {
	a.release()
	a.held, err = a.on.limits.budget.Reserve(a.flow, bytes)
	return err
}

// release gives memory back.
func (a *arrival) release() {
	if a.held != nil {
		a.held()
		a.held = nil
	}
}

// countFrame counts a frame of data.
func (a *arrival) countFrame() {
	if a.frames++; a.frames > freeFrames && !a.ignored && a.frames-freeFrames > int(a.size-a.left)/bytesPerFrame+1 {
		a.cut(reasonCrumbs)
	}
}

// cut ends a call for what its client does.
func (a *arrival) cut(reason string) {
	a.on.limits.refused.WithLabelValues(reason).Inc()
	a.end(context.DeadlineExceeded)
}

// end ends a call whose message does not come.
func (a *arrival) end(why error) {
	a.refusal, a.ignored = why, true
	a.late.Store(true)
	if a.cancel != nil {
		a.cancel()
	}
}

// received returns why a message that the handler has received was not taken, nil if it was, and whether the client has
// nothing more to send. It may be called by any goroutine.
func (a *arrival) received(m proto.Message) (ended bool, err error) {
	a.on.mu.Lock()
	defer a.on.mu.Unlock()
	switch {
	case a.long && (len(a.waiting) > 1 || len(a.waiting) == 1 && a.refusal == nil): // else the refused one is the last
		a.bytes -= int64(a.waiting[0]) + prefixLength
		a.waiting = a.waiting[1:]
		if !a.packed {
			err = a.reserve(a.bytes)
		}
	case a.refusal != nil:
		err = a.refusal
	case a.packed:
		a.packed = false
		err = a.reserve(a.bytes + int64(proto.Size(m)))
	}
	return a.ended, err
}

// close gives the memory back once the call has ended. It may be called by any goroutine.
func (a *arrival) close() {
	a.on.mu.Lock()
	defer a.on.mu.Unlock()
	a.forget()
}

// forget gives the memory back.
func (a *arrival) forget() {
	a.release()
	a.ignored = true
	if a.cancel != nil {
		a.cancel()
	}
	delete(a.on.arrivals, a.stream)
}

type arrivalKey struct{}

// Value implements context.Context.
func (a *arrival) Value(key any) any {
	if key == (arrivalKey{}) {
		return a
	}
	return a.Context.Value(key)
}

// Err implements context.Context: to a client that is late its time is over, nobody has cancelled its call.
func (a *arrival) Err() error {
	err := a.Context.Err()
	if err != nil && a.late.Load() {
		return context.DeadlineExceeded
	}
	return err
}

// arrivalOf returns the arrival of a call, nil if another replica has sent the call on.
func arrivalOf(ctx context.Context) *arrival {
	a, _ := ctx.Value(arrivalKey{}).(*arrival)
	return a
}

// errNoMessage and errMessages end calls of a client that does not keep to the protocol.
var (
	errNoMessage = errors.New("the call ended without a message")
	errMessages  = errors.New("the call has more than one message")
)

// endUnread ends a call whose client takes no more messages. It may be called by any goroutine.
func (a *arrival) endUnread() {
	a.on.mu.Lock()
	defer a.on.mu.Unlock()
	a.cut(reasonUnread)
}
