package index

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"

	"example.com/conductor/index/hash"
)

// slow is a prompt whose hashes the reader sometimes waits for while writers go on.
type slow struct {
	prompt
	wait func()
}

func (s *slow) At(i int) uint64       { s.wait(); return s.prompt.At(i) }
func (s *slow) Locals(n int) []uint64 { s.wait(); return s.prompt.Locals(n) }

// wait returns after some events, or after a while without any.
func (r *race) wait(events int64) {
	done := func() (n int64) {
		for w := range r.writers {
			n += r.writers[w].done.Load()
		}
		return n
	}
	for end, n := done()+events, 0; done() < end && n < 50; n++ {
		runtime.Gosched()
	}
}

// depth returns how many leading blocks certain owners hold.
func (m *Match) depth(holds func(owners []uint32) bool) (n int) {
	for owners, blocks := range ownersHolding(m) {
		if !holds(owners) {
			break
		}
		n += blocks
	}
	return n
}

// anyFamily says that the answer concerns owners of all families.
const anyFamily = -1

// ask looks a prompt up, by the path of the server, by keys, or by the engine hashes of a family:
// then the answer is complete for owners of that family only. It returns the family.
func (r *race) ask(rng *rand.Rand, i int, m *Match, places []Lookup) (family int) {
	family = anyFamily
	one := &r.prompts[i]
	p := &slow{one.prompt, func() {
		if rng.IntN(8) == 0 {
			r.wait(rng.Int64N(4))
		}
	}}
	switch {
	case r.waiting:
		for k := range places {
			names := r.namesIn(r.writers[k].family, one.keys)
			places[k] = Lookup{Constant: r.ids[one.id], Chain: keys(names), Loose: rng.IntN(2) == 0}
			for i := range names {
				if !r.bare {
					names[i] ^= r.ids[one.id] // the lookup folds it in again
				}
			}
		}
		r.x.Match(Lookup{Constant: r.ids[one.id], Chain: p}, places, m)
	case r.names && rng.IntN(2) == 0:
		family = r.writers[rng.IntN(raceWriters)].family
		r.x.matchNames(r.ids[one.id], r.namesIn(family, one.keys), m)
	case rng.IntN(8) == 0:
		r.x.matchKeys(r.ids[one.id], p.seq, m)
	default:
		r.x.matchChain(r.ids[one.id], p, m)
	}
	blocks := 0
	for owners, n := range ownersHolding(m) {
		if blocks += n; len(owners) == 0 || len(slices.Compact(slices.Clone(owners))) != len(owners) {
			r.Errorf("answer %+v", m)
		}
	}
	if wrong := m.sound(); wrong != "" || blocks != m.Blocks {
		r.Errorf("%s: %+v", wrong, m)
	}
	return family
}

// has returns a test of owners.
func has(owner Owner) func([]uint32) bool {
	return func(owners []uint32) bool { _, ok := slices.BinarySearch(owners, uint32(owner)); return ok }
}

// look asks for a prompt and judges the answer.
func (r *race) look(rng *rand.Rand, m *Match, places []Lookup) {
	i := rng.IntN(len(r.prompts))
	var before [raceWriters]int64
	for w := range before {
		before[w] = r.writers[w].done.Load()
	}
	family := r.ask(rng, i, m, places)
	complete := func(f int) bool { return family == anyFamily || family == f }
	for o, want := range r.resting {
		if got := m.depth(has(o)); got > want[i] || got < want[i] && complete(r.kin[o]) {
			r.Errorf("prompt %d: the resting owner %d holds %d blocks, want %d", i, o, got, want[i])
		}
	}
	for w := range before {
		b := &r.writers[w]
		window := b.events[before[w] : b.begun.Load()+1]
		judge := func(who string, got int, depth func(*raceEvent) int) {
			least, most := len(r.prompts[i].keys), 0
			for k := range window {
				least, most = min(least, depth(&window[k])), max(most, depth(&window[k]))
			}
			if got > most || got < least && !r.tight && complete(b.family) {
				r.Errorf("prompt %d: %s of writer %d holds %d blocks, want %d to %d in events %d to %d", i, who, w, got, least, most,
					before[w], before[w]+int64(len(window))-1)
			}
		}
		var own []func([]uint32) bool
		for n := range b.owners {
			if o := b.owners[n].Load(); o > 0 {
				own = append(own, has(Owner(o-1)))
				judge(fmt.Sprint("owner ", n), m.depth(own[len(own)-1]), func(e *raceEvent) int { return e.depth[n][i] })
			}
		}
		some := func(owners []uint32) bool {
			return slices.ContainsFunc(own, func(has func([]uint32) bool) bool { return has(owners) })
		}
		judge("any", m.depth(some), func(e *raceEvent) int { return e.together[i] })
	}
}

// snap takes a snapshot and holds it to be what was true of each writer at one moment.
func (r *race) snap() {
	var before, after [raceWriters]int64
	for w := range before {
		before[w] = r.writers[w].done.Load()
	}
	s := r.x.Checkpoint().Snapshot()
	for w := range after {
		after[w] = r.writers[w].begun.Load()
	}
	held := map[Owner]map[uint64]bool{}
	s.Walk(all, func(s *Stretch) bool {
		if held[s.Owner] == nil {
			held[s.Owner] = map[uint64]bool{}
		}
		key, constant := s.Key, r.ids[s.Identity]
		for i, engine := range s.Engine {
			if i > 0 {
				key = r.x.tree.scheme.Next(key, s.ClientHashes[i])
			}
			if s.Waiting {
				key = engine ^ constant
			}
			held[s.Owner][key^constant] = true
		}
		return true
	})
	for w := range before {
		b := &r.writers[w]
		var got [][]int
		for n := range b.owners {
			h := held[Owner(b.owners[n].Load()-1)]
			got = append(got, r.depths(func(key uint64) bool { return h[key] }))
		}
		if !slices.ContainsFunc(b.events[before[w]:after[w]+1],
			func(e raceEvent) bool { return slices.EqualFunc(e.depth, got, slices.Equal) }) {
			r.Errorf("a snapshot says of writer %d what was true at no moment from event %d to %d", w, before[w], after[w])
		}
	}
}

// TestQueriesWaitForTables holds that a query does not believe a table that a writer has at
// hand.
func TestQueriesWaitForTables(t *testing.T) {
	x := New(Options{Scheme: hash.DefaultScheme()})
	o := x.NewOwner(x.NewSource())
	x.Store(&Store{Owner: o, Engine: []uint64{1}, Local: []uint64{10}})
	x.Store(&Store{Owner: o, Engine: []uint64{20}})
	for key, table := range map[uint64]*table{10: &x.tree.heads, 20: &x.tree.loose} {
		number, _ := splitKey(mix(key))
		s := &table.segs[number]
		was := table.bodies[number].Load()
		atomic.AddUint32(&s.ver, 1)
		empty := &segmentBody{entries: make([]uint64, 1<<firstLog), shift: tagBits - firstLog}
		empty.buildSieve()
		table.bodies[number].Store(empty)
		asks, done := make(chan bool), make(chan int)
		go func() {
			var m Match
			asks <- true
			x.matchChain(0, keys{key}, &m)
			done <- m.Blocks
		}()
		<-asks
		for range 100 {
			runtime.Gosched()
		}
		table.bodies[number].Store(was)
		atomic.AddUint32(&s.ver, 1)
		if got := <-done; got != 1 {
			t.Errorf("%d blocks of key %d", got, key)
		}
	}
}
