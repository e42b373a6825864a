package index

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"example.com/conductor/index/hash"
)

// A world drives an index and its oracle through the same random history.
//
// Publishers are of four families: two that hash alike, one with its own seed,
// one whose hashes are the canonical keys, and one that lies: small numbers with
// any parent and any tokens. Blocks have two variants with equal tokens and
// different engine hashes, so that two engine hashes mean one key.
type world struct {
	t       *testing.T
	rng     *rand.Rand
	ids     []Identity // living ones
	canon   Identity   // of all blocks of honest canonical publishers: the hashes of two differ by constants alone
	kinds   []Says     // by Identity: two have the same adapter, or salt, if they have the same bit
	x       *Index
	o       *oracle
	family  map[Source]int
	sources []Source // dropped ones too
	owners  []Owner
	tallies []*atomic.Int64 // of owners
	seen    []uint64        // engine hashes and keys used so far
	honest  bool            // no liars
	slow    bool            // sweeps take many events, and publishers mostly mention held blocks
	roots   uint64          // first blocks that prompts begin with
	ghosts  ghostly
	gone    int // names of ghosts that had to go
	log     []string
}

// ghostly is whether a world keeps ghosts, and whether few of them.
type ghostly int

const (
	noGhosts ghostly = iota
	allGhosts
	fewGhosts
)

const (
	twins = iota
	ownSeed
	canonical
	liar
	families
)

// alsoWaiting is what some publishers without tokens add to the hashes of others.
const alsoWaiting = 0x5eed_0f0f_1234_0001

type block struct{ local, variant uint64 }

func newWorld(t *testing.T, rng *rand.Rand, honest, slow bool, ghosts ghostly) *world {
	limits := []int{0, -1, 1, 4, 9}
	max := limits[rng.IntN(len(limits))]
	scheme := hash.Scheme{Seed: rng.Uint64N(2) * hash.DefaultSeed}
	w := &world{}
	x := New(Options{Scheme: scheme, MaxOrphans: max, NameAll: !honest, Ghosts: ghosts.bound(), Agree: w.agree})
	if max == 0 {
		max = DefaultMaxOrphans
	}
	*w = world{t: t, rng: rng, kinds: []Says{0}, x: x, o: newOracle(scheme, max, w.agree), family: map[Source]int{}, honest: honest,
		slow: slow, roots: 2 + 14*rng.Uint64N(2), ghosts: ghosts}
	if slow {
		x.names.perEvent.sweep = rng.IntN(2)
	}
	w.ids = []Identity{0}
	for range rng.IntN(4) {
		w.newIdentity()
	}
	w.canon = w.someIdentity()
	for range 1 + rng.IntN(4) {
		w.newSource()
	}
	if rng.IntN(2) == 0 {
		w.keepGhosts()
	}
	return w
}

// bound returns what indexes of a world may have for ghosts.
func (g ghostly) bound() *Ghosts { return NewGhosts([...]int64{0, 1 << 20, 3 * ghostBytes}[g]) }

// agree is Options.Agree. An identity that was dropped agrees with no other.
func (w *world) agree(says Says, a, b Identity) bool {
	return slices.Contains(w.ids, a) && says&(w.kinds[a]^w.kinds[b]) == 0
}

// keeping returns an empty index for the world that keeps client hashes.
func (w *world) keeping() *Index {
	return New(Options{Scheme: w.o.scheme, MaxOrphans: w.x.maxOrphans, KeepClientHashes: true, Ghosts: w.ghosts.bound(), Agree: w.agree})
}

// exchange goes on with another index with the same blocks, and no ghosts. What the events of waiting
// blocks said is forgotten.
func (w *world) exchange(x *Index) {
	if w.x = x; w.o.ghosts {
		x.KeepGhosts()
	}
	for src, s := range w.o.sources {
		if s.teaches {
			x.MarkTeaching(src)
		}
		for i := range s.links {
			s.links[i].says = oSaying{}
		}
	}
	maps.DeleteFunc(w.o.shared, func(_, key uint64) bool { return !w.o.alive(of(key)) })
	clear(w.o.doubted) // snapshots do not have them
	clear(w.o.lost)
	clear(w.o.unfound)
}

