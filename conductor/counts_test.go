package conductor_test

import (
	"testing"

	"example.com/conductor/conductor/ingest"
)

// TestEventCounts holds that every event about device blocks is counted once.
func TestEventCounts(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		b.run("register A")
		var want ingest.EventCounts
		f := func(line string, change func(*ingest.EventCounts)) {
			t.Helper()
			b.run(line)
			change(&want)
			if got := b.conductor.Sources().EventCounts(); got != want {
				t.Errorf("after %s\n got %+v\nwant %+v", line, got, want)
			}
		}
		stored := func(w *ingest.EventCounts) { w.Stored.OK++ }
		nothing := func(*ingest.EventCounts) {}
		f("store A path=a/b", stored)
		f("store A path=a/b", func(w *ingest.EventCounts) { w.Stored.OK++; w.DuplicateStores++ })
		f("store A path=a/b/c", stored) // a continuation is no duplicate
		f("store A path=x/y/z from=2", func(w *ingest.EventCounts) { w.Stored.ParentUnknown++ })
		f("store A path=p/q tokens=no", stored)
		f("store A path=u block_size=8", func(w *ingest.EventCounts) { w.Stored.Invalid++ })
		f("store A path=a medium=CPU", nothing)
		f("store A path=a group=1 kind=mamba", stored)
		f("store A path=a group=2 kind=cross_attention", nothing)
		f("remove A path=a/b from=1", func(w *ingest.EventCounts) { w.Removed.OK++ })
		f("remove A path=a/b/k from=2", func(w *ingest.EventCounts) { w.Removed.BlockUnknown++ })
		f("remove A path=a medium=CPU", nothing)
		f("clear A medium=CPU", nothing)
		f("clear A medium=GPU", func(w *ingest.EventCounts) { w.Cleared.OK++ })
		f("clear A", func(w *ingest.EventCounts) { w.Cleared.OK++ })
		b.run("register B")
		b.run("unregister A")
		f("store B path=a", stored) // counts outlive sources
	})
}
