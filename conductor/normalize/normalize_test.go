package normalize

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"example.com/conductor/conductor/doctor"
	"example.com/conductor/events"
	"example.com/conductor/index/hash"
	"example.com/conductor/internal/alloctest"
)

// words writes a result as one line.
func words(r Result) string {
	var all []string
	kinds := [...]string{Stored: "stored", Removed: "removed", Cleared: "cleared", Object: "object", Purged: "purged", Learned: "learned"}
	for _, c := range r.Changes {
		w := fmt.Sprintf("%s %d.%d %s", kinds[c.Kind], c.Owner.Rank, c.Owner.Group, c.Owner.Medium)
		if c.Kind == Stored {
			w += fmt.Sprintf(" %s/%d", c.Context.Deployment.Model, c.Context.Deployment.BlockSize)
			switch {
			case c.Refused != "":
				w += " " + string(c.Refused)
			default:
				w += fmt.Sprintf(" %d blocks %d local", len(c.Cut.Hashes), len(c.Local))
			}
		}
		all = append(all, w)
	}
	for _, d := range r.Dropped {
		all = append(all, fmt.Sprintf("-%s %d", d.Reason, d.Count))
	}
	return strings.Join(all, "; ")
}

// stored returns an event of blocks of some tokens each.
func stored(blocks, size int) events.Event {
	e := events.Event{Kind: events.Stored, Group: -1, BaseBlock: -1, BlockSize: size, Medium: "gpu"}
	for i := range blocks {
		e.Hashes = append(e.Hashes, uint64(100+i))
	}
	e.Tokens = make([]uint32, blocks*size)
	return e
}

