package index

// Share is how many blocks some owners hold, each once, and how many of them no other owner
// does.
type Share struct{ Held, Alone int }

// SourceIdentity is a source and an identity of which it holds blocks.
type SourceIdentity struct {
	Source   Source
	Identity Identity
}

// identitySet is an identity and an owner set.
type identitySet struct {
	id  Identity
	set uint32
}

// countBySet returns how many blocks of each identity have each owner set. There are far
// fewer sets than blocks, so what follows looks at sets, and a fleet of thousands of owners
// costs one pass over the intervals instead of one for each owner.
func (c *Checkpoint) countBySet() map[identitySet]int {
	blocks := make(map[identitySet]int)
	for p := range c.eachPiece {
		start := uint32(0)
		for _, v := range p.intervals {
			blocks[identitySet{p.identity.id, v.set}] += int(v.end - start)
			start = v.end
		}
	}
	return blocks
}

// Shares returns the share of some owners by Identity, and ends the checkpoint. Blocks that
// wait under an engine hash without a constant count as the base identity's.
//
// It counts sets, not blocks: as many steps as there are intervals, then one for each set.
func (c *Checkpoint) Shares(mine func(Owner) bool) []Share {
	defer c.Release()
	blocks := c.countBySet()
	for _, o := range c.snap.owners {
		o.wanted = mine(o.name)
	}
	all := make([]Share, len(*c.x.tree.identities.list.Load()))
	for k, n := range blocks {
		ours, others := false, false
		for o := range c.snap.eachOwner(k.set) {
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

// HeldBySource returns how many blocks each source holds of each identity, a block as often
// as owners of the source hold it, and ends the checkpoint.
//
// Blocks of retired owners do not count: the checkpoint knows the sets as they were, but
// has only living owners.
func (c *Checkpoint) HeldBySource() map[SourceIdentity]int {
	defer c.Release()
	held := make(map[SourceIdentity]int)
	for k, n := range c.countBySet() {
		for o := range c.snap.eachOwner(k.set) {
			held[SourceIdentity{o.source.name, k.id}] += n
		}
	}
	return held
}