// keepGhosts makes both sides keep ghosts from now on, if the world has any.
func (w *world) keepGhosts() {
	if !w.o.ghosts {
		w.x.compactAll() // what the oracle has forgotten is no ghost
	}
	w.x.KeepGhosts()
	w.o.ghosts = w.ghosts != noGhosts
}

// mourn takes the names off the oracle whose ghosts had to go.
func (w *world) mourn() {
	for e, key := range w.o.shared {
		if w.o.alive(of(key)) {
			continue
		}
		if _, known := w.x.means(e); !known {
			if w.ghosts != fewGhosts {
				w.fail("the name %d of a ghost is gone", e)
			}
			w.o.lost[e] = key
			w.gone++
			delete(w.o.shared, e)
		}
	}
}

func (w *world) newSource() {
	src := w.x.NewSource()
	w.sources = append(w.sources, src)
	w.family[src] = w.rng.IntN(families)
	if w.honest {
		w.family[src] %= liar
	}
	w.o.sources[src] = &oSource{private: map[uint64]uint64{}}
	for range 1 + w.rng.IntN(2) {
		w.newOwner(src)
	}
}

func (w *world) newIdentity() {
	constant := w.rng.Uint64() | 1
	id := w.x.NewIdentity(constant)
	if int(id) == len(w.o.constants) {
		w.o.constants, w.kinds = append(w.o.constants, 0), append(w.kinds, 0)
	}
	w.o.constants[id], w.kinds[id] = constant, Says(w.rng.IntN(4))
	w.ids = append(w.ids, id)
	w.say("identity %d is %x of kind %d", id, constant, w.kinds[id])
}

// addIdentities gives another index the identities of the world.
func (w *world) addIdentities(x *Index) {
	for _, constant := range w.o.constants[1:] {
		x.NewIdentity(constant)
	}
	for id := range w.o.constants {
		if id := Identity(id); !slices.Contains(w.ids, id) {
			x.DropIdentity(id)
		}
	}
}

// someIdentity returns a living one.
func (w *world) someIdentity() Identity { return pick(w.rng, w.ids) }

func (w *world) newOwner(src Source) {
	tally := new(atomic.Int64)
	o := w.x.NewCountedOwner(src, tally)
	w.tallies = append(w.tallies, tally)
	w.owners = append(w.owners, o)
	if s := w.o.sources[src]; s != nil {
		w.o.owners[o] = src
		s.owners = append(s.owners, o)
	}
}

func pick[T any](rng *rand.Rand, from []T) T { return from[rng.IntN(len(from))] }

// path is a random prompt from a small tree, or from many small ones: then half of the
// prompts have one block.
func (w *world) path() []block {
	p := make([]block, 1+w.rng.IntN(6))
	if w.slow {
		p = make([]block, 4+w.rng.IntN(9))
	}
	if w.roots > 2 && w.rng.IntN(2) == 0 {
		p = p[:1]
	}
	for i := range p {
		p[i].local = 1 + w.rng.Uint64N(2)
		if w.slow && w.rng.IntN(4) > 0 {
			p[i].local = 1
		}
		if i == 0 {
			p[i].local = 1 + w.rng.Uint64N(w.roots)
		}
		if w.rng.IntN(6) == 0 {
			p[i].variant = 1
		}
	}
	return p
}

// tame reports whether a publisher mentions held blocks alone: a slow world keeps names on demand.
func (w *world) tame() bool { return w.slow && w.rng.IntN(8) > 0 }

// knows reports whether an engine hash means a held block to the source of an owner.
func (w *world) knows(owner Owner, engine uint64) bool {
	s := w.o.sources[w.o.owners[owner]]
	if s == nil {
		return false
	}
	key, known := w.o.meaning(s, engine)
	return known && w.o.bySource(s, of(key))
}

