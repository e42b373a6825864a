package tiers

// Values of Owner.Instance that name no instance.
const (
	Pool    int32 = -1 // a pool: its blocks serve instances, it is no row itself
	Retired int32 = -2 // an owner that is gone: its blocks count nowhere
)

// Folder computes rows. Its zero value is ready; keeping one saves allocations.
type Folder struct {
	rowset *RowSet    // of this fold
	state  []rowState // of instances that are hits, in the order they were found
	slots  []int32    // position in the RowSet -> index into state plus one; zeros between folds
	others rowState   // of every instance that is no hit: what pools that serve all hold
	names  []string   // names of Other media seen in this fold

	hits  []Hit
	media []MediumCount // of others
	ranks []Rank        // of others; what Other has handed out of it stays
}

// FoldHits returns the rows of the instances that hold a block, or whose pools do, in no
// particular order. Other returns the rest. prefixes names an owner at most once. The spans
// of an owner do not touch each other or its prefix, and later ascends by From. Owners
// beyond the table count nowhere: they appeared after the caller had read the table. soon ascends
// by From and counts as well.
func (f *Folder) FoldHits(prefixes []Prefix, later []Span, owners []Owner, soon []Soon, in *RowSet) []Hit {
	f.beginFold(in)
	for _, p := range prefixes {
		f.addSpan(p.Owner, 0, p.Blocks, owners)
	}
	for _, s := range later {
		for len(soon) > 0 && soon[0].From <= s.From {
			f.addSoon(&soon[0])
			soon = soon[1:]
		}
		f.addSpan(s.Owner, s.From, s.To, owners)
	}
	for i := range soon {
		f.addSoon(&soon[i])
	}
	return f.buildHits()
}

// addSoon counts blocks as on the device. Calls ascend by From, together with those of addSpan.
func (f *Folder) addSoon(b *Soon) {
	s := f.rowAt(b.Instance, b.From)
	if s == nil {
		return
	}
	if b.Rank >= 0 {
		s.addOwnBlocks(b.Rank, Device, b.From, b.To)
	}
	s.addToMedium(f, Medium{Tier: Device}, b.From, b.To)
}

// PrefixOfOthers returns the longest prefix of the instances that are no hits; no hit has a
// shorter one.
func (f *Folder) PrefixOfOthers() int { return int(f.others.longest) }

// RowOfOther returns the row of the instance at a position of the RowSet, which is no hit.
// Rows of equal ranks share their numbers.
func (f *Folder) RowOfOther(at int) Row {
	zero := f.rowset.zeros[at]
	if f.others.longest == 0 {
		return zero
	}
	n := len(zero.Ranks)
	last := f.ranks[max(0, len(f.ranks)-n):]
	same := len(last) == n
	for i := 0; same && i < n; i++ {
		same = last[i].Rank == zero.Ranks[i].Rank
	}
	if !same {
		for _, r := range zero.Ranks {
			c := f.others.pools
			c.rank = r.Rank
			f.ranks = append(f.ranks, c.toRank())
		}
		last = f.ranks[len(f.ranks)-n:]
	}
	return Row{Longest: int(f.others.longest), Media: f.media, Ranks: last[:n:n]}
}

// beginFold begins a fold without hits.
func (f *Folder) beginFold(in *RowSet) {
	f.rowset = in
	for len(f.slots) < len(in.zeros) {
		f.slots = append(f.slots, 0)
	}
	clear(f.names) // drop references to the caller's strings
	f.names, f.state, f.ranks = f.names[:0], f.state[:0], f.ranks[:0]
	f.others = rowState{further: f.others.further[:0]}
}

// addSpan counts blocks [from, to) of an owner. Calls ascend by from.
func (f *Folder) addSpan(id, from, to uint32, owners []Owner) {
	if int(id) >= len(owners) {
		return
	}
	o := &owners[id]
	if o.Chunk > 1 {
		if to = o.EndOfWhole(from, to); from == to {
			return
		}
	}
	switch {
	case o.Instance >= 0:
		if s := f.rowAt(o.Instance, from); s != nil {
			s.addOwnBlocks(o.Rank, o.Medium.Tier, from, to)
			s.addToMedium(f, o.Medium, from, to)
		}
	case o.Instance != Pool:
	case o.Serves == nil:
		if from <= f.others.longest {
			f.others.addPoolBlocks(f, o.Medium, from, to)
		}
		for i := range f.state {
			if s := &f.state[i]; from <= s.longest {
				s.addPoolBlocks(f, o.Medium, from, to)
			}
		}
	default:
		for _, instance := range o.Serves {
			if s := f.rowAt(instance, from); s != nil {
				s.addPoolBlocks(f, o.Medium, from, to)
			}
		}
	}
}

// buildHits turns states into rows and forgets the slots of this fold.
func (f *Folder) buildHits() []Hit {
	f.hits = f.hits[:cap(f.hits)] // further hits of wider folds keep their buffers
	for len(f.hits) < len(f.state) {
		f.hits = append(f.hits, Hit{})
	}
	f.hits = f.hits[:len(f.state)]
	for i := range f.state {
		s, hit := &f.state[i], &f.hits[i]
		f.slots[s.at] = 0
		hit.At, hit.Longest = s.at, int(s.longest)
		hit.Media = f.appendMedia(hit.Media[:0], s)
		hit.Ranks = hit.Ranks[:0]
		for j := range s.ranks {
			hit.Ranks = append(hit.Ranks, s.ranks[j].toRank())
		}
	}
	f.media = f.appendMedia(f.media[:0], &f.others)
	return f.hits
}

// appendMedia appends how many blocks a state has on each medium.
func (f *Folder) appendMedia(dst []MediumCount, s *rowState) []MediumCount {
	dst = append(dst, MediumCount{NameDevice, int(s.media[Device].blocks)}, MediumCount{NameHost, int(s.media[Host].blocks)},
		MediumCount{NameDisk, int(s.media[Disk].blocks)})
	if n := s.media[External].blocks; n > 0 {
		dst = append(dst, MediumCount{NameExternal, int(n)})
	}
	for _, m := range s.further {
		if m.blocks > 0 {
			dst = append(dst, MediumCount{f.names[m.name], int(m.blocks)})
		}
	}
	sortByName(dst[3:])
	return dst
}
