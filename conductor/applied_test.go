package conductor_test

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/rs/zerolog"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/ingest"
	"example.com/conductor/conductor/replay"
	"example.com/conductor/events/tape"
	"example.com/conductor/internal/must"
)

// applied prints the records of a source's newest batches, and returns their segment.
func applied(t *testing.T, c *conductor.Conductor, source string, q tape.Range) (lines []string, segment []byte) {
	t.Helper()
	q.To, q.Limit = math.MaxUint64, 1000
	e, _, err := c.For(conductor.Reader{}).Inspect().AppliedBatches(source, q)
	if err != nil {
		return []string{err.Error()}, nil
	}
	r := tape.Scan(e.Segment)
	for rec := (tape.Record{}); r.Next(&rec) == nil; {
		if rec.Kind >= tape.Batch {
			lines = append(lines, fmt.Sprintf("%s %d/%d %t", rec.Kind, rec.Epoch, rec.Seq, rec.Flags&tape.Replayed != 0))
		}
	}
	return lines, e.Segment
}

// TestMemoryHoldsAppliedBatches: the journal's memory of a source begins over with its epoch, and
// replays to the same answers.
func TestMemoryHoldsAppliedBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j, err := tape.Create(tape.Options{Memory: 64 << 10})
		must.Succeed(t, err)
		b := newBenchWith(j, zerolog.Nop())
		defer b.conductor.Close()
		f := func(source string, want ...string) {
			t.Helper()
			if got, _ := applied(t, b.conductor, source, tape.Range{Oldest: true}); !slices.Equal(got, want) {
				t.Errorf("%s: %q, want %q", source, got, want)
			}
		}
		runAll(b, "register A")
		f("A|default|0")
		runAll(b, "store A path=a", "store A path=a/b/c", "remove A path=a/b/c")
		f("A|default|0", "batch 1/0 false", "batch 1/1 false", "batch 1/2 false")
		f("B|default|0", ingest.ErrNotFound.Error()+": B|default|0")
		if got, _ := applied(t, b.conductor, "A|default|0", tape.Range{From: 3}); got[0] != tape.ErrTooNew.Error() {
			t.Errorf("%q", got)
		}

		_, segment := applied(t, b.conductor, "A|default|0", tape.Range{Oldest: true})
		p := replay.New(conductor.Options{Log: zerolog.Nop()})
		r := tape.Scan(segment)
		for rec := (tape.Record{}); r.Next(&rec) == nil; {
			must.Report(t, p.Take(&rec))
		}
		defer p.Conductor().Close()
		past := &bench{conductor: p.Conductor(), handler: handlerOf(p.Conductor())}
		for _, ask := range []string{"query path=a/b/c", "services show=Epoch,LastSeq,Blocks"} {
			if now, then := b.run(ask), past.run(ask); now != then || !strings.Contains(now, "A") {
				t.Errorf("%s: %q, now %q", ask, then, now)
			}
		}
		if _, _, err := p.Conductor().For(conductor.Reader{}).Inspect().AppliedBatches("A|default|0",
			tape.Range{Oldest: true}); !errors.Is(err,
			tape.ErrGone) {
			t.Errorf("a past has a journal: %v", err)
		}

		runAll(b, "register B", "restart A", "wait 10s", "store A path=z")
		f("A|default|0", "batch 2/0 false")
		f("B|default|0")
		if got, _ := applied(t, b.conductor, "A|default|0", tape.Range{Epoch: 1, From: 2}); got[0] != tape.ErrGone.Error() {
			t.Errorf("%q", got)
		}
		for _, part := range b.conductor.Meter().Memory() {
			if part.Name == "journal" && (part.Bytes == 0 || part.Bytes > 2*(64<<10)) {
				t.Errorf("the journal takes %d bytes", part.Bytes)
			}
		}
	})
}
