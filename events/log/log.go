// Package log keeps what engines publish in a store, so that one replica follows each engine and
// the others follow the log.
//
//	engine --> Source of the tail --> stream --> window --> append script --> Stream in the store
//	             (has the lease)                             (token)               |
//	                                  stream <-- Source of another replica <-- XREAD, XRANGE
//
// The tail of a source is the replica that has its lease. A Source is the transport of one
// stream, and switches: the tail dials the engine, any other replica follows the log. When the
// lease comes or goes, the open subscription ends. The stream reconnects, and verifies its
// watermark as with any lost connection: it needs no rule of its own for logs.
//
// The log has the batches that the stream of the tail handed out, in order. Entries are named
// generation-sequence. A generation is a lifetime of the publisher as the tail's stream saw it.
// A replay for a follower comes out of the log as far as the log has it without a hole. If the log
// begins too late, a snapshot heals the follower, or else the engine's replay service does (gap.go).
//
// Invariants:
//
//  1. Entries are appended by the owner of the lease alone, with its token, behind the entry that
//     the owner believes to be the last. One script checks this and appends.
//  2. Within a generation sequences ascend, and all are of one lifetime: a replica goes on with a
//     generation only if its stream handed out the last entry, byte for byte, in its epoch.
//  3. A follower has a subscription only while the tail is connected to the engine, or to read the
//     log before it becomes the tail itself.
//  4. A replica that cannot reach the store goes on following the engines whose leases it had.
//     After a while it follows the others too, without appending, until the store is back.
//
// Concurrency: all methods are safe for concurrent use. A Log has one goroutine for leases, and
// for each bucket of sources one that appends and one that reads while there is something to do.
// Locks: Log.mu before Source.mu; Source.mu before bucket.mu.
//
// Cost: each second one script for each bucket. An append is one script for each source that has
// something, all of a bucket in one round trip; entries that come meanwhile go with the next.
package log

import (
	"context"
	"hash/fnv"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"kvconductor/events/stream"
	"kvconductor/store"
)

const (
	// Tick is the time between two renewals, Lease how long a replica stays the tail after one.
	Tick  = time.Second
	Brief = Tick / 5 // for sources without a subscription
	Lease = 4 * Tick
	// The preferred replica takes a free lease at once, another one after courtesy, and one that
	// could not read the log up to its end after patience.
	courtesy = 2 * Tick
	patience = 10 * Tick
	// A tail that cannot reach its engine for this time gives the lease back, and takes it again
	// after a pause if no other replica does.
	unreached = 4 * Tick
	barred    = 6 * Tick
	// Config.Alone and Config.Again, unless they are set.
	alone = 10 * Tick
	again = 30 * Tick
	// A source without a subscription for this time is forgotten: it is paused or gone.
	forgotten = 3 * Tick
	// A follower learns that the engine is followed no more after grace, and up to three ticks.
	grace = 2 * Tick
	// A replica asks for a lease once it has followed the log for calm. An owner gives at most
	// handedOver leases away in a round.
	calm       = 5 * Tick
	handedOver = 16
	// keptBytes is what a window keeps of batches that are in the log.
	keptBytes = 16 << 10
	// Keys without a use expire after keyAge, or four times the age of logs.
	keyAge = time.Hour
)

// Config is what a Log is made of.
type Config struct {
	Store *store.Store
	// ID is the name of this replica.
	ID string
	// Replicas returns those that are alive.
	Replicas func() []Replica
	// Bytes and Age bound the log of each source; Buffer bounds the bytes that wait for the store.
	Bytes  int64
	Age    time.Duration
	Buffer int64
	// Usable reports whether the store may be written to. Nil is always.
	Usable func() bool
	// Alone is how long the store may be away before a source without a subscription follows its
	// engine until the store is back; 0 is ten seconds.
	Alone time.Duration
	// Again is the first pause before a source asks for a snapshot again that found none; 0 is thirty
	// seconds. Pauses double up to ten minutes.
	Again time.Duration
}

// Replica is one that may be the tail.
type Replica struct {
	ID     string
	Weight float64
}

