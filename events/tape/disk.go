package tape

import (
	"errors"
	"io"
	"maps"
	"os"
	"slices"
	"time"
)

const (
	maxSegment = 64 << 20
	// Encoded records are handed to the file in pieces of about this size.
	pieceBytes = 256 << 10

	retryMin = time.Second
	retryMax = 30 * time.Second
)

// disk is what the writer goroutine owns.
type disk struct {
	run     uint64
	limit   int64     // of a segment
	old     []segment // closed, oldest first
	total   int64     // bytes of all segments, the open one included
	next    uint64    // number of the next segment
	alive   map[uint32]*Recorder
	file    io.WriteCloser // nil: none is open
	frame   frame
	size    int64  // of the open segment, buf included
	opening int64  // bytes of its opening, header included
	buf     []byte // encoded and not written: the piece
	records uint64 // in the piece
	piece   uint64 // pieces so far
	done    Stats  // not yet in Tape.stats

	failing bool
	pause   time.Duration
	retryAt time.Time // no segment is opened before
	since   time.Time // when the open segment was opened
}

// writeQueue writes the queued records until the end.
func (t *Tape) writeQueue() {
	var entries []entry
	var written []chan struct{}
	for closed := false; !closed; {
		<-t.wake
		t.gatherEntries()
		for more := true; more; {
			entries, written, closed = t.takeEntries(entries)
			if more = len(entries) > 0; more {
				t.writeEntries(entries)
			}
			for _, done := range written {
				close(done)
			}
		}
	}
	if t.disk.file != nil {
		t.closeSegment()
	}
}

// gatherEntries lets the queue grow for a while.
func (t *Tape) gatherEntries() {
	if t.opts.Delay <= 0 {
		return
	}
	timer := time.NewTimer(t.opts.Delay)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-t.rush:
	}
}

// writeEntries writes entries and hands everything to the file.
func (t *Tape) writeEntries(entries []entry) {
	d := &t.disk
	room := 0
	for i := range entries {
		room += entries[i].size()
		t.writeEntry(&entries[i])
		entries[i].block.Release()
		entries[i] = entry{}
		if room >= pieceBytes {
			t.releaseRoom(room, d.takeCounts())
			room = 0
		}
	}
	if d.file != nil {
		if err := t.flushPiece(); err != nil {
			t.failSegment(err)
		}
	}
	t.releaseRoom(room, d.takeCounts())
}

// takeCounts returns the counts since it was last called.
func (d *disk) takeCounts() (done Stats) {
	done, d.done = d.done, Stats{}
	done.OnDisk = d.total
	return done
}

