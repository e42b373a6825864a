package index

import (
	"maps"
	"slices"
)

// compare holds everything visible of the index against the oracle. In a slow world it mostly
// looks at answers alone, which leave a sweep where it is.
func (w *world) compare() {
	if w.slow && w.rng.IntN(8) > 0 {
		w.match(w.chain())
		w.matchNames()
		return
	}
	if err := w.x.Check(); err != nil {
		w.fail("check: %v", err)
	}
	got := w.x.Stats()
	w.mourn() // Stats sweeps
	want := w.o.stats()
	want.Sets, want.Bytes, want.AliasBytes, want.SetBytes, want.Raw = got.Sets, got.Bytes, got.AliasBytes, got.SetBytes, got.Raw
	want.GhostBytes = want.Ghosts * ghostBytes
	if got != want {
		w.fail("stats %+v, want %+v", got, want)
	}
	for i, o := range w.owners {
		if got, want := w.x.BlocksOf(o), w.o.held(o); got != want || w.tallies[i].Load() != int64(want) {
			w.fail("owner %d holds %d blocks, counted %d, want %d", o, got, w.tallies[i].Load(), want)
		}
	}
	blocks := make([]int, len(w.o.constants))
	for b := range w.o.members {
		blocks[w.o.identity(b)]++
	}
	if got := w.x.IdentityBlocks(nil); !slices.Equal(got, blocks) {
		w.fail("blocks by identity %v, want %v", got, blocks)
	}
	w.compareIdentities()
	type name struct {
		src         Source
		id          Identity
		engine, key uint64
	}
	names := map[name]bool{}
	for src, s := range w.o.sources {
		for e, key := range w.o.shared {
			if _, own := s.private[e]; !own && w.o.bySource(s, of(key)) {
				names[name{src, w.o.ids[key], e, w.o.seq(key)}] = true
			}
		}
		for e, key := range s.private {
			if w.o.bySource(s, of(key)) {
				names[name{src, w.o.ids[key], e, w.o.seq(key)}] = true
			}
		}
	}
	w.x.Inspect().EachAlias(func(src Source, id Identity, engine, seq uint64) bool {
		n := name{src, id, engine, seq}
		if !names[n] {
			w.fail("alias %+v is not known", n)
		}
		delete(names, n)
		return true
	})
	if len(names) > 0 {
		w.fail("aliases not walked: %+v", names)
	}
	for _, src := range w.sources {
		if len(w.seen) > 0 {
			e := pick(w.rng, w.seen)
			want := false
			if s := w.o.sources[src]; s != nil {
				_, known := w.o.meaning(s, e)
				want = known || w.o.heldRaw(s, e)
			}
			if got := w.x.knows(src, e); got != want {
				w.fail("source %d knows %d: %t, want %t", src, e, got, want)
			}
		}
	}
	w.ask()
	for range 4 {
		w.match(w.chain())
		w.matchNames()
	}
}

// compareIdentities compares what the index says about identities.
func (w *world) compareIdentities() {
	type key = SourceIdentity
	got, want := w.x.Checkpoint().HeldBySource(), map[key]int{}
	loose := false
	for b, owners := range w.o.members {
		loose = loose || b.raw
		for o := range owners {
			want[key{w.o.owners[o], w.o.identity(b)}]++
		}
	}
	if !maps.Equal(got, want) {
		w.fail("sources hold %v, want %v", got, want)
	}
	if got := w.x.HasLoose(); loose && !got {
		w.fail("nothing waits")
	}
	c := w.x.Checkpoint()
	ids := c.Identities()
	c.Release()
	for k := range want {
		if k.Identity != 0 && !slices.Contains(ids, k.Identity) {
			w.fail("identity %d is not among those with pieces, %d", k.Identity, ids)
		}
	}
	for _, id := range ids {
		if !slices.Contains(w.ids, id) {
			w.fail("identity %d has pieces, and no constant", id)
		}
	}
	p := w.path()
	local, constants := make([]uint64, len(p)), []uint64{}
	at, n := 0, 0
	for i := range p {
		local[i] = p[i].local
	}
	for i, id := range w.ids {
		constants = append(constants, w.o.constants[id])
		if !slices.ContainsFunc(w.keys(id, p), func(key uint64) bool { return !w.o.isThere(key) }) {
			at, n = i, n+1
		}
	}
	if n != 1 {
		at = 0
	}
	if i, once := w.x.beginsUnder(constants, local); i != at || once != (n == 1) {
		w.fail("%d begins under number %d of %x, %t, want %d of %d", local, i, constants, once, at, n)
	}
}

