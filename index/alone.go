package index

// Share is how many blocks some owners hold, each once, and how many of them no other owner does.
type Share struct{ Held, Alone int }

// Alone returns the share of some owners by Identity. Blocks that wait under an engine hash without a
// constant count as the base identity's. It looks at the index as it is at one moment, while events go on.
func (x *Index) Alone(mine func(Owner) bool) []Share {
	c := x.Cut()
	defer c.Drop()
	s := c.snap
	all := make([]Share, len(c.identities))
	ours := make([]uint64, s.width)
	others := make([]uint64, s.width)
	for id, o := range s.owners {
		if mine(o.name) {
			ours[id>>6] |= 1 << (id & 63)
		} else {
			others[id>>6] |= 1 << (id & 63)
		}
	}
	c.pieces(func(p *copiedPiece) bool {
		start := uint32(0)
		for _, v := range p.intervals {
			n := int(v.end - start)
			start = v.end
			set := s.bits[int(v.set)*s.width:][:s.width]
			has := func(of []uint64) bool {
				for i, w := range set {
					if w&of[i] != 0 {
						return true
					}
				}
				return false
			}
			if n > 0 && has(ours) {
				one := &all[p.root.id]
				if one.Held += n; !has(others) {
					one.Alone += n
				}
			}
		}
		return true
	})
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
	c := x.Cut()
	s := c.snap
	c.pieces(func(p *copiedPiece) bool {
		start := uint32(0)
		for _, v := range p.intervals {
			for k, w := range s.bits[int(v.set)*s.width:][:s.width] {
				for ; w != 0; w &= w - 1 {
					if o := s.owners[uint32(k)<<6+trailing(w)]; o != nil {
						held[key{o.source.name, p.root.id}] += int(v.end - start)
					}
				}
			}
			start = v.end
		}
		return true
	})
	c.Drop()
	for k, blocks := range held {
		f(k.src, k.id, blocks)
	}
}
