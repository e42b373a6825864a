package index

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"example.com/conductor/index/hash"
	"example.com/conductor/internal/must"
)

// honestFleet drives an index as engines do that announce all they hold: each parent and each
// removed hash is one that the source has announced.
type honestFleet struct {
	*testing.T
	rng    *rand.Rand
	x      *Index
	owners []honestOwner
	tree   [][]uint64 // prompts by local hashes
}

type honestOwner struct {
	name   Owner
	family uint64
	held   map[uint64]int // by key: the depth
	prompt map[uint64]int // by key: a prompt it is of
}

func newHonestFleet(t *testing.T, seed uint64) *honestFleet {
	f := &honestFleet{T: t, rng: rand.New(rand.NewPCG(seed, 1)), x: New(Options{Scheme: hash.DefaultScheme(),
		KeepClientHashes: seed%2 == 0})}
	for s := range 5 {
		src := f.x.NewSource()
		for range 1 + f.rng.IntN(2) {
			f.owners = append(f.owners, honestOwner{f.x.NewOwner(src), uint64(s % 3), map[uint64]int{}, map[uint64]int{}})
		}
	}
	for i := range 60 {
		var p []uint64
		if i > 0 {
			from := f.tree[f.rng.IntN(i)]
			p = slices.Clone(from[:f.rng.IntN(len(from))])
		}
		for n := 1 + f.rng.IntN(200); n > 0; n-- {
			p = append(p, f.rng.Uint64()>>1|1)
		}
		f.tree = append(f.tree, p)
	}
	return f
}

// engine returns the hashes of a family for blocks of a prompt.
func (f *honestFleet) engine(family uint64, keys []uint64) []uint64 {
	all := make([]uint64, len(keys))
	for i, k := range keys {
		all[i] = (k ^ family*0x9e3779b97f4a7c15) * 0xd6e8feb86659fd93
	}
	return all
}

// store announces a stretch of a prompt behind what the owner holds of it.
func (f *honestFleet) store(o *honestOwner) {
	i := f.rng.IntN(len(f.tree))
	keys := f.x.tree.scheme.AppendChain(nil, f.tree[i])
	from := 0
	for from < len(keys) && f.rng.IntN(9) > 0 {
		if _, ok := o.held[keys[from]]; !ok {
			break
		}
		from++
	}
	to := min(len(keys), from+1+f.rng.IntN(90))
	e := Store{Owner: o.name, Engine: f.engine(o.family, keys[from:to]), Local: f.tree[i][from:to], Copies: CopySet}
	if from > 0 {
		e.Parent, e.HasParent = f.engine(o.family, keys[from-1:from])[0], true
	}
	f.x.Store(&e)
	for k := from; k < to; k++ {
		o.held[keys[k]], o.prompt[keys[k]] = k, i
	}
}

// remove announces removals of what the owner holds: the end of a chain, in one event or in
// many, in order or not, or blocks from all over.
func (f *honestFleet) remove(o *honestOwner) {
	if len(o.held) == 0 {
		return
	}
	var keys []uint64
	all := make([]uint64, 0, len(o.held))
	for k := range o.held {
		all = append(all, k)
	}
	slices.Sort(all)
	if f.rng.IntN(3) > 0 {
		chain := f.x.tree.scheme.AppendChain(nil, f.tree[o.prompt[all[f.rng.IntN(len(all))]]])
		for k := len(chain) - 1; k >= 0 && len(keys) < 120; k-- {
			if _, ok := o.held[chain[k]]; ok {
				keys = append(keys, chain[k])
			}
		}
	} else {
		f.rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		keys = all[:min(len(all), 20)]
	}
	switch f.rng.IntN(4) {
	case 0:
		slices.Reverse(keys)
	case 1:
		f.rng.Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
	case 2: // every second one first
		slices.SortStableFunc(keys, func(a, b uint64) int { return o.held[a]&1 - o.held[b]&1 })
	}
	for len(keys) > 0 {
		n := min(len(keys), 1+f.rng.IntN(40)*f.rng.IntN(2))
		if got := f.x.Remove(o.name, f.engine(o.family, keys[:n]), nil, CopySet); got.Removed != n {
			f.Fatalf("removed %+v of %d", got, n)
		}
		for _, k := range keys[:n] {
			delete(o.held, k)
		}
		keys = keys[n:]
	}
}

