package tape

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"example.com/conductor/internal/must"
	"example.com/conductor/keyfile"
)

// readBack prints what a source reads back: records behind the opening, and where the rest
// begins, or the error and the bounds.
func readBack(t *testing.T, s *Recorder, q Range) (lines []string) {
	t.Helper()
	e, span, err := s.Read(q)
	if err != nil {
		return []string{fmt.Sprintf("%v: %d to %d of %d", err, span.First, span.Last, span.Epoch)}
	}
	r := Scan(e.Segment)
	var rec Record
	for err = r.Next(&rec); err == nil; err = r.Next(&rec) {
		if rec.Kind >= Batch {
			lines = append(lines, fmt.Sprintf("%s %d/%d %d", rec.Kind, rec.Epoch, rec.Seq, len(rec.Payload)))
		} else if rec.Kind == Registered && rec.Flags&HasSeq != 0 && rec.Seq+1 < span.First {
			lines = append(lines, "opened too early")
		}
	}
	if !errors.Is(err, io.EOF) || r.Damage() != (Damage{}) {
		t.Errorf("%v %+v", err, r.Damage())
	}
	if e.More {
		lines = append(lines, fmt.Sprint("more from ", e.Next))
	}
	return lines
}

// TestSourceReadsBack reads ranges from the segments of a run, also of epochs that are over.
func TestSourceReadsBack(t *testing.T) {
	t.Run("plain", func(t *testing.T) { testSourceReadsBack(t, nil, nil) })
	t.Run("sealed", func(t *testing.T) { testSourceReadsBack(t, testKey, testKey) })
	t.Run("sealed from now on", func(t *testing.T) { testSourceReadsBack(t, nil, testKey) })
	t.Run("plain from now on", func(t *testing.T) { testSourceReadsBack(t, testKey, nil) })
	t.Run("another key", func(t *testing.T) { testSourceReadsBack(t, otherKey, testKey) })
}

func testSourceReadsBack(t *testing.T, before, key *keyfile.Key) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		old := create(t, Options{Dir: dir, Key: before})
		old.Register("a|default|0").RecordBatch(1, 0, false, []byte("of another run"), nil)
		old.Close()
		w := create(t, Options{Dir: dir, Key: key})
		other := w.Register("b|default|0")
		s := w.Register("a|default|0")
		f := func(q Range, want ...string) {
			t.Helper()
			synctest.Wait()
			q.Limit = max(q.Limit, 1)
			if got := readBack(t, s, q); !slices.Equal(got, want) {
				t.Errorf("%+v: %q, want %q", q, got, want)
			}
		}
		f(Range{To: whole}, "the batches are not there yet: 0 to 0 of 1")
		f(Range{Oldest: true, To: whole}, "the batches are gone: 1 to 0 of 1")
		for seq := uint64(2); seq < 8; seq++ {
			s.RecordBatch(1, seq, false, make([]byte, 300<<10), nil) // three a segment
			other.RecordBatch(1, seq, false, make([]byte, 10), nil)
		}
		f(Range{Oldest: true, To: 3, Limit: 9}, "batch 1/2 307200", "batch 1/3 307200")
		f(Range{From: 2, To: 3, Limit: 1}, "batch 1/2 307200", "more from 3")
		f(Range{From: 7, To: whole, Limit: 1}, "batch 1/7 307200")
		f(Range{From: 4, To: 6, Limit: 9}, "batch 1/4 307200", "batch 1/5 307200", "batch 1/6 307200")
		f(Range{From: 1, To: 6}, "the batches are gone: 2 to 7 of 1")
		f(Range{From: 8, To: whole}, "the batches are not there yet: 0 to 7 of 1")
		f(Range{Epoch: 2, To: whole}, "the batches are not there yet: 0 to 7 of 1")
		s.RecordReset(2, "publisher_restarted")
		s.RecordBatch(2, 0, false, make([]byte, 1), nil)
		for seq := range uint64(5) {
			s.RecordIdle(2, 1+seq)
		}
		s.RecordBatch(2, 6, false, make([]byte, 2), nil)
		f(Range{To: whole, Limit: 9}, "batch 2/0 1", "idle 2/1 0", "idle 2/5 0", "batch 2/6 2")
		f(Range{From: 3, To: 4, Limit: 9}, "idle 2/4 0")
		f(Range{Epoch: 1, From: 6, To: whole, Limit: 9}, "batch 1/6 307200", "batch 1/7 307200")
		f(Range{Epoch: 1, From: 1, To: whole}, "the batches are gone: 0 to 6 of 2")
		s.RecordReset(2, "internal_error") // within the epoch: it begins over
		s.RecordBatch(2, 0, false, make([]byte, 3), nil)
		f(Range{To: whole, Limit: 9}, "batch 2/0 3")
		if _, _, err := (*Recorder)(nil).Read(Range{}); !errors.Is(err, ErrGone) {
			t.Error(err)
		}
	})
}

// TestSourceReadsAroundHoles: a range ends before records that are missing, and behind them a
// new one begins.
func TestSourceReadsAroundHoles(t *testing.T) {
	t.Run("plain", func(t *testing.T) { testSourceReadsAroundHoles(t, nil) })
	t.Run("sealed", func(t *testing.T) { testSourceReadsAroundHoles(t, testKey) })
}

