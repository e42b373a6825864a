package relay

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"time"

	"example.com/conductor/events"
	"example.com/conductor/events/tape"
)

const (
	// A part is a 16th of the memory, within these bounds in bytes. So the log keeps at least 256 KiB:
	// a follower that has a batch must not find its number in the tree soon.
	parts   = 16
	minPart = 16 << 10
	maxPart = 4 << 20
	// A reader that holds parts back may let the log grow to this many times its bound.
	patience = 2

	// doubtUnread: the tree could not read an event, or a part from the disk.
	doubtUnread = "unread_events"
)

// errLeft says that the log no longer has a part.
var errLeft = errors.New("the part has left the log")

// limits of a log, in bytes.
type limits struct {
	memory, disk int64
	dir          string // "" for no disk
}

// log keeps the batches of one lifetime of an engine, in order. The newest are in memory,
// older ones in files. The tree has what the oldest left behind.
//
//	tree <-- file, file, ... <-- part in memory, part, ... <-- append
//
// Invariants:
//
//  1. The tree and the parts together are all batches that were appended since the last
//     reset.
//  2. Bytes of a part that a reader has do not change.
//  3. A part leaves in one piece, under treeMu.
//
// Concurrency: one goroutine calls append and reset; readers are safe from any. treeMu is
// locked before mu.
type log struct {
	limits limits
	size   int64 // of a part
	run    uint64
	source string
	report func(error) // hears what goes wrong with the disk, and nil once it works again
	// history returns why batches before the one in hand may be missing, "" if none are.
	history func() string
	number  uint64 // of the newest part
	head    *tape.Segment
	failed  bool // the disk; owned by the appender

	treeMu sync.Mutex
	tree   *tree  // guarded by treeMu
	doubt  string // why the tree may lack something, "" if it does not; guarded by treeMu

	mu      sync.Mutex
	epoch   uint64                   // guarded by mu, as is all below
	life    uint64                   // resets so far
	oldest  *part                    // nil if the log has no parts
	newest  *part                    //
	inTree  bool                     // base is valid
	base    uint64                   // the last batch that the tree has
	memory  int64                    // bytes of parts in memory
	disk    int64                    // bytes of files
	batches uint64                   // since the start
	readers map[*reader]struct{}     // those that hold parts back
	waiting map[chan<- struct{}]bool // readers at the end
}

// part is a stretch of the log: a segment of the journal's format.
type part struct {
	number      uint64
	life        uint64 // resets before it
	id          events.PublisherID
	first, last uint64 // numbers of batches
	data        []byte // nil once it is in a file
	size        int64
	doubt       string // why what the engine holds after last may not be known
	next        *part
	left        bool // the tree has it, or a reset dropped it
}

func newLog(l limits, source string, report func(error), history func() string) (*log, error) {
	if l.dir != "" {
		old, err := tape.Files(l.dir)
		if err != nil {
			return nil, err
		}
		for _, f := range old {
			if err := os.Remove(f); err != nil {
				return nil, err
			}
		}
	}
	l.memory = max(l.memory, parts*minPart)
	return &log{
		limits: l, size: min(l.memory/parts, maxPart), run: rand.Uint64(), source: source, report: report, history: history,
		tree: newTree(), readers: make(map[*reader]struct{}), waiting: make(map[chan<- struct{}]bool),
	}, nil
}

// batch is one batch of the engine.
type batch struct {
	seq     uint64
	at      time.Time
	id      events.PublisherID // zero for none
	payload []byte
}

// append adds a batch.
func (l *log) append(epoch uint64, b *batch) {
	if l.head == nil || l.newest.size >= l.size || l.newest.id != b.id {
		l.begin(epoch, b)
	}
	l.head.Append(&tape.Record{Kind: tape.Batch, Time: b.at, Epoch: epoch, Seq: b.seq, Payload: b.payload})
	data := l.head.Bytes()
	l.mu.Lock()
	p := l.newest
	l.memory += int64(len(data)) - p.size
	p.data, p.size, p.last = data, int64(len(data)), b.seq
	l.batches++
	for ch := range l.waiting {
		ch <- struct{}{}
		delete(l.waiting, ch)
	}
	l.mu.Unlock()
	l.shrink()
}

// begin begins a part with a batch.
func (l *log) begin(epoch uint64, b *batch) {
	if l.newest != nil {
		l.newest.doubt = l.history()
	}
	l.number++
	l.head = tape.NewSegment(l.run, l.number, epoch, b.seq, l.source)
	data := l.head.Bytes()
	p := &part{number: l.number, life: l.life, id: b.id, first: b.seq, last: b.seq, data: data, size: int64(len(data))}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.epoch = epoch
	l.memory += p.size
	if l.newest == nil {
		l.oldest = p
	} else {
		l.newest.next = p
	}
	l.newest = p
}