// compare looks prompts up, and asks the index about itself.
func (f *honestFleet) compare() {
	must.Succeed(f, f.x.Check())
	var m Match
	for range 8 {
		local := f.tree[f.rng.IntN(len(f.tree))]
		keys := f.x.tree.scheme.AppendChain(nil, local)
		f.x.matchChain(0, &listed{keys: keys, local: local}, &m)
		at := 0
		for owners, blocks := range ownersHolding(&m) {
			for range blocks {
				for i := range f.owners {
					_, want := f.owners[i].held[keys[at]]
					if _, got := slices.BinarySearch(owners, uint32(f.owners[i].name)); got != want {
						f.Fatalf("block %d of %d: owner %d holds it: %t, want %t", at, len(keys), i, got, want)
					}
				}
				at++
			}
		}
		if at < len(keys) {
			for i := range f.owners {
				if _, ok := f.owners[i].held[keys[at]]; ok {
					f.Fatalf("the answer ends before block %d, which owner %d holds", at, i)
				}
			}
		}
	}
}

// listed is a prompt by local hashes and keys.
type listed struct{ keys, local []uint64 }

func (l *listed) Len() int            { return len(l.keys) }
func (l *listed) At(i int) uint64     { return l.keys[i] }
func (l *listed) Locals(int) []uint64 { return l.local }

func (f *honestFleet) play(steps int) {
	for i := range steps {
		o := &f.owners[f.rng.IntN(len(f.owners))]
		if f.rng.IntN(2) == 0 {
			f.store(o)
		} else {
			f.remove(o)
		}
		if i%20 == 0 {
			f.compare()
		}
	}
}

// Sources that mention only what they have announced need few entries, and find all. A
// hash that no source announced ends that.
func TestNamesOnDemand(t *testing.T) {
	skipUnderRace(t)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	for i := range uint64(8) {
		f := newHonestFleet(t, seed+i)
		f.play(300)
		if f.x.names.naming != onDemand {
			t.Fatalf("seed %d: the index names all blocks", seed+i)
		}
		if most := f.x.tree.lanes.sharedNames() / 2; int(f.x.names.table.n.Load()) > most {
			t.Logf("seed %d: %d entries for %d names", seed+i, int(f.x.names.table.n.Load()), f.x.tree.lanes.sharedNames())
		}
		f.x.knows(0, 12345)
		f.play(40)
		if f.x.names.naming != allNamed || int(f.x.names.table.n.Load()) != f.x.tree.lanes.sharedNames() {
			t.Errorf("seed %d: %d entries for %d names", seed+i, int(f.x.names.table.n.Load()), f.x.tree.lanes.sharedNames())
		}
		for k := range f.owners {
			for o := &f.owners[k]; len(o.held) > 0; {
				f.remove(o)
			}
		}
		f.compare()
		if st := f.x.Stats(); st.Blocks+st.Aliases+int(f.x.names.table.n.Load()) != 0 {
			t.Errorf("seed %d: something is left: %+v", seed+i, st)
		}
	}
}

// The list of a source is bounded: what does not fit any more is named.
func TestVagueBound(t *testing.T) {
	skipUnderRace(t)
	x := New(Options{Scheme: hash.DefaultScheme()})
	o := x.NewOwner(x.NewSource())
	for i := range uint64(3 * maxUnindexed) {
		x.Store(&Store{Owner: o, Engine: []uint64{i<<8 | 1, i<<8 | 2}, Local: []uint64{i<<8 | 3, i<<8 | 4}})
	}
	if n := len(x.holders.sources[0].unindexed.pieces); n != maxUnindexed {
		t.Errorf("%d unindexed pieces, want %d", n, maxUnindexed)
	}
	must.Succeed(t, x.Check())
	for i := range uint64(3 * maxUnindexed) {
		for _, e := range []uint64{i<<8 | 2, i<<8 | 1} {
			if got := x.Remove(o, []uint64{e}, nil, CopySet); got.Removed != 1 {
				t.Fatalf("chain %d: %+v", i, got)
			}
		}
	}
	if int(x.names.table.n.Load()) != 0 || x.tree.lanes.sharedNames() != 0 || x.BlocksOf(o) != 0 {
		t.Errorf("%d entries and %d names are left", int(x.names.table.n.Load()), x.tree.lanes.sharedNames())
	}
}