// Log follows engines together with other replicas.
type Log struct {
	cfg     Config
	ctx     context.Context // of everything but Close
	stop    context.CancelFunc
	tasks   sync.WaitGroup
	kick    chan struct{} // capacity 1: leases are to be looked at now
	buckets [store.Buckets]bucket

	mu      sync.Mutex
	sources map[*Source]bool
	closed  bool

	alive []Replica // as of this round; owned by tend
	hands int       // leases that may still be given away in this round; likewise

	buffered atomic.Int64 // bytes of all windows' pending entries
	n        counters
}

// New begins to tend leases.
func New(cfg Config) *Log {
	if cfg.Alone == 0 {
		cfg.Alone = alone
	}
	if cfg.Again == 0 {
		cfg.Again = again
	}
	l := &Log{cfg: cfg, kick: make(chan struct{}, 1), sources: make(map[*Source]bool)}
	l.ctx, l.stop = context.WithCancel(context.Background())
	for i := range l.buckets {
		l.buckets[i].init(l)
	}
	l.tasks.Go(l.tend)
	return l
}

// Close appends what waits, as long as ctx allows, and gives all leases back.
func (l *Log) Close(ctx context.Context) {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	for i := range l.buckets {
		l.buckets[i].flush(ctx)
	}
	l.stop()
	for i := range l.buckets {
		l.buckets[i].barrier()
	}
	l.tasks.Wait()
	l.leave(ctx)
}

// barrier returns once no call under the lock of the bucket can begin a task any more.
func (b *bucket) barrier() {
	b.mu.Lock()
	defer b.mu.Unlock()
}

// SourceConfig describes one source.
type SourceConfig struct {
	// Key names the source among those of all replicas.
	Key string
	// Engine is the transport to the engine.
	Engine stream.Transport
	// Replays says that the engine has a replay endpoint.
	Replays bool
	// First is stream.Config.FirstSeq, Topic is stream.Config.Topic.
	First uint64
	Topic string
	// Heal, if set, looks for a snapshot that leads into the log, and calls Done. It must not
	// block, nor call Done itself.
	Heal func(*Gap)
}

// Source returns the transport of a source. The Log knows it once its stream subscribes.
func (l *Log) Source(cfg SourceConfig) *Source {
	s := &Source{log: l, cfg: cfg, bucket: &l.buckets[store.Bucket(cfg.Key)], changed: make(chan struct{}), epoch: 1}
	for i, of := range [...]string{"lease", "meta", "log", "cuts"} {
		s.keys[i] = l.cfg.Store.SourceKey(cfg.Key, of)
	}
	return s
}

// join makes leases of the source looked at.
func (l *Log) join(s *Source) {
	l.mu.Lock()
	fresh := !l.sources[s] && !l.closed
	if fresh {
		l.sources[s] = true
	}
	l.mu.Unlock()
	if fresh {
		l.look()
	}
}

// look makes leases looked at soon.
func (l *Log) look() {
	select {
	case l.kick <- struct{}{}:
	default:
	}
}

// usable reports whether the store may be written to.
func (l *Log) usable() bool { return l.cfg.Usable == nil || l.cfg.Usable() }

// expiry is how long keys without a use live.
func (l *Log) expiry() time.Duration { return max(keyAge, 4*l.cfg.Age) }

// prefers reports whether this replica is the one that should be the tail of a source: the one
// with the highest score by rendezvous hashing. None is preferred while no replica is known.
//
// tend calls it.
func (l *Log) prefers(source string) bool {
	best, most := "", math.Inf(-1)
	for _, r := range l.alive {
		h := fnv.New64a()
		h.Write([]byte(r.ID + "\x00" + source))
		sum := h.Sum64()
		sum ^= sum >> 32 // the last bytes reach the upper bits late
		sum *= 0x9e3779b97f4a7c15
		at := (float64(sum>>11) + 0.5) / (1 << 53)
		if score := r.Weight / -math.Log(at); score > most || score == most && r.ID > best {
			best, most = r.ID, score
		}
	}
	return best == l.cfg.ID
}
