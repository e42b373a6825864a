// Package stream turns what one publisher sends into ordered, gap-free batches,
// and says so when it cannot.
//
//	            +-- live loop -----+  one goroutine: Subscribe, Recv, back off, again
//	publisher --|                  |--> inbox --> machine --> Next() --> caller applies
//	            +-- replay attempt +  (bounded)   (pure)      Step
//	                    ^                            |
//	                    +------ ask / stop ----------+
//
// The machine decides everything and owns nothing but values: its inputs are
// connections, batches and the time, its outputs are steps and the wish to start
// or stop a replay. It is spread over machine.go (inputs and order), consumed.go (the sequence and publisher
// ids), gap.go, request.go and replies.go (replays), snapshot.go (snapshots of the publisher), mark.go (taking
// over), completeness.go, probe.go, secondlook.go and incomplete.go (what is missing, and when to ask again), storm.go
// (several publishers on one connection) and evidence.go and replyhead.go (replay services that are another publisher's, or answer
// with odd numbers). The rest of the package moves frames to it: runner.go and inbox.go
// from the connections, frames.go reads them, status.go shows what became of them.
//
// A publisher numbers its batches without a hole, remembers the last few
// thousand (its ring) and replays them on request. Some publishers name their lifetime
// in every batch; of others a restart is recognised by its effects:
//
//   - a live batch at or below the watermark that is not byte for byte the one
//     consumed there, nor one that a replay overtook,
//   - after a reconnect, a replay that starts at the watermark and finds other
//     bytes there, or nothing.
//
// Invariants:
//
//  1. Within an epoch, ApplyBatch steps have strictly increasing sequences. Epochs
//     only grow, each is announced by a DropBlocks step.
//  2. State Synced means: every batch of the publisher's lifetime up to the
//     watermark was applied, or a clear made the missing ones irrelevant.
//     Whatever breaks this shows as Replaying or Partial before the next batch
//     is applied.
//  3. A live batch is never applied before a replayed one of lower sequence.
//  4. A full queue stops reading: nothing is dropped here. TCP pushes back, and the
//     publisher's socket queues up to its own high-water mark. What it drops then
//     is a gap like any other.
//  5. A batch that is in memory undecoded is counted against Config.Queue,
//     Config.QueueBytes and Config.Memory, except one in the reader's hand; at most one
//     decoded batch exists per stream.
//  6. A replay goes on while the live reader waits: it has a queue of its own, and
//     live batches that the machine holds for it leave when it ends.
//
// The live stream outranks replays. Ports and addresses are easily mistaken, so a replay service may be another publisher's: what
// it alone told is dropped as soon as it contradicts live batches, see evidence. Until the first live batch comes it is believed, or a
// restart of ours would leave idle engines without blocks.
//
// What no consumer can tell: whether a publisher's socket dropped batches behind
// the last one that arrived, until the next arrives; and, without a replay
// endpoint and without publisher ids, that a publisher was restarted while the
// connection was down if the first batch seen of it happens to carry exactly the next
// sequence; and whether a publisher whose replay begins with batch 1 counts from 1, or has
// forgotten batch 0 alone. A stream that does not read learns of a restart once it has read on. A
// stream that resumes behind a peer's mark takes the peer's word for the batches below it.
//
// Concurrency: one goroutine calls Next and thereby drives the machine. Status,
// Resync, Applied, Pause, Unpause and Close are safe from any goroutine. Lock order: Stream.turn,
// which Next holds, before Stream.mu, which guards the inbox and what Status
// shows and is never held while a batch is decoded.
//
// Cost: a batch costs one hash of its bytes, its decoding, and a few hundred
// nanoseconds. A stream costs two goroutines while it replays, one else, and at
// most 64 KiB of fingerprints.
package stream

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"example.com/conductor/events"
	"example.com/conductor/events/payload"
	"example.com/conductor/events/wire"
)

// Transport opens connections; events/zmq has the real one.
type Transport interface {
	// Subscribe returns once the connection is up and everything is subscribed
	// to. After an error the stream backs off and tries again, for ever, unless
	// the error has a method Permanent() bool that returns true.
	Subscribe(ctx context.Context, endpoint string) (Subscription, error)
	// Replay asks for every batch from a sequence on. The subscription yields
	// the replies as received.
	Replay(ctx context.Context, endpoint string, from uint64) (Subscription, error)
}

