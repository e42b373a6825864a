// Package relay follows one engine and serves its events onwards, in the engine's own
// protocol, with a history as long as its memory and its disk allow.
//
//	engine --PUB-----> stream --> log: newest batches in memory, older ones in files
//	       --ROUTER-->   |         |                 |
//	                     |         |                 v what the oldest left behind
//	                     |         |               tree
//	                     v         v                 |
//	      topic, layout, id     PUB: live        ROUTER: tree, then log, then the end marker
//
// Followers see the engine's numbers and bytes, so that one may change between the engine and
// its relay, or outlive a restart of the relay, without noticing.
//
// A reply to a number that has left the log begins with the tree: a batch that clears, then
// batches that store what the engine held, then batches that remove the blocks stored only
// because others hang from them. They have numbers that the log no longer needs.
//
// Invariants:
//
//  1. A follower that applies a reply from its first batch to its end marker, and then what
//     comes live, holds what the engine holds. Where that cannot be promised, a number is left
//     out, as the engine's own ring does when it begins too late.
//  2. Nothing is dropped on the way to a follower: each connection reads the log at its own
//     pace. One that falls behind the log meets a hole in the numbers, and asks.
//  3. Live connections exist only while the engine's does: a follower of the relay learns of a
//     dead engine as one of the engine does.
//
// Concurrency: one goroutine follows the engine and writes the log, one or two serve each
// connection.
package relay

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"example.com/conductor/events"
	"example.com/conductor/events/payload"
	"example.com/conductor/events/stream"
	"example.com/conductor/events/tape"
	"example.com/conductor/events/wire"
	"example.com/conductor/events/zmq"
)

// Config describes a relay of one engine. Zero values stand for the defaults given.
type Config struct {
	Endpoint       string // of the engine's live events
	ReplayEndpoint string // of the engine's replay service, "" if it has none

	// Memory and Disk are how many bytes of batches are kept in each (64 MiB, none). Dir is
	// where files go; what a relay before has left there is removed.
	Memory, Disk int64
	Dir          string

	// Report hears what goes wrong and the relay survives, and nil once the disk works again.
	Report func(error)
	// OnState hears of the stream of the engine's events, as stream.Config.OnState does.
	OnState   func(state stream.State, reason string)
	Transport zmq.Transport
}

const defaultMemory = 64 << 20

// Relay is one engine and its followers.
type Relay struct {
	cfg    Config
	stream *stream.Stream
	log    *log
	form   wording
	lock   *os.File // of Config.Dir, nil without
	fresh  bool     // a lifetime began, and its first batch is still to come
	tasks  sync.WaitGroup
	cancel context.CancelFunc
	ctx    context.Context

	resets  atomic.Uint64
	serving serving
}

// Open begins to follow the engine. It waits for no connection.
func Open(cfg Config) (*Relay, error) {
	if cfg.Memory <= 0 {
		cfg.Memory = defaultMemory
	}
	if cfg.Report == nil {
		cfg.Report = func(error) {}
	}
	if cfg.OnState == nil {
		cfg.OnState = func(stream.State, string) {}
	}
	if err := zmq.Check(cfg.Endpoint); err != nil {
		return nil, err
	}
	if cfg.ReplayEndpoint != "" {
		if err := zmq.Check(cfg.ReplayEndpoint); err != nil {
			return nil, err
		}
	}
	if cfg.Disk > 0 && cfg.Dir == "" {
		return nil, errors.New("a disk of some bytes needs a directory")
	}
	if cfg.Dir != "" && cfg.Disk <= 0 {
		return nil, errors.New("a directory needs a number of bytes for the disk")
	}
	r := &Relay{cfg: cfg}
	if cfg.Dir != "" {
		lock, err := tape.Claim(cfg.Dir, "history")
		if err != nil {
			return nil, err
		}
		r.lock = lock
	}
	var err error
	r.log, err = newLog(limits{memory: cfg.Memory, disk: cfg.Disk, dir: cfg.Dir}, cfg.Endpoint, cfg.Report, r.history)
	if err != nil {
		r.lock.Close()
		return nil, fmt.Errorf("cannot keep history in %q: %w", cfg.Dir, err)
	}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	r.serving.init(r.ctx)
	r.stream = stream.Open(stream.Config{
		Endpoint: cfg.Endpoint, ReplayEndpoint: cfg.ReplayEndpoint,
		Transport: &overheard{(&zmq.Sockets{Transport: cfg.Transport}).For(zmq.Claim{}, cfg.Transport.Reach), &r.form},
		Decode:    decode,
		OnState: func(state stream.State, reason string) {
			r.serving.connect(state != stream.Connecting && state != stream.Failed)
			cfg.OnState(state, reason)
		},
	})
	r.tasks.Go(r.follow)
	return r, nil
}

