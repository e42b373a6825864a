package log

import (
	"context"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"kvconductor/events"
)

const (
	// One append has at most this many entries and bytes, apart from one entry.
	maxEntries = 256
	maxBytes   = 1 << 20
	// Pauses after an append that failed double between these.
	minPause = 50 * time.Millisecond
	maxPause = time.Second
)

// counters are what Stats shows.
type counters struct {
	taken, lost                 atomic.Uint64
	appends, entries, bytes     atomic.Uint64
	failed, moved, dropped      atomic.Uint64
	generations, fromLog, asked atomic.Uint64
	gaps, healed                atomic.Uint64
}

// bucket has the sources whose keys are in one hash slot.
type bucket struct {
	log    *Log
	ready  chan struct{} // capacity 1: a follower that had no room may have some
	mu     sync.Mutex
	queue  map[*Source]bool // they have something to append; guarded by mu
	writes bool             // a goroutine appends; guarded by mu

	sessions map[*following]bool // guarded by mu
	reads    bool                // a goroutine reads; guarded by mu
}

func (b *bucket) init(l *Log) {
	b.log, b.ready = l, make(chan struct{}, 1)
	b.queue, b.sessions = make(map[*Source]bool), make(map[*following]bool)
}

// write lets the source append. s.mu may be held.
func (b *bucket) write(s *Source) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.queue[s] = true
	if !b.writes && b.log.ctx.Err() == nil {
		b.writes = true
		b.log.tasks.Go(func() { b.append(b.log.ctx) })
	}
}

// flush appends what waits, as long as ctx allows.
func (b *bucket) flush(ctx context.Context) {
	for ctx.Err() == nil {
		b.mu.Lock()
		idle := !b.writes
		b.mu.Unlock()
		if idle {
			return
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

// append appends until nothing waits.
func (b *bucket) append(ctx context.Context) {
	pause := time.Duration(0)
	for {
		b.mu.Lock()
		sources := make([]*Source, 0, len(b.queue))
		for s := range b.queue {
			sources = append(sources, s)
		}
		clear(b.queue)
		b.writes = len(sources) > 0 && ctx.Err() == nil
		done := !b.writes
		b.mu.Unlock()
		if done {
			return
		}
		if b.send(ctx, sources) {
			pause = 0
			continue
		}
		pause = min(max(2*pause, minPause), maxPause)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
}

// draft is one append under way.
type draft struct {
	source *Source
	token  string
	epoch  uint64
	at     position
	to     uint64 // sequence of the last entry
	print  uint64
	n      int
	bytes  int
}

// send appends once for each source, and reports whether the store answered.
func (b *bucket) send(ctx context.Context, sources []*Source) bool {
	var drafts []*draft
	var keys [][]string
	var args [][]any
	for _, s := range sources {
		if d, list := s.draft(); d != nil {
			drafts, keys, args = append(drafts, d), append(keys, s.keys[:]), append(args, list)
		}
	}
	if len(drafts) == 0 {
		return true
	}
	limited, cancel := context.WithTimeout(ctx, b.log.cfg.Store.Timeout())
	defer cancel()
	answered := true
	for i, cmd := range run(limited, b.log.cfg.Store.Client(), appending, keys, args) {
		answered = drafts[i].settle(cmd) && answered
	}
	return answered
}

// draft returns the next append of the source, nil if there is none.
func (s *Source) draft() (*draft, []any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	waits := len(s.win.items) - s.win.sent
	if s.token == "" || !s.log.usable() || waits == 0 && !s.mayBegin() {
		return nil, nil
	}
	cfg := &s.log.cfg
	d := &draft{source: s, token: s.token, epoch: s.epoch, at: s.at}
	whole := "0"
	if waits == 0 && !s.has {
		whole = "1"
	}
	list := make([]any, 10, 10+4*min(waits, maxEntries))
	for i := s.win.sent; i < len(s.win.items) && d.n < maxEntries && (d.n == 0 || d.bytes+len(s.win.items[i].payload) <= maxBytes); i++ {
		e := &s.win.items[i]
		id, aside := "", ""
		if e.id != (events.PublisherID{}) {
			id = string(e.id[:])
		}
		if e.aside {
			aside = "1"
		}
		list = append(list, strconv.FormatUint(e.seq, 10), e.payload, id, aside)
		d.n, d.bytes, d.to, d.print = d.n+1, d.bytes+len(e.payload), e.seq, e.print
	}
	copy(list, []any{cfg.ID, s.token, s.at.gen, s.at.last, cfg.Bytes, cfg.Age.Milliseconds(), s.log.expiry().Milliseconds(), whole, strconv.FormatUint(d.print, 10), d.bytes})
	return d, list
}

// mayBegin reports whether a log begins without an entry: the stream is complete, and idle. s.mu
// is held.
func (s *Source) mayBegin() bool {
	_, tails := s.open.(*tailing)
	return s.at.gen == "" && s.synced && tails
}

// settle takes the answer to an append, and reports whether there is one.
func (d *draft) settle(cmd *redis.Cmd) bool {
	s := d.source
	answer, at, owner, err := appended(cmd)
	s.mu.Lock()
	defer s.mu.Unlock()
	n := &s.log.n
	current := s.token == d.token && s.epoch == d.epoch && s.at == d.at
	switch {
	case err != nil:
		n.failed.Add(1)
	case answer == answerOK:
		n.appends.Add(1)
		n.entries.Add(uint64(d.n))
		n.bytes.Add(uint64(d.bytes))
		if d.at.gen == "" {
			n.generations.Add(1)
		}
		if !current {
			break
		}
		s.at.gen = at.gen
		if d.n > 0 {
			s.at.last, s.at.print = strconv.FormatUint(d.to, 10), strconv.FormatUint(d.print, 10)
			before := s.win.pending
			s.win.ack(d.to)
			s.win.trim(keptBytes)
			s.charge(before)
		}
	case answer == answerLost && s.token == d.token && owner != "":
		n.lost.Add(1)
		s.lose(errLease)
	case answer == answerLost:
		s.log.look() // the store has lost the lease: no other replica has it
		return false
	case current: // moved: the answer to an append was lost, or the store has lost writes
		n.moved.Add(1)
		s.won(s.token, at)
	}
	if s.token != "" && (len(s.win.items) > s.win.sent || s.mayBegin()) {
		s.bucket.write(s)
	}
	return err == nil
}