// Snapshots is a Transport that can ask for the whole state of a publisher.
type Snapshots interface {
	// Snapshot sends one request, and returns the frames of the reply, each as a message of
	// its own. It calls progress after frames. The error of a reply that has more than
	// limit bytes has a method TooLarge() bool.
	Snapshot(ctx context.Context, endpoint string, limit int, progress func()) ([]payload.Message, error)
}

// RefusalCounter is a Transport that other publishers can reach in the name of the source's.
type RefusalCounter interface {
	// Refused returns how many messages of other connections were refused, and who sent
	// the last of them. It is safe from any goroutine.
	Refused() (messages uint64, by string)
}

// Subscription is one connection.
type Subscription = interface {
	// Recv returns the next message. The caller owns its block; the list of frames is
	// valid until the next call. Recv fails when the connection is lost or closed. The error
	// of a connection that was given up for its silence has a method Silent() time.Duration:
	// how long before the last byte arrived.
	Recv() (payload.Message, error)
	// Close is safe from any goroutine and makes a blocked Recv return.
	Close() error
}

// Policies for Config.OnUnrecoverableGap.
const (
	KeepOnGap = "keep" // blocks stay, answers say partial
	DropOnGap = "drop" // blocks are dropped, history starts over behind the gap
)

// Config describes one source. Zero values stand for the defaults given.
type Config struct {
	Endpoint       string
	ReplayEndpoint string // "" if the publisher cannot replay
	// SnapshotEndpoint is where the publisher gives its whole state away, "" if it does not.
	// A stream asks there before it asks for replays. Transport must be a Snapshots.
	SnapshotEndpoint string

	// Topic is the topic of the batches to apply where the publisher numbers those of all
	// its topics together, "" for any. Batches of other topics move the watermark like
	// batches without events.
	Topic string
	// FirstSeq is the number of a publisher's first batch: 0, for the Mooncake
	// master 1.
	FirstSeq uint64
	// Rank is that of batches and events which name none. NoRanks says that ranks mean nothing, as those of a pool.
	Rank int
	// ReplayTimeout is how long a replay may make no progress (5 s).
	ReplayTimeout time.Duration
	// SnapshotTimeout is how long a request for a snapshot may make no progress (10 s),
	// SnapshotBytes bounds its reply (256 MiB).
	SnapshotTimeout time.Duration
	SnapshotBytes   int
	// StaleAfter is how long a lost connection counts as reconnecting (30 s), from the last
	// byte on if it was silent.
	StaleAfter time.Duration
	// Queue and QueueBytes bound what waits undecoded, for live batches and for
	// replayed ones separately (16384 batches, 64 MiB). Reading stops at either; one
	// batch always fits.
	Queue      int
	QueueBytes int
	// Memory bounds the same over all streams that share it. Nil is no bound.
	Memory *payload.Memory
	// OnUnrecoverableGap is KeepOnGap (default) or DropOnGap.
	OnUnrecoverableGap string

	// BackoffMin and BackoffMax bound the pause between attempts to connect
	// (100 ms, 5 s). Pauses double and are jittered downwards by up to half.
	BackoffMin time.Duration
	BackoffMax time.Duration

	Transport Transport
	// Decode turns a payload into a batch, which does not refer to the payload
	// (wire.Decode with default limits).
	Decode func(payload []byte) (events.Batch, error)
	// DecodePart is Decode for a part of a snapshot, whose size SnapshotBytes bounds.
	DecodePart func(payload []byte) (events.Batch, error)
	// Requests bounds how many streams ask for a snapshot at once, as Replays does.
	Requests *Limiter
	// Replays bounds how many streams replay at once; share one between all
	// streams. Nil is unbounded.
	Replays *Limiter
	// ReplayFlow names whose share of Replays the stream takes.
	ReplayFlow string

	// OnState, if set, is called after each change of state, reason and Status.ForeignReplay, OnUndecodable
	// with each batch that Decode refuses; payload is never written to again. Both
	// are called by the goroutine that calls Next, before the step that follows.
	// OnState is not called for Stale, which is Connecting for a long time.
	OnState       func(state State, reason string)
	OnUndecodable func(epoch, seq uint64, payload []byte)
}

const (
	defaultReplayTimeout   = 5 * time.Second
	defaultSnapshotTimeout = 10 * time.Second
	defaultSnapshotBytes   = 256 << 20
	defaultStaleAfter      = 30 * time.Second
	// The ring of the known publishers holds 10,000 batches, so one replay fits.
	defaultQueue      = 16384
	defaultQueueBytes = 64 << 20
	defaultBackoffMin = 100 * time.Millisecond
	defaultBackoffMax = 5 * time.Second
)

