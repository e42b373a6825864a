package rpc

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/proto"

	"example.com/conductor/conductor/body"
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
	reasonMemory     = "memory"      // there is none for it
	reasonSize       = "size"        // it is larger than a message may be
	reasonLate       = "late"        // it takes longer than the patience
	reasonTinyFrames = "tiny_frames" // it comes in so small frames that they take more memory than it
	reasonUnread     = "unread"      // the client does not take those of the server
)

// lookEvery is the pause between two looks for late messages.
func (l *arrivals) lookEvery() time.Duration { return max(l.patience/4, time.Millisecond) }

const (
	prefixLength = 5 // of a message: whether it is compressed, and its length
	// mostPacked is how many bytes a compressed one may become.
	mostPacked = 1032
	// perMessage is what a message of a long call costs besides its bytes.
	perMessage = 16
	// A message may come in so many frames, and in one more for so many of its bytes. Each costs grpc some 100 bytes.
	freeFrames    = 64
	bytesPerFrame = 256
)

// arrival is the messages of one call, as they come, and the context of the call from its claim on. wire.mu guards what its
// methods change, unless they say otherwise.
type arrival struct {
	context.Context // nil until the claim
	on              *wire
	stream          uint32
	kind            methodKind
	flow            string             // of its client
	cancel          context.CancelFunc // nil if the server never waits for the client
	counted         atomic.Bool        // grpc has taken the call on
	late            atomic.Bool        // cut has ended the call

	since   time.Time // when the call began, or the message under way; zero where cancel is nil
	prefix  [prefixLength]byte
	have    int    // how many bytes of the prefix have come
	size    uint32 // what the last complete prefix announces
	left    uint32 // how many bytes of this message have not come
	frames  int    // how many frames the message under way has taken
	got     bool   // a prefix was complete
	charged bool   // the last of waiting is a message whose prefix is not complete
	ended   bool   // the client sends no more
	deaf    bool   // grpc gets no more
	refusal error  // why the server takes no more, nil if grpc itself finds out
	// What the messages cost that wait for the handler, the oldest first. The one message of a short call waits until its end.
	waiting []int64
	first   [1]int64 // the memory of waiting, for one message
	memory  server.Hold

	closed   bool        // grpc has told of the end of the call
	answered bool        // the answer is written, or will not be
	answer   server.Hold // counts the call until both are so
}

// waitsForClient reports whether the call cannot go on before its client sends more.
func (a *arrival) waitsForClient() bool {
	if a.ended || a.deaf {
		return false
	}
	between := a.have == 0 && a.left == 0
	return !a.kind.long || !between || a.kind.brief && len(a.waiting) == 0
}

// takeFrame reads along in the messages of the call. It reports whether grpc shall have the frame.
func (a *arrival) takeFrame(data []byte, ends bool) (pass bool) {
	if a.ended || a.deaf || a.Err() != nil {
		return false
	}
	if ends {
		a.end()
	}
	if a.frames++; a.frames > freeFrames && a.frames-freeFrames > int(a.size-a.left)/bytesPerFrame+1 {
		a.cut(reasonTinyFrames)
		return false
	}
	for len(data) > 0 && !a.deaf {
		if a.left > 0 {
			n := min(uint32(len(data)), a.left)
			a.left -= n
			data = data[n:]
			continue
		}
		if a.have == 0 && a.kind.long {
			a.since, a.frames = time.Now(), 1
		}
		n := copy(a.prefix[a.have:], data)
		a.have += n
		a.takePrefix(data[:n])
		data = data[n:]
	}
	return true
}

// end notes that the client sends no more.
func (a *arrival) end() {
	a.ended = true
	a.memory.Arrived()
}

// takePrefix reserves memory for a message as soon as a part of its length has come that is not 0, because grpc cannot forget
// what it has seen. If there is none, grpc sees an empty message. unseen is the part of the prefix that it has not seen.
func (a *arrival) takePrefix(unseen []byte) {
	if a.refusal == nil {
		if a.refusal = a.charge(); a.refusal == body.ErrMemory {
			a.on.limits.refused.WithLabelValues(reasonMemory).Inc()
		}
	}
	if a.refusal != nil {
		clear(unseen)
	}
	if a.have < prefixLength {
		return
	}
	a.have, a.charged, a.got = 0, false, true
	if a.deaf = a.deaf || a.refusal != nil; !a.deaf {
		a.left = a.size
	}
}

