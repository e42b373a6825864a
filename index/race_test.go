package index

import (
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"example.com/conductor/index/hash"
)

// scene is a kind of history that writers of several sources play while readers ask by
// the path of the server.
type scene struct {
	name     string
	weights  [raceKinds]int
	families []int // how the writers name blocks; family 0 uses keys
	rest     []int // families of owners that rest, one each
	full     bool  // resting owners hold all blocks, else some
	tiers    int   // owners of a source, else 1
	alone    bool  // a writer has prompts of its own, and stores them in any order
	unknown  bool  // what a writer stores without tokens means nothing until it is taught
	waiting  bool  // readers look under the writers' names as well
	copies   bool  // a store adds a copy, a removal takes one
	short    bool  // many prompts of few blocks
	crowd    bool  // few prompts of few blocks
	slow     bool  // retired owners stay in pieces for some events
	tight    bool  // memory is short: writers hold less than they stored
	names    bool  // readers ask by engine hashes as well
	ghosts   bool  // blocks outlive their owners
	ids      int   // identities, else the base one alone; the prompts of all have the same tokens
	byName   bool  // some stores count by names
	bare     bool  // writers do not fold the constant of the identity into names, of events without tokens
	clash    bool  // the first writer has prompts of its own; the second names the blocks of the others as the first its own
}

// groups returns how many groups of prompts there are. The writers of one know no other.
func (s *scene) groups() int {
	switch {
	case s.alone:
		return raceWriters
	case s.clash:
		return 2
	}
	return 1
}

// What a writer does.
const (
	raceStore         = iota
	raceHashes        // a store without tokens
	raceOne           // a store of one block
	raceRemove        // neighbours, in any direction
	raceScatter       // a removal of blocks that are no neighbours
	raceRestore       // a removal of a block within, and its return
	raceTeach         // another source says what hashes mean
	raceClear         // all of an owner
	raceRotate        // clears the older of two owners, which is the younger from then on
	raceDrop          // of the source; another one begins
	raceClearIdentity // of an owner
	raceKinds         // number of kinds
	raceWriters       = 3
	raceMaxLives      = 4 // of a writer's source
)

