// Package relay follows one engine and serves its events onwards, in the engine's own protocol, with a history as long
// as its memory and its disk allow.
//
//	engine --PUB-----> stream --> tape: newest batches in memory, and those before on the disk
//	       --ROUTER-->   |         |        |
//	                     |         |        v evicted from memory
//	                     |         |       past: what the engine held then
//	                     v         v        |
//	      topic, layout, id     PUB: live  ROUTER: past, then tape, then the end marker
//
// Followers see the engine's numbers and bytes, so that one may change between the engine and its relay, or outlive a
// restart of the relay, without noticing. A reply to a number that the tape does not have begins with a dump of the
// past, under numbers that nobody needs any more.
//
// Invariants:
//
//  1. A follower that applies a reply from its first batch to its end marker, and then what comes live, holds what the
//     engine holds. Where that cannot be promised, a number is left out, as the engine's own ring does when it begins
//     too late.
//  2. Nothing is dropped on the way to a follower: each connection reads the tape at its own pace. One that falls
//     behind the tape meets a hole in the numbers, and asks.
//  3. Live connections exist only while the engine's does: a follower of the relay learns of a dead engine as one of
//     the engine does.
//  4. The past and the tape's memory together are all batches of the lifetime.
//
// Concurrency: one goroutine follows the engine and writes the tape, one or two serve each connection. Relay.mu is held
// while a batch goes to the tape and the past, so that a reply sees both at one moment.
package relay

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"

	"example.com/conductor/events"
	"example.com/conductor/events/stream"
	"example.com/conductor/events/tape"
	"example.com/conductor/events/wire"
	"example.com/conductor/events/zmq"
)

// Config describes a relay of one engine. Zero values stand for the defaults given.
type Config struct {
	Endpoint       string // of the engine's live events
	ReplayEndpoint string // of the engine's replay service, "" if it has none

	// Memory is how many bytes of batches are kept in memory, 64 MiB by default and at least 256 KiB. Disk is how many
	// bytes are kept in files, none by default and else at least tape.MinBytes. Dir is where the files go; what a relay
	// before has left there is removed.
	Memory, Disk int64
	Dir          string

	// Report hears what goes wrong and the relay survives, and nil once the disk works again.
	Report func(error)
	// OnState hears of the stream of the engine's events, as stream.Config.OnState does.
	OnState   func(state stream.State, reason string)
	Transport zmq.Transport
}

const (
	defaultMemory = 64 << 20
	minMemory     = 256 << 10 // a follower that has a batch must not find its number in the past soon

	// doubtUnread: the past could not read an event.
	doubtUnread = "unread_events"
)

// Relay is one engine and its followers.
type Relay struct {
	cfg    Config
	stream *stream.Stream
	tape   *tape.Tape
	record *tape.Recorder // of the engine
	form   wording
	fresh  bool // a lifetime began, and its first batch is still to come; owned by followEngine
	tasks  sync.WaitGroup
	cancel context.CancelFunc
	ctx    context.Context

	life atomic.Pointer[lifetime] // stored with mu held

	mu      sync.Mutex
	past    *past
	changed chan struct{} // closed and replaced when the tape has more
	losses  []loss        // behind past.base, oldest first
	doubt   string        // why batches up to past.base may be missing
	batches uint64        // since the start
	resets  uint64        // lifetimes that ended

	serving serving
}

// lifetime is one of the engine's.
type lifetime struct {
	epoch uint64
	id    events.PublisherID // zero if its batches have none
}

// loss says why batches up to a number may be missing, "" if none are.
type loss struct {
	upTo uint64
	why  string
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
	if err := zmq.CheckEndpoint(cfg.Endpoint); err != nil {
		return nil, err
	}
	if cfg.ReplayEndpoint != "" {
		if err := zmq.CheckEndpoint(cfg.ReplayEndpoint); err != nil {
			return nil, err
		}
	}
	if cfg.Disk > 0 && cfg.Dir == "" {
		return nil, errors.New("a disk of some bytes needs a directory")
	}
	if cfg.Dir != "" && cfg.Disk <= 0 {
		return nil, errors.New("a directory needs a number of bytes for the disk")
	}
	r := &Relay{cfg: cfg, past: newPast(), changed: make(chan struct{})}
	r.life.Store(&lifetime{epoch: 1})
	var err error
	r.tape, err = tape.Create(tape.Options{
		Dir: cfg.Dir, MaxBytes: max(cfg.Disk, tape.MinBytes), Memory: int(max(cfg.Memory, minMemory)), Fresh: true, Use: "history",
		Report: func(err error) {
			if err != nil {
				err = fmt.Errorf("the relay has no history on the disk: %w", err)
			}
			cfg.Report(err)
		},
		Evict: r.moveToPast,
	})
	if err != nil {
		return nil, fmt.Errorf("cannot keep history in %q: %w", cfg.Dir, err)
	}
	r.record = r.tape.Register(cfg.Endpoint)
	r.ctx, r.cancel = context.WithCancel(context.Background())
	r.serving.init(r.ctx)
	r.stream = stream.Open(stream.Config{
		Endpoint: cfg.Endpoint, ReplayEndpoint: cfg.ReplayEndpoint,
		Transport: &overheard{(&zmq.Sockets{Transport: cfg.Transport}).TransportFor(zmq.Claim{}, cfg.Transport.Reach), &r.form},
		Decode:    decodeBatch,
		OnState: func(state stream.State, reason string) {
			r.serving.setConnected(state != stream.Connecting && state != stream.Failed)
			cfg.OnState(state, reason)
		},
	})
	r.tasks.Go(r.followEngine)
	return r, nil
}