// Pieces that were searched often leave places in the full list of a source, which are used
// like others.
func TestVagueBoundAfterSearches(t *testing.T) {
	skipUnderRace(t)
	x := New(Options{Scheme: hash.DefaultScheme()})
	o := x.NewOwner(x.NewSource())
	store := func(from, to uint64) {
		for i := from; i < to; i++ {
			x.Store(&Store{Owner: o, Engine: []uint64{i<<8 | 1, i<<8 | 2, i<<8 | 3}, Local: []uint64{i<<8 | 4, i<<8 | 5, i<<8 | 6}})
		}
	}
	store(0, maxUnindexed)
	for i := uint64(2 * searchPatience); i > 0; i-- { // away from where a search goes on
		if got := x.Remove(o, []uint64{i<<9 | 2}, nil, CopySet); got.Removed != 1 {
			t.Fatalf("chain %d: %+v", i, got)
		}
	}
	if !slices.ContainsFunc(x.holders.sources[0].unindexed.pieces, func(v unindexedPiece) bool { return v.piece == 0 }) {
		t.Fatal("all pieces are listed")
	}
	store(maxUnindexed, 3*maxUnindexed)
	must.Succeed(t, x.Check())
}

// A large index is named a part with each event, and holds what comes meanwhile.
func TestNamesCatchUp(t *testing.T) {
	skipUnderRace(t)
	x := New(Options{Scheme: hash.DefaultScheme()})
	first, second := x.NewOwner(x.NewSource()), x.NewOwner(x.NewSource())
	const chains = 20_000
	for i := range uint64(chains) {
		x.Store(&Store{Owner: first, Engine: []uint64{i<<8 | 1, i<<8 | 2}, Local: []uint64{i<<8 | 3, i<<8 | 4}})
	}
	last := uint64(chains - 1)
	x.Store(&Store{Owner: second, Engine: []uint64{last<<8 | 2}})
	if x.names.naming != catchingUp {
		t.Fatalf("naming %d", x.names.naming)
	}
	must.Succeed(t, x.Check())
	for i := range uint64(1000) {
		x.Store(&Store{Owner: first, Engine: []uint64{i<<40 | 1}, Local: []uint64{i<<40 | 5}})
	}
	if x.names.naming != allNamed {
		t.Fatalf("naming %d after a thousand events", x.names.naming)
	}
	must.Succeed(t, x.Check())
	// The next mention of what was not found meanwhile finds it.
	x.Store(&Store{Owner: second, Engine: []uint64{last<<8 | 1, last<<8 | 2}})
	var m Match
	chain := x.tree.scheme.AppendChain(nil, []uint64{last<<8 | 3, last<<8 | 4})
	if x.matchKeys(0, chain, &m); m.Blocks != 2 || !slices.Equal(m.Prefixes, []Prefix{{uint32(first), 2}, {uint32(second), 2}}) {
		t.Errorf("%+v", m.Prefixes)
	}
}

// While a large index is named, a source that comes to hold blocks of others finds them.
func TestNamesCatchUpWithLaterHolders(t *testing.T) {
	skipUnderRace(t)
	x := New(Options{Scheme: hash.DefaultScheme()})
	first, source := x.NewOwner(x.NewSource()), x.NewSource()
	second, host := x.NewOwner(source), x.NewOwner(source)
	const chains = 20_000
	store := func(o Owner, i uint64) {
		x.Store(&Store{Owner: o, Engine: []uint64{i<<8 | 1, i<<8 | 2, i<<8 | 3}, Local: []uint64{i<<8 | 4, i<<8 | 5, i<<8 | 6}})
	}
	for i := range uint64(chains) {
		store(first, i)
	}
	x.knows(0, 12345)
	for i := range uint64(3) {
		store(second, chains-3+i)
	}
	must.Succeed(t, x.Check())
	for i := range uint64(2) {
		e := (chains-3+i)<<8 | 2
		if !x.has(second, e) {
			t.Errorf("block %d is not found", e)
		}
		if got := x.Store(&Store{Owner: host, Engine: []uint64{e}}); got.Added != 1 || got.HashOnly != 0 {
			t.Errorf("block %d stored by its hash: %+v", e, got)
		}
		if got := x.Remove(second, []uint64{e}, nil, CopySet); got.Removed != 1 {
			t.Errorf("block %d removed: %+v", e, got)
		}
	}
	if x.names.naming != catchingUp {
		t.Fatalf("naming %d", x.names.naming)
	}
	must.Succeed(t, x.Check())
}