var scenes = []scene{
	{name: "chains", names: true, families: []int{1, 2}, rest: []int{1},
		weights: [raceKinds]int{raceStore: 10, raceOne: 2, raceRemove: 8, raceScatter: 2, raceRestore: 3, raceClear: 1}},
	{name: "one family", names: true, families: []int{1}, rest: []int{1},
		weights: [raceKinds]int{raceStore: 10, raceOne: 2, raceRemove: 8, raceScatter: 2, raceRestore: 3}},
	{name: "families", names: true, families: []int{1, 2, 3}, rest: []int{4, 5, 6},
		weights: [raceKinds]int{raceStore: 10, raceRemove: 9, raceClear: 1}},
	{name: "single blocks", names: true, families: []int{1, 2}, weights: [raceKinds]int{raceOne: 20, raceRestore: 2, raceRemove: 3}},
	{name: "roots", names: true, short: true, families: []int{1, 2}, rest: []int{3},
		weights: [raceKinds]int{raceStore: 10, raceRemove: 10}},
	{name: "crowd", names: true, crowd: true, families: []int{1},
		weights: [raceKinds]int{raceStore: 10, raceOne: 4, raceRemove: 9, raceScatter: 2, raceRestore: 2}},
	{name: "one block", names: true, short: true, families: []int{1, 2}, rest: []int{1},
		weights: [raceKinds]int{raceOne: 20, raceRestore: 4, raceRemove: 6, raceScatter: 2, raceClear: 1}},
	{name: "one block with copies", names: true, short: true, families: []int{1, 2}, rest: []int{2}, tiers: 2, copies: true,
		weights: [raceKinds]int{raceOne: 20, raceStore: 2, raceRemove: 12, raceScatter: 2}},
	{name: "copies", names: true, families: []int{1, 2}, rest: []int{1}, copies: true,
		weights: [raceKinds]int{raceStore: 10, raceRemove: 10, raceScatter: 3, raceClear: 1}},
	{name: "tiers", names: true, families: []int{1, 2}, rest: []int{2}, tiers: 3,
		weights: [raceKinds]int{raceStore: 12, raceRemove: 9, raceScatter: 2, raceClear: 1}},
	{name: "generations", names: true, slow: true, families: []int{1, 2}, rest: []int{2}, tiers: 2,
		weights: [raceKinds]int{raceStore: 12, raceRemove: 5, raceRotate: 3}},
	{name: "sources", names: true, slow: true, families: []int{1, 2}, rest: []int{1}, tiers: 2,
		weights: [raceKinds]int{raceStore: 12, raceRemove: 6, raceClear: 1, raceDrop: 1}},
	{name: "hashes", families: []int{1, 2}, rest: []int{1, 2}, full: true,
		weights: [raceKinds]int{raceStore: 3, raceHashes: 8, raceRemove: 8, raceScatter: 2, raceClear: 1}},
	{name: "hashes that are keys", families: []int{0}, weights: [raceKinds]int{raceStore: 5, raceHashes: 8, raceRemove: 10,
		raceScatter: 2, raceClear: 1}},
	{name: "orphans", families: []int{1, 2}, alone: true, weights: [raceKinds]int{raceStore: 12, raceRemove: 7, raceClear: 1}},
	{name: "pools", families: []int{1, 2, 3}, rest: []int{4}, full: true, unknown: true,
		weights: [raceKinds]int{raceHashes: 10, raceTeach: 2, raceRemove: 8, raceScatter: 2, raceClear: 1}},
	{name: "waiting blocks", families: []int{1, 2, 3}, rest: []int{4}, full: true, unknown: true, waiting: true,
		weights: [raceKinds]int{raceHashes: 10, raceTeach: 2, raceRemove: 8, raceScatter: 2, raceClear: 1}},
	{name: "clashes", clash: true, families: []int{1, 1, 2}, weights: [raceKinds]int{raceStore: 10, raceOne: 4, raceRemove: 9,
		raceScatter: 2, raceRestore: 2, raceClear: 1}},
	{name: "identities", names: true, ids: 4, families: []int{1, 2}, rest: []int{1},
		weights: [raceKinds]int{raceStore: 10, raceOne: 4, raceRemove: 8, raceScatter: 2, raceRestore: 3, raceClear: 1,
			raceClearIdentity: 1}},
	{name: "identities of a few blocks", names: true, short: true, ids: 3, families: []int{1}, rest: []int{2}, tiers: 2,
		weights: [raceKinds]int{raceStore: 8, raceOne: 8, raceRemove: 8, raceScatter: 2, raceClearIdentity: 1}},
	{name: "identities that clash", clash: true, ids: 2, families: []int{1, 1, 2},
		weights: [raceKinds]int{raceStore: 10, raceOne: 4, raceRemove: 9, raceScatter: 2, raceRestore: 2, raceClear: 1}},
	{name: "stores by names", ids: 2, byName: true, families: []int{1, 2}, rest: []int{1, 2}, tiers: 2,
		weights: [raceKinds]int{raceStore: 10, raceOne: 4, raceHashes: 1, raceRemove: 9, raceScatter: 2, raceClear: 1}, full: true},
	{name: "waiting for others", ids: 2, families: []int{1}, rest: []int{4}, full: true, unknown: true, waiting: true,
		weights: [raceKinds]int{raceHashes: 8, raceStore: 6, raceTeach: 1, raceRemove: 8, raceScatter: 2, raceClear: 1}},
	{name: "waiting identities", ids: 3, families: []int{1, 2}, rest: []int{4}, full: true, unknown: true, waiting: true,
		weights: [raceKinds]int{raceHashes: 10, raceTeach: 1, raceRemove: 8, raceScatter: 2, raceClearIdentity: 1}},
	{name: "waiting without a constant", ids: 3, bare: true, families: []int{1, 2, 3}, rest: []int{4}, full: true, unknown: true,
		waiting: true, weights: [raceKinds]int{raceHashes: 10, raceTeach: 1, raceRemove: 8, raceScatter: 2, raceClear: 1}},
	{name: "budget", names: true, families: []int{1, 2}, rest: []int{1}, tight: true,
		weights: [raceKinds]int{raceStore: 12, raceRemove: 6, raceClear: 1}},
	{name: "ghosts", names: true, ghosts: true, families: []int{1, 2}, rest: []int{1},
		weights: [raceKinds]int{raceStore: 10, raceOne: 2, raceRemove: 8, raceScatter: 2, raceRestore: 3, raceClear: 1}},
	{name: "ghosts of one family", names: true, ghosts: true, families: []int{1},
		weights: [raceKinds]int{raceStore: 10, raceOne: 2, raceRemove: 8, raceScatter: 2, raceRestore: 3}},
	{name: "ghosts of a crowd", names: true, ghosts: true, crowd: true, families: []int{1},
		weights: [raceKinds]int{raceStore: 10, raceOne: 4, raceRemove: 9, raceScatter: 2, raceRestore: 2}},
	{name: "ghosts of sources", names: true, ghosts: true, slow: true, families: []int{1, 2}, rest: []int{1}, tiers: 2,
		weights: [raceKinds]int{raceStore: 12, raceRemove: 6, raceClear: 1, raceDrop: 1}},
	{name: "ghosts by hashes", ghosts: true, families: []int{1, 2}, rest: []int{1, 2}, full: true,
		weights: [raceKinds]int{raceStore: 3, raceHashes: 8, raceRemove: 8, raceScatter: 2, raceClear: 1}},
	{name: "ghosts of orphans", ghosts: true, families: []int{1, 2}, alone: true,
		weights: [raceKinds]int{raceStore: 12, raceRemove: 7, raceClear: 1}},
	{name: "ghosts within a budget", names: true, ghosts: true, families: []int{1, 2}, rest: []int{1}, tight: true,
		weights: [raceKinds]int{raceStore: 12, raceRemove: 6, raceClear: 1}},
}

