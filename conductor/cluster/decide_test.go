package cluster

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// TestDecide has one case for each rule.
func TestDecide(t *testing.T) {
	f := func(want Phase, own holding, owners string, told string) {
		t.Helper()
		facts := make(map[string]Fact)
		for _, word := range strings.Fields(told) {
			var f Fact
			id, phase, _ := strings.Cut(word, ":")
			phase, whole, _ := strings.Cut(phase, "/")
			f.Phase = Phase(slices.Index(phaseNames[:], phase))
			fmt.Sscan(whole, &f.Whole)
			facts[id] = f
		}
		if got := decidePhase("me", strings.Fields(owners), facts, own); got != want {
			t.Errorf("%+v, owners %s, told %s: %s, want %s", own, owners, told, got, want)
		}
	}
	f(Bringing, holding{}, "me a", "")
	f(Absent, holding{}, "a b", "")
	f(Absent, holding{}, "", "")

	f(Bringing, holding{phase: Bringing}, "me", "a:serving")
	f(Serving, holding{phase: Bringing, settled: true}, "me", "")
	f(Serving, holding{phase: Bringing, settled: true, whole: 2}, "me", "a:serving/2")
	f(Bringing, holding{phase: Bringing, settled: true, whole: 1}, "me", "a:serving/2")
	f(Serving, holding{phase: Bringing, settled: true, whole: 1}, "me", "a:leaving/2")
	f(Serving, holding{phase: Bringing, waited: true}, "me", "")
	f(Serving, holding{phase: Bringing, waited: true}, "me a", "a:bringing")
	f(Bringing, holding{phase: Bringing, waited: true}, "me a", "a:serving") // it may reach the engines
	f(Bringing, holding{phase: Bringing, waited: true, whole: 2}, "me a", "a:leaving/1")
	f(Absent, holding{phase: Bringing}, "a", "a:serving")
	f(Bringing, holding{phase: Bringing}, "a", "a:bringing") // no replica serves: the first that can will
	f(Serving, holding{phase: Bringing, settled: true}, "a", "a:bringing")

	f(Serving, holding{phase: Serving}, "me a", "a:serving")
	f(Serving, holding{phase: Serving}, "a b", "a:serving b:bringing")
	f(Serving, holding{phase: Serving}, "a", "a:leaving")
	f(Serving, holding{phase: Serving}, "", "a:serving")
	f(Leaving, holding{phase: Serving}, "a b", "a:serving b:serving")
	f(Serving, holding{phase: Serving, whole: 1}, "me a", "a:serving/2") // for a moment
	f(Leaving, holding{phase: Serving, whole: 1, behind: true}, "me a", "a:serving/2")
	f(Serving, holding{phase: Serving, whole: 2, behind: true}, "me a", "a:serving/2")
	f(Serving, holding{phase: Serving, whole: 1, behind: true}, "me a", "a:leaving/2")
	f(Serving, holding{phase: Leaving, whole: 1, behind: true, beats: lingering}, "me a", "a:leaving/2")
	f(Absent, holding{phase: Leaving, whole: 1, behind: true, beats: lingering}, "me a", "a:serving/2")

	f(Leaving, holding{phase: Leaving, beats: lingering - 1}, "a", "a:serving")
	f(Absent, holding{phase: Leaving, beats: lingering}, "a", "a:serving")
	f(Serving, holding{phase: Leaving, beats: lingering}, "a", "a:leaving")
	f(Serving, holding{phase: Leaving, beats: lingering}, "a", "")
	f(Serving, holding{phase: Leaving}, "me", "a:serving")
}

// world is a store and its replicas, for one shard. Replicas beat when the test says so, so beats are
// as late as it likes, and each replica may believe in other owners.
type world struct {
	rng      *rand.Rand
	told     map[string]Fact // the store
	replicas map[string]*modelReplica
	next     int
	log      []string
}

// modelReplica is a replica as the model sees it.
type modelReplica struct {
	holding
	owners []string // that it believes in
	stuck  bool     // it beats no more, and lives: it is stopped, or cut off from the store
}

