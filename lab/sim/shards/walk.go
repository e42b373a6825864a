package shards

import (
	"fmt"
	"math/rand/v2"
	"slices"

	"example.com/conductor/conductor/cluster/placement"
)

// Run places the fleet and walks what happens to it. The error is that of the
// configuration; Report.Err judges the placements.
func Run(c Config) (*Report, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	w := &walker{Config: c, fleet: newFleet(&c)}
	for r := range c.Replicas {
		w.replicas = append(w.replicas, placement.Replica{ID: fmt.Sprintf("replica-%d", r), Weight: 1})
	}
	r := &Report{Config: c, Blocks: float64(c.Workers) * c.Blocks}
	w.walk(func(s Step) { r.Steps = append(r.Steps, s) })
	return r, nil
}

// walker makes the steps. Each begins at the first placement, unless it says otherwise.
type walker struct {
	Config
	fleet    []deployment
	replicas []placement.Replica
	first    map[string][]string
}

func (w *walker) walk(report func(Step)) {
	start, owners := w.step("start", w.fleet, w.replicas, nil)
	w.first = owners
	report(start)

	step := func(name string, fleet []deployment, replicas []placement.Replica, previous map[string][]string) map[string][]string {
		s, owners := w.step(name, fleet, replicas, previous)
		report(s)
		return owners
	}
	step("loads waver by 5 %", w.wavering(), w.replicas, w.first)
	for r := range w.replicas {
		step(w.replicas[r].ID+" dies", w.fleet, without(w.replicas, r), w.first)
	}
	a, b := w.worstPair()
	step(fmt.Sprintf("%s and %s die", w.replicas[a].ID, w.replicas[b].ID), w.fleet, without(without(w.replicas, b), a), w.first)
	joined := append(slices.Clone(w.replicas), placement.Replica{ID: fmt.Sprintf("replica-%d", len(w.replicas)), Weight: 1})
	step(joined[len(joined)-1].ID+" joins", w.fleet, joined, w.first)
	heavier := slices.Clone(w.replicas)
	heavier[0].Weight = 2
	step("weight of "+heavier[0].ID+" doubles", w.fleet, heavier, w.first)
	hot := slices.Clone(w.fleet)
	hot[w.HotModel].queries += w.HotQueries
	before := step(fmt.Sprintf("model-%d becomes hot", w.HotModel), hot, w.replicas, w.first)
	step(fmt.Sprintf("model-%d cools down", w.HotModel), w.fleet, w.replicas, before)
}

func without(replicas []placement.Replica, r int) []placement.Replica {
	return slices.Delete(slices.Clone(replicas), r, r+1)
}

// wavering returns the fleet with loads that differ a little from the first ones.
func (w *walker) wavering() []deployment {
	dice := rand.New(rand.NewPCG(w.Seed, 0x736861726473))
	fleet := slices.Clone(w.fleet)
	for m := range fleet {
		fleet[m].wavers = 0.95 + 0.1*dice.Float64()
	}
	return fleet
}

// worstPair returns the two replicas whose death leaves the most shards without an owner, and
// of equal pairs the one with the most shards.
func (w *walker) worstPair() (a, b int) {
	worst, most := -1, -1
	for i := range w.replicas {
		for j := i + 1; j < len(w.replicas); j++ {
			orphans, copies := 0, 0
			for _, owners := range w.first {
				left := len(owners)
				for _, dead := range []int{i, j} {
					if slices.Contains(owners, w.replicas[dead].ID) {
						left--
						copies++
					}
				}
				if left == 0 {
					orphans++
				}
			}
			if orphans > worst || orphans == worst && copies > most {
				worst, most, a, b = orphans, copies, i, j
			}
		}
	}
	return a, b
}

// step places the fleet after a previous placement, and says what moved and what each replica
// needs then.
func (w *walker) step(name string, fleet []deployment, replicas []placement.Replica, previous map[string][]string) (Step,
	map[string][]string) {
	shards := make([]placement.Shard, len(fleet))
	for m := range fleet {
		shards[m] = w.shard(&fleet[m])
	}
	owners := placement.Assign(shards, replicas, placement.Options{Owners: w.Owners, MaxOwners: w.MaxOwners, Slack: w.Slack,
		Previous: previous})

	s := Step{Name: name, Replicas: make([]Usage, len(replicas))}
	index := map[string]*Usage{}
	for r, replica := range replicas {
		s.Replicas[r] = Usage{ID: replica.ID, Weight: replica.Weight, need: need{Memory: w.BaseBytes}, capacity: w.capacity(replica.Weight)}
		index[replica.ID] = &s.Replicas[r]
	}
	for m := range fleet {
		d, has := &fleet[m], owners[fleet[m].key]
		each := w.follow(d)
		each.Cores += w.answer(d) / float64(max(len(has), 1))
		for n, id := range has {
			u := index[id]
			u.need.add(each)
			u.Load += shards[m].Load + shards[m].Queries/float64(len(has))
			u.Shards++
			if n == 0 {
				u.Primaries++
			}
		}
		if len(has) < min(w.Owners, len(replicas)) {
			s.Unowned++
		}
		s.count(d, has, previous[d.key], index, w.Blocks*w.SnapshotBytes)
	}
	return s, owners
}

// count adds the copies of a shard that moved: owners that it had not before.
func (s *Step) count(d *deployment, has, had []string, alive map[string]*Usage, rankBytes float64) {
	if had == nil {
		return
	}
	added := 0
	for _, id := range has {
		if !slices.Contains(had, id) {
			added++
		}
	}
	if added > 0 {
		s.ShardsMoved++
		s.CopiesMoved += added
		s.BytesMoved += float64(added*d.ranks) * rankBytes
	}
	if !slices.ContainsFunc(had, func(id string) bool { return alive[id] != nil }) {
		s.Orphans++
	}
}
