package tape

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"example.com/conductor/internal/alloctest"
	"example.com/conductor/internal/must"
)

// inMemory returns a source whose batches stay in memory alone.
func inMemory(limit int, fields ...Field) *Recorder {
	w, err := Create(Options{Memory: limit, Settings: []Field{{"hash.seed", "7"}}})
	if err != nil {
		panic(err)
	}
	return w.Register("a|default|0", fields...)
}

// textsOf reads a range and returns its records behind the opening.
func textsOf(t *testing.T, s *Recorder, q Range) (texts []string, e Excerpt, err error) {
	t.Helper()
	e, _, err = s.Read(q)
	if err != nil {
		return nil, e, err
	}
	reader := Scan(e.Segment)
	var rec Record
	for err = reader.Next(&rec); err == nil; err = reader.Next(&rec) {
		texts = append(texts, text(&rec))
	}
	if !errors.Is(err, io.EOF) || reader.Damage() != (Damage{}) || len(texts) < 3 {
		t.Fatalf("%v %+v %q", err, reader.Damage(), texts)
	}
	return texts[3:], e, nil
}

const whole = 1<<64 - 1

// The memory answers with the records that a journal of the same calls has on the disk.
func TestMemoryReadsRange(t *testing.T) {
	r := inMemory(1 << 20)
	f := func(q Range, want ...string) {
		t.Helper()
		q.Limit = max(q.Limit, 1)
		got, e, err := textsOf(t, r, q)
		if err != nil {
			got = []string{err.Error()}
		} else if e.More {
			got = append(got, fmt.Sprint("more from ", e.Next))
		}
		if !slices.Equal(got, want) {
			t.Errorf("%+v: %q, want %q", q, got, want)
		}
	}
	gone, tooNew := ErrGone.Error(), ErrTooNew.Error()
	f(Range{Oldest: true, To: whole})
	f(Range{To: whole}, tooNew)
	f(Range{Epoch: 2, To: whole}, tooNew)
	r.RecordBatch(1, 4, true, []byte("four"), nil)
	r.RecordBatch(1, 5, false, nil, nil)
	for seq := range uint64(10) {
		r.RecordIdle(1, 6+seq)
	}
	r.RecordBatch(1, 20, false, []byte("twenty"), nil) // 16 to 19 never came
	r.RecordBatch(1, 21, false, []byte("last"), nil)
	four, five, idle := `1 batch replayed 1/4 "four"`, "1 batch 1/5", "1 idle 1/15"
	twenty, last := `1 batch 1/20 "twenty"`, `1 batch 1/21 "last"`
	f(Range{Oldest: true, To: whole, Limit: 9}, four, five, idle, twenty, last)
	f(Range{From: 4, To: 21, Limit: 5}, four, five, idle, twenty, last)
	f(Range{From: 4, To: 21, Limit: 4}, four, five, idle, twenty, "more from 21")
	f(Range{From: 4, To: 20, Limit: 4}, four, five, idle, twenty)
	f(Range{From: 4, To: 20, Limit: 3}, four, five, idle, "more from 16")
	f(Range{From: 5, To: 5}, five)
	f(Range{From: 5, To: 9, Limit: 9}, five, "1 idle 1/9")
	f(Range{From: 9, To: 9}, "1 idle 1/9")
	f(Range{From: 15, To: 19, Limit: 9}, idle)
	f(Range{From: 16, To: 19})
	f(Range{From: 21, To: whole}, last)
	f(Range{From: 22, To: whole}, tooNew)
	f(Range{From: 3, To: whole}, gone)
	f(Range{Epoch: 1, From: 21, To: whole}, last)
	f(Range{Epoch: 2, From: 21, To: whole}, tooNew)
	if got, want := r.memory.span, (Span{1, 4, 21, true}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	r.RecordReset(2, "")
	f(Range{Oldest: true, To: whole})
	f(Range{Epoch: 1, From: 21, To: whole}, gone)
	f(Range{Epoch: 2, To: whole}, tooNew)
	r.RecordIdle(2, 0)
	f(Range{To: whole}, "1 idle 2/0")
	r.RecordBatch(2, 1, false, make([]byte, 1<<20), nil) // larger than the memory
	f(Range{Oldest: true, To: whole})
	f(Range{From: 1, To: whole}, gone)
	f(Range{From: 2, To: whole}, tooNew)
	r.RecordBatch(2, 2, false, []byte("on"), nil)
	f(Range{Oldest: true, To: whole}, `1 batch 2/2 "on"`)
	r.RecordBatch(3, 0, false, []byte("no reset before"), nil) // the memory trusts the batch
	f(Range{Oldest: true, To: whole}, `1 batch 3/0 "no reset before"`)
}

// The segment of an excerpt is one of a journal: it opens with the settings and the
// registration, at the watermark before the range.
func TestMemoryReturnsSegments(t *testing.T) {
	r := inMemory(1<<20, Field{"block_size", "16"})
	r.RecordReset(3, "")
	r.RecordBatch(3, 7, false, []byte("seven"), nil)
	r.RecordBatch(3, 8, false, []byte("eight"), nil)
	e, span, err := r.Read(Range{From: 8, To: whole, Limit: 9})
	must.Succeed(t, err)
	if want := (Span{3, 7, 8, true}); span != want {
		t.Errorf("%+v, want %+v", span, want)
	}
	dir := t.TempDir()
	must.Succeed(t, os.WriteFile(filepath.Join(dir, segmentName(1)), e.Segment, 0o600))
	all, damage := contentsOf(t, dir)
	want(t, all, "0 settings hash.seed=7",
		"1 registered standing hasseq 3/7 source=a|default|0 block_size=16", "0 begin 0/1", `1 batch 3/8 "eight"`)
	if damage != (Damage{}) {
		t.Errorf("%+v", damage)
	}
}

func TestNilSourceKeepsNothing(t *testing.T) {
	var w *Tape
	r := w.Register("a")
	r.RecordBatch(1, 1, false, []byte("x"), nil)
	r.RecordIdle(1, 2)
	r.RecordReset(2, "")
	_, span, err := r.Read(Range{Oldest: true, To: whole, Limit: 1})
	if r != nil || w.MemoryBytes() != 0 || span != (Span{}) || !errors.Is(err, ErrGone) {
		t.Errorf("%v %v", r, err)
	}
}

// TestMemoryModel compares memories of many sizes with lists. A memory keeps as much as fits, apart
// from one part and the ends of parts.
func TestMemoryModel(t *testing.T) {
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 1))
	for round := range 15 {
		limit := 200 + rng.IntN(40_000)
		r := inMemory(limit)
		var model []Record
		epoch, seq, most := uint64(1), uint64(rng.IntN(3)), 10+rng.IntN(limit/3)
		for step := range 400 {
			switch rng.IntN(60) {
			case 0:
				epoch, model = epoch+uint64(rng.IntN(2)), nil
				r.RecordReset(epoch, "")
			case 1:
				seq += uint64(rng.IntN(5))
			case 2, 3, 4, 5:
				r.RecordIdle(epoch, seq)
				model = append(model, Record{Kind: Idle, Epoch: epoch, Seq: seq})
				seq++
			default:
				payload := bytes.Repeat([]byte{byte(seq)}, rng.IntN(most))
				r.RecordBatch(epoch, seq, false, payload, nil)
				model = append(model, Record{Kind: Batch, Epoch: epoch, Seq: seq, Payload: payload})
				seq++
			}
			checkMemory(t, r, model, rng, limit, most)
			if t.Failed() {
				t.Fatalf("seed %d, round %d, step %d", seed, round, step)
			}
		}
	}
}

