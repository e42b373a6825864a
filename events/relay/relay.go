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
//  3. Live connections exist only while the engine's does, and each is of one lifetime: a follower of the relay learns of
//     a dead engine as one of the engine does.
//  4. The past and the tape's memory together are all batches of the lifetime.
//
// Concurrency: one goroutine follows the engine and writes the tape, one or two serve each connection. Relay.mu is held
// while a batch goes to the tape and the past, so that a reply sees both at one moment.
package relay

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"example.com/conductor/events"
	"example.com/conductor/events/stream"
	"example.com/conductor/events/tape"
	"example.com/conductor/events/wire"
	"example.com/conductor/events/zmq"
)

// Config describes a relay of one engine. Report and OnState must be set.
type Config struct {
	Endpoint       string // of the engine's live events
	ReplayEndpoint string // of the engine's replay service, "" if it has none

	// Memory is how many bytes of batches are kept in memory, at least 256 KiB. Disk is how many bytes are kept in files,
	// 0 for none and else at least tape.MinBytes. Dir is where the files go; Close removes them, and Open those of a crash.
	Memory, Disk int64
	Dir          string

	// Report is called with the first of a run of errors of the disk, and with nil once the disk works again.
	Report func(error)
	// OnState is called as stream.Config.OnState of the engine's events is.
	OnState   func(state stream.State, reason string)
	Transport zmq.Transport
}

// minMemory is the least memory of the tape: a follower that has a batch must not find its number in the past soon.
const minMemory = 256 << 10

// Relay is one engine and its followers.
type Relay struct {
	cfg    Config
	stream *stream.Stream
	tape   *tape.Tape
	record *tape.Recorder // of the engine
	form   atomic.Pointer[shape]
	dumps  chan struct{} // has as many values as dumps are under way
	tasks  sync.WaitGroup
	ctx    context.Context // ends with the relay
	cancel context.CancelFunc

	mu         sync.Mutex
	life       *lifetime
	past       *past
	losses     []loss          // of the past first, then those behind it, oldest first
	changed    chan struct{}   // closed and replaced when the tape has more
	live       context.Context // ends with the connection to the engine
	disconnect context.CancelFunc
	counts     Stats // what is counted of them
}

// lifetime is one of the engine's.
type lifetime struct {
	epoch uint64
	id    atomic.Pointer[events.PublisherID] // nil until a batch has one
}

// loss says why batches up to a number may be missing, "" if none are.
type loss struct {
	upTo uint64
	why  string
}

// Open begins to follow the engine. It waits for no connection.
func Open(cfg Config) (*Relay, error) {
	err := zmq.CheckEndpoint(cfg.Endpoint)
	if err == nil && cfg.ReplayEndpoint != "" {
		err = zmq.CheckEndpoint(cfg.ReplayEndpoint)
	}
	if err != nil {
		return nil, err
	}
	if (cfg.Disk > 0) != (cfg.Dir != "") {
		return nil, errors.New("history on the disk needs a directory and a number of bytes")
	}
	r := &Relay{cfg: cfg, life: &lifetime{epoch: 1}, past: newPast(), losses: []loss{{}}, changed: make(chan struct{}),
		dumps: make(chan struct{}, maxDumps)}
	r.tape, err = tape.Create(tape.Options{
		Dir: cfg.Dir, MaxBytes: max(cfg.Disk, tape.MinBytes), Memory: int(max(cfg.Memory, minMemory)), Temporary: true, Use: "history",
		Report: cfg.Report, Evict: r.moveToPast,
	})
	if err != nil {
		return nil, fmt.Errorf("cannot keep history in %q: %w", cfg.Dir, err)
	}
	r.record = r.tape.Register(cfg.Endpoint)
	r.ctx, r.cancel = context.WithCancel(context.Background())
	r.live, r.disconnect = context.WithCancel(r.ctx)
	r.disconnect()
	r.form.Store(&shape{})
	r.stream = stream.Open(stream.Config{
		Endpoint: cfg.Endpoint, ReplayEndpoint: cfg.ReplayEndpoint,
		Transport: overheard{(&zmq.Sockets{Transport: cfg.Transport}).TransportFor(zmq.Claim{}, cfg.Transport.Reach), &r.form},
		// The stream needs the clears of a batch. What cannot be read goes on as it is: followers may know it.
		Decode: func(p []byte) (events.Batch, error) {
			b, err := wire.Decode(p, wire.DefaultLimits)
			if err != nil {
				b = events.Batch{Rank: -1}
			}
			return b, nil
		},
		OnState: func(state stream.State, reason string) {
			r.mu.Lock()
			if state == stream.Connecting || state == stream.Failed {
				r.disconnect()
			} else if r.live.Err() != nil {
				r.live, r.disconnect = context.WithCancel(r.ctx)
			}
			r.mu.Unlock()
			cfg.OnState(state, reason)
		},
	})
	r.tasks.Go(r.followEngine)
	return r, nil
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
	r.life, r.past, r.losses = &lifetime{epoch: epoch}, newPast(), []loss{{}}
	r.counts.Resets++
	r.wakeFollowers()
}