// charge reserves memory for the message under way, by the most that its prefix may announce.
func (a *arrival) charge() error {
	if a.got && !a.kind.long {
		return errMessages
	}
	whole := a.have == prefixLength
	least, most := a.announced()
	if whole {
		a.size = uint32(least)
	} else if least == 0 || least > a.on.limits.most {
		return nil // what grpc has seen is small, or tells it to refuse the message
	}
	if least > a.on.limits.most {
		a.uncharge()
		a.deaf = true // grpc refuses it
		a.on.limits.refused.WithLabelValues(reasonSize).Inc()
		return nil
	}
	cost := a.cost(min(most, a.on.limits.most))
	if a.charged {
		last := &a.waiting[len(a.waiting)-1]
		a.memory.Drop(*last - cost)
		*last = cost
		return nil
	}
	if err := a.memory.Add(cost); err != nil {
		return err
	}
	a.waiting, a.charged = append(a.waiting, cost), true
	return nil
}

// uncharge gives back what the message under way has reserved.
func (a *arrival) uncharge() {
	if a.charged {
		last := len(a.waiting) - 1
		a.memory.Drop(a.waiting[last])
		a.waiting, a.charged = a.waiting[:last], false
	}
}

// announced returns the least and the most bytes that the message under way may have by what has come of its prefix.
func (a *arrival) announced() (least, most int64) {
	for i := 1; i < prefixLength; i++ {
		least, most = least<<8, most<<8|0xff
		if i < a.have {
			least, most = least|int64(a.prefix[i]), most&^0xff|int64(a.prefix[i])
		}
	}
	return least, most
}

// cost returns what a message of some bytes is counted as.
func (a *arrival) cost(bytes int64) int64 {
	cost := bytes
	if a.packed() {
		cost += min(bytes*mostPacked, a.on.limits.most)
	}
	if a.kind.long {
		cost += perMessage
	}
	return cost
}

// packed reports whether the message that came last is compressed.
func (a *arrival) packed() bool { return a.prefix[0] != 0 }

// cut ends a call for what its client does.
func (a *arrival) cut(reason string) {
	a.on.limits.refused.WithLabelValues(reason).Inc()
	a.refusal, a.deaf = context.DeadlineExceeded, true
	a.late.Store(true)
	if a.cancel != nil {
		a.cancel()
	}
}

// received tells that the handler has received a message. It returns why the message was not taken, nil if it was, and whether
// the client has nothing more to send. It may be called by any goroutine.
func (a *arrival) received(m proto.Message) (ended bool, err error) {
	a.on.mu.Lock()
	defer a.on.mu.Unlock()
	switch {
	case a.kind.long && len(a.waiting) > 0: // a refused one comes behind all that wait
		a.memory.Drop(a.waiting[0])
		a.waiting = a.waiting[1:]
	case a.refusal != nil:
		return a.ended, a.refusal
	case len(a.waiting) > 0 && a.packed():
		cost := min(a.waiting[0], int64(a.size)+int64(proto.Size(m)))
		a.memory.Drop(a.waiting[0] - cost)
		a.waiting[0] = cost
	}
	return a.ended, nil
}

// whyRefused returns why the server takes no more from the client. It may be called by any goroutine.
func (a *arrival) whyRefused() error {
	a.on.mu.Lock()
	defer a.on.mu.Unlock()
	return a.refusal
}

// close gives the memory of the messages back once the call has ended. It may be called by any goroutine.
func (a *arrival) close() {
	a.on.mu.Lock()
	defer a.on.mu.Unlock()
	a.freeMessages()
	a.closed = true
	a.forgetOver()
}

// freeMessages gives the memory of the messages back, and takes no more.
func (a *arrival) freeMessages() {
	a.memory.Free()
	a.waiting, a.charged, a.deaf = nil, false, true
	if a.cancel != nil {
		a.cancel()
	}
}

// forgetOver forgets a call that has ended, and whose answer grpc does not keep any more.
func (a *arrival) forgetOver() {
	if a.closed && a.answered {
		a.forget()
	}
}

// forget gives all memory back.
func (a *arrival) forget() {
	a.freeMessages()
	a.answer.Free()
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

// Done implements context.Context. grpc asks for it when it takes a call on, and for no call that it does not.
func (a *arrival) Done() <-chan struct{} {
	a.counted.Store(true)
	return a.Context.Done()
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
