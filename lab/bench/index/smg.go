package index

import (
	"maps"
	"math"
	"math/bits"
	"slices"
)

// smg's pinned benchmark of prefix indexes: families of chains that 1, 8 or 64 of 256
// holders share up to some depth, stored in interleaved batches of 8 blocks.
//
//	family:  shared blocks --> member: tail of its own
//	         (log-uniform)            (uniform)
//	holder:  all batches of a chain, some again, maybe one interior removal; next chain
const (
	smgSeed    = 20260901
	smgHolders = 256
	smgBatch   = 8
	smgGate    = 78      // depth of a gate query, which 64 holders answer
	smgFirst   = 96      // shared depth of the first family of 64 holders
	smgProbes  = 250_000 // stored blocks between probes
	smgAsked   = 2000    // most queries of one class at the end
)

// smgProfile is the shape of one load. Ranges are inclusive, shares in percent.
type smgProfile struct {
	shares  [3]int // of the blocks, by smgMembers
	shared  [2]float64
	tail    [2]uint64
	repeats uint64
	gaps    uint64 // of chains that lose an interior block
	holes   uint64 // of interior blocks removed at the end
}

var (
	smgMembers = [3]int{1, 8, 64}
	smgClasses = [3]class{oneHolder, eightHolders, manyHolders}

	smgProfiles = map[string]*smgProfile{
		"pinned":     {[3]int{50, 35, 15}, [2]float64{8, 512}, [2]uint64{4, 64}, 5, 20, 0},
		"fragmented": {[3]int{50, 35, 15}, [2]float64{8, 512}, [2]uint64{4, 64}, 5, 20, 2},
		"agentic":    {[3]int{20, 40, 40}, [2]float64{64, 2048}, [2]uint64{16, 256}, 5, 20, 0},
		"churn":      {[3]int{70, 25, 5}, [2]float64{4, 64}, [2]uint64{2, 16}, 20, 100, 0},
	}
)

// SMGProfiles returns the names of the profiles.
func SMGProfiles() []string { return slices.Sorted(maps.Keys(smgProfiles)) }

// splitMix is SplitMix64.
type splitMix uint64

func (r *splitMix) next() uint64 {
	*r += golden
	return mix(uint64(*r))
}

func (r *splitMix) below(n uint64) uint64      { return r.next() % n }
func (r *splitMix) chance(percent uint64) bool { return r.below(100) < percent }

// smgChild returns the key of a shared block behind a key.
func smgChild(key, content uint64) uint64 {
	return (key^bits.RotateLeft64(content, 17))*0x2545f4914f6cdd1d | 1
}

// smgFamily is chains with one beginning.
type smgFamily struct {
	kind   int    // in smgMembers
	from   uint32 // the chain of the first member
	shared uint32
}

// smgChain is the chain of one member.
type smgChain struct{ from, to uint32 }

// smgLoad is a stream in the making.
type smgLoad struct {
	*Stream
	p        *smgProfile
	r        splitMix
	families []smgFamily
	holders  [smgHolders]smgHolder
	dropped  map[uint32]bool // blocks of chains
}

// smgHolder is the chains of a holder, and how far it has come with them.
type smgHolder struct {
	chains []smgChain
	next   int    // of chains
	at     uint32 // next block of the chain
	again  bool   // batches of the chain come again
}

// makeSMG makes the stream of a profile with target blocks times holders. Keys are engine
// hashes below the wire: the stream has no canonical form.
func makeSMG(p *smgProfile, target int) *Stream {
	l := &smgLoad{Stream: &Stream{owners: smgHolders, tiers: 1}, p: p, r: smgSeed, dropped: map[uint32]bool{}}
	for kind, members := range smgMembers {
		for blocks := 0; blocks < target/100*p.shares[kind]; {
			shared := uint32(smgFirst)
			if members < 64 || blocks > 0 {
				shared = l.drawDepth()
			}
			blocks += int(shared) * members
			l.drawFamily(kind, members, shared)
		}
	}
	l.emitFill()
	if p.holes > 0 {
		for h := range l.holders {
			for _, c := range l.holders[h].chains {
				for at := c.from + 1; at+1 < c.to; at++ {
					if l.r.chance(p.holes) && !l.dropped[at] {
						l.emitRemoval(h, at)
					}
				}
			}
		}
	}
	l.load = len(l.ops)
	l.askAll()
	return l.Stream
}

// drawDepth draws a shared depth.
func (l *smgLoad) drawDepth() uint32 {
	u := float64(l.r.next()>>11) / (1 << 53)
	lo, hi := math.Log(l.p.shared[0]), math.Log(l.p.shared[1])
	return uint32(math.Round(math.Exp(lo + u*(hi-lo))))
}

