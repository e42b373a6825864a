package tiers

import "slices"

// rowState is the working state of one row. Spans are added by ascending begin, so a span
// that begins behind the prefix never becomes a part of it.
type rowState struct {
	at      int32  // position in the RowSet
	longest uint32 // the prefix so far
	media   [Other]counted
	further []furtherMedium
	ranks   []rankState // sorted by rank
	pools   rankState   // what serving pools hold; a rank begins as a copy of it
}

// counted is a number of distinct blocks, those of spans that ascend by begin.
type counted struct{ blocks, end uint32 }

// addBlocks counts blocks [from, to).
func (c *counted) addBlocks(from, to uint32) {
	if from = max(from, c.end); from < to {
		c.blocks += to - from
		c.end = to
	}
}

// furtherMedium is a medium of tier Other.
type furtherMedium struct {
	name int // index into Folder.names
	counted
}

// rankState is the blocks of a rank and how far its cascade gets.
type rankState struct {
	rank int32
	counted
	// By tier: the last block on it that the cascade reaches, plus one. The boundary of a
	// tier is the largest of those up to it.
	reached [Other]uint32
}

// walkTier adds blocks [from, to) on a tier. The cascade gets there if they begin at the boundary
// or before it. All that could move the boundary later begins behind them.
func (r *rankState) walkTier(t Tier, from, to uint32) {
	if from > 0 {
		boundary := uint32(0)
		for _, b := range r.reached[:t+1] {
			boundary = max(boundary, b)
		}
		if from > boundary {
			return
		}
	}
	r.reached[t] = max(r.reached[t], to)
}

// toRank returns the numbers of the rank as answers have them.
func (r *rankState) toRank() Rank {
	device := r.reached[Device]
	host := max(device, r.reached[Host])
	disk := max(host, r.reached[Disk])
	external := max(disk, r.reached[External])
	return Rank{Rank: r.rank, Blocks: int(r.blocks), Device: int(device), Host: int(host), Disk: int(disk), External: int(external)}
}

// rowAt returns the state of an instance to which a span is to be added; nil if the instance
// was not asked for or the span begins behind its prefix.
func (f *Folder) rowAt(instance int32, from uint32) *rowState {
	at, asked := f.rowset.PositionOf(instance)
	if !asked {
		return nil
	}
	s := &f.others
	if n := f.slots[at]; n != 0 {
		s = &f.state[n-1]
	}
	switch {
	case from > s.longest:
		return nil
	case s == &f.others:
		return f.addHit(at)
	}
	return s
}

// addHit makes an instance one of the hits.
func (f *Folder) addHit(at int32) *rowState {
	n := len(f.state)
	if n < cap(f.state) {
		f.state = f.state[:n+1] // hits of earlier folds keep their buffers
	} else {
		f.state = append(f.state, rowState{})
	}
	s, o := &f.state[n], &f.others
	s.at, s.longest, s.media, s.pools = at, o.longest, o.media, o.pools
	s.further, s.ranks = append(s.further[:0], o.further...), s.ranks[:0]
	for _, r := range f.rowset.zeros[at].Ranks {
		s.ranks = append(s.ranks, o.pools)
		s.ranks[len(s.ranks)-1].rank = r.Rank
	}
	f.slots[at] = int32(n) + 1
	return s
}

// addOwnBlocks adds blocks of a rank.
func (s *rowState) addOwnBlocks(rank int32, t Tier, from, to uint32) {
	r := s.rankAt(rank)
	r.addBlocks(from, to)
	if t < Other {
		r.walkTier(t, from, to)
	}
}

// addPoolBlocks adds blocks of a pool. A pool's device blocks are no step of a cascade.
func (s *rowState) addPoolBlocks(f *Folder, m Medium, from, to uint32) {
	s.addToMedium(f, m, from, to)
	if m.Tier == Device || m.Tier >= Other {
		return
	}
	s.pools.walkTier(m.Tier, from, to)
	for i := range s.ranks {
		s.ranks[i].walkTier(m.Tier, from, to)
	}
}

// addToMedium adds blocks on a medium.
func (s *rowState) addToMedium(f *Folder, m Medium, from, to uint32) {
	s.longest = max(s.longest, to)
	if m.Tier < Other {
		s.media[m.Tier].addBlocks(from, to)
		return
	}
	name := f.numberMedium(m.Name)
	for i := range s.further {
		if s.further[i].name == name {
			s.further[i].addBlocks(from, to)
			return
		}
	}
	s.further = append(s.further, furtherMedium{name: name, counted: counted{to - from, to}})
}

// rankAt returns the state of a rank, and creates it where missing.
func (s *rowState) rankAt(rank int32) *rankState {
	i := int(rank) // ranks are 0..n-1 as a rule
	if i < 0 || i >= len(s.ranks) || s.ranks[i].rank != rank {
		var found bool
		i, found = slices.BinarySearchFunc(s.ranks, rank, func(r rankState, rank int32) int { return int(r.rank) - int(rank) })
		if !found {
			s.ranks = slices.Insert(s.ranks, i, s.pools)
			s.ranks[i].rank = rank
		}
	}
	return &s.ranks[i]
}

// numberMedium numbers a medium of tier Other within this fold.
func (f *Folder) numberMedium(name string) int {
	i := slices.Index(f.names, name)
	if i < 0 {
		i = len(f.names)
		f.names = append(f.names, name)
	}
	return i
}

// sortByName sorts a handful of media without allocating.
func sortByName(m []MediumCount) {
	for i := 1; i < len(m); i++ {
		for j := i; j > 0 && m[j].Name < m[j-1].Name; j-- {
			m[j], m[j-1] = m[j-1], m[j]
		}
	}
}