// A source that calls many blocks by one hash loses all but one when that comes to light, and
// costs the table of names nothing.
func TestLiarOnDemand(t *testing.T) {
	x := New(Options{Scheme: hash.DefaultScheme()})
	liar, other := x.NewOwner(x.NewSource()), x.NewOwner(x.NewSource())
	for i := range uint64(500) {
		x.Store(&Store{Owner: liar, Engine: []uint64{i<<8 | 1, 7}, Local: []uint64{i<<8 | 3, i<<8 | 4}, Copies: CopySet})
	}
	x.Store(&Store{Owner: other, Engine: []uint64{1 << 8, 2 << 8}, Local: []uint64{1<<8 | 3, 1<<8 | 4}, Copies: CopySet})
	must.Succeed(t, x.Check())
	x.NameAllBlocks()
	for x.names.naming != allNamed {
		x.Remove(other, []uint64{99}, nil, CopySet)
	}
	must.Succeed(t, x.Check())
	if n := x.BlocksOf(liar); n != 501 {
		t.Errorf("%d blocks are left, want 501", n)
	}
	if n := x.BlocksOf(other); n != 2 {
		t.Errorf("another source has %d blocks, want 2", n)
	}
	if x.names.table.size.Load() > 1<<16 {
		t.Errorf("%d bytes of names", x.names.table.size.Load())
	}
}

// What a source says it no longer holds is unknown at once, before the sweep has come by.
func TestVagueAfterClear(t *testing.T) {
	skipUnderRace(t)
	x := New(Options{Scheme: hash.DefaultScheme()})
	src := x.NewSource()
	o := x.NewOwner(src)
	const chains = 20_000
	for i := range uint64(chains) {
		x.Store(&Store{Owner: o, Engine: []uint64{i<<8 | 1, i<<8 | 2}, Local: []uint64{i<<8 | 3, i<<8 | 4}})
	}
	x.ClearOwner(o)
	if x.names.sweep.left == 0 {
		t.Fatal("the sweep has passed already")
	}
	if last := uint64(chains - 1); x.knows(src, last<<8|1) {
		t.Error("a block of a cleared owner is known")
	}
	must.Report(t, x.Check())
}

// A source that once mentions what it has not announced costs names of all blocks for some
// thousand events. A source that goes on to use what others have taught keeps them.
func TestNamesOnDemandAgain(t *testing.T) {
	skipUnderRace(t)
	x := New(Options{Scheme: hash.DefaultScheme()})
	first, second := x.NewOwner(x.NewSource()), x.NewOwner(x.NewSource())
	next := uint64(0)
	store := func(n int) {
		for range n {
			next++
			x.Store(&Store{Owner: first, Engine: []uint64{next<<8 | 1, next<<8 | 2}, Local: []uint64{next<<8 | 3, next<<8 | 4}})
		}
	}
	store(10)
	for missed, looks := range []int{2, 4, 8} {
		if x.Remove(first, []uint64{uint64(missed) << 40}, nil, CopySet); x.names.naming == onDemand {
			t.Fatalf("names on demand after %d hashes that were never announced", missed+1)
		}
		events := 0
		for ; x.names.naming != onDemand && events < 20*calmEvents; events++ {
			store(1)
		}
		if events < (looks-1)*calmEvents || events > (looks+2)*calmEvents {
			t.Fatalf("names on demand after %d events, want some %d", events, looks*calmEvents)
		}
		must.Succeed(t, x.Check())
	}
	for i := range uint64(40 * calmEvents) {
		x.Store(&Store{Owner: second, Engine: []uint64{next<<8 | 2}})
		if store(1); i > 0 && x.names.naming == onDemand {
			t.Fatal("names on demand while a source uses what another has taught")
		}
	}
	must.Succeed(t, x.Check())
	x.NameAllBlocks()
	for x.names.naming != allNamed {
		store(1)
	}
	if store(40 * calmEvents); x.names.naming != allNamed {
		t.Error("names on demand in spite of NameAll")
	}
}