// reset begins a lifetime of the engine: nothing from before counts.
func (l *log) reset(epoch uint64) {
	l.treeMu.Lock()
	defer l.treeMu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	for p := l.oldest; p != nil; p = p.next {
		l.leave(p)
	}
	l.tree, l.doubt = newTree(), ""
	l.head, l.newest, l.inTree, l.epoch = nil, nil, false, epoch
	l.life++
}

// leave takes the oldest part out of the list. mu is held.
func (l *log) leave(p *part) {
	if p.data != nil {
		l.memory -= p.size
	} else {
		l.disk -= p.size
		if err := os.Remove(tape.Path(l.limits.dir, p.number)); err != nil && !errors.Is(err, os.ErrNotExist) {
			l.report(fmt.Errorf("cannot remove a part of the log: %w", err))
		}
	}
	p.left, p.data = true, nil
	l.oldest = p.next
}

// shrink moves parts from the memory to the disk and from there to the tree until both are
// within their bounds. The newest part stays.
func (l *log) shrink() {
	for l.memory > l.limits.memory {
		p := l.oldest
		for p.data == nil {
			p = p.next
		}
		if p == l.newest {
			return
		}
		if l.limits.disk < p.size || !l.write(p) {
			// One part at a time: the next batch brings the next.
			l.drop(l.oldest)
			return
		}
	}
	for l.disk > l.limits.disk && l.drop(l.oldest) {
	}
}

// write moves a part to the disk.
func (l *log) write(p *part) bool {
	err := os.WriteFile(tape.Path(l.limits.dir, p.number), p.data, 0o600)
	if err != nil {
		os.Remove(tape.Path(l.limits.dir, p.number))
		if !l.failed {
			l.failed = true
			l.report(fmt.Errorf("the log has no history on the disk: %w", err))
		}
		return false
	}
	if l.failed {
		l.failed = false
		l.report(nil)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	p.data = nil
	l.memory -= p.size
	l.disk += p.size
	return true
}

// drop moves the oldest part into the tree, unless a reader holds it back.
func (l *log) drop(p *part) bool {
	l.treeMu.Lock()
	defer l.treeMu.Unlock()
	if l.heldBack(p) {
		return false
	}
	data, err := l.bytes(p)
	if err == nil {
		err = l.settle(data)
	}
	if l.doubt = p.doubt; err != nil {
		l.report(fmt.Errorf("the log has lost a part of the history: %w", err))
		l.tree.doubtful = true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.leave(p)
	l.inTree, l.base = true, p.last
	return true
}

// heldBack reports whether a reader still needs a part, and may.
func (l *log) heldBack(p *part) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.memory > patience*l.limits.memory || l.disk > patience*l.limits.disk {
		return false
	}
	for r := range l.readers {
		if at := cmp.Or(r.part, r.first); at.number <= p.number {
			return true
		}
	}
	return false
}

// settle applies a part to the tree. treeMu is held.
func (l *log) settle(data []byte) error {
	tail, err := tape.NewScanner(data, nil)
	if err != nil {
		return err
	}
	for rec := (tape.Record{}); tail.Next(&rec); {
		if rec.Kind == tape.Batch {
			l.tree.apply(rec.Payload)
		}
	}
	if tail.Damage() != (tape.Damage{}) {
		return errors.New("a part is damaged")
	}
	return nil
}

// left reports whether a number is one that the tree has.
func (l *log) left(number uint64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.inTree && number <= l.base
}

// bytes returns the segment of a part.
func (l *log) bytes(p *part) ([]byte, error) {
	l.mu.Lock()
	data, left := p.data, p.left
	l.mu.Unlock()
	switch {
	case left:
		return nil, errLeft
	case data != nil:
		return data, nil
	}
	data, err := os.ReadFile(tape.Path(l.limits.dir, p.number))
	if errors.Is(err, os.ErrNotExist) {
		return nil, errLeft
	}
	return data, err
}

// doubts is why the tree may lack something, "" if it does not. treeMu is held.
func (l *log) doubts() string {
	if l.doubt == "" && l.tree.doubtful {
		return doubtUnread
	}
	return l.doubt
}

// LogStats is what a log holds.
type LogStats struct {
	Epoch        uint64
	Any          bool
	First, Last  uint64 // numbers of batches in the log, valid if Any
	Parts        int
	Memory, Disk int64
	Batches      uint64 // since the start
	Tree         TreeStats
	Doubt        string // why a dump is not offered as the whole, "" if it is
}

func (l *log) stats() LogStats {
	l.treeMu.Lock()
	defer l.treeMu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	s := LogStats{
		Epoch: l.epoch, Any: l.newest != nil, Memory: l.memory, Disk: l.disk, Batches: l.batches,
		Tree: l.tree.stats(), Doubt: l.doubts(),
	}
	if s.Any {
		s.First, s.Last = l.oldest.first, l.newest.last
	}
	for p := l.oldest; p != nil; p = p.next {
		s.Parts++
	}
	return s
}
