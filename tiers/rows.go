package tiers

// rowState is the working state of one row: who holds the current run, and the
// numbers of the blocks settled so far.
type rowState struct {
	at      int32 // position in the roster
	pos     int   // blocks settled; the prefix so far
	holders int32 // own owners and serving pools that hold the current run
	dead    bool  // the prefix ended at pos
	media   []mediumState
	ranks   []rankState // sorted by rank
	pools   [Other + 1]int32
	nobody  cascade // the cascade of a rank that holds nothing
}

type mediumState struct {
	medium  int32 // a known Tier, or Other + index into Folder.names
	holders int32
	blocks  int
}

type rankState struct {
	rank    int32
	holders int32
	tiers   [Other + 1]int32 // holders by tier
	blocks  int
	cascade
}

// cascade walks the tiers in order; end[t] is the boundary of tier t, valid up
// to the tier the cursor is in.
type cascade struct {
	tier Tier
	end  [Other]int
}

// step moves the cursor over n blocks that are held alike: by own owners on some
// tiers and by pools on some. A pool's device blocks are no step of the cascade.
func (c *cascade) step(own, pools *[Other + 1]int32, n int) {
	for c.tier < Other {
		if own[c.tier] > 0 || c.tier != Device && pools[c.tier] > 0 {
			c.end[c.tier] += n
			return
		}
		c.tier++
		if c.tier < Other {
			c.end[c.tier] = c.end[c.tier-1]
		}
	}
}

// boundary returns the number of blocks up to and including tier t.
func (c *cascade) boundary(t Tier) int { return c.end[min(t, c.tier)] }

// rank returns the numbers of a rank that holds so many blocks.
func (c *cascade) rank(rank int32, blocks int) Rank {
	return Rank{
		Rank: rank, Blocks: blocks,
		Device: c.boundary(Device), Host: c.boundary(Host), Disk: c.boundary(Disk), External: c.boundary(External),
	}
}

// row returns the living state of an instance, settled up to pos; nil if the
// instance was not asked for or its prefix has ended.
func (f *Folder) row(instance int32, pos int) *rowState {
	at, asked := f.roster.position(instance)
	if !asked {
		return nil
	}
	if n := f.slots[at]; n != 0 {
		return f.living(&f.state[n-1], pos)
	}
	if f.living(&f.others, pos) == nil {
		return nil
	}
	return f.hit(at)
}

// hit makes an instance one of the hits; up to here it has been one of the others,
// who live.
func (f *Folder) hit(at int32) *rowState {
	n := len(f.state)
	if n < cap(f.state) {
		f.state = f.state[:n+1] // hits of earlier folds keep their buffers
	} else {
		f.state = append(f.state, rowState{})
	}
	s := &f.state[n]
	media, ranks := s.media[:0], s.ranks[:0]
	*s = f.others
	s.at, s.media = at, append(media, f.others.media...)
	for _, r := range f.roster.zeros[at].Ranks {
		ranks = append(ranks, rankState{rank: r.Rank, cascade: s.nobody})
	}
	s.ranks = ranks
	f.slots[at] = int32(n) + 1
	f.alive++
	return s
}

// living settles a state up to pos and returns it while its prefix can grow.
func (f *Folder) living(s *rowState, pos int) *rowState {
	f.settle(s, pos)
	if s.dead {
		return nil
	}
	return s
}

// settle accounts the blocks between s.pos and pos, which the present holders hold.
func (f *Folder) settle(s *rowState, pos int) {
	n := pos - s.pos
	if n == 0 || s.dead {
		return
	}
	if s.holders == 0 {
		s.dead = true
		f.alive--
		return
	}
	s.pos = pos
	for i := range s.media {
		if m := &s.media[i]; m.holders > 0 {
			m.blocks += n
		}
	}
	for i := range s.ranks {
		r := &s.ranks[i]
		if r.holders > 0 {
			r.blocks += n
		}
		r.step(&r.tiers, &s.pools, n)
	}
	s.nobody.step(&[Other + 1]int32{}, &s.pools, n)
}

// hold counts an owner or pool in or out of a medium of the row.
func (s *rowState) hold(medium, by int32) {
	s.holders += by
	for i := range s.media {
		if s.media[i].medium == medium {
			s.media[i].holders += by
			return
		}
	}
	s.media = append(s.media, mediumState{medium: medium, holders: by})
}

// serve counts a pool in or out.
func (s *rowState) serve(medium int32, t Tier, by int32) {
	s.pools[min(t, Other)] += by
	s.hold(medium, by)
}

// rankAt returns the state of a rank, and creates it where missing. A rank seen
// for the first time has, up to here, walked the cascade of one that holds nothing.
func (s *rowState) rankAt(rank int32) *rankState {
	i := int(rank) // ranks are 0..n-1 as a rule
	if i < 0 || i >= len(s.ranks) || s.ranks[i].rank != rank {
		i = s.search(rank)
	}
	if i == len(s.ranks) || s.ranks[i].rank != rank {
		s.ranks = append(s.ranks, rankState{})
		copy(s.ranks[i+1:], s.ranks[i:])
		s.ranks[i] = rankState{rank: rank, cascade: s.nobody}
	}
	return &s.ranks[i]
}

// search returns the position of the first rank that is not smaller.
func (s *rowState) search(rank int32) int {
	lo, hi := 0, len(s.ranks)
	for lo < hi {
		if mid := (lo + hi) / 2; s.ranks[mid].rank < rank {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo
}

// medium numbers a medium within this fold. The known tiers are their own
// number, so no string is compared for them.
func (f *Folder) medium(m Medium) int32 {
	if m.Tier < Other {
		return int32(m.Tier)
	}
	for i, name := range f.names {
		if name == m.Name {
			return int32(Other) + int32(i)
		}
	}
	f.names = append(f.names, m.Name)
	return int32(Other) + int32(len(f.names)-1)
}

// name is the inverse of medium.
func (f *Folder) name(medium int32) string {
	switch Tier(min(medium, int32(Other))) {
	case Device:
		return NameDevice
	case Host:
		return NameHost
	case Disk:
		return NameDisk
	case External:
		return NameExternal
	}
	return f.names[medium-int32(Other)]
}

// sortByName sorts a handful of media without allocating.
func sortByName(m []MediumCount) {
	for i := 1; i < len(m); i++ {
		for j := i; j > 0 && m[j].Name < m[j-1].Name; j-- {
			m[j], m[j-1] = m[j-1], m[j]
		}
	}
}