// writeEntry writes one entry, or counts it as dropped, and keeps the writer's own
// list of the registrations.
func (t *Tape) writeEntry(e *entry) {
	d := &t.disk
	if e.alive != nil {
		clear(d.alive)
		for _, s := range e.alive {
			d.alive[s.source.id], s.source.written = s.source, s.pos
		}
		if err := t.finishSegment(); err != nil { // the next segment opens with them
			t.failSegment(err)
		}
		return
	}
	s := e.source
	err := t.storeRecord(e)
	if err != nil {
		d.done.Dropped++
		s.unwritten++
	} else if len(d.buf) >= pieceBytes {
		err = t.flushPiece()
	}
	if err != nil && err != errPaused && err != errTooLarge {
		t.failSegment(err)
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

// storeRecord puts a record into the open segment, or into a new one.
func (t *Tape) storeRecord(e *entry) error {
	d := &t.disk
	need := t.recordBytes(&e.Record)
	if need > t.opts.MaxBytes/4 {
		return errTooLarge
	}
	// Openings of many sources would else fill small segments alone.
	if d.file != nil && d.size > d.opening && d.size-d.opening+need > max(d.limit, d.opening) {
		if err := t.finishSegment(); err != nil {
			return err
		}
	}
	if d.file == nil {
		if d.failing && time.Now().Before(d.retryAt) {
			return errPaused
		}
		if err := t.openSegment(); err != nil {
			return err
		}
	}
	s := e.source
	s.piece = d.piece
	if s.unwritten > 0 {
		if err := t.encodeRecord(&Record{Kind: Lost, Source: s.id, Time: e.Time, Seq: s.unwritten}); err != nil {
			return err
		}
		s.unwritten = 0
	}
	return t.encodeRecord(&e.Record)
}

// failSegment gives the open segment up and pauses. The first of consecutive errors is
// reported.
func (t *Tape) failSegment(err error) {
	d := &t.disk
	d.done.Errors++
	if d.file != nil {
		d.done.Dropped += d.records
		for _, s := range d.alive {
			if d.records > 0 && s.piece == d.piece {
				s.unwritten++
			}
		}
		t.closeSegment()
	}
	d.records = 0
	d.piece++
	d.pause = min(max(2*d.pause, retryMin), retryMax)
	d.retryAt = time.Now().Add(d.pause)
	if !d.failing {
		d.failing = true
		t.opts.Report(err)
	}
}

// encodeRecord encodes a record into the open segment.
func (t *Tape) encodeRecord(r *Record) error {
	d := &t.disk
	need := t.recordBytes(r)
	if err := t.makeRoom(need); err != nil {
		return err
	}
	d.buf = d.frame.appendRecord(d.buf, r)
	d.size += need
	d.total += need
	d.records++
	return nil
}

// makeRoom removes the oldest segments until need more bytes are within bounds.
func (t *Tape) makeRoom(need int64) error {
	d := &t.disk
	for d.total+need > t.opts.MaxBytes && len(d.old) > 0 {
		err := os.Remove(t.path(d.old[0].number))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		d.total -= d.old[0].size
		d.old = d.old[1:]
	}
	if d.total+need > t.opts.MaxBytes {
		return errors.New("BUG: one segment takes the whole journal")
	}
	return nil
}

func (t *Tape) path(number uint64) string { return Path(t.opts.Dir, number) }

// flushPiece hands the piece to the file.
func (t *Tape) flushPiece() error {
	d := &t.disk
	if len(d.buf) == 0 {
		return nil
	}
	n, err := d.file.Write(d.buf)
	d.done.Bytes += uint64(n)
	if err != nil {
		d.buf = d.buf[:copy(d.buf, d.buf[n:])]
		return err
	}
	d.buf, d.records = d.buf[:0], 0
	d.piece++
	if cap(d.buf) > 4*pieceBytes {
		d.buf = nil
	}
	// A full disk may have room for a little again and again.
	if d.failing && (d.size-d.opening >= pieceBytes || time.Since(d.since) >= retryMax) {
		d.failing, d.pause = false, 0
		t.opts.Report(nil)
	}
	return nil
}

// openSegment begins a segment with the registrations. A segment that cannot take that
// is of no use and removed.
func (t *Tape) openSegment() error {
	d := &t.disk
	records := t.openingRecords(time.Now())
	need := int64(headerSize)
	for i := range records {
		need += t.recordBytes(&records[i])
	}
	if need > t.opts.MaxBytes/3 {
		return errOpening
	}
	if err := t.makeRoom(need); err != nil {
		return err
	}
	number := d.next
	file, err := t.opts.create(t.path(number))
	if err != nil {
		return err
	}
	h := header{run: d.run, number: number, sealed: t.opts.Key != nil}
	d.next++
	d.file, d.frame, d.buf, d.since = file, h.frame(t.opts.Key), h.encode(), time.Now()
	d.size, d.opening = headerSize, need
	d.total += headerSize
	for i := 0; i < len(records) && err == nil; i++ {
		err = t.encodeRecord(&records[i])
	}
	if err == nil {
		err = t.flushPiece()
	}
	d.records = 0
	if err != nil {
		t.closeSegment()
		if os.Remove(t.path(number)) == nil {
			last := len(d.old) - 1
			d.total -= d.old[last].size
			d.old = d.old[:last]
		}
	}
	return err
}

// openingRecords is the opening of a segment.
func (t *Tape) openingRecords(now time.Time) []Record {
	d := &t.disk
	all := []Record{{Kind: Settings, Time: now, Payload: AppendFields(nil, t.opts.Settings...)}}
	for _, id := range slices.Sorted(maps.Keys(d.alive)) {
		s := d.alive[id]
		r := Record{
			Kind: Registered, Flags: Standing, Source: id, Time: now,
			Epoch: s.written.epoch, Seq: s.written.seq, Payload: s.registration,
		}
		if s.written.hasSeq {
			r.Flags |= HasSeq
		}
		all = append(all, r)
		if s.written.state != nil {
			all = append(all, Record{Kind: State, Source: id, Time: now, Payload: s.written.state})
		}
	}
	return append(all, Record{Kind: Begin, Time: now, Seq: uint64(len(d.alive))})
}

// finishSegment ends the open segment.
func (t *Tape) finishSegment() error {
	if t.disk.file == nil {
		return nil
	}
	if err := t.flushPiece(); err != nil {
		return err
	}
	return t.closeSegment()
}

// closeSegment closes the open segment as it is. What was encoded and not written is
// lost.
func (t *Tape) closeSegment() error {
	d := &t.disk
	err := d.file.Close()
	d.total -= int64(len(d.buf))
	d.old = append(d.old, segment{number: d.next - 1, size: d.size - int64(len(d.buf))})
	d.file, d.buf = nil, d.buf[:0]
	return err
}