// TestAnswersUnderRace holds that each answer lies between the least and the most that was
// true while it was made, for each owner and for the owners of a writer together. An
// owner that rests is answered exactly.
func TestAnswersUnderRace(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rounds := 3
	if testing.Short() || underRace {
		rounds = 1
	}
	for _, s := range scenes {
		t.Run(s.name, func(t *testing.T) {
			for round := range rounds {
				newRace(t, s, rand.New(rand.NewPCG(seed, uint64(round)))).run(seed)
			}
		})
	}
}

// prompt is a chain given by its local hashes, as the server asks.
type prompt struct{ local, seq []uint64 }

func (p *prompt) Len() int            { return len(p.local) }
func (p *prompt) At(i int) uint64     { return p.seq[i] }
func (p *prompt) Locals(int) []uint64 { return p.local }

// racePrompt is a prompt of an identity, and the keys of its blocks.
type racePrompt struct {
	prompt
	id   Identity
	keys []uint64
}

// race is an index, and histories of its writers that are known beforehand.
type race struct {
	*testing.T
	scene
	x       *Index
	prompts []racePrompt
	ids     []uint64 // constants by Identity
	writers [raceWriters]racer
	resting map[Owner][]int   // by prompt: how far
	kin     map[Owner]int     // families of owners that rest
	same    map[uint64]uint64 // key -> key that has the same name, nil for none
	refused atomic.Int64
}

// racer is a writer. Its owners have numbers: those of the first life of its source, then
// those of the second, and so on.
type racer struct {
	family      int
	teacher     Owner       // says what the names of the writer mean
	events      []raceEvent // the first is none
	begun, done atomic.Int64
	owners      []atomic.Int64 // by number: its owner, plus one
}

// raceEvent is what a writer does, and what holds afterwards.
type raceEvent struct {
	kind     int
	owner    int // number
	store    Store
	remove   []uint64
	id       Identity // the cleared one
	depth    [][]int  // by number and prompt
	together []int    // by prompt
}

// nameOf returns the engine hash of a key in a family.
func nameOf(family int, key uint64) uint64 {
	if family == 0 {
		return key
	}
	return mix(key ^ uint64(family)*0x9e3779b97f4a7c15) // names of two identities differ by no constant
}

func (r *race) namesIn(family int, keys []uint64) (names []uint64) {
	for _, key := range keys {
		if other, ok := r.same[key]; ok && family == 1 {
			key = other
		}
		names = append(names, nameOf(family, key))
	}
	return names
}

