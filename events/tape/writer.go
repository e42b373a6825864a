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

const (
	// MinBytes is the least Options.MaxBytes: eight segments of 1 MiB.
	MinBytes = 8 << 20

	maxSegment = 64 << 20
	// Encoded records are handed to the file in pieces of about this size.
	pieceBytes = 256 << 10

	retryMin = time.Second
	retryMax = 30 * time.Second
)

// Options describes a journal to be written.
type Options struct {
	Dir      string       // "" for nothing on the disk
	MaxBytes int64        // of all segments together, at least MinBytes
	Memory   int          // bytes of the newest batches of each source that stay in memory, plain
	Settings []Field      // opens every segment
	Key      *keyfile.Key // seals the payloads; nil records them as they are
	// Delay is how long a record may wait for others to be written with; waking
	// the writer for each would cost ingest more than all the rest.
	Delay time.Duration

	// Report, if set, hears of the first of consecutive errors of the disk, and
	// nil once writing works again.
	Report func(error)

	queueBytes int                                       // queueBytes when 0
	create     func(name string) (io.WriteCloser, error) // createFile when nil
}

// Tape records. Its counterpart is Reader.
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
	w := &Tape{opts: o, wake: make(chan struct{}, 1), rush: make(chan struct{}, 1), alive: make(map[*Recorder]bool)}
	d := &w.disk
	d.run = rand.Uint64()
	if o.Dir == "" {
		return w, nil
	}
	if o.MaxBytes < MinBytes {
		return nil, fmt.Errorf("%d bytes are too few for a journal; the least is %d", o.MaxBytes, MinBytes)
	}
	lock, err := Claim(o.Dir, "journal")
	if err != nil {
		return nil, err
	}
	w.lock = lock
	w.queue.max = cmp.Or(o.queueBytes, queueBytes)
	if w.opts.create == nil {
		w.opts.create = createFile
	}
	if w.opts.Report == nil {
		w.opts.Report = func(error) {}
	}
	d.limit, d.alive = min(maxSegment, o.MaxBytes/8), make(map[uint32]*Recorder)
	if d.old, err = segments(o.Dir); err == nil {
		for _, s := range d.old {
			d.total += s.size
			d.next = s.number
		}
		d.next++
		err = w.open()
	}
	if err != nil {
		lock.Close()
		return nil, err
	}
	w.release(0, d.settle())
	w.done.Go(w.run)
	return w, nil
}

func createFile(name string) (io.WriteCloser, error) {
	return os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
}

// Close writes the queued records and ends the record. Recorders may go on calling.
func (w *Tape) Close() error {
	if w == nil || w.opts.Dir == "" {
		return nil
	}
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	signal(w.wake)
	signal(w.rush)
	w.done.Wait()
	return w.lock.Close()
}

// run writes the queued records until the end.
func (w *Tape) run() {
	var entries []entry
	for closed := false; !closed; {
		<-w.wake
		w.gather()
		for {
			entries, closed = w.take(entries)
			if len(entries) == 0 {
				break
			}
			w.write(entries)
		}
	}
	if w.disk.file != nil {
		w.shut()
	}
}

// gather lets the queue grow for a while.
func (w *Tape) gather() {
	if w.opts.Delay <= 0 {
		return
	}
	t := time.NewTimer(w.opts.Delay)
	defer t.Stop()
	select {
	case <-t.C:
	case <-w.rush:
	}
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// write writes entries and hands everything to the file.
func (w *Tape) write(entries []entry) {
	d := &w.disk
	room := 0
	for i := range entries {
		room += entries[i].size()
		w.follow(&entries[i])
		entries[i].block.Release()
		entries[i] = entry{}
		if room >= pieceBytes {
			w.release(room, d.settle())
			room = 0
		}
	}
	if d.file != nil {
		if err := w.flush(); err != nil {
			w.fail(err)
		}
	}
	w.release(room, d.settle())
}

// settle returns the counts since it was last called.
func (d *disk) settle() (done Stats) {
	done, d.done = d.done, Stats{}
	return done
}

// follow writes one entry, or counts it as dropped, and keeps the writer's own
// list of the registrations.
func (w *Tape) follow(e *entry) {
	d := &w.disk
	if e.alive != nil {
		clear(d.alive)
		for _, s := range e.alive {
			d.alive[s.source.id], s.source.written = s.source, s.pos
		}
		if err := w.finish(); err != nil { // the next segment opens with them
			w.fail(err)
		}
		return
	}
	s := e.source
	err := w.store(e)
	if err != nil {
		d.done.Dropped++
		s.unwritten++
	} else if len(d.buf) >= pieceBytes {
		err = w.flush()
	}
	if err != nil && err != errPaused && err != errTooLarge {
		w.fail(err)
	}
	s.written = s.written.after(&e.Record)
	switch e.Kind {
	case Registered:
		s.written, s.unwritten = position{epoch: e.Epoch}, 0 // openings say it
		d.alive[s.id] = s
	case Unregistered:
		delete(d.alive, s.id)
	}
}

var (
	errPaused   = errors.New("waiting to try again")
	errTooLarge = errors.New("a message is larger than a quarter of the journal")
	errOpening  = errors.New("the registered sources alone take more than a third of the journal")
)

// store puts a record into the open segment, or into a new one.
func (w *Tape) store(e *entry) error {
	d := &w.disk
	need := w.recordBytes(&e.Record)
	if need > w.opts.MaxBytes/4 {
		return errTooLarge
	}
	// Openings of many sources would else fill small segments alone.
	if d.file != nil && d.size > d.opening && d.size-d.opening+need > max(d.limit, d.opening) {
		if err := w.finish(); err != nil {
			return err
		}
	}
	if d.file == nil {
		if d.failing && time.Now().Before(d.retryAt) {
			return errPaused
		}
		if err := w.open(); err != nil {
			return err
		}
	}
	s := e.source
	s.piece = d.piece
	if s.unwritten > 0 {
		if err := w.append(&Record{Kind: Lost, Source: s.id, Time: e.Time, Seq: s.unwritten}); err != nil {
			return err
		}
		s.unwritten = 0
	}
	return w.append(&e.Record)
}

// fail gives the open segment up and pauses. The first of consecutive errors is
// reported.
func (w *Tape) fail(err error) {
	d := &w.disk
	d.done.Errors++
	if d.file != nil {
		d.done.Dropped += d.records
		for _, s := range d.alive {
			if d.records > 0 && s.piece == d.piece {
				s.unwritten++
			}
		}
		w.shut()
	}
	d.records = 0
	d.piece++
	d.pause = min(max(2*d.pause, retryMin), retryMax)
	d.retryAt = time.Now().Add(d.pause)
	if !d.failing {
		d.failing = true
		w.opts.Report(err)
	}
}