// checkMemory compares a random range of a memory with the model.
func checkMemory(t *testing.T, r *Recorder, model []Record, rng *rand.Rand, limit, most int) {
	t.Helper()
	span, size := r.memory.span, 0
	for _, p := range r.memory.parts {
		size += len(p.data)
	}
	if size > limit || size != r.memory.bytes || span.Any != (len(model) > 0) || span.Any && span.Last != model[len(model)-1].Seq {
		t.Errorf("%d bytes of %d, %+v", size, limit, span)
		return
	}
	if !span.Any {
		return
	}
	first := slices.IndexFunc(model, func(rec Record) bool { return rec.Seq >= span.First })
	kept := 0
	for _, rec := range model[first:] {
		kept += recordSize + len(rec.Payload)
	}
	if first > 0 && kept < limit-limit/memoryParts-(memoryParts+1)*(recordSize+most) {
		t.Errorf("only %d bytes of %d are kept", kept, limit)
	}
	// Idle batches in a row are one record.
	from := span.First + rng.Uint64N(span.Last-span.First+1)
	to := min(from+rng.Uint64N(30), span.Last)
	var want []string
	for _, rec := range model {
		if rec.Seq < from || rec.Seq > to {
			continue
		}
		line := fmt.Sprintf("1 %s %d/%d", rec.Kind, rec.Epoch, rec.Seq)
		if n := len(want); n > 0 && rec.Kind == Idle && strings.HasPrefix(want[n-1], "1 idle") {
			want = want[:n-1]
		}
		if len(rec.Payload) > 0 {
			line += fmt.Sprintf(" %q", rec.Payload)
		}
		want = append(want, line)
	}
	got, _, err := textsOf(t, r, Range{From: from, To: to, Limit: 1000})
	if err != nil {
		t.Errorf("%d to %d of %+v: %v", from, to, span, err)
		return
	}
	// The last record may be idle up to a gap that the range ends in.
	if n := len(got); n == len(want)+1 && got[n-1] == fmt.Sprintf("1 idle %d/%d", span.Epoch, to) {
		got = got[:n-1]
	} else if n == len(want) && n > 0 && strings.HasPrefix(want[n-1], "1 idle") && got[n-1] == fmt.Sprintf("1 idle %d/%d", span.Epoch, to) {
		want[n-1] = got[n-1]
	}
	if !slices.Equal(got, want) {
		t.Errorf("%d to %d of %+v:\n%.300q\nwant\n%.300q", from, to, span, got, want)
	}
	if _, _, err := r.Read(Range{From: span.First - 1, To: whole, Limit: 1}); span.First > 0 && !errors.Is(err, ErrGone) {
		t.Errorf("before the first batch: %v", err)
	}
}