// matchNames asks for a prompt by the engine hashes of a family.
func (w *world) matchNames() {
	p, id := w.path(), w.someIdentity()
	var engine []uint64
	for family, i := w.rng.IntN(families), 0; i < len(p); i++ {
		engine = append(engine, w.engine(family, id, p[:i+1]))
	}
	own := id
	if w.rng.IntN(4) == 0 {
		id = w.someIdentity() // names lead nowhere
	}
	real := len(w.seen) == 0 || w.rng.IntN(3) > 0
	if !real {
		engine[w.rng.IntN(len(engine))] = pick(w.rng, w.seen)
	}
	var m Match
	w.x.matchNames(w.o.constants[id], engine, &m)
	named := w.o.matchNames(id, engine, w.roots)
	w.judge("match of names", engine, &m, named)
	if !real {
		return // a hash may be the key of a block that is not next
	}
	// With what waits under the hashes.
	raw, loose := keyList(slices.Clone(engine)), w.rng.IntN(2) == 0
	other := Lookup{Constant: w.o.constants[own], Chain: raw, Loose: loose}
	for i := range raw {
		raw[i] ^= other.Constant
	}
	w.x.Match(Lookup{Constant: w.o.constants[id], Names: engine}, []Lookup{other}, &m)
	var want [][]uint32
	for i, e := range engine {
		held := w.o.holders(e)
		if loose {
			held = w.o.waiting(e)
		}
		if i < len(named) {
			held = append(held, named[i]...)
		}
		slices.Sort(held)
		if held = slices.Compact(held); len(held) == 0 {
			break
		}
		want = append(want, held)
	}
	w.judge("match of names and keys", engine, &m, want)
}

// ask asks what engine hashes of a prompt and others mean. Such questions end names on demand, so they
// wait for the end.
func (w *world) ask() {
	if w.x.names.naming == onDemand {
		return
	}
	var hashes []uint64
	p, id := w.path(), w.someIdentity()
	for family, i := w.rng.IntN(families), 0; i < len(p); i++ {
		hashes = append(hashes, w.engine(family, id, p[:i+1]))
	}
	for i, got := range w.x.Inspect().AppendKeys(nil, w.o.constants[id], hashes) {
		if key, shared := w.o.shared[hashes[i]]; shared && w.o.ids[key] == id && got != w.o.seq(key) {
			w.fail("key of %d, block %d of %d: %d, want %d", hashes[i], i, hashes, got, w.o.seq(key))
		}
	}
	for i := 0; i < 4 && len(w.seen) > 0; i++ {
		hashes = slices.Insert(hashes, w.rng.IntN(len(hashes)+1), pick(w.rng, w.seen))
	}
	for _, src := range append([]Source{NoSource}, w.sources...) {
		for i, got := range w.x.askAll(src, hashes) {
			var want Known
			if key, shared := w.o.shared[hashes[i]]; shared {
				want = Known{Key: w.o.seq(key), Identity: w.o.ids[key], Named: true, Own: src == NoSource}
			}
			if s := w.o.sources[src]; s != nil {
				_, known := w.o.meaning(s, hashes[i])
				want.Own = known || w.o.heldRaw(s, hashes[i])
			}
			if got != want {
				w.fail("source %d asks for %d: %+v, want %+v", src, hashes[i], got, want)
			}
		}
	}
}

