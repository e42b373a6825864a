package index

// Share is how many blocks some owners hold, each once, and how many of them no other owner does.
type Share struct{ Held, Alone int }

// identitySet is an identity and an owner set.
type identitySet struct {
	id  Identity
	set uint32
}

// countBySet returns how many blocks of each identity have each owner set, at one moment, while events go on.
func (x *Index) countBySet() (*Cut, map[identitySet]int) {
	c, blocks := x.Cut(), make(map[identitySet]int)
	defer c.Drop()
	for p := range c.pieces {
		start := uint32(0)
		for _, v := range p.intervals {
			blocks[identitySet{p.root.id, v.set}] += int(v.end - start)
			start = v.end
		}
	}
	return c, blocks
}

// Alone returns the share of some owners by Identity. Blocks that wait under an engine hash without a
// constant count as the base identity's. It looks at the index as it is at one moment, while events go on.
func (x *Index) Alone(mine func(Owner) bool) []Share {
	c, blocks := x.countBySet()
	for _, o := range c.snap.owners {
		o.wanted = mine(o.name)
	}
	all := make([]Share, len(*x.identities.list.Load()))
	for k, n := range blocks {
		ours, others := false, false
		for o := range c.snap.ownersOf(k.set) {
			ours, others = ours || o.wanted, others || !o.wanted
		}
		if one := &all[k.id]; ours {
			if one.Held += n; !others {
				one.Alone += n
			}
		}
	}
	return all
}

// HeldBySource calls f with the blocks that each source holds of each identity, a block as often as
// owners of the source hold it. It looks at the index as it is at one moment, while events go on, and
// calls f afterwards.
func (x *Index) HeldBySource(f func(src Source, id Identity, blocks int)) {
	type key struct {
		src Source
		id  Identity
	}
	held := make(map[key]int)
	c, blocks := x.countBySet()
	for k, n := range blocks {
		for o := range c.snap.ownersOf(k.set) {
			held[key{o.source.name, k.id}] += n
		}
	}
	for k, blocks := range held {
		f(k.src, k.id, blocks)
	}
}
