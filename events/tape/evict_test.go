package tape

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"example.com/conductor/internal/must"
)

// TestEvict: a batch is in memory, or was evicted, and never both; what a Reset drops is not evicted.
func TestEvict(t *testing.T) {
	var evicted []uint64
	w, err := Create(Options{Memory: 2000, Evict: func(r *Record) {
		if string(r.Payload[:1]) != "x" {
			t.Errorf("the payload of batch %d begins with %q", r.Seq, r.Payload[0])
		}
		evicted = append(evicted, r.Seq)
	}})
	must.Succeed(t, err)
	s := w.Register("a|default|0")
	record := func(epoch, seq uint64, size int) {
		raw := make([]byte, size)
		raw[0] = 'x'
		s.RecordBatch(epoch, seq, false, raw, nil)
		raw[0] = 'y' // the tape has a copy
	}
	for seq := range uint64(100) {
		record(1, seq, 100)
		kept := visited(s, Range{Epoch: 1, Oldest: true, To: math.MaxUint64, Limit: math.MaxInt})
		var all []uint64
		for n := range seq + 1 {
			all = append(all, n)
		}
		if got := append(slices.Clone(evicted), kept...); !slices.Equal(got, all) {
			t.Fatalf("of the batches to %d, %v were evicted and %v are kept", seq, evicted, kept)
		}
	}
	evicted = nil
	s.RecordReset(2, "again")
	record(2, 7, 100)
	if len(evicted) > 0 {
		t.Errorf("a reset evicts %v", evicted)
	}
	func() {
		defer func() { evicted = nil }()
		raw := make([]byte, 3000) // does not fit
		raw[0] = 'x'
		s.RecordBatch(2, 8, false, raw, nil)
		if fmt.Sprint(evicted) != "[7 8]" {
			t.Errorf("a batch larger than the memory evicts %v", evicted)
		}
	}()
}

// visited returns the numbers of the batches of a range.
func visited(s *Recorder, q Range) (all []uint64) {
	s.Visit(q, func(r *Record) bool {
		all = append(all, r.Seq)
		return true
	})
	return all
}

// TestVisit reads on where it ended, from the disk into the memory.
func TestVisit(t *testing.T) {
	dir := t.TempDir()
	w := create(t, Options{Dir: dir, Memory: 1000})
	s := w.Register("a|default|0")
	for seq := range uint64(50) {
		s.RecordBatch(1, 10+seq, false, make([]byte, 100), nil)
	}
	must.Succeed(t, w.Close()) // and so everything is on the disk
	if n := s.OldestNumber(); n != 10 {
		t.Errorf("the oldest number is %d, not 10", n)
	}
	var all []uint64
	next, err := s.Visit(Range{Epoch: 1, From: 10, To: 1000, Limit: 7}, func(r *Record) bool { all = append(all, r.Seq); return true })
	if next != 17 || err != nil || len(all) != 7 {
		t.Errorf("7 batches end before %d, with %v: %v", next, err, all)
	}
	next, err = s.Visit(Range{Epoch: 1, From: next, To: 1000, Limit: 1000}, func(r *Record) bool {
		all = append(all, r.Seq)
		return r.Seq < 30
	})
	if next != 30 || err != nil || all[len(all)-1] != 30 {
		t.Errorf("batches up to one that is refused end before %d, with %v: %v", next, err, all)
	}
	if got := visited(s, Range{Epoch: 1, From: 58, To: 1000, Limit: 1000}); fmt.Sprint(got) != "[58 59]" {
		t.Errorf("the end in memory is %v", got)
	}
	for _, f := range []struct {
		q    Range
		want error
	}{{Range{Epoch: 1, From: 9, To: 1000, Limit: 9}, ErrGone}, {Range{Epoch: 1, From: 60, To: 1000, Limit: 9}, ErrTooNew}} {
		if _, err := s.Visit(f.q, func(*Record) bool { return true }); err != f.want {
			t.Errorf("%+v: %v, not %v", f.q, err, f.want)
		}
	}
}
