package normalize

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"example.com/conductor/conductor/doctor"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/events"
	"example.com/conductor/internal/alloctest"
)

// alone returns a normalizer of a source.
func alone(o Options) *Normalizer {
	o.Registered = scope.Context{Deployment: scope.Deployment{Tenant: "default", Model: "m", BlockSize: 16}}
	o.Findings = &doctor.New(doctor.Registered{}, func() time.Time { return time.Time{} }).Findings
	o.MayAnnounce = func(string) bool { return true }
	return New(o)
}

// count adds up what was dropped for a reason since the last call.
func (n *Normalizer) count(reason events.Reason) (sum int) {
	l := n.borrowLists()
	l.out.Dropped = slices.DeleteFunc(l.out.Dropped, func(d Drop) bool {
		if d.Reason == reason {
			sum += d.Count
		}
		return d.Reason == reason
	})
	return sum
}

// Whatever comes: numbers of a stream ascend strictly, none is lost that is above the
// last one, events without a number stand where they stood, and each stream has the
// places it had.
func TestArrangeOrdersEventIDs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := alone(Options{Standard: rapid.Bool().Draw(t, "standard")})
		backends := []string{"a", "b", "c"}
		last := map[string]uint64{}
		missing, repeated := 0, 0
		for range rapid.IntRange(1, 4).Draw(t, "batches") {
			var b events.Batch
			top := map[string]uint64{}
			for i := range rapid.IntRange(0, 12).Draw(t, "events") {
				e := events.Event{Kind: events.Stored, Envelope: true, BaseBlock: -1, Group: -1, Hashes: []uint64{uint64(i)}}
				e.Backend = &backends[rapid.IntRange(0, 2).Draw(t, "backend")]
				if rapid.IntRange(0, 3).Draw(t, "numbered") > 0 {
					e.ID = uint64(rapid.IntRange(1, 30).Draw(t, "id"))
				}
				b.Events = append(b.Events, e)
			}
			before := slices.Clone(b.Events)
			wanted := map[string][]uint64{}
			for _, e := range before {
				if e.ID != 0 {
					wanted[*e.Backend] = append(wanted[*e.Backend], e.ID)
				}
			}
			for name, ids := range wanted {
				sent := len(ids)
				slices.Sort(ids)
				ids = slices.DeleteFunc(slices.Compact(ids), func(id uint64) bool { return id <= last[name] })
				wanted[name] = ids
				repeated += sent - len(ids)
				for _, id := range ids {
					if last[name] != 0 && n.opts.Standard {
						missing += int(id - last[name] - 1)
					}
					last[name] = id
				}
			}
			n.orderByID(&b, 0)
			got := map[string][]uint64{}
			var loose []uint64
			for _, e := range b.Events {
				if e.ID == 0 {
					loose = append(loose, e.Hashes[0])
					continue
				}
				if e.ID <= top[*e.Backend] {
					t.Fatalf("%s: %d behind %d", *e.Backend, e.ID, top[*e.Backend])
				}
				top[*e.Backend] = e.ID
				got[*e.Backend] = append(got[*e.Backend], e.ID)
			}
			for name := range wanted {
				if !slices.Equal(got[name], wanted[name]) {
					t.Fatalf("%s: got %d, want %d", name, got[name], wanted[name])
				}
			}
			var stood []uint64
			for _, e := range before {
				if e.ID == 0 {
					stood = append(stood, e.Hashes[0])
				}
			}
			if !slices.Equal(loose, stood) {
				t.Fatalf("events without a number were moved: %d, before %d", loose, stood)
			}
			// Nothing left out: then places are what they were.
			if len(b.Events) == len(before) {
				for i := range before {
					if (before[i].ID == 0) != (b.Events[i].ID == 0) || *before[i].Backend != *b.Events[i].Backend {
						t.Fatalf("place %d changed hands", i)
					}
				}
			}
		}
		if got := n.count(events.RepeatedEvent); got != repeated {
			t.Fatalf("%d repeats counted, there were %d", got, repeated)
		}
		if got := n.count(events.MissingEvents); got != missing {
			t.Fatalf("%d missing events counted, there were %d", got, missing)
		}
		if n.Gaps() != (missing > 0) {
			t.Fatalf("%d gaps, %d events are missing", n.order.gaps, missing)
		}
	})
}

// Streams are bounded: those beyond are applied as they come, and the doctor says so.
func TestStreamsAreBounded(t *testing.T) {
	n := alone(Options{Standard: true})
	event := func(salt string, id uint64) events.Batch {
		return events.Batch{Events: []events.Event{{Kind: events.Stored, Envelope: true, ID: id, Salt: &salt, Hashes: []uint64{1}}}}
	}
	for i := range maxStreams {
		b := event(fmt.Sprint(i), 1)
		n.orderByID(&b, 0)
	}
	if f := n.opts.Findings.List(); len(f) != 0 {
		t.Fatalf("findings before the bound: %v", f)
	}
	for range 2 { // not even repeats are seen
		b := event("one more", 1)
		if n.orderByID(&b, 0); len(b.Events) != 1 {
			t.Error("an event of a stream beyond the bound is left out")
		}
	}
	b := event("0", 1)
	if n.orderByID(&b, 0); len(b.Events) != 0 {
		t.Error("a repeat of a stream that is followed is let through")
	}
	if f := n.opts.Findings.List(); len(f) != 1 || f[0].Code != doctor.FindingStreams {
		t.Errorf("findings: %v", f)
	}
	if got := len(n.order.streams); got != maxStreams {
		t.Errorf("%d streams are remembered", got)
	}
	n.Reset()
	n.opts.Findings.Withdraw(doctor.FindingStreams) // as the doctor does
	b = event("one more", 1)
	n.orderByID(&b, 0)
	if f := n.opts.Findings.List(); len(f) != 0 || len(n.order.streams) != 1 {
		t.Errorf("after a restart %d streams, findings %v", len(n.order.streams), f)
	}
}

// A jump of a number is no more than it can be, whatever a publisher claims.
func TestMissingIsBounded(t *testing.T) {
	n := alone(Options{Standard: true})
	for _, id := range []uint64{1, 1<<64 - 1, 1<<64 - 1} {
		b := events.Batch{Events: []events.Event{{Kind: events.Stored, Envelope: true, ID: id, Hashes: []uint64{1}}}}
		n.orderByID(&b, 0)
	}
	if got := n.count(events.MissingEvents); got != maxMissing {
		t.Errorf("%d events are missing", got)
	}
	if got := n.count(events.RepeatedEvent); got != 1 {
		t.Errorf("%d repeats", got)
	}
}

// Batches that are in order cost no allocation.
func TestArrangeAllocatesNothing(t *testing.T) {
	n := alone(Options{Pool: true})
	backends := []string{"a", "b"}
	id := uint64(0)
	b := events.Batch{Events: make([]events.Event, 64)}
	if n := alloctest.PerRun(100, func() {
		for i := range b.Events {
			id++
			b.Events[i] = events.Event{Kind: events.Stored, Envelope: true, ID: id, Backend: &backends[i/3%2], Medium: "cpu",
				ObjectKey: "k"}
		}
		n.orderByID(&b, 0)
	}); n != 0 || len(b.Events) != 64 {
		t.Errorf("%v allocations, %d events are left", n, len(b.Events))
	}
}
