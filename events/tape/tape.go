// Package tape keeps the one record of what was applied: the raw payloads of all sources, in order, and what else
// decides what an index holds. The newest batches of each source stay in memory, up to a bound, and all goes to the
// disk if there is a directory. Users know the record as the journal: settings, metrics, files and messages call it so.
//
//	Recorder.RecordBatch, RecordReset, … --> memory of the source: part, part … (the oldest is evicted)
//	 (ingest, never waits)     |
//	                           +--entry--> queue --> writer --> segment --> segment … (the oldest is removed)
//	                                     (bounded)  (one goroutine)
//	Recorder.Read, Visit: batches of one source, from its memory or else from the disk
//	Reader --Record--> who rebuilds an index        Locate: where a batch is
//
// docs/journal.md is the format and what it promises. Every segment opens with
// the registrations at that place, so it can be read without those before it.
//
// Invariants:
//
//  1. Records of one source are in the order of the calls. A hole
//     between two of them is followed by a Lost record, or by an opening whose
//     watermark shows it.
//  2. Segments together never take more than Options.MaxBytes.
//  3. No call of a Recorder waits for the disk, and no error of the disk reaches it.
//  4. A record is read as it was written, or not at all.
//
// Concurrency: methods of Tape and Recorder are safe from any goroutine; a nil
// Tape hands out nil Recorders, whose methods do nothing. Tape.mu guards the
// queue and is never held while a file is touched; the memory of a source has a lock of its
// own, which is locked after it. The writer goroutine owns the files. A Reader is used by one goroutine.
//
// A Tape with a key seals payloads (seal.go). Memory and excerpts are plain: they go to
// clients, not to the disk.
//
// Cost: a record is one read of the clock, one lock and 80 bytes in the queue for the caller, and
// one lock, copy and checksum if it stays in memory; one copy, one checksum and a share of a
// write for the writer.
package tape

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"sync"
	"time"

	"example.com/conductor/keyfile"
)

// MinBytes is the least Options.MaxBytes: eight segments of 1 MiB.
const MinBytes = 8 << 20

// Options describes a tape.
type Options struct {
	Dir      string       // "" for nothing on the disk
	MaxBytes int64        // of all segments together, at least MinBytes
	Memory   int          // bytes of the newest batches of each source that stay in memory, plain
	Settings []Field      // opens every segment
	Key      *keyfile.Key // seals the payloads; nil records them as they are
	// Delay is how long a record may wait for others to be written with; waking
	// the writer for each would cost ingest more than all the rest.
	Delay time.Duration
	// Temporary removes all segments at Close, and at the start those of a run that did not come so far.
	Temporary bool
	// Use says what of a server the directory is, for the error when another one has it; "journal" when empty.
	Use string

	// Report, if set, is called with the first of consecutive errors of the disk, and
	// with nil once writing works again.
	Report func(error)
	// Evict, if set, is called with each batch that leaves the memory of a source to make room for newer ones, oldest
	// first, from the call that records the newer one, after that is in the memory. The payload stays valid. It is not called for
	// what a Reset drops.
	Evict func(*Record)

	queueBytes int                                       // queueBytes when 0
	create     func(name string) (io.WriteCloser, error) // createFile when nil
}

// Tape is the record of one server, or of one relay. Its counterpart is Reader.
type Tape struct {
	opts Options
	lock *os.File
	wake chan struct{} // capacity 1: the queue is not empty any more, or the end has come
	rush chan struct{} // capacity 1: the queue is half full, or the end has come
	done sync.WaitGroup

	mu     sync.Mutex
	queue  queue
	alive  map[*Recorder]bool // registered
	ids    uint32             // handed out
	stats  Stats
	closed bool

	disk disk

	reading sync.Mutex // held by Recorder.Read
}

// Create begins to record, in a directory behind what it holds already. An error
// means that the directory cannot be used.
func Create(o Options) (*Tape, error) {
	t := &Tape{opts: o, wake: make(chan struct{}, 1), rush: make(chan struct{}, 1), alive: make(map[*Recorder]bool)}
	d := &t.disk
	d.run = rand.Uint64()
	if o.Dir == "" {
		return t, nil
	}
	if o.MaxBytes < MinBytes {
		return nil, fmt.Errorf("%d bytes are too few for a journal; the least is %d", o.MaxBytes, MinBytes)
	}
	lock, err := Claim(o.Dir, cmp.Or(o.Use, "journal"))
	if err != nil {
		return nil, err
	}
	t.lock = lock
	t.queue.max = cmp.Or(o.queueBytes, queueBytes)
	if t.opts.create == nil {
		t.opts.create = createFile
	}
	if t.opts.Report == nil {
		t.opts.Report = func(error) {}
	}
	if o.Temporary {
		err = removeSegments(o.Dir)
	}
	d.limit, d.alive = min(maxSegment, o.MaxBytes/8), make(map[uint32]*Recorder)
	if err == nil {
		d.old, err = segments(o.Dir)
	}
	if err == nil {
		for _, s := range d.old {
			d.total += s.size
			d.next = s.number
		}
		d.next++
		err = t.openSegment()
	}
	if err != nil {
		lock.Close()
		return nil, err
	}
	t.releaseRoom(0, d.takeCounts())
	t.done.Go(t.writeQueue)
	return t, nil
}

func createFile(name string) (io.WriteCloser, error) {
	return os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
}

// Close writes the queued records and ends the record. Recorders may go on calling.
func (t *Tape) Close() error {
	if t == nil || t.opts.Dir == "" {
		return nil
	}
	t.mu.Lock()
	before := t.closed
	t.closed = true
	t.mu.Unlock()
	if before {
		return nil
	}
	wake(t.wake)
	wake(t.rush)
	t.done.Wait()
	var err error
	if t.opts.Temporary {
		err = removeSegments(t.opts.Dir) // before the lock goes: they may be those of another process then
	}
	return errors.Join(err, t.lock.Close())
}

// wake puts a value into a channel of capacity 1, unless it has one.
func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// MemoryBytes returns the memory of the newest batches and of the records that are not written yet, 0
// of a nil Tape.
func (t *Tape) MemoryBytes() int {
	if t == nil {
		return 0
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	n := t.queue.bytes
	for s := range t.alive {
		n += s.memory.size()
	}
	return n
}

// Stats is what a Tape did so far.
type Stats struct {
	Bytes   uint64 // written
	Dropped uint64 // records not written
	Errors  uint64 // failed attempts to write
	OnDisk  int64  // bytes of all segments
}

// Stats returns the counts so far. Those of a nil Tape are zero.
func (t *Tape) Stats() Stats {
	if t == nil {
		return Stats{}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.stats
}