// chain is what a query might ask in an identity: keys, raw hashes, or a mixture, which
// is no chain: its blocks do not follow each other.
func (w *world) chain() (id Identity, chain []uint64, real bool) {
	p, id := w.path(), w.someIdentity()
	chain, real = w.keys(id, p), true
	if family := w.rng.IntN(families); w.rng.IntN(3) == 0 {
		for i := range chain {
			chain[i] = w.engine(family, id, p[:i+1])
		}
	}
	if len(w.seen) > 0 && w.rng.IntN(3) == 0 {
		chain[w.rng.IntN(len(chain))], real = pick(w.rng, w.seen), false
	}
	return id, chain, real
}

type keys []uint64

func (k keys) Len() int        { return len(k) }
func (k keys) At(i int) uint64 { return k[i] }

func (w *world) match(id Identity, chain []uint64, real bool) {
	want := w.o.match(chain)
	seqs := slices.Clone(chain)
	for i := range seqs {
		seqs[i] ^= w.o.constants[id]
	}
	var m Match
	w.x.matchChain(w.o.constants[id], keys(seqs), &m)
	if real {
		w.judge("lazy match", chain, &m, want)
		w.x.matchKeys(w.o.constants[id], seqs, &m)
		w.judge("match", chain, &m, want)
		w.judgeEnd(chain, &m)
		want = nil // of what waits under the keys alone
		for _, key := range chain {
			held := w.o.waiting(key)
			if len(held) == 0 {
				break
			}
			want = append(want, held)
		}
		w.x.Match(Lookup{Constant: w.o.constants[id], Chain: keys(seqs), Loose: true}, nil, &m)
		w.judge("match of loose blocks", chain, &m, want)
		w.matchPastGaps(id, chain, seqs)
	}
}

// matchPastGaps looks a chain up with Match.Gaps, which finds each block that has an owner.
func (w *world) matchPastGaps(id Identity, chain, seqs []uint64) {
	w.t.Helper()
	m := Match{Gaps: true}
	w.x.matchKeys(w.o.constants[id], seqs, &m)
	got := make([][]uint32, len(chain))
	for _, p := range m.Prefixes {
		for b := range p.Blocks {
			got[b] = append(got[b], p.Owner)
		}
	}
	for _, s := range m.Later {
		for b := s.From; b < s.To; b++ {
			got[b] = append(got[b], s.Owner)
		}
	}
	leading := -1
	for b, key := range chain {
		slices.Sort(got[b])
		if want := w.o.holders(key); !slices.Equal(got[b], want) {
			w.fail("match past gaps of %d: %v, block %d is held by %v", chain, m, b, want)
		}
		if leading < 0 && len(got[b]) == 0 {
			leading = b
		}
	}
	if leading < 0 {
		leading = len(chain)
	}
	if m.Blocks != leading {
		w.fail("match past gaps of %d: %v, %d leading blocks are held", chain, m, leading)
	}
}

// judgeEnd holds that an answer that may be too short, as names of ghosts had to go, says so.
func (w *world) judgeEnd(chain []uint64, m *Match) {
	w.t.Helper()
	if m.Truncated && w.x.names.ghosts.lost.Load() == 0 {
		w.fail("the answer for %d is truncated: %+v", chain, m)
	}
	for e := range w.o.unfound {
		if m.Blocks < len(chain) && chain[m.Blocks] == w.o.lost[e] && !m.Truncated && w.gone <= fewLost {
			w.fail("the answer for %d ends at %d, which is held by the lost name %d: %+v", chain, m.Blocks, e, m)
		}
	}
}

// judge compares an answer about a chain with one owner list per block.
func (w *world) judge(name string, chain []uint64, m *Match, want [][]uint32) {
	w.t.Helper()
	var got [][]uint32
	if wrong := m.sound(); wrong != "" {
		w.fail("%s: %s: %v", name, wrong, m)
	}
	for owners, blocks := range ownersHolding(m) {
		for range blocks {
			got = append(got, owners)
		}
	}
	if m.Blocks != len(got) || !slices.EqualFunc(got, want, slices.Equal) {
		w.fail("%s of %d: %v, want %v", name, chain, m, want)
	}
}