// newRace makes prompts, owners that rest, and histories.
func newRace(t *testing.T, s scene, rng *rand.Rand) *race {
	width, depth, events := 8, 200, 400
	if s.short {
		width, depth, events = 200, 3, 1500
	}
	if s.crowd {
		width, depth, events = 3, 4, 4000
	}
	if underRace { // ten times slower; make race plays it twice, make test once more without the detector
		events /= 2
	}
	s.tiers = max(s.tiers, 1)
	r := &race{T: t, scene: s, prompts: make([]racePrompt, width), ids: []uint64{0}, resting: map[Owner][]int{}, kin: map[Owner]int{}}
	opts := Options{Scheme: hash.DefaultScheme(), KeepClientHashes: true, Agree: func(Says, Identity, Identity) bool { return true }}
	if s.ghosts {
		opts.Ghosts = NewGhosts(pick(rng, []int64{20, 200, 1 << 20}) * ghostBytes)
	}
	r.x = New(opts)
	if s.slow {
		r.x.names.perEvent.sweep = 1
	}
	for len(r.ids) < s.ids {
		r.ids = append(r.ids, rng.Uint64()|1)
		r.x.NewIdentity(r.ids[len(r.ids)-1])
	}
	for i := range r.prompts {
		var local []uint64
		if id := i % len(r.ids); id > 0 {
			r.prompts[i] = r.newPrompt(Identity(id), r.prompts[i-id].local)
			continue
		}
		from := i
		if i > 0 {
			from = rng.IntN(i)
		}
		if n := s.groups(); n > 1 {
			from = i % n
		}
		if from < i && rng.IntN(4) > 0 {
			other := r.prompts[from].local
			local = append(local, other[:rng.IntN(len(other))]...)
		}
		for n := 1 + rng.IntN(depth); len(local) < n || len(local) == 0; {
			local = append(local, rng.Uint64())
		}
		r.prompts[i] = r.newPrompt(0, local)
	}
	if s.clash {
		r.clashes()
	}
	for _, family := range s.rest {
		o := r.x.NewOwner(r.x.NewSource())
		r.kin[o] = family
		held := map[uint64]bool{}
		for _, p := range r.prompts {
			n := len(p.keys)
			if !s.full {
				n = rng.IntN(n + 1)
			}
			r.x.Store(&Store{Owner: o, Identity: p.id, Engine: r.namesIn(family, p.keys[:n]), Local: p.local[:n], Copies: CopySet})
			for _, key := range p.keys[:n] {
				held[key] = true
			}
		}
		r.resting[o] = r.depths(func(key uint64) bool { return held[key] })
	}
	if s.tight {
		r.x.bounds.maxBytes = r.x.bounds.tableBytes() + 4<<10
	}
	for w := range r.writers {
		r.writers[w].family = s.families[w%len(s.families)]
		r.writers[w].owners = make([]atomic.Int64, raceMaxLives*s.tiers)
		r.writers[w].teacher = r.x.NewOwner(r.x.NewSource())
		r.imagine(w, events, rng)
	}
	return r
}

func (r *race) newPrompt(id Identity, local []uint64) racePrompt {
	p := racePrompt{prompt{local, hash.DefaultScheme().AppendChain(nil, local)}, id, nil}
	for _, seq := range p.seq {
		p.keys = append(p.keys, seq^r.ids[id])
	}
	return p
}

// clashes gives the blocks of the second group of prompts the names of the first one.
func (r *race) clashes() {
	r.same = map[uint64]uint64{}
	var own [2][]uint64
	for i, p := range r.prompts {
		for _, key := range p.keys {
			if g := i % r.groups(); !slices.Contains(own[g], key) {
				own[g] = append(own[g], key)
			}
		}
	}
	for i, key := range own[1][:min(len(own[0]), len(own[1]))] {
		r.same[key] = own[0][i]
	}
}

// depths returns how far each prompt is held.
func (r *race) depths(holds func(key uint64) bool) (all []int) {
	for _, p := range r.prompts {
		n := slices.IndexFunc(p.keys, func(key uint64) bool { return !holds(key) })
		if n < 0 {
			n = len(p.keys)
		}
		all = append(all, n)
	}
	return all
}