// Names on demand come back as well where all events lock all lanes: those of a source with a
// private name do.
func TestNameLessUnderAllLanes(t *testing.T) {
	x := New(Options{Scheme: hash.DefaultScheme()})
	src := x.NewSource()
	a, b := x.NewOwner(src), x.NewOwner(x.NewSource())
	x.Store(&Store{Owner: b, Engine: []uint64{100, 101}, Local: []uint64{10, 11}})
	x.Store(&Store{Owner: a, Engine: []uint64{100, 200}, Local: []uint64{20, 21}})
	x.Store(&Store{Owner: b, Engine: []uint64{999}}) // ends names on demand
	for i := range uint64(6 * calmEvents) {
		if x.resolver.isCalmFor(x.holders.sources[src]) {
			t.Fatal("the source has a private name")
		}
		engine := []uint64{i<<8 | 1, i<<8 | 2}
		x.Store(&Store{Owner: a, Engine: engine, Local: []uint64{i<<8 | 3, i<<8 | 4}})
	}
	if x.names.naming != onDemand {
		t.Errorf("naming %d after %d events", x.names.naming, 6*calmEvents)
	}
}

// Pieces that ended leave the full list of a source without a trace: the pieces that lie in
// their lines since get no entries for it.
func TestVagueListForgetsEndedPieces(t *testing.T) {
	skipUnderRace(t)
	x := New(Options{Scheme: hash.DefaultScheme()})
	o := x.NewOwner(x.NewSource())
	const held, blocks = maxUnindexed / 4, 32
	names := func(chain uint64) (engine []uint64) {
		for i := range uint64(blocks) {
			engine = append(engine, chain<<8|i+1)
		}
		return engine
	}
	rng := rand.New(rand.NewPCG(1, 2))
	var chains []uint64
	for i := range uint64(3 * maxUnindexed) {
		engine := names(i + 1)
		x.Store(&Store{Owner: o, Engine: engine, Local: engine})
		if chains = append(chains, i+1); len(chains) > held {
			k := rng.IntN(len(chains))
			x.Remove(o, names(chains[k]), nil, CopySet)
			chains[k] = chains[held]
			chains = chains[:held]
		}
	}
	if entries := int(x.names.table.n.Load()); entries > 4*held {
		t.Errorf("%d entries for %d chains of %d blocks", entries, held, blocks)
	}
	must.Succeed(t, x.Check())
}

// A store finds loose blocks by their keys while names get entries on demand: their names move
// to the chain. Else two blocks would have one name, and a source would lose one of them.
func TestStoreTakesLooseBlocksOnDemand(t *testing.T) {
	for _, whole := range []bool{true, false} { // whether the chain is new, or another source has stored it
		x := New(Options{Scheme: hash.DefaultScheme()})
		src := x.NewSource()
		device, host := x.NewOwner(src), x.NewOwner(src)
		other, calm := x.NewOwner(x.NewSource()), x.NewOwner(x.NewSource())
		local := []uint64{31, 32, 33, 34}
		engine := []uint64{1, 2, 3, 4}
		keys := hash.DefaultScheme().AppendChain(nil, local)
		if !whole {
			x.Store(&Store{Owner: other, Engine: []uint64{11, 12, 13, 14}, Local: local})
		}
		for i := 1; i < len(engine); i++ {
			x.Store(&Store{Owner: host, Engine: engine[i : i+1], Key: keys[i], HasKey: true})
		}
		for i := uint64(1); x.names.naming != onDemand; i++ {
			if i > 20*calmEvents {
				t.Fatal("no names on demand")
			}
			x.Store(&Store{Owner: calm, Engine: []uint64{i<<8 | 1, i<<8 | 2}, Local: []uint64{i<<8 | 3, i<<8 | 4}})
		}
		x.Store(&Store{Owner: device, Engine: engine, Local: local})
		if n := x.tree.looseBlocks.Load(); n != 0 {
			t.Errorf("new chain %t: %d blocks are loose", whole, n)
		}
		x.NameAllBlocks()
		if x.BlocksOf(device) != 4 || x.BlocksOf(host) != 3 {
			t.Errorf("new chain %t: the owners hold %d and %d blocks, want 4 and 3", whole, x.BlocksOf(device), x.BlocksOf(host))
		}
		for _, o := range []Owner{host, device} {
			x.Remove(o, engine, nil, CopySet)
		}
		if n := x.BlocksOf(device) + x.BlocksOf(host); n != 0 {
			t.Errorf("new chain %t: %d blocks are left", whole, n)
		}
		must.Report(t, x.Check())
	}
}

// unswept returns an index whose events sweep no page.
func unswept() *Index {
	x := New(Options{Scheme: hash.DefaultScheme()})
	x.names.perEvent.sweep = 0
	return x
}