func (w *world) ids() []string { return slices.Sorted(maps.Keys(w.replicas)) }

// answering returns the replicas that answer for the shard.
func (w *world) answering() (all []string) {
	for _, id := range w.ids() {
		if w.replicas[id].phase.answers() {
			all = append(all, id)
		}
	}
	return all
}

// join adds a replica.
func (w *world) join() {
	w.next++
	id := fmt.Sprintf("r%02d", w.next)
	w.replicas[id] = &modelReplica{}
	w.log = append(w.log, "join "+id)
}

// place lets a replica believe in owners: those of now, or others.
func (w *world) place(r *modelReplica) {
	all := w.ids()
	w.rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	r.owners = all[:min(len(all), 1+w.rng.IntN(2))]
}

// beat is one answered beat of a replica: it tells its phase, hears the others and decides.
func (w *world) beat(id string) {
	r := w.replicas[id]
	w.told[id] = Fact{Phase: r.phase, Whole: r.whole}
	next := decidePhase(id, r.owners, maps.Clone(w.told), r.holding)
	r.beats++
	if next != r.phase {
		w.log = append(w.log, fmt.Sprintf("%s %s -> %s, owners %v, told %v", id, r.phase, next, r.owners, w.told))
		r.holding = holding{phase: next, whole: r.whole, settled: next.answers()}
	}
}

// TestDecideKeepsServing plays joins, partings, deaths of replicas that are not the last, replicas
// that fall silent, and beliefs in different owners. A shard that a live replica answers for is always
// answered, and a replica that is not settled never answers.
func TestDecideKeepsServing(t *testing.T) {
	for seed := range uint64(400) {
		w := &world{rng: rand.New(rand.NewPCG(seed, 7)), told: make(map[string]Fact), replicas: make(map[string]*modelReplica)}
		w.join()
		w.replicas["r01"].holding = holding{phase: Serving, settled: true, whole: 3}
		for step := range 2000 {
			ids := w.ids()
			id := ids[w.rng.IntN(len(ids))]
			r := w.replicas[id]
			switch n := w.rng.IntN(100); {
			case n < 2 && len(ids) < 6:
				w.join()
			case n < 4 && len(ids) > 1: // it dies, or gives its lease back; not the last that answers
				if all := w.answering(); len(all) == 1 && all[0] == id {
					break
				}
				delete(w.replicas, id)
				delete(w.told, id)
				w.log = append(w.log, id+" is gone")
			case n < 6: // the store forgets a lease of a replica that lives on
				r.stuck = true
				if w.rng.IntN(2) == 0 {
					delete(w.told, id)
				}
			case n < 9:
				r.stuck = false
			case n < 10 && step%50 == 0: // the store is emptied
				clear(w.told)
			case n < 20:
				w.place(r)
			case n < 40 && r.phase == Bringing:
				r.settled, r.whole = true, w.rng.IntN(4)
			case n < 22: // it loses something, or catches up
				r.whole, r.behind = w.rng.IntN(4), w.rng.IntN(2) == 0
			case !r.stuck:
				w.beat(id)
			}
			if len(w.answering()) == 0 {
				t.Fatalf("seed %d, step %d: no replica answers\n%s", seed, step, strings.Join(w.log[max(0, len(w.log)-20):], "\n"))
			}
			for id, r := range w.replicas {
				if r.phase.answers() && !r.settled {
					t.Fatalf("seed %d, step %d: %s answers and is not settled", seed, step, id)
				}
			}
		}
		w.converge(t, seed)
	}
}

// converge lets all replicas believe in the same owners: soon they alone serve.
func (w *world) converge(t *testing.T, seed uint64) {
	t.Helper()
	all := w.ids()
	owners := all[:min(2, len(all))]
	for range 4 * lingering {
		for _, id := range all {
			r := w.replicas[id]
			r.owners, r.stuck = owners, false
			if r.phase == Bringing {
				r.settled = true
			}
			r.whole = 3
			w.beat(id)
		}
	}
	if got := w.answering(); !slices.Equal(got, owners) {
		t.Errorf("seed %d: %v answer, the owners are %v", seed, got, owners)
	}
}