// engine is the hash a family uses for the last block of a path in an identity.
func (w *world) engine(family int, id Identity, p []block) uint64 {
	seq := w.keys(id, p)
	if family == canonical {
		return seq[len(seq)-1]
	}
	h := uint64(family) ^ w.o.constants[id]
	for _, b := range p {
		h = hash.Scheme{Seed: 99}.Next(h, b.local<<8|b.variant)
	}
	if len(p) == 1 && p[0] == (block{1, 0}) && family == ownSeed && id == 0 {
		return 0 // 0 is a legal hash
	}
	return h
}

// keys returns the keys of a path in an identity.
func (w *world) keys(id Identity, p []block) []uint64 {
	all := w.seqs(p)
	for i := range all {
		all[i] = w.o.note(id, all[i]^w.o.constants[id])
	}
	return all
}

func (w *world) seqs(p []block) []uint64 {
	locals := make([]uint64, len(p))
	for i, b := range p {
		locals[i] = b.local
	}
	return w.o.scheme.AppendChain(nil, locals)
}

func (w *world) say(format string, args ...any) {
	w.log = append(w.log, fmt.Sprintf(format, args...))
}

func (w *world) fail(format string, args ...any) {
	w.t.Helper()
	w.t.Fatalf("%s\nhistory:\n%s", fmt.Sprintf(format, args...), strings.Join(w.log, "\n"))
}

// step does one random thing on both sides.
func (w *world) step() {
	if w.x.names.naming == allNamed && !w.x.names.full.always && (w.slow || w.rng.IntN(8) == 0) {
		w.say("names on demand")
		w.x.names.naming = onDemand // as reconsiderNaming does
	}
	defer w.mourn()
	switch n := w.rng.IntN(100); {
	case n < 1 && w.ghosts != noGhosts:
		w.say("keep ghosts")
		w.keepGhosts()
	case n < 60:
		w.store()
	case n < 92:
		w.remove()
	case n < 93:
		o, id := pick(w.rng, w.owners), w.someIdentity()
		w.say("clear identity %d of %d", id, o)
		if got, want := w.x.ClearIdentity(o, id), w.o.clearIdentity(o, id); got != want {
			w.fail("clear of an identity: %d blocks, want %d", got, want)
		}
	case n < 94 && w.rng.IntN(2) == 0:
		o := pick(w.rng, w.owners)
		w.say("uncount %d", o)
		if got, want := w.x.DropCopies(o), w.o.uncount(o); got != want {
			w.fail("uncount: %d blocks, want %d", got, want)
		}
	case n < 94:
		w.changeIdentities()
	case n < 96:
		o := pick(w.rng, w.owners)
		w.say("clear %d", o)
		if got, want := w.x.ClearOwner(o), w.o.clear(o); got != want {
			w.fail("clear: %d blocks, want %d", got, want)
		}
	case n < 97:
		src := pick(w.rng, w.sources)
		w.say("drop source %d", src)
		w.x.DropSource(src)
		w.o.drop(src)
	case n < 98 && w.rng.IntN(2) == 0:
		w.say("compact")
		w.x.compactAll()
	case n < 98:
		w.say("new source %d", len(w.sources))
		w.newSource()
	default:
		src := pick(w.rng, w.sources)
		w.say("new owner %d of source %d", len(w.owners), src)
		w.newOwner(src)
	}
}