// imagine makes the history of a writer.
func (r *race) imagine(w, events int, rng *rand.Rand) {
	a := &r.writers[w]
	held := make([]map[uint64]int, len(a.owners)) // by number: copies
	for i := range held {
		held[i] = map[uint64]int{}
	}
	taught := map[uint64]bool{}
	first, current := 0, 0 // number of the first owner of this life; generation
	visible := func(n int, key uint64) bool {
		return held[n][key] > 0 && (!r.unknown || r.waiting || taught[key])
	}
	note := func(e raceEvent) {
		for n := range held {
			e.depth = append(e.depth, r.depths(func(key uint64) bool { return visible(n, key) }))
		}
		e.together = r.depths(func(key uint64) bool {
			return slices.ContainsFunc(held, func(h map[uint64]int) bool { return h[key] > 0 }) && (!r.unknown || r.waiting || taught[key])
		})
		a.events = append(a.events, e)
	}
	note(raceEvent{kind: raceKinds})
	policy := CopySet
	if r.copies {
		policy = CopyCount
	}
	names := func(p *racePrompt, keys []uint64) []uint64 {
		all := r.namesIn(a.family, keys)
		for i := range all {
			if r.bare {
				all[i] ^= r.ids[p.id]
			}
		}
		return all
	}
	store := func(n int, p *racePrompt, from, to int, tokens bool) {
		e := raceEvent{kind: raceStore, owner: n, store: Store{Engine: names(p, p.keys[from:to]), Copies: policy}}
		if !tokens && !r.bare {
			e.store.Identity = p.id
		}
		if tokens {
			e.store.Local = p.local[from:to]
			if e.store.ByName = r.byName && rng.IntN(2) == 0; from == 0 {
				e.store.Identity = p.id
				if e.store.ByName {
					e.store.Begins = []uint64{r.ids[p.id]}
				}
			} else {
				e.store.Identity, e.store.Says = Identity(rng.IntN(len(r.ids))), Says(rng.IntN(4)) // the parent's counts
				e.store.Parent, e.store.HasParent = r.namesIn(a.family, p.keys[from-1:from])[0], true
			}
		}
		for _, key := range p.keys[from:to] {
			held[n][key]++
			if policy == CopySet {
				held[n][key] = 1
			}
		}
		note(e)
	}
	remove := func(n int, p *racePrompt, keys []uint64) {
		for _, key := range keys {
			if held[n][key]--; held[n][key] < 1 {
				delete(held[n], key)
			}
		}
		note(raceEvent{kind: raceRemove, owner: n, remove: names(p, keys), store: Store{Copies: policy}})
	}
	bag := []int{}
	for kind, weight := range r.weights {
		bag = append(bag, slices.Repeat([]int{kind}, weight)...)
	}
	for len(a.events) < events {
		i := rng.IntN(len(r.prompts))
		if n := r.groups(); n > 1 {
			i = i/n*n + min(w, n-1)
		}
		if i >= len(r.prompts) {
			continue
		}
		p, n := &r.prompts[i], first+rng.IntN(r.tiers)
		if r.weights[raceRotate] > 0 {
			n = first + current
		}
		from := rng.IntN(len(p.keys))
		to := from + 1 + rng.IntN(len(p.keys)-from)
		known := func() int { // a block whose parent the writer holds
			most := 0
			for k := first; k < first+r.tiers; k++ {
				for most < len(p.keys) && held[k][p.keys[most]] > 0 {
					most++
				}
			}
			return rng.IntN(min(most+1, len(p.keys)))
		}
		switch kind := bag[rng.IntN(len(bag))]; kind {
		case raceStore:
			if !r.alone {
				from = known()
				to = from + 1 + rng.IntN(len(p.keys)-from)
			}
			store(n, p, from, to, true)
		case raceOne:
			from = known()
			store(n, p, from, from+1, true)
		case raceHashes:
			store(n, p, from, to, false)
		case raceRemove, raceScatter:
			var keys []uint64
			for k := from; k < to; k += 1 + kind - raceRemove {
				keys = append(keys, p.keys[k])
			}
			switch rng.IntN(3) {
			case 0:
				slices.Reverse(keys)
			case 1:
				if kind == raceScatter {
					rng.Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
				}
			}
			for k := first; k < first+r.tiers; k++ {
				if k == n || r.weights[raceRotate] > 0 {
					remove(k, p, keys)
				}
			}
		case raceRestore:
			if from = known(); from > 0 {
				remove(n, p, p.keys[from-1:from])
				if from == 1 || slices.ContainsFunc(held[first:first+r.tiers],
					func(h map[uint64]int) bool { return h[p.keys[from-2]] > 0 }) {
					store(n, p, from-1, from, true)
				}
			}
		case raceTeach:
			for _, key := range p.keys[:to] {
				taught[key] = true
			}
			note(raceEvent{kind: kind, store: Store{Identity: p.id, Engine: r.namesIn(a.family, p.keys[:to]), Local: p.local[:to],
				Copies: CopySet}})
		case raceClear:
			clear(held[n])
			note(raceEvent{kind: kind, owner: n})
		case raceClearIdentity:
			for i := range r.prompts {
				if r.prompts[i].id == p.id {
					for _, key := range r.prompts[i].keys {
						delete(held[n], key)
					}
				}
			}
			note(raceEvent{kind: kind, owner: n, id: p.id})
		case raceRotate:
			current = 1 - current
			clear(held[first+current])
			note(raceEvent{kind: raceClear, owner: first + current})
		case raceDrop:
			if first += r.tiers; first == len(held) {
				first -= r.tiers
				continue
			}
			for k := range first {
				clear(held[k])
			}
			note(raceEvent{kind: kind, owner: first})
		}
	}
}