func testSourceReadsAroundHoles(t *testing.T, key *keyfile.Key) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		w := create(t, Options{Dir: dir, Key: key})
		s := w.Register("a|default|0")
		f := func(q Range, want ...string) {
			t.Helper()
			synctest.Wait()
			q.Limit = 9
			if got := readBack(t, s, q); !slices.Equal(got, want) {
				t.Errorf("%+v: %q, want %q", q, got, want)
			}
		}
		s.RecordBatch(1, 0, false, make([]byte, 100), nil)
		s.RecordBatch(1, 1, false, make([]byte, 700), nil)
		s.RecordBatch(1, 2, false, make([]byte, MinBytes), nil) // the journal has no room for it
		s.RecordBatch(1, 3, false, make([]byte, 300), nil)
		f(Range{To: whole}, "batch 1/0 100", "batch 1/1 700", "more from 2")
		f(Range{From: 2, To: whole}, "the batches are gone: 3 to 3 of 1")
		f(Range{From: 3, To: whole}, "batch 1/3 300")

		// Damage in a file is a hole too.
		name := filepath.Join(dir, segmentName(1))
		data, err := os.ReadFile(name)
		must.Succeed(t, err)
		all, _ := contentsWith(t, dir, key)
		at := slices.IndexFunc(all, func(r Record) bool { return r.Kind == Batch && r.Seq == 1 })
		data[all[at].At.Offset+recordSize+5] ^= 1
		must.Succeed(t, os.WriteFile(name, data, 0o600))
		f(Range{To: whole}, "batch 1/0 100", "more from 1")
		f(Range{From: 1, To: whole}, "the batches are gone: 3 to 3 of 1")
	})
}

// TestSourceReadsTornSegment: the watermark of the next opening shows what a torn end has lost.
func TestSourceReadsTornSegment(t *testing.T) {
	dir := t.TempDir()
	w := create(t, Options{Dir: dir})
	s := w.Register("a|default|0")
	for seq := range uint64(6) {
		s.RecordBatch(1, seq, false, make([]byte, 300<<10), nil) // three a segment
	}
	w.Close()
	name := filepath.Join(dir, segmentName(1))
	info, err := os.Stat(name)
	must.Succeed(t, err)
	must.Succeed(t, os.Truncate(name, info.Size()-10))
	f := func(from uint64, want ...string) {
		t.Helper()
		if got := readBack(t, s, Range{From: from, To: whole, Limit: 9}); !slices.Equal(got, want) {
			t.Errorf("from %d: %q, want %q", from, got, want)
		}
	}
	f(0, "batch 1/0 307200", "batch 1/1 307200", "more from 2")
	f(2, "the batches are gone: 3 to 5 of 1")
	f(3, "batch 1/3 307200", "batch 1/4 307200", "batch 1/5 307200")
	must.Succeed(t, os.Remove(name))
	f(0, "the batches are gone: 3 to 5 of 1")
	f(3, "batch 1/3 307200", "batch 1/4 307200", "batch 1/5 307200")
	must.Succeed(t, os.Remove(filepath.Join(dir, segmentName(2))))
	must.Succeed(t, os.WriteFile(filepath.Join(dir, segmentName(3)), openingOnly(t, s), 0o600))
	f(3, "the batches are gone: 6 to 5 of 1")
}

// openingOnly is a segment of the run that has the source at its watermark, and no batch.
func openingOnly(t *testing.T, s *Recorder) []byte {
	t.Helper()
	h := header{run: s.tape.disk.run, number: 3}
	b := h.encode()
	for _, rec := range s.tape.openingRecords(time.Now()) {
		b = h.frame(nil).appendRecord(b, &rec)
	}
	return b
}

// TestSourceReadsRemovedSegments: the writer removes the oldest segments, and each range that is
// left reads as it was written, from the disk or from memory.
func TestSourceReadsRemovedSegments(t *testing.T) {
	t.Run("disk", func(t *testing.T) { testSourceReadsRemovedSegments(t, 0) })
	t.Run("memory too", func(t *testing.T) { testSourceReadsRemovedSegments(t, 2<<20) })
}

func testSourceReadsRemovedSegments(t *testing.T, memory int) {
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 1))
	dir := t.TempDir()
	w := create(t, Options{Dir: dir, Memory: memory})
	s := w.Register("a|default|0")
	sizes := make(map[uint64]int)
	const last = 399
	for seq := range uint64(last + 1) {
		sizes[seq] = rng.IntN(80 << 10)
		s.RecordBatch(1, seq, false, make([]byte, sizes[seq]), nil)
	}
	w.Close()
	_, span, err := s.Read(Range{To: whole, Limit: 1})
	if !errors.Is(err, ErrGone) || span.First == 0 || span.First > last || span.Last != last {
		t.Fatalf("%v %+v", err, span)
	}
	recent, _, err := s.Read(Range{Oldest: true, To: whole, Limit: 1})
	must.Succeed(t, err)
	if behind := recent.Next > span.First+1; behind != (memory > 0) {
		t.Errorf("the oldest batch is before %d, the disk begins at %d", recent.Next, span.First)
	}
	for range 40 {
		from := span.First + rng.Uint64N(last-span.First+1)
		to := min(from+rng.Uint64N(20), last)
		var want []string
		for seq := from; seq <= to; seq++ {
			want = append(want, fmt.Sprintf("batch 1/%d %d", seq, sizes[seq]))
		}
		if got := readBack(t, s, Range{From: from, To: to, Limit: 1000}); !slices.Equal(got, want) {
			t.Fatalf("seed %d: %d to %d: %q, want %q", seed, from, to, got, want)
		}
	}
}