// changeIdentities gives an identity a weight, makes a new one or drops one, if it has no blocks
// and no ghosts.
func (w *world) changeIdentities() {
	id := w.someIdentity()
	switch w.rng.IntN(3) {
	case 0:
		w.x.SetWeight(id, w.rng.Uint64()|1)
	case 1:
		w.newIdentity()
	default:
		if id == w.canon && id != 0 {
			return
		}
		w.say("drop identity %d", id)
		some := id == 0
		for b, owners := range w.o.members {
			some = some || w.o.identity(b) == id && len(owners) > 0
		}
		w.x.compactAll()
		w.mourn()
		for _, key := range w.o.shared {
			some = some || w.o.ids[key] == id && !w.o.alive(of(key))
		}
		if got := w.x.DropIdentity(id); got == some {
			w.fail("drop of identity %d: %t, want %t", id, got, !some)
		}
		if !some {
			if w.x.DropIdentity(id) {
				w.fail("dropped twice")
			}
			w.ids = slices.DeleteFunc(w.ids, func(i Identity) bool { return i == id })
		}
	}
}

func (w *world) store() {
	owner := pick(w.rng, w.owners)
	family := twins
	if src, living := w.o.owners[owner]; living {
		family = w.family[src]
	}
	e, id := Store{Owner: owner, Copies: CopyPolicy(w.rng.IntN(2))}, w.someIdentity()
	if w.honest && family == canonical {
		id = w.canon
	}
	if family == liar {
		for range w.rng.IntN(4) {
			e.Engine = append(e.Engine, w.rng.Uint64N(7))
			e.Local = append(e.Local, 1+w.rng.Uint64N(2))
		}
		e.Parent, e.HasParent = w.rng.Uint64N(7), w.rng.IntN(4) > 0
		e.Identity, e.ByName = id, w.rng.IntN(3) == 0
		e.Says = Says(w.rng.IntN(4))
	} else {
		p := w.path()
		from := w.rng.IntN(len(p))
		if from > 0 && w.tame() && !(w.x.names.sweep.left > 0 && w.rng.IntN(2) == 0) && !w.knows(owner, w.engine(family, id, p[:from])) {
			from = 0
		}
		for i := from; i < len(p); i++ {
			e.Engine = append(e.Engine, w.engine(family, id, p[:i+1]))
			e.Local = append(e.Local, p[i].local)
		}
		if from > 0 {
			e.Parent, e.HasParent = w.engine(family, id, p[:from]), true
			if w.rng.IntN(6) == 0 {
				e.Parent, e.HasParent, e.Rootless = 0, false, true
			}
		}
		e.Identity = id
		if from > 0 {
			e.Identity = w.someIdentity() // the parent's counts
			if w.rng.IntN(4) == 0 {
				e.Says = Says(w.rng.IntN(4)) // unless this contradicts it
			}
			if e.Says != 0 && w.tame() {
				e.Identity = id
			}
		}
		if e.ByName = w.rng.IntN(4) == 0 && !w.tame(); e.ByName && !w.honest {
			e.Identity = w.someIdentity()
			for i := range e.Local {
				e.Local[i] = 1 + w.rng.Uint64N(2)
			}
		}
	}
	if w.rng.IntN(5) == 0 {
		e.Local, e.Identity = nil, id
		other := w.o.constants[id] // where the hashes do not say the identity
		if w.rng.IntN(2) == 0 {
			other = alsoWaiting
		}
		if w.rng.IntN(2) == 0 {
			for i := range e.Engine {
				e.Engine[i] ^= other
			}
			e.Identity = 0
		}
	}
	if w.rng.IntN(4) == 0 {
		e.AlsoWaiting = alsoWaiting
	}
	for _, other := range w.ids {
		if w.rng.IntN(3) == 0 && (other == id || !w.honest && !w.tame()) {
			e.Begins = append(e.Begins, w.o.constants[other])
		}
	}
	e.Undecided = e.Local != nil && !e.HasParent && !w.tame() && w.rng.IntN(4) == 0
	w.seen = append(w.seen, e.Engine...)
	w.say("store %+v", e)
	given := slices.Clone(e.Engine)
	got := w.x.Store(&e)
	told := e
	told.Engine = given
	if e.Local == nil {
		// The index takes the names in an order of its own. It matters if one of them is the key of a block that
		// another one names, so the oracle takes them in the same order.
		told.Engine = slices.Clone(e.Engine)
		slices.Sort(given)
		slices.Sort(e.Engine)
	}
	if !slices.Equal(given, e.Engine) {
		w.fail("store changed its argument")
	}
	want := w.o.store(&told)
	if got.Lost >= want.Lost && got.Lost <= len(e.Engine) || w.gone > fewLost {
		want.Lost = got.Lost // the filter is inexact
	}
	if got.Undecided <= got.Orphaned {
		want.Undecided = got.Undecided // TestUndecided counts them
	}
	if got != want {
		w.fail("store: %+v, want %+v", got, want)
	}
}