// drawFamily draws the contents of a family and the holders of its chains.
func (l *smgLoad) drawFamily(kind, members int, shared uint32) {
	l.families = append(l.families, smgFamily{kind, uint32(len(l.seq)), shared})
	var seq, local []uint64
	for i := range shared {
		content := l.r.next() | 1
		key := content
		if i > 0 {
			key = smgChild(seq[i-1], content)
		}
		seq, local = append(seq, key), append(local, content)
	}
	base := l.r.below(smgHolders)
	var holders []uint64
	for k := range members {
		holders = append(holders, (base+7*uint64(k))%smgHolders)
	}
	slices.Sort(holders)
	for _, h := range slices.Compact(holders) {
		from := uint32(len(l.seq))
		l.seq, l.local = append(l.seq, seq...), append(l.local, local...)
		key := seq[shared-1]
		for range l.p.tail[0] + l.r.below(l.p.tail[1]-l.p.tail[0]+1) {
			content := l.r.next() | 1
			key = ((key^bits.RotateLeft64(content, 29))*golden + h) | 1
			l.seq, l.local = append(l.seq, key), append(l.local, content)
		}
		t := &l.holders[h]
		if t.chains = append(t.chains, smgChain{from, uint32(len(l.seq))}); len(t.chains) == 1 {
			t.at = from
		}
	}
}

// emitFill emits the next operation of a random holder until none is left, with probes.
func (l *smgLoad) emitFill() {
	var live []int
	for h := range l.holders {
		if len(l.holders[h].chains) > 0 {
			live = append(live, h)
		}
	}
	stored, probes := 0, 0
	for len(live) > 0 {
		i := int(l.r.below(uint64(len(live))))
		h := live[i]
		t := &l.holders[h]
		before := len(l.ops)
		for len(l.ops) == before && t.next < len(t.chains) {
			l.emitStep(h, t)
		}
		if t.next == len(t.chains) {
			live = slices.Delete(live, i, i+1)
		}
		if len(l.ops) > before && l.ops[before].kind == store {
			if stored += int(l.ops[before].to - l.ops[before].from); stored >= (probes+1)*smgProbes {
				l.emitProbes(probes)
				probes++
			}
		}
	}
}

// emitStep emits one operation of a holder, or none where a batch does not come again.
func (l *smgLoad) emitStep(h int, t *smgHolder) {
	c := t.chains[t.next]
	if t.at < c.to {
		from := t.at
		t.at = min(c.to, from+smgBatch)
		if t.again && !l.r.chance(l.p.repeats) {
			return
		}
		o := op{kind: store, owner: uint32(h), from: from, to: t.at, name: from}
		if from > c.from {
			o.hasParent, o.parent = true, l.seq[from-1]
		}
		l.ops = append(l.ops, o)
		return
	}
	if !t.again {
		t.again, t.at = true, c.from
		return
	}
	if n := c.to - c.from; n > 2 && l.r.chance(l.p.gaps) {
		l.emitRemoval(h, c.from+1+uint32(l.r.below(uint64(n-2))))
	}
	if t.next, t.again = t.next+1, false; t.next < len(t.chains) {
		t.at = t.chains[t.next].from
	}
}

// emitRemoval removes one block of a chain from a holder.
func (l *smgLoad) emitRemoval(h int, at uint32) {
	l.dropped[at] = true
	n := uint32(len(l.gone))
	l.gone = append(l.gone, l.seq[at])
	l.ops = append(l.ops, op{kind: remove, owner: uint32(h), from: n, to: n + 1})
}

// emitQuery queries the first n blocks of a family.
func (l *smgLoad) emitQuery(f *smgFamily, n uint32, c class) {
	l.ops = append(l.ops, op{kind: query, class: c, from: f.from, to: f.from + n})
}

// emitProbes asks during the fill: 32 gate queries, and 32 of families with one holder.
func (l *smgLoad) emitProbes(round int) {
	var deep, single []*smgFamily
	for i := range l.families {
		switch f := &l.families[i]; {
		case smgMembers[f.kind] == 64 && f.shared >= smgGate:
			deep = append(deep, f)
		case smgMembers[f.kind] == 1:
			single = append(single, f)
		}
	}
	for i := range 32 {
		if len(deep) > 0 {
			l.emitQuery(deep[(round*32+i)%len(deep)], smgGate, mixed)
		}
		if len(single) > 0 {
			f := single[(round*32+i)%len(single)]
			l.emitQuery(f, min(f.shared, 64), mixed)
		}
	}
}

// askAll asks each query of the end once: by number of holders, gate, and unknown prompts.
func (l *smgLoad) askAll() {
	var asked [3]int
	for i := range l.families {
		if f := &l.families[i]; asked[f.kind] < smgAsked {
			asked[f.kind]++
			l.emitQuery(f, 1+uint32(l.r.below(uint64(f.shared))), smgClasses[f.kind])
		}
	}
	gates := 0
	for i := range l.families {
		if f := &l.families[i]; gates < smgAsked && smgMembers[f.kind] == 64 && f.shared >= smgGate {
			gates++
			l.emitQuery(f, smgGate, gate)
		}
	}
	for range 1000 {
		from := uint32(len(l.seq))
		for range 1 + l.r.below(96) {
			content := l.r.next()
			l.seq, l.local = append(l.seq, content), append(l.local, content)
		}
		l.emitQuery(&smgFamily{from: from}, uint32(len(l.seq))-from, miss)
	}
}
