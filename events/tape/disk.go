package tape

import (
	"errors"
	"io"
	"maps"
	"os"
	"slices"
	"time"
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

// append encodes a record into the open segment.
func (w *Tape) append(r *Record) error {
	d := &w.disk
	need := w.recordBytes(r)
	if err := w.makeRoom(need); err != nil {
		return err
	}
	d.buf = d.frame.append(d.buf, r)
	d.size += need
	d.total += need
	d.records++
	return nil
}

// makeRoom removes the oldest segments until need more bytes are within bounds.
func (w *Tape) makeRoom(need int64) error {
	d := &w.disk
	for d.total+need > w.opts.MaxBytes && len(d.old) > 0 {
		err := os.Remove(w.path(d.old[0].number))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		d.total -= d.old[0].size
		d.old = d.old[1:]
	}
	if d.total+need > w.opts.MaxBytes {
		return errors.New("BUG: one segment takes the whole journal")
	}
	return nil
}

func (w *Tape) path(number uint64) string { return Path(w.opts.Dir, number) }

// flush hands the piece to the file.
func (w *Tape) flush() error {
	d := &w.disk
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
		w.opts.Report(nil)
	}
	return nil
}

// open begins a segment with the registrations. A segment that cannot take that
// is of no use and removed.
func (w *Tape) open() error {
	d := &w.disk
	records := w.standing(time.Now())
	need := int64(headerSize)
	for i := range records {
		need += w.recordBytes(&records[i])
	}
	if need > w.opts.MaxBytes/3 {
		return errOpening
	}
	if err := w.makeRoom(need); err != nil {
		return err
	}
	number := d.next
	file, err := w.opts.create(w.path(number))
	if err != nil {
		return err
	}
	h := header{run: d.run, number: number, sealed: w.opts.Key != nil}
	d.next++
	d.file, d.frame, d.buf, d.since = file, h.frame(w.opts.Key), h.encode(), time.Now()
	d.size, d.opening = headerSize, need
	d.total += headerSize
	for i := 0; i < len(records) && err == nil; i++ {
		err = w.append(&records[i])
	}
	if err == nil {
		err = w.flush()
	}
	d.records = 0
	if err != nil {
		w.shut()
		if os.Remove(w.path(number)) == nil {
			last := len(d.old) - 1
			d.total -= d.old[last].size
			d.old = d.old[:last]
		}
	}
	return err
}

// standing is the opening of a segment.
func (w *Tape) standing(now time.Time) []Record {
	d := &w.disk
	all := []Record{{Kind: Settings, Time: now, Payload: AppendFields(nil, w.opts.Settings...)}}
	for _, id := range slices.Sorted(maps.Keys(d.alive)) {
		s := d.alive[id]
		r := Record{Kind: Registered, Flags: Standing, Source: id, Time: now, Epoch: s.written.epoch, Seq: s.written.seq, Payload: s.desc}
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

// finish ends the open segment.
func (w *Tape) finish() error {
	if w.disk.file == nil {
		return nil
	}
	if err := w.flush(); err != nil {
		return err
	}
	return w.shut()
}

// shut closes the open segment as it is. What was encoded and not written is
// lost.
func (w *Tape) shut() error {
	d := &w.disk
	err := d.file.Close()
	d.total -= int64(len(d.buf))
	d.old = append(d.old, segment{number: d.next - 1, size: d.size - int64(len(d.buf))})
	d.file, d.buf = nil, d.buf[:0]
	return err
}