func (c *Config) setDefaults() {
	setDefault(&c.ReplayTimeout, defaultReplayTimeout)
	setDefault(&c.SnapshotTimeout, defaultSnapshotTimeout)
	setDefault(&c.SnapshotBytes, defaultSnapshotBytes)
	setDefault(&c.StaleAfter, defaultStaleAfter)
	setDefault(&c.Queue, defaultQueue)
	setDefault(&c.QueueBytes, defaultQueueBytes)
	setDefault(&c.BackoffMin, defaultBackoffMin)
	setDefault(&c.BackoffMax, max(defaultBackoffMax, c.BackoffMin))
	if c.Decode == nil {
		c.Decode = DecodeWithDefaults
	}
}

// partDecoder returns the decoder for parts of snapshots.
func (c *Config) partDecoder() func([]byte) (events.Batch, error) {
	if c.DecodePart != nil {
		return c.DecodePart
	}
	return c.Decode
}

// DecodeWithDefaults is the Decode of a Config without one.
func DecodeWithDefaults(payload []byte) (events.Batch, error) {
	return wire.Decode(payload, wire.DefaultLimits)
}

func setDefault[T int | time.Duration](v *T, def T) {
	if *v <= 0 {
		*v = def
	}
}

// StepKind says what to do with a Step.
type StepKind uint8

const (
	ApplyBatch        StepKind = iota + 1 // apply Batch
	DropBlocks                            // drop all blocks of this source
	ApplySnapshotPart                     // apply Batch, a part of a snapshot of the publisher behind Seq
	EndSnapshot                           // the snapshot is complete: what was filled in is true behind Seq
)

// String returns the lower-case name used in logs.
func (k StepKind) String() string {
	switch k {
	case ApplyBatch:
		return "apply"
	case DropBlocks:
		return "reset"
	case ApplySnapshotPart:
		return "fill"
	case EndSnapshot:
		return "filled"
	}
	return "unknown"
}

// Step is one thing for the caller to do.
type Step struct {
	Kind     StepKind
	Batch    events.Batch // of ApplyBatch and ApplySnapshotPart
	Payload  []byte       // likewise: what Batch was decoded from; valid until the next call of Next, or while Block is retained
	Block    *payload.Block
	Seq      uint64             // of all but DropBlocks
	Print    uint64             // of ApplyBatch: the fingerprint of Payload, for a Mark
	ID       events.PublisherID // of all but DropBlocks: the publisher's lifetime as its batches name it, zero if none has
	Epoch    uint64             // the epoch the step belongs to; of DropBlocks, the new one
	Replayed bool               // the batch came from a replay, or a snapshot
	Reason   string             // of DropBlocks: why
}

// Stream is one source being followed.
type Stream struct {
	cfg    Config
	ctx    context.Context
	cancel context.CancelFunc
	tasks  sync.WaitGroup // the live loop and replay attempts
	wake   chan struct{}  // capacity 1: the inbox has something, or the stream is closed
	// capacity 1: link says that there should be a connection
	unpaused chan struct{}

	// turn is held by Next. It guards the machine, replay and nextCalled.
	turn       sync.Mutex
	nextCalled bool // Next was called
	machine    *machine
	replay     context.CancelFunc // ends the attempt in flight, nil if none
	// snapshot ends the request for a snapshot, nil if none
	snapshot  context.CancelFunc
	reported  reportedState
	lentBlock *payload.Block // of the step that Next returned last

	mu    sync.Mutex
	room  sync.Cond // on mu: the queue may have room for a live batch, or a connection ends
	inbox inbox
	// live and replayed are what the queue and the machine hold of Config.Memory. Guarded
	// by mu.
	live, replayed payload.Share
	link           link
	inHand         stepInHand
	status         statusView
}

// stepInHand is the step the caller is applying. Guarded by Stream.mu.
type stepInHand struct {
	kind    StepKind // 0: none
	seq     uint64
	epoch   uint64
	at      time.Time
	history string // Status.History once it is applied
}