// begin makes a source and its owners, with numbers from one on.
func (r *race) begin(a *racer, first int) Source {
	src := r.x.NewSource()
	for n := first; n < first+r.tiers; n++ {
		a.owners[n].Store(int64(r.x.NewOwner(src)) + 1)
	}
	return src
}

// write plays the history of a writer.
func (r *race) write(a *racer) {
	src := r.begin(a, 0)
	for k := range a.events {
		e := &a.events[k]
		owner := Owner(a.owners[e.owner].Load() - 1)
		a.begun.Store(int64(k))
		switch e.kind {
		case raceStore:
			e.store.Owner = owner
			r.refused.Add(int64(r.x.Store(&e.store).Refused))
		case raceRemove:
			r.x.Remove(owner, e.remove, nil, e.store.Copies)
		case raceTeach:
			e.store.Owner = a.teacher
			r.x.Store(&e.store)
		case raceClearIdentity:
			r.x.ClearIdentity(owner, e.id)
		case raceClear:
			r.x.ClearOwner(owner)
		case raceDrop:
			r.x.DropSource(src)
			src = r.begin(a, e.owner)
		}
		a.done.Store(int64(k))
		if r.ghosts && k == len(a.events)/8 {
			r.x.KeepGhosts()
		}
		if k%64 == 0 {
			if err := r.x.Check(); err != nil {
				r.Error(err)
			}
			if k%128 == 0 {
				r.x.compactAll()
			}
		}
		if k%4 == 0 {
			runtime.Gosched()
		}
	}
}

// run plays all histories at once.
func (r *race) run(seed uint64) {
	var writing, reading sync.WaitGroup
	var stop atomic.Bool
	var looks atomic.Int64
	for k := range uint64(3) {
		reading.Go(func() {
			rng := rand.New(rand.NewPCG(seed, k))
			var m Match
			places := make([]Lookup, raceWriters)
			for n := 0; !stop.Load() && !r.Failed(); n++ {
				if r.look(rng, &m, places); n%64 == 0 && !r.tight && !r.unknown {
					r.snap()
				}
				looks.Add(1)
				runtime.Gosched()
			}
		})
	}
	for w := range r.writers {
		writing.Go(func() { r.write(&r.writers[w]) })
	}
	writing.Wait()
	for before := looks.Load(); looks.Load() < before+10 && !r.Failed(); { // readers did run
		runtime.Gosched()
	}
	stop.Store(true)
	reading.Wait()
	if err := r.x.Check(); err != nil {
		r.Error(err)
	}
	rng, places := rand.New(rand.NewPCG(seed, 99)), make([]Lookup, raceWriters)
	for range 4 * len(r.prompts) { // at rest
		r.look(rng, new(Match), places)
	}
	if r.tight && r.refused.Load() == 0 {
		r.Error("nothing was refused")
	}
	for w := range r.writers {
		r.x.ClearOwner(r.writers[w].teacher)
		for n := range r.writers[w].owners {
			if o := r.writers[w].owners[n].Load(); o > 0 {
				r.x.ClearOwner(Owner(o - 1))
			}
		}
	}
	for o := range maps.Keys(r.resting) {
		r.x.ClearOwner(o)
	}
	r.x.compactAll()
	if st := r.x.Stats(); st.Blocks+st.Memberships+st.Aliases+st.Raw+st.Orphans+st.Sets != 0 {
		r.Errorf("something is left: %+v", st)
	}
}
