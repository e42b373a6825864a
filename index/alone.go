package index

// Alone returns by Identity how many blocks some owners hold, each once, and how many of them no
// other owner does. Blocks that wait under an engine hash count as the base identity's. It looks at the index as it is at one moment, while events go on.
func (x *Index) Alone(mine func(Owner) bool) []struct{ Held, Alone int } {
	c := x.Cut()
	defer c.Drop()
	s := c.snap
	all := make([]struct{ Held, Alone int }, len(c.identities))
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