// Open starts following a source. It does not wait for the endpoint. Until Next is
// called the stream connects and queues, and asks for nothing.
func Open(cfg Config) *Stream {
	cfg.setDefaults()
	_, snapshots := cfg.Transport.(Snapshots)
	s := &Stream{
		cfg:  cfg,
		wake: make(chan struct{}, 1), unpaused: make(chan struct{}, 1),
		machine: newMachine(machineConfig{
			firstSeq:  cfg.FirstSeq,
			rank:      cfg.Rank,
			canReplay: cfg.ReplayEndpoint != "",
			timeout:   cfg.ReplayTimeout,

			canSnapshot:     cfg.SnapshotEndpoint != "" && snapshots,
			snapshotTimeout: cfg.SnapshotTimeout,
			keepLen:         min(maxKept, cfg.Queue),
			keepBytes:       min(maxKeptBytes, cfg.QueueBytes),
			jitter:          func(d time.Duration) time.Duration { return d + rand.N(d/2) },

			drop:    cfg.OnUnrecoverableGap == DropOnGap,
			decode:  cfg.Decode,
			refused: cfg.OnUndecodable,

			decodePart: cfg.partDecoder(),
		}),
	}
	s.room.L = &s.mu
	s.inbox.setLimits(cfg.Queue, cfg.QueueBytes)
	// Two shares, for the reason that the inbox has two bounds.
	s.live, s.replayed = cfg.Memory.LiveShare(), cfg.Memory.ReplayShare()
	s.status = newView(s.machine)
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.link.ctx, s.link.cancel = context.WithCancel(s.ctx)
	s.tasks.Go(s.keepConnected)
	return s
}

// Next counts the previous step as applied and returns the next one. It blocks until there is
// one and returns false once the stream is closed.
//
// It waits in a function of its own. Nearly all goroutines of a large fleet wait here, and a
// goroutine keeps the stack that its deepest call took: with the inputs and steps of findStep
// on the stack of the waiting function that is 8 KiB for each source, and 4 KiB without. So
// findStep is not inlined, and the same holds for what readLive and connectRepeatedly call:
// whatever is not needed while a source is silent lies in a function that has returned by
// then.
func (s *Stream) Next() (step Step, ok bool) {
	s.turn.Lock()
	defer s.turn.Unlock()
	s.nextCalled = true
	s.MarkApplied()
	s.lentBlock.Release()
	s.lentBlock = nil
	for s.ctx.Err() == nil {
		at, ok := s.findStep(&step)
		if ok {
			return step, true
		}
		s.awaitInput(at)
	}
	return Step{}, false
}

// findStep sets out to the next step, or reports false if there is none before the next input
// or at (if set). It alone moves the machine: it lets the machine hand out all it can, then
// lets time pass, then feeds one input, and begins again. What the machine orders is carried
// out after each, before the next input could contradict it. turn is held. It is not inlined,
// see Next.
//
//go:noinline
func (s *Stream) findStep(out *Step) (at time.Time, ok bool) {
	for s.ctx.Err() == nil {
		now := time.Now()
		if step, at, ok := s.machine.nextStep(now); ok {
			s.carryOutOrders()
			s.reportState()
			s.handToCaller(step, at)
			s.lentBlock = step.Block
			*out = step
			return at, true
		}
		s.carryOutOrders() // nextStep may have found a gap and asked for a replay
		// A slow caller is not a silent publisher: an answer that waits in the
		// inbox comes before the end of patience.
		at := s.machine.nextWake()
		if !at.IsZero() && !now.Before(at) && !s.hasQueuedAnswer() {
			s.machine.passTime(now)
			s.carryOutOrders()
			continue
		}
		if in, ok := s.takeInput(); ok {
			s.machine.handleInput(in, now)
			s.carryOutOrders()
			continue
		}
		s.reportState()
		s.publishStatus()
		return at, false
	}
	return at, false
}

// MarkApplied counts the step that Next returned last as applied. Next does the
// same; calling it earlier moves the watermark earlier.
func (s *Stream) MarkApplied() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status.moveWatermark(s.inHand)
	s.inHand = stepInHand{}
}

// Resync drops everything and starts over from the publisher's ring. The next
// step is a DropBlocks with this reason.
func (s *Stream) Resync(reason string) {
	s.pushInput(s.ctx, input{kind: inResync, text: reason})
}

// Close ends the stream: Next returns false, connections are closed, and no
// goroutine is left when it returns.
func (s *Stream) Close() {
	s.mu.Lock()
	s.cancel()
	s.chargeMemory()
	s.room.Broadcast()
	s.mu.Unlock()
	s.wakeNext()
	s.tasks.Wait()
}

// awaitInput blocks until there is input, at has come (if set), or the end, which Close
// signals as well.
func (s *Stream) awaitInput(at time.Time) {
	if at.IsZero() { // mostly; a select costs twice as much
		<-s.wake
		return
	}
	t := time.NewTimer(time.Until(at))
	defer t.Stop()
	select {
	case <-s.wake:
	case <-t.C:
	}
}

// wakeNext wakes a waiting Next.
func (s *Stream) wakeNext() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}