func (w *world) remove() {
	if len(w.seen) == 0 {
		return
	}
	owner := pick(w.rng, w.owners)
	var engine []uint64
	for range w.rng.IntN(5) {
		e := pick(w.rng, w.seen[max(0, len(w.seen)-40):])
		if src, living := w.o.owners[owner]; living && w.rng.IntN(3) > 0 {
			s := w.o.sources[src]
			held := slices.Sorted(maps.Keys(w.o.shared))
			held = slices.DeleteFunc(held, func(e uint64) bool { return !w.o.bySource(s, of(w.o.shared[e])) })
			if w.tame() {
				held = slices.DeleteFunc(held, func(e uint64) bool { return !w.o.holds(owner, of(w.o.shared[e])) })
			}
			if len(held) > 0 {
				e = pick(w.rng, held)
			}
		}
		engine = append(engine, e)
	}
	var remaining []int
	if w.rng.IntN(4) == 0 {
		for range engine {
			remaining = append(remaining, w.rng.IntN(4)-1)
		}
		remaining = remaining[:w.rng.IntN(len(remaining)+1)]
	}
	policy := CopyPolicy(w.rng.IntN(2))
	w.say("remove owner %d %d remaining %d policy %d", owner, engine, remaining, policy)
	if got, want := w.x.Remove(owner, engine, remaining, policy), w.o.remove(owner, engine, remaining, policy); got != want {
		w.fail("remove: %+v, want %+v", got, want)
	}
}

func TestModel(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	worlds, steps := 150, 120
	if testing.Short() || underRace {
		worlds = 20
	}
	for i := range worlds {
		w := newWorld(t, rand.New(rand.NewPCG(seed, uint64(i))), i%2 == 0, i%4 < 2, ghostly(i/4%3))
		w.say("seed %d, world %d", seed, i)
		for range steps {
			w.step()
			w.compare()
		}
		for _, src := range w.sources {
			w.x.DropSource(src)
		}
		w.x.compactAll()
		if st := w.x.Stats(); st.Blocks+st.Memberships+st.Aliases+st.Raw+st.Orphans+st.Sets != 0 {
			w.fail("something is left: %+v", st)
		}
		if err := w.x.Check(); err != nil {
			w.fail("check: %v", err)
		}
	}
}

// bytesSource is a source of random numbers that a fuzzer chooses, a byte each; behind
// its end they are random.
type bytesSource struct {
	data []byte
	rest *rand.PCG
}

func (s *bytesSource) Uint64() uint64 {
	if len(s.data) == 0 {
		return s.rest.Uint64()
	}
	b := uint64(s.data[0])
	s.data = s.data[1:]
	return b*0x0101_0101_0101_0101 ^ s.rest.Uint64()>>40
}

// FuzzModel is TestModel with a history of the fuzzer's choice.
func FuzzModel(f *testing.F) {
	for seed := range byte(8) {
		data := make([]byte, 200)
		rand.NewChaCha8([32]byte{seed}).Read(data)
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		source := &bytesSource{data[:min(len(data), 4096)], rand.NewPCG(1, 2)}
		steps, looks := rand.New(source), rand.New(rand.NewPCG(3, 4))
		w := newWorld(t, steps, false, false, ghostly(len(data)%3))
		for len(source.data) > 0 {
			w.rng = steps
			w.step()
			w.rng = looks
			w.compare()
		}
	})
}