// decodeBatch reads a batch for the stream, which needs its clears. What cannot be read goes on as
// it is: followers may know it.
func decodeBatch(p []byte) (events.Batch, error) {
	b, err := wire.Decode(p, wire.DefaultLimits)
	if err != nil {
		return events.Batch{Rank: -1}, nil
	}
	return b, nil
}

// followEngine writes the tape until the stream is closed.
func (r *Relay) followEngine() {
	for {
		step, ok := r.stream.Next()
		if !ok {
			return
		}
		switch step.Kind {
		case stream.DropBlocks:
			r.beginLifetime(step.Epoch, step.Reason)
		case stream.ApplyBatch:
			r.recordBatch(&step)
			wire.ReleaseBatch(&step.Batch)
		}
	}
}

// beginLifetime begins a lifetime of the engine: nothing from before counts.
func (r *Relay) beginLifetime(epoch uint64, reason string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.record.RecordReset(epoch, reason)
	r.life.Store(&lifetime{epoch: epoch})
	r.past, r.losses, r.doubt, r.fresh = newPast(), nil, "", true
	r.resets++
	r.wakeFollowers()
}

// recordBatch records a batch. Where a lifetime begins behind the number that followers have seen, they could take it for more
// of the last one. So a batch that clears comes first, and the number between the two is missing, as others are.
func (r *Relay) recordBatch(step *stream.Step) {
	why := r.stream.Status().History // of the batches before this one
	r.mu.Lock()
	defer r.mu.Unlock()
	if life := *r.life.Load(); step.ID != (events.PublisherID{}) && step.ID != life.id {
		r.life.Store(&lifetime{life.epoch, step.ID})
	}
	if n := len(r.losses); n > 0 && r.losses[n-1].why != why || n == 0 && r.doubt != why {
		upTo := uint64(0)
		if step.Seq > 0 {
			upTo = step.Seq - 1
		}
		if span := r.record.Span(); span.Any {
			upTo = span.Last
		}
		r.losses = append(r.losses, loss{upTo, why})
	}
	if r.fresh && step.Seq > 1 {
		r.batches++
		r.record.RecordBatch(step.Epoch, step.Seq-2, false, clearBatch(step.Payload), nil)
	}
	r.fresh = false
	r.batches++
	r.record.RecordBatch(step.Epoch, step.Seq, false, step.Payload, step.Block)
	r.wakeFollowers()
}

// moveToPast moves a batch from the tape's memory into the past. It runs within recordBatch.
func (r *Relay) moveToPast(rec *tape.Record) {
	r.past.applyBatch(rec.Payload)
	r.past.any, r.past.base = true, rec.Seq
	for len(r.losses) > 0 && r.losses[0].upTo <= rec.Seq {
		r.doubt, r.losses = r.losses[0].why, r.losses[1:]
	}
}

// wakeFollowers tells live connections that the tape has more. mu is held.
func (r *Relay) wakeFollowers() {
	close(r.changed)
	r.changed = make(chan struct{})
}

// doubtReason returns why the past may lack something, "" if it does not. mu is held.
func (r *Relay) doubtReason() string {
	if r.doubt == "" && r.past.doubtful {
		return doubtUnread
	}
	return r.doubt
}

// Close ends all connections.
func (r *Relay) Close() {
	r.cancel()
	r.stream.Close()
	r.tasks.Wait()
	r.serving.tasks.Wait()
	r.tape.Close()
	if r.cfg.Dir != "" {
		if err := tape.RemoveSegments(r.cfg.Dir); err != nil {
			r.cfg.Report(fmt.Errorf("cannot remove the history: %w", err))
		}
	}
}

// Stats is what a relay has and did.
type Stats struct {
	Stream stream.Status
	Tape   TapeStats
	Past   PastStats
	Resets uint64 // lifetimes of the engine that ended
	ServeStats
}

// TapeStats is what the tape of a relay has.
type TapeStats struct {
	Any          bool
	First, Last  uint64 // numbers of batches, valid if Any
	Memory, Disk int64  // bytes
	Batches      uint64 // since the start
}

// Stats returns what the relay has and did so far.
func (r *Relay) Stats() Stats {
	s := Stats{Stream: r.stream.Status(), ServeStats: r.serving.stats()}
	r.mu.Lock()
	defer r.mu.Unlock()
	span := r.record.Span()
	s.Tape = TapeStats{span.Any, span.First, span.Last, int64(r.tape.MemoryBytes()), r.tape.Stats().OnDisk, r.batches}
	if s.Tape.Any {
		s.Tape.First = r.record.OldestNumber()
	}
	s.Past, s.Resets = r.past.stats(), r.resets
	s.Past.Doubt = r.doubtReason()
	return s
}

// ServeLive serves live batches to the connections of a listener until the relay is closed.
func (r *Relay) ServeLive(ln net.Listener) {
	r.serving.tasks.Go(func() { r.serving.accept(ln, r.publishLive, true) })
}

// ServeReplays answers what followers ask over the connections of a listener until the relay is
// closed.
func (r *Relay) ServeReplays(ln net.Listener) {
	r.serving.tasks.Go(func() { r.serving.accept(ln, r.answerRequests, false) })
}