// A store behind a loose block looks again at the next block if the search for its engine hash
// has taken the last owner out of it, who is retired.
func TestStoreLooseBlockOfRetired(t *testing.T) {
	x := unswept()
	a, b := x.NewOwner(x.NewSource()), x.NewOwner(x.NewSource())
	key := uint64(77)
	next := hash.DefaultScheme().Next(key, 31)
	x.Store(&Store{Owner: a, Engine: []uint64{1}, Key: key, HasKey: true})
	x.Store(&Store{Owner: b, Engine: []uint64{2}, Key: next, HasKey: true})
	x.ClearOwner(b)
	if got := x.Store(&Store{Owner: a, Parent: 1, HasParent: true, Engine: []uint64{2},
		Local: []uint64{31}}).counts(); got != (StoreResult{Added: 1}) {
		t.Errorf("store behind a loose block: %+v", got)
	}
	if got := x.BlocksOf(a); got != 2 {
		t.Errorf("the owner holds %d blocks, want 2", got)
	}
	x.compactAll()
	must.Report(t, x.Check())
	if got := x.Remove(a, []uint64{2, 1}, nil, CopySet); got != (RemoveResult{Removed: 2}) {
		t.Errorf("removal: %+v", got)
	}
}

// Blocks of retired owners leave a piece before its names get entries: two blocks with one engine
// hash would end it meanwhile.
func TestNamesOfRetired(t *testing.T) {
	x := unswept()
	a, b := x.NewOwner(x.NewSource()), x.NewOwner(x.NewSource())
	x.Store(&Store{Owner: a, Engine: []uint64{1, 5, 6, 5, 7}, Local: []uint64{31, 32, 33, 34, 35}})
	x.ClearOwner(a)
	x.Store(&Store{Owner: b, Engine: []uint64{999}})
	for x.names.naming != allNamed {
		x.Store(&Store{Owner: b, Engine: []uint64{998}})
	}
	must.Report(t, x.Check())
}

// A search does not find a block that only retired owners hold: a store behind it would go on in a
// piece that is shorter by then, or has ended.
func TestSearchSkipsBlocksOfRetired(t *testing.T) {
	var engine, local []uint64
	for i := range uint64(maxPiece + 6) {
		engine, local = append(engine, 1+i), append(local, 101+i)
	}
	for _, stays := range [][2]int{{0, 2}, {maxPiece, maxPiece + 6}} { // what a living owner holds
		x := unswept()
		src := x.NewSource()
		a, b := x.NewOwner(src), x.NewOwner(src)
		x.Store(&Store{Owner: a, Engine: engine, Local: local})
		e := Store{Owner: b, Engine: engine[stays[0]:stays[1]], Local: local[stays[0]:stays[1]]}
		if stays[0] > 0 {
			e.Parent, e.HasParent = engine[stays[0]-1], true
		}
		x.Store(&e)
		x.ClearOwner(a)
		got := x.Store(&Store{Owner: b, Parent: engine[9], HasParent: true, Engine: []uint64{901, 902}, Local: []uint64{41, 42}})
		if got.counts() != (StoreResult{Added: 2, Orphaned: 2}) {
			t.Errorf("blocks %d stay: store behind a block of nobody: %+v", stays, got)
		}
		x.compactAll()
		if err := x.Check(); err != nil {
			t.Errorf("blocks %d stay: %v", stays, err)
		}
	}
}

// Blocks behind a loose one stay loose if the piece that one of them began has only retired
// owners: the store would write the blocks behind that one into the loose piece.
func TestStoreBehindLooseBlockOfRetired(t *testing.T) {
	x := unswept()
	a, b := x.NewOwner(x.NewSource()), x.NewOwner(x.NewSource())
	local := []uint64{31, 32, 33, 34}
	first := uint64(77)
	keys := []uint64{first}
	for i, l := range local[1:] {
		keys = append(keys, hash.DefaultScheme().Next(keys[i], l))
	}
	x.Store(&Store{Owner: a, Engine: []uint64{12, 13}, Local: local[1:3], Key: keys[1], HasKey: true, Complete: true})
	x.ClearOwner(a)
	got := x.Store(&Store{Owner: b, Engine: []uint64{21, 22, 23, 24}, Local: local, Key: first, HasKey: true})
	if got.counts() != (StoreResult{Added: 4}) {
		t.Errorf("store behind a loose block: %+v", got)
	}
	must.Report(t, x.Check())
	var m Match
	if x.matchKeys(0, keys, &m); m.Blocks != 4 {
		t.Errorf("match: %+v", m)
	}
}

