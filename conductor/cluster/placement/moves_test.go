package placement

import (
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
)

// owned counts the shards of a replica.
func owned(owners map[string][]string, id string) (n int) {
	for _, has := range owners {
		if slices.Contains(has, id) {
			n++
		}
	}
	return n
}

// TestPlaceReplicaLeaves holds that the copies of a replica that leaves move, and few others:
// with the previous placement those that the bound forces, without it those that were already
// away from home.
func TestPlaceReplicaLeaves(t *testing.T) {
	w := evenWorld(2000, 20)
	first := w.place()
	gone := w.replicas[7].ID
	copies := owned(first, gone)
	w.replicas = slices.Delete(w.replicas, 7, 8)

	now := w.after(first).place()
	for key, owners := range now {
		if !slices.Contains(first[key], gone) && !reflect.DeepEqual(owners, first[key]) {
			t.Errorf("%s moved from %v to %v", key, first[key], owners)
		}
	}
	if n := moved(first, now); n != copies {
		t.Errorf("%d copies moved, the replica had %d", n, copies)
	}
	alone := moved(first, w.place())
	t.Logf("%d copies of 4000 were on the replica; %d move without the previous placement", copies, alone)
	if alone > copies*3/2 {
		t.Errorf("%d copies move without the previous placement, the replica had %d", alone, copies)
	}
}

// TestPlaceReplicaJoins holds that a new replica takes about its share, and that no copy moves
// between the others unless one of them was above its bound.
func TestPlaceReplicaJoins(t *testing.T) {
	w := evenWorld(2000, 20)
	first := w.place()
	w.replicas = append(w.replicas, Replica{ID: "joined", Weight: 2})
	now := w.after(first).place()
	share := 4000.0 * 2 / 22
	took, others := owned(now, "joined"), moved(first, now)-owned(now, "joined")
	if got := float64(took); got < 0.85*share || got > 1.25*share {
		t.Errorf("the replica took %d copies, its share is %.0f", took, share)
	}
	t.Logf("%d copies for a share of %.0f; %d moved between the others", took, share, others)
	if others > 4000/100 {
		t.Errorf("%d copies moved between the others", others)
	}
	if back := w.after(now); true {
		back.replicas = back.replicas[:20]
		if n := moved(now, back.place()); n != took {
			t.Errorf("%d copies moved when the replica left again, it had %d", n, took)
		}
	}
}

// TestPlaceByWeight holds that replicas get shards by weight, and that a drained one gets none.
func TestPlaceByWeight(t *testing.T) {
	w := evenWorld(4000, 8)
	w.opts = Options{Owners: 1, Slack: maxFactor}
	w.replicas[0].Weight, w.replicas[1].Weight = 3, 0
	owners := w.place()
	f := func(id string, weight float64) {
		t.Helper()
		want := 4000 * weight / 9
		if got := float64(owned(owners, id)); math.Abs(got-want) > 4*math.Sqrt(want) {
			t.Errorf("%s of weight %g has %g shards, about %g are right", id, weight, got, want)
		}
	}
	f("replica-0", 3)
	f("replica-1", 0)
	for k := 2; k < 8; k++ {
		f(fmt.Sprintf("replica-%d", k), 1)
	}
}

// TestPlaceBound holds that with one owner no replica has more than its bound, or its share
// and the heaviest shard where no better place is left.
func TestPlaceBound(t *testing.T) {
	for seed := range uint64(200) {
		w := randomWorld(seed)
		w.opts.Owners, w.opts.MaxOwners = 1, 1
		for i := range w.replicas {
			w.replicas[i].Weight = 1
		}
		of, total := w.loads(w.place())
		share, heaviest := total/float64(len(w.replicas)), w.shards[0].Load+w.shards[0].Queries
		for _, s := range w.shards {
			heaviest = max(heaviest, s.Load+s.Queries)
		}
		for id, load := range of {
			if most := max(share*(1+w.opts.Slack), share+heaviest); load > most*(1+1e-6) {
				t.Errorf("seed %d: %s has %g, the most is %g", seed, id, load, most)
			}
		}
	}
}