// decode reads a batch for the stream, which needs its clears. What cannot be read goes on as
// it is: followers may know it.
func decode(p []byte) (events.Batch, error) {
	b, err := wire.Decode(p, wire.DefaultLimits)
	if err != nil {
		return events.Batch{Rank: -1}, nil
	}
	return b, nil
}

// follow writes the log until the stream is closed.
func (r *Relay) follow() {
	for {
		step, ok := r.stream.Next()
		if !ok {
			return
		}
		switch step.Kind {
		case stream.Reset:
			r.resets.Add(1)
			r.log.reset(step.Epoch)
			r.fresh = true
		case stream.Apply:
			r.apply(&step)
			wire.Release(&step.Batch)
		}
	}
}

// apply appends a batch. Where a lifetime begins behind the number that followers have seen,
// they could take it for more of the last one. So a batch that clears comes first, and the
// number between the two is missing, as others are.
func (r *Relay) apply(step *stream.Step) {
	b := batch{seq: step.Seq, at: time.Now(), id: step.ID, payload: step.Payload}
	if r.fresh && step.Seq > 1 {
		c := b
		c.seq, c.payload = step.Seq-2, clearBatch(step.Payload)
		r.log.append(step.Epoch, &c)
	}
	r.fresh = false
	r.log.append(step.Epoch, &b)
}

// clearBatch returns a batch that clears, in the form of another batch.
func clearBatch(like []byte) []byte {
	t := newTree()
	t.apply(like)
	for p := range t.dump().batches(maxBatch) {
		return p
	}
	panic("BUG: a dump has no batch that clears")
}

// history is why batches before the one in hand may be missing.
func (r *Relay) history() string { return r.stream.Status().History }

// Close ends all connections.
func (r *Relay) Close() {
	r.cancel()
	r.stream.Close()
	r.tasks.Wait()
	r.serving.wait()
	r.log.reset(0)
	r.lock.Close()
}

// wording is how the engine sends: learnt from what it sends.
type wording struct {
	now atomic.Pointer[shape]
}

// shape is one form. The zero value is that of engines until June 2026.
type shape struct {
	topic  string
	topics bool // replies carry the topic
	ids    bool // the frame of the number carries the publisher id
}

func (f *wording) get() shape {
	if s := f.now.Load(); s != nil {
		return *s
	}
	return shape{}
}

// live learns from a live message.
func (f *wording) live(frames [][]byte) {
	if len(frames) != 3 {
		return
	}
	s := f.get()
	ids := len(frames[1]) > numberSize
	if string(frames[0]) != s.topic || ids != s.ids {
		s.topic, s.ids = string(frames[0]), ids
		f.now.Store(&s)
	}
}

// reply learns from a reply.
func (f *wording) reply(frames [][]byte) {
	if len(frames) > 0 && len(frames[0]) == 0 {
		frames = frames[1:]
	}
	s := f.get()
	if topics := len(frames) == 3; topics != s.topics && len(frames) > 1 {
		s.topics = topics
		f.now.Store(&s)
	}
}

// overheard is a transport whose messages tell the form.
type overheard struct {
	from stream.Transport
	form *wording
}

func (o *overheard) Subscribe(ctx context.Context, endpoint string) (stream.Subscription, error) {
	s, err := o.from.Subscribe(ctx, endpoint)
	if err != nil {
		return nil, err
	}
	return overhearing{s, o.form.live}, nil
}

func (o *overheard) Replay(ctx context.Context, endpoint string, from uint64) (stream.Subscription, error) {
	s, err := o.from.Replay(ctx, endpoint, from)
	if err != nil {
		return nil, err
	}
	return overhearing{s, o.form.reply}, nil
}

type overhearing struct {
	stream.Subscription
	learn func(frames [][]byte)
}

func (o overhearing) Recv() (payload.Message, error) {
	m, err := o.Subscription.Recv()
	if err == nil {
		o.learn(m.Frames)
	}
	return m, err
}

// Stats is what a relay has and did.
type Stats struct {
	Stream stream.Status
	Log    LogStats
	Resets uint64 // lifetimes of the engine that ended
	ServeStats
}

// Stats returns what the relay has and did so far.
func (r *Relay) Stats() Stats {
	return Stats{Stream: r.stream.Status(), Log: r.log.stats(), Resets: r.resets.Load(), ServeStats: r.serving.stats()}
}

// ServeLive serves live batches to the connections of a listener until the relay is closed.
func (r *Relay) ServeLive(ln net.Listener) {
	r.serving.tasks.Go(func() { r.serving.accept(ln, r.publish, true) })
}

// ServeReplays answers what followers ask over the connections of a listener until the relay is
// closed.
func (r *Relay) ServeReplays(ln net.Listener) {
	r.serving.tasks.Go(func() { r.serving.accept(ln, r.route, false) })
}