// An excerpt has few bytes, or one record.
func TestMemoryBoundsExcerpts(t *testing.T) {
	r := inMemory(64 << 20)
	for seq, size := range []int{3 << 20, 1 << 20, 6 << 20, 100, 100} {
		r.RecordBatch(1, uint64(seq), false, make([]byte, size), nil)
	}
	var parts []string
	for from, more := uint64(0), true; more; {
		e, _, err := r.Read(Range{From: from, To: 4, Limit: 1000})
		must.Succeed(t, err)
		parts = append(parts, fmt.Sprintf("%d: %d MiB", from, len(e.Segment)>>20))
		from, more = e.Next, e.More
	}
	if want := []string{"0: 3 MiB", "1: 1 MiB", "2: 6 MiB", "3: 0 MiB"}; !slices.Equal(parts, want) {
		t.Errorf("%q, want %q", parts, want)
	}
}

// A batch allocates nothing once the memory is full.
func TestMemoryAllocatesNothing(t *testing.T) {
	r := inMemory(64 << 10)
	payload, seq := make([]byte, 1000), uint64(0)
	add := func() {
		r.RecordBatch(1, seq, false, payload, nil)
		r.RecordIdle(1, seq+1)
		seq += 2
	}
	for range 100 {
		add()
	}
	if n := alloctest.PerRun(10_000, add); n != 0 {
		t.Errorf("%v allocations a batch", n)
	}
}

// A reader sees whole records of ascending numbers while the source writes.
func TestMemoryIsReadWhileWritten(t *testing.T) {
	r := inMemory(20_000)
	var all sync.WaitGroup
	for range 2 {
		all.Go(func() {
			for range 200 {
				e, _, err := r.Read(Range{Oldest: true, To: whole, Limit: 1000})
				must.Report(t, err)
				reader, next := Scan(e.Segment), uint64(0)
				for rec := (Record{}); reader.Next(&rec) == nil; {
					if rec.Kind != Batch {
						continue
					}
					if len(rec.Payload) != int(rec.Seq%500) || next > 0 && rec.Seq != next {
						t.Errorf("batch %d with %d bytes where %d is due", rec.Seq, len(rec.Payload), next)
					}
					next = rec.Seq + 1
				}
				if reader.Damage() != (Damage{}) {
					t.Errorf("%+v", reader.Damage())
				}
			}
		})
	}
	done := make(chan struct{})
	go func() {
		all.Wait()
		close(done)
	}()
	payload := make([]byte, 500)
	for seq := uint64(0); ; seq++ {
		select {
		case <-done:
			return
		default:
			r.RecordBatch(1, seq, false, payload[:seq%500], nil)
		}
	}
}

// Records have the time at which the source called.
func TestMemoryTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := inMemory(1 << 20)
		start := time.Now()
		r.RecordBatch(1, 0, false, nil, nil)
		time.Sleep(time.Minute)
		r.RecordIdle(1, 1)
		time.Sleep(time.Minute)
		r.RecordIdle(1, 2)
		e, _, err := r.Read(Range{To: whole, Limit: 9})
		must.Succeed(t, err)
		var times []time.Duration
		reader := Scan(e.Segment)
		for rec := (Record{}); reader.Next(&rec) == nil; {
			times = append(times, rec.Time.Sub(start))
		}
		if want := []time.Duration{2 * time.Minute, 2 * time.Minute, 2 * time.Minute, 0, 2 * time.Minute}; !slices.Equal(times, want) {
			t.Errorf("%v, want %v", times, want)
		}
	})
}

// BenchmarkMemory is a batch of 3 KB into a full memory.
func BenchmarkMemory(b *testing.B) {
	r := inMemory(256 << 10)
	payload := make([]byte, 3000)
	b.SetBytes(int64(len(payload)))
	b.ReportAllocs()
	for seq := uint64(0); b.Loop(); seq++ {
		r.RecordBatch(1, seq, false, payload, nil)
	}
}