// TestBatchNormalizes holds what changes events of several shapes become.
func TestBatchNormalizes(t *testing.T) {
	f := func(o Options, want string, list ...events.Event) {
		t.Helper()
		if got := words(alone(o).Batch(&events.Batch{Rank: -1, Events: list})); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
	f(Options{}, "stored 0.0 GPU m/16 2 blocks 2 local", stored(2, 16))
	f(Options{Rank: 3}, "stored 3.0 GPU m/16 4 blocks 4 local", stored(2, 32))
	f(Options{}, "stored 0.0 GPU m/16 partial_block", stored(1, 8))
	f(Options{}, "stored 0.0 GPU m/16 block_size_mismatch", stored(1, 24))

	untold := stored(2, 16)
	untold.Tokens = nil
	f(Options{}, "stored 0.0 GPU m/16 2 blocks 0 local", untold)

	envelope, model, rank := stored(1, 32), "other", 5
	envelope.Envelope, envelope.Model, envelope.Rank = true, &model, &rank
	f(Options{}, "stored 5.0 GPU other/32 1 blocks 1 local", envelope)

	owned := stored(1, 16)
	owned.Owned = true
	f(Options{DropOwned: true}, "-foreign 1", owned)

	// Blocks that move are stored first, so that they keep their place.
	moved := events.Event{Kind: events.Moved, Hashes: []uint64{7, 8}, Group: -1, BaseBlock: -1, From: "gpu", Medium: "cpu"}
	f(Options{}, "stored 0.0 CPU m/16 2 blocks 0 local; removed 0.0 GPU", moved)
	moved.Group = 4 // nothing was announced in this group
	f(Options{}, "stored 0.0 CPU m/16 2 blocks 0 local; removed 0.0 GPU", moved)
	moved.From, moved.Medium = "", "GPU"
	f(Options{}, "", moved)

	clear := events.Event{Kind: events.Cleared}
	f(Options{}, "cleared 0.0 ", clear)
	f(Options{ClearDevice: true}, "cleared 0.0 GPU", clear)

	object := events.Event{Kind: events.Stored, Envelope: true, ObjectKey: "k"}
	f(Options{Pool: true}, "object 0.0 ", object)

	// An event waits for the kind of its group, and until then the group is one without a kind. The layers of an encoder leave the
	// index. Full attention comes before other groups.
	second, full, window := stored(1, 16), stored(1, 16), stored(1, 16)
	second.Group, full.Group, full.GroupKind = 1, 1, "full_attention"
	window.Group, window.GroupKind = 0, "cross_attention"
	f(Options{}, "learned 0.1 ; learned 0.1 ; stored 0.1 GPU m/16 1 blocks 1 local; stored 0.1 GPU m/16 1 blocks 1 local; learned 0.0 ; "+
		"purged 0.0 ; -other_group 1", second, full, window)
}

// TestBatchBoundsGroups: a publisher that makes up numbers of groups and ranks teaches a bounded number of groups, each once.
func TestBatchBoundsGroups(t *testing.T) {
	n := alone(Options{})
	learned, changes := 0, 0
	send := func(rank, group, blocks int, kind string) (dropped int) {
		e := stored(blocks, 16)
		e.Group, e.GroupKind = group, kind
		for _, c := range n.Batch(&events.Batch{Rank: rank, Events: []events.Event{e}}).Changes {
			if changes++; c.Kind == Learned {
				learned++
			}
		}
		return n.count(events.OwnerLimit)
	}
	f := func(what string, got, want int) {
		t.Helper()
		if got != want {
			t.Errorf("%s: %d, want %d", what, got, want)
		}
	}
	const many = 3 * maxRankGroups
	for _, blocks := range []int{0, 0, 1} { // masked groups announce no block
		dropped := 0
		for i := range many {
			dropped += send(0, i, blocks, "full_attention")
		}
		f("events left out", dropped, many-maxRankGroups)
	}
	f("groups learned", learned, 2*maxRankGroups) // each with its kind, and then with the size of its blocks
	f("groups", len(n.Specs()), maxRankGroups)
	f("events of another rank left out", send(1, many, 1, "sliding_window"), 0)

	learned = 0
	for rank := range maxGroups {
		send(2+rank, 0, 1, "full_attention")
	}
	f("ranks learned", learned, maxGroups-maxRankGroups-1)
	if n.RecallSpec(Spec{Rank: 1 << 20, Kind: "full_attention"}) {
		t.Error("a snapshot adds a rank beyond the bound")
	}
	learned, changes = 0, 0
	for range 2 { // such a rank is as one that names no groups
		f("events of group 0 left out", send(1<<20, 0, 1, "full_attention"), 0)
		f("windows left out", send(1<<20, 0, 1, "sliding_window"), 1)
	}
	f("learned of a rank beyond the bound", learned, 0)
	f("its events", changes, 2)
}

// TestBatchTakesKeys holds when the hashes of a Standard source are taken for keys.
func TestBatchTakesKeys(t *testing.T) {
	n := alone(Options{Standard: true, Scheme: hash.Scheme{Seed: 7}})
	e := stored(2, 16)
	e.Envelope = true
	e.Hashes = nil
	var chain hash.Chain
	chain.Reset(n.opts.Scheme, e.Tokens, 16, 0)
	for i := range 2 {
		e.Hashes = append(e.Hashes, chain.At(i))
	}
	if r := n.Batch(&events.Batch{Rank: -1, Events: []events.Event{e}}); !r.Changes[0].Canonical {
		t.Error("the keys of the tokens are not taken")
	}
	e.Hashes = slices.Clone(e.Hashes)
	e.Hashes[1]++
	if r := n.Batch(&events.Batch{Rank: -1, Events: []events.Event{e}}); r.Changes[0].Canonical {
		t.Error("other hashes are taken for keys")
	}
	if f := n.opts.Findings.List(); len(f) != 1 || f[0].Code != doctor.FindingHashScheme {
		t.Errorf("findings %v", f)
	}
}

// TestBatchAllocatesNothing holds that batches in the registered size cost no allocation.
func TestBatchAllocatesNothing(t *testing.T) {
	n := alone(Options{})
	list := make([]events.Event, 16)
	e := stored(64, 16)
	if got := alloctest.PerRun(100, func() {
		for i := range list {
			list[i] = e
		}
		b := events.Batch{Rank: -1, Events: list}
		if r := n.Batch(&b); len(r.Changes) != len(list) {
			t.Fatal("changes are missing")
		}
	}); got != 0 {
		t.Errorf("%v allocations", got)
	}
}

// TestEventsWaitForSize: events below the device that name hashes alone wait until their group says how large its blocks are, and leave in
// the order in which they came. If too many wait, they all go on.
func TestEventsWaitForSize(t *testing.T) {
	for _, waiting := range []int{2, maxParked} {
		n, order := alone(Options{}), ""
		send := func(e events.Event) {
			for _, c := range n.Batch(&events.Batch{Events: []events.Event{e}}).Changes {
				if c.Kind != Learned {
					order += fmt.Sprint(c.Event.Hashes[0], " ")
				}
			}
		}
		full := stored(1, 16)
		full.Group, full.GroupKind, full.Hashes = 0, "full_attention", []uint64{1 << 20}
		send(full)
		bare := events.Event{Kind: events.Stored, Group: 1, GroupKind: "sliding_window", Window: 17, BaseBlock: -1, Medium: "CPU"}
		for i := range waiting {
			bare.Hashes = []uint64{uint64(i)}
			send(bare)
		}
		if kind, size := n.Waiting(); order != fmt.Sprint(1<<20, " ") || kind != 0 || size != waiting {
			t.Errorf("%d events: %d wait for a kind and %d for a size, and these went on: %s", waiting, kind, size, order)
		}
		order = ""
		last := events.Event{Kind: events.Removed, Group: 1, BaseBlock: -1, Medium: "CPU", Hashes: []uint64{0}}
		if waiting < maxParked {
			last = stored(1, 32)
			last.Group, last.GroupKind, last.Window, last.Hashes = 1, "sliding_window", 17, []uint64{7}
		}
		send(last)
		want := ""
		for i := range waiting {
			want += fmt.Sprint(i, " ")
		}
		if want += fmt.Sprint(last.Hashes[0], " "); order != want {
			t.Errorf("%d events: went on as %.60s, want %.60s", waiting, order, want)
		}
		if _, size := n.Waiting(); size != 0 {
			t.Errorf("%d events: %d still wait", waiting, size)
		}
	}
}