// recordBatch records a batch. Where a lifetime begins behind the number that followers have seen, they could take it for more
// of the last one. So a batch that clears comes first, and the number between the two is missing, as others are.
func (r *Relay) recordBatch(step *stream.Step) {
	why := r.stream.Status().History // of the batches before this one
	r.mu.Lock()
	defer r.mu.Unlock()
	if id := step.ID; id != (events.PublisherID{}) {
		r.life.id.Store(&id)
	}
	span := r.record.Span()
	if r.losses[len(r.losses)-1].why != why {
		r.losses = append(r.losses, loss{upTo: max(step.Seq, 1) - 1, why: why})
	}
	if r.counts.Resets > 0 && !span.Any && step.Seq > 1 {
		frame, _, _ := wire.CutBatch(step.Payload)
		r.counts.Tape.Batches++
		r.record.RecordBatch(step.Epoch, step.Seq-2, false, frame.Wrap(r.past.encodeClears(frame)...), nil)
	}
	r.counts.Tape.Batches++
	r.record.RecordBatch(step.Epoch, step.Seq, false, step.Payload, step.Block)
	r.wakeFollowers()
}

// moveToPast moves a batch from the tape's memory into the past. It runs within recordBatch.
func (r *Relay) moveToPast(rec *tape.Record) {
	r.past.applyBatch(rec.Payload)
	r.past.end = rec.Seq + 1
	for len(r.losses) > 1 && r.losses[1].upTo <= rec.Seq {
		r.losses = r.losses[1:]
	}
}

// wakeFollowers tells live connections that the tape has more. mu is held.
func (r *Relay) wakeFollowers() {
	close(r.changed)
	r.changed = make(chan struct{})
}

// doubtReason returns why the past may lack something, "" if it does not. mu is held.
func (r *Relay) doubtReason() string {
	if why := r.losses[0].why; why != "" || !r.past.doubtful {
		return why
	}
	return "unread_events"
}

// Close ends all connections.
func (r *Relay) Close() {
	r.cancel()
	r.stream.Close()
	r.tasks.Wait()
	if err := r.tape.Close(); err != nil {
		r.cfg.Report(err)
	}
}

// Stats is what a relay has and did.
type Stats struct {
	Stream stream.Status
	Tape   struct {
		Any          bool
		First, Last  uint64 // numbers of batches, valid if Any
		Memory, Disk int64  // bytes
		Batches      uint64 // since the start
	}
	Past struct { // the time before the tape's memory
		Blocks int    // that the engine held
		Kept   int    // that it held no more, in events that are kept; at the last compaction
		Bytes  int64  // of memory, estimated
		Doubt  string // why a dump is not offered as the whole, "" if it is
	}
	Resets uint64 // lifetimes of the engine that ended

	Live, Replays         int    // connections
	Refused               uint64 // connections: a handshake failed, the engine was away, or there were too many
	Published             uint64 // batches, over all live connections
	Skipped               uint64 // times that a live connection fell behind the tape
	Requests, BadRequests uint64
	Replayed              uint64 // batches of the tape in replies
	Dumps                 uint64 // replies that began with the past
	DumpsLeftOut          uint64 // replies that began behind the past: too few numbers were left for it
	Unfinished            uint64 // replies that ended without their end marker
}

// Stats returns what the relay has and did so far.
func (r *Relay) Stats() Stats {
	status := r.stream.Status()
	r.mu.Lock()
	defer r.mu.Unlock()
	s, p := r.counts, r.past
	s.Stream = status
	if span := r.record.Span(); span.Any {
		s.Tape.Any, s.Tape.First, s.Tape.Last = true, r.record.OldestNumber(), span.Last
	}
	s.Tape.Memory, s.Tape.Disk = int64(r.tape.MemoryBytes()), r.tape.Stats().OnDisk
	s.Past.Blocks, s.Past.Kept, s.Past.Doubt = len(p.held), p.dead, r.doubtReason()
	s.Past.Bytes = p.bytes + int64(len(p.held)*holdingBytes+len(p.kept)*24)
	return s
}

// count changes the counts.
func (r *Relay) count(change func(*Stats)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change(&r.counts)
}
