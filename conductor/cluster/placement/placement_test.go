package placement

import (
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
)

// world is the input of Place.
type world struct {
	shards   []Shard
	replicas []Replica
	opts     Options
}

func (w world) place() map[string][]string { return Assign(w.shards, w.replicas, w.opts) }

// after returns the same world with a placement that came before.
func (w world) after(previous map[string][]string) world {
	w.opts.Previous = previous
	return w
}

// randomWorld draws shards whose loads follow a Zipf law, and replicas of unequal weights.
func randomWorld(seed uint64) (w world) {
	dice := rand.New(rand.NewPCG(seed, 1))
	steep := dice.Float64() * 1.2
	for k := range 1 + dice.IntN(300) {
		load := math.Pow(float64(k+1), -steep)
		w.shards = append(w.shards, Shard{Key: fmt.Sprintf("tenant|model-%d|16", k), Load: load, Queries: load * dice.Float64()})
	}
	for k := range 1 + dice.IntN(20) {
		w.replicas = append(w.replicas, Replica{ID: fmt.Sprintf("replica-%d", k), Weight: 1 + 3*dice.Float64()})
	}
	w.opts = Options{Owners: 1 + dice.IntN(3), Slack: 0.1 + dice.Float64()/2}
	return w
}

// evenWorld has shards of one load and replicas of one weight.
func evenWorld(shards, replicas int) (w world) {
	for k := range shards {
		w.shards = append(w.shards, Shard{Key: fmt.Sprintf("shard-%d", k), Load: 1})
	}
	for k := range replicas {
		w.replicas = append(w.replicas, Replica{ID: fmt.Sprintf("replica-%d", k), Weight: 1})
	}
	return w
}

// loads returns the load of each replica, and the load of all.
func (w world) loads(owners map[string][]string) (of map[string]float64, total float64) {
	of = map[string]float64{}
	for _, s := range w.shards {
		for _, id := range owners[s.Key] {
			of[id] += s.Load + s.Queries/float64(len(owners[s.Key]))
		}
	}
	for _, load := range of {
		total += load
	}
	return of, total
}

// moved counts the copies that a replica has now and had not before.
func moved(before, now map[string][]string) (copies int) {
	for key, owners := range now {
		for _, id := range owners {
			if !slices.Contains(before[key], id) {
				copies++
			}
		}
	}
	return copies
}

// check holds the rules of every placement: distinct owners that exist, as many as there
// must be, and no replica above its bound with a copy that fits elsewhere.
func (w world) check(t *testing.T, owners map[string][]string) {
	t.Helper()
	replicas := distinctReplicas(w.replicas)
	opts := w.opts.withDefaults()
	weights, total := 0.0, 0.0
	for _, r := range replicas {
		weights += r.Weight
	}
	of, total := w.loads(owners)
	bound := func(r Replica) float64 { return total * r.Weight / weights * (1 + opts.Slack) }
	for _, s := range w.shards {
		has := owners[s.Key]
		if distinct := slices.Compact(slices.Sorted(slices.Values(has))); len(distinct) != len(has) {
			t.Errorf("%s: owners %v", s.Key, has)
		}
		if len(has) < min(opts.Owners, len(replicas)) || len(has) > min(opts.MaxOwners, len(replicas)) {
			t.Errorf("%s: %d owners of %d replicas, %+v", s.Key, len(has), len(replicas), opts)
		}
		for _, id := range has {
			at := slices.IndexFunc(replicas, func(r Replica) bool { return r.ID == id })
			if at < 0 {
				t.Fatalf("%s: owner %q is no replica", s.Key, id)
			}
			load := s.Load + s.Queries/float64(len(has))
			if load == 0 || of[id] <= bound(replicas[at])*(1+1e-6) {
				continue
			}
			for _, r := range replicas {
				if !slices.Contains(has, r.ID) && of[r.ID]+load < bound(r)*(1-1e-6) {
					t.Errorf("%s has %g of %g, and %s (%g) fits on %s: %g of %g", id, of[id], bound(replicas[at]), s.Key, load, r.ID,
						of[r.ID], bound(r))
				}
			}
		}
	}
	if len(owners) != len(distinctShards(w.shards)) {
		t.Errorf("%d shards are placed, of %d", len(owners), len(w.shards))
	}
}

// TestPlaceRandomWorlds holds the invariants in random worlds, in whatever order the input
// comes, and after each of the things that happen to a fleet.
func TestPlaceRandomWorlds(t *testing.T) {
	for seed := range uint64(300) {
		w := randomWorld(seed)
		first := w.place()
		w.check(t, first)
		dice := rand.New(rand.NewPCG(seed, 2))
		f := func(change func(*world)) {
			t.Helper()
			next := w.after(first)
			next.shards, next.replicas = slices.Clone(w.shards), slices.Clone(w.replicas)
			change(&next)
			now := next.place()
			next.check(t, now)
			dice.Shuffle(len(next.shards), func(i, j int) { next.shards[i], next.shards[j] = next.shards[j], next.shards[i] })
			dice.Shuffle(len(next.replicas), func(i, j int) { next.replicas[i], next.replicas[j] = next.replicas[j], next.replicas[i] })
			if again := next.place(); !reflect.DeepEqual(again, now) {
				t.Errorf("seed %d: the order of the input changes %d copies", seed, moved(now, again))
			}
			if again := next.after(now).place(); !reflect.DeepEqual(again, now) {
				t.Errorf("seed %d: %d copies move without a change", seed, moved(now, again))
			}
		}
		f(func(*world) {})
		f(func(w *world) { w.replicas = w.replicas[1:] })
		f(func(w *world) { w.replicas = w.replicas[len(w.replicas)/2:] })
		f(func(w *world) { w.replicas = append(w.replicas, Replica{ID: "joined", Weight: 2}) })
		f(func(w *world) { w.replicas[0].Weight *= 2 })
		f(func(w *world) { w.shards = w.shards[len(w.shards)/2:] })
		f(func(w *world) { w.shards[len(w.shards)-1].Load *= 1000 })
		f(func(w *world) { w.shards[len(w.shards)-1].Queries *= 1000 })
		f(func(w *world) {
			for i := range w.shards {
				w.shards[i].Load *= 5 * dice.Float64()
			}
		})
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}