// TestPlaceGiant holds that a shard heavier than a share gets a place, and that light shards
// leave its owner.
func TestPlaceGiant(t *testing.T) {
	w := evenWorld(90, 10)
	w.opts.Owners = 1
	first := w.place()
	w.shards[0].Load = 100
	now := w.after(first).place()
	w.check(t, now)
	giant := w.shards[0].Key
	if n := owned(now, now[giant][0]); n != 1 || !reflect.DeepEqual(now[giant], first[giant]) {
		t.Errorf("the giant moved from %v to %v, next to %d others", first[giant], now[giant], n-1)
	}
	if !reflect.DeepEqual(w.place()[giant], first[giant]) {
		t.Errorf("without the previous placement the giant is on %v, not at home", w.place()[giant])
	}
}

// TestPlaceRelievesLightly holds that a replica a little above its bound loses the lightest shard
// that suffices.
func TestPlaceRelievesLightly(t *testing.T) {
	w := evenWorld(5, 3)
	w.opts.Owners = 1
	for i, load := range []float64{2.2, 7.3, 2, 8, 8} { // 11.5 on the first replica, its bound is 11.46
		w.shards[i].Load = load
	}
	first := map[string][]string{
		"shard-0": {"replica-0"}, "shard-1": {"replica-0"}, "shard-2": {"replica-0"}, "shard-3": {"replica-1"}, "shard-4": {"replica-2"},
	}
	now := w.after(first).place()
	if moved(first, now) != 1 || now["shard-2"][0] == "replica-0" {
		t.Errorf("placed %v", now)
	}
}

// TestPlaceWaveringLoads holds that loads which waver by a twentieth move nothing, and that
// without the previous placement they would.
func TestPlaceWaveringLoads(t *testing.T) {
	alone := 0
	for seed := range uint64(20) {
		w := evenWorld(400, 12)
		dice := rand.New(rand.NewPCG(seed, 3))
		for i := range w.shards {
			w.shards[i].Load = 1 + 10*dice.Float64()
			w.shards[i].Queries = 10 * dice.Float64()
		}
		now := w.place()
		steady, was := 0, now
		for range 10 {
			next := w
			next.shards = slices.Clone(w.shards)
			for i := range next.shards {
				next.shards[i].Load *= 0.95 + 0.1*dice.Float64()
				next.shards[i].Queries *= 0.95 + 0.1*dice.Float64()
			}
			fresh := next.place()
			alone += moved(was, fresh)
			after := next.after(now).place()
			steady += moved(now, after)
			was, now = fresh, after
		}
		if steady > 0 {
			t.Errorf("seed %d: %d copies moved", seed, steady)
		}
	}
	if alone < 100 {
		t.Errorf("only %d copies moved without the previous placement", alone)
	}
}

// TestPlaceHotShard holds when a shard gets more owners for its queries, and when they leave.
func TestPlaceHotShard(t *testing.T) {
	w := evenWorld(100, 10)
	w.opts = Options{Owners: 2, Slack: maxFactor}
	// The mean share is (200 + queries) / 10: at 15 queries 21.5, and half of it is 10.75.
	owners := w.place()
	f := func(queries float64, want int) {
		t.Helper()
		w.shards[3].Queries = queries
		before := owners[w.shards[3].Key]
		owners = w.after(owners).place()
		w.check(t, owners)
		has := owners[w.shards[3].Key]
		if len(has) != want {
			t.Errorf("%g queries: owners %v, want %d", queries, has, want)
		}
		for _, id := range before[:min(len(before), want)] {
			if !slices.Contains(has, id) {
				t.Errorf("%g queries: owner %s left", queries, id)
			}
		}
	}
	f(15, 2)
	f(40, 4) // 40 / (0.5 * 24)
	f(33, 4) // above 0.35 * 23.3 for each of four
	f(25, 4) // 25/4 is below that of three: 25 / (0.35 * 22.5) = 3.2
	f(22, 3)
	f(16, 3) // 2.1 by the lower bound
	f(15, 2)
	f(0, 2)
	f(1e6, 10)
	w.opts.MaxOwners = 5
	f(1e6, 5)
}