// TestFirstBlocksOfEventsHaveEntries requires that the first block of a stored event has an entry
// although it lies within a piece, unless the event has one block, as those of decoding have.
func TestFirstBlocksOfEventsHaveEntries(t *testing.T) {
	x := New(Options{Scheme: hash.DefaultScheme()})
	o := x.NewOwner(x.NewSource())
	local := make([]uint64, 50)
	engine := make([]uint64, len(local))
	for i := range local {
		local[i], engine[i] = mix(uint64(i+1)), mix(uint64(i+1001))
	}
	for _, part := range [][2]int{{0, 20}, {20, 40}, {40, 41}, {41, 50}} {
		e := Store{Owner: o, Engine: engine[part[0]:part[1]], Local: local[part[0]:part[1]]}
		if part[0] > 0 {
			e.Parent, e.HasParent = engine[part[0]-1], true
		}
		x.Store(&e)
	}
	var entered []int
	for i, h := range engine {
		if _, line := x.names.findName(h); line != 0 {
			entered = append(entered, i)
		}
	}
	if want := []int{0, 20, 41}; !slices.Equal(entered, want) {
		t.Errorf("blocks %v have entries, want %v", entered, want)
	}
	// As SGLang evicts: the stretches from the last one on, the blocks of each from its first one.
	x.Remove(o, slices.Concat(engine[41:], engine[40:41], engine[20:40], engine[:20]), nil, CopySet)
	if n := int(x.names.table.n.Load()); n != 0 || x.BlocksOf(o) != 0 {
		t.Errorf("%d entries and %d blocks are left", n, x.BlocksOf(o))
	}
	must.Succeed(t, x.Check())
}

// TestHashesInNoOrder requires that blocks which a second owner of the source announces by their hashes
// alone, in no order and over several pieces, are those of the chain, found without entries for all.
func TestHashesInNoOrder(t *testing.T) {
	x := New(Options{Scheme: hash.DefaultScheme()})
	s := x.NewSource()
	device, host := x.NewOwner(s), x.NewOwner(s)
	local := make([]uint64, 300)
	engine := make([]uint64, len(local))
	for i := range local {
		local[i], engine[i] = mix(uint64(i+1)), mix(uint64(i+1001))
	}
	x.Store(&Store{Owner: device, Engine: engine, Local: local})
	shuffled := slices.Clone(engine)
	rand.New(rand.NewPCG(1, 2)).Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
	for i := 0; i < len(shuffled); i += 100 {
		if res := x.Store(&Store{Owner: host, Rootless: true, Engine: shuffled[i : i+100]}); res.Added != 100 || res.HashOnly != 0 {
			t.Errorf("%+v", res)
		}
	}
	if x.BlocksOf(host) != len(local) || x.names.naming != onDemand {
		t.Errorf("%d of %d blocks, naming %d", x.BlocksOf(host), len(local), x.names.naming)
	}
	x.Remove(device, engine, nil, CopySet)
	if x.BlocksOf(host) != len(local) || x.BlocksOf(device) != 0 {
		t.Errorf("%d blocks on the host, %d on the device", x.BlocksOf(host), x.BlocksOf(device))
	}
	must.Succeed(t, x.Check())
}

// TestSearchNamesFewPieces holds that a search gives few pieces their entries, however many have been searched often:
// other events of the source wait for it.
func TestSearchNamesFewPieces(t *testing.T) {
	x := New(Options{Scheme: hash.DefaultScheme()})
	s := x.NewSource()
	o := x.NewOwner(s)
	for chain := range uint64(20 * namedAtOnce) {
		engine, local := make([]uint64, 2), make([]uint64, 2)
		for i := range engine {
			engine[i], local[i] = mix(chain<<20|uint64(i)+1), mix(chain<<21|uint64(i)+7)
		}
		x.Store(&Store{Owner: o, Engine: engine, Local: local})
	}
	listed := func() (n int) {
		for _, w := range x.holders.sources[s].unindexed.pieces {
			if w.piece != 0 {
				n++
			}
		}
		return n
	}
	most := 0
	for i := range uint64(3 * searchPatience) {
		before := listed()
		x.finder.searchUnindexed(x.holders.sources[s], mix(1<<50+i), false)
		most = max(most, before-listed())
	}
	if most != namedAtOnce {
		t.Errorf("a search names %d pieces, want at most %d, and once as many", most, namedAtOnce)
	}
}
