package tiers

// Values of Owner.Instance that name no instance.
const (
	Pool    int32 = -1 // a pool: its blocks serve instances, it is no row itself
	Retired int32 = -2 // an owner that is gone: its blocks count nowhere
)

// Owner is what one owner id of an index stands for.
type Owner struct {
	// Instance is the id of the instance, Pool or Retired.
	Instance int32
	// Rank is the data-parallel rank; meaningless for a pool.
	Rank int32
	// Medium is where the owner keeps its blocks.
	Medium Medium
	// Serves lists the instances a pool is bound to; nil is all of them, an
	// empty list none. Not used for instances.
	Serves []int32
}

// Run is a stretch of consecutive blocks held by exactly the same owners: those of the run
// before, and Came, without Gone.
type Run struct {
	Came, Gone []uint32 // indices into the owner table, in any order
	Blocks     int
}

// Instance is one routable target a row is wanted for.
type Instance struct {
	ID    int32   // >= 0, dense: Fold keeps a table as long as the largest id
	Ranks []int32 // registered ranks; each appears in the row, also with zeros
}

// Rank is what one data-parallel rank of an instance can serve, in blocks.
type Rank struct {
	Rank int32
	// Blocks of the matched prefix the rank holds itself, on any medium.
	Blocks int
	// Device, Host, Disk and External are cumulative cascade boundaries.
	Device, Host, Disk, External int
}

// MediumCount is the number of blocks of the matched prefix on one medium.
type MediumCount struct {
	Name   string
	Blocks int
}

// Row is the answer for one instance, in blocks.
type Row struct {
	Longest int
	// Media begins with GPU, CPU and DISK, in this order and also when zero.
	// Further media follow by name, each with at least one block.
	Media []MediumCount
	// Ranks is sorted by rank: the registered ones, and any other that holds a
	// block of the matched prefix.
	Ranks []Rank
}

// Hit is the row of an instance that holds something, or that a pool bound to it does.
type Hit struct {
	At int32 // position in the roster
	Row
}

// Folder computes rows. Its zero value is ready; keeping one saves allocations.
type Folder struct {
	roster *Roster    // of this fold
	state  []rowState // of instances that are hits, in the order they were found
	slots  []int32    // position in the roster -> index into state plus one; zeros between folds
	others rowState   // of every instance that is none: what pools that serve all hold
	names  []string   // names of Other media seen in this fold; medium number - Other
	alive  int        // states whose prefix may still grow

	hits  []Hit
	media []MediumCount // of others
	ranks []Rank        // of others; what Other has handed out of it stays

	own  Roster // of Fold
	rows []Row
}

// Fold returns one row per instance, in the order of instances. runs start at
// block 0 and follow each other without a gap. Ids of instances are distinct. A
// run may name owners beyond the table (they came to be after it was read): they
// count nowhere, which can only shorten an answer.
func (f *Folder) Fold(runs []Run, owners []Owner, instances []Instance) []Row {
	f.own.fill(instances)
	hits := f.Hits(runs, owners, &f.own)
	f.rows = f.rows[:0]
	for i := range instances {
		f.rows = append(f.rows, f.Other(i))
	}
	for i := range hits {
		f.rows[hits[i].At] = hits[i].Row
	}
	return f.rows
}

// Hits is Fold for a roster of which few hold anything: it returns the rows of those
// that do, in no particular order. Other has the rest.
func (f *Folder) Hits(runs []Run, owners []Owner, in *Roster) []Hit {
	f.start(in)
	pos := 0
	for _, r := range runs {
		f.settle(&f.others, pos)
		if f.alive == 0 {
			break
		}
		for _, o := range r.Came {
			f.change(pos, o, owners, +1)
		}
		for _, o := range r.Gone {
			f.change(pos, o, owners, -1)
		}
		pos += max(r.Blocks, 0)
	}
	f.settle(&f.others, pos)
	for i := range f.state {
		f.settle(&f.state[i], pos)
	}
	return f.finish()
}

// Others returns the longest prefix of the instances that are no hits; no hit has a
// shorter one.
func (f *Folder) Others() int { return f.others.pos }

// Other returns the row of the instance at a position of the roster, which is no hit.
// Rows of equal ranks share their numbers.
func (f *Folder) Other(at int) Row {
	zero := f.roster.zeros[at]
	if f.others.pos == 0 {
		return zero
	}
	n := len(zero.Ranks)
	last := f.ranks[max(0, len(f.ranks)-n):]
	same := len(last) == n
	for i := 0; same && i < n; i++ {
		same = last[i].Rank == zero.Ranks[i].Rank
	}
	if !same {
		c := &f.others.nobody
		for _, r := range zero.Ranks {
			f.ranks = append(f.ranks, c.rank(r.Rank, 0))
		}
		last = f.ranks[len(f.ranks)-n:]
	}
	return Row{Longest: f.others.pos, Media: f.media, Ranks: last[:n:n]}
}

// start begins a fold, in which nobody is a hit yet.
func (f *Folder) start(in *Roster) {
	f.roster = in
	for len(f.slots) < len(in.zeros) {
		f.slots = append(f.slots, 0)
	}
	clear(f.names) // drop references to the caller's strings
	f.names, f.state, f.ranks = f.names[:0], f.state[:0], f.ranks[:0]
	f.others = rowState{media: f.others.media[:0]}
	for t := Device; t <= Disk; t++ {
		f.others.media = append(f.others.media, mediumState{medium: int32(t)})
	}
	f.alive = 1
}

// change lets one owner begin (+1) or cease (-1) to hold the blocks from pos on.
func (f *Folder) change(pos int, id uint32, owners []Owner, by int32) {
	if int(id) >= len(owners) {
		return
	}
	o := &owners[id]
	switch {
	case o.Instance >= 0:
		if s := f.row(o.Instance, pos); s != nil {
			r := s.rankAt(o.Rank)
			r.holders += by
			r.tiers[min(o.Medium.Tier, Other)] += by
			s.hold(f.medium(o.Medium), by)
		}
	case o.Instance != Pool:
	case o.Serves == nil:
		if s := f.living(&f.others, pos); s != nil {
			s.serve(f.medium(o.Medium), o.Medium.Tier, by)
		}
		for i := range f.state {
			if s := f.living(&f.state[i], pos); s != nil {
				s.serve(f.medium(o.Medium), o.Medium.Tier, by)
			}
		}
	default:
		for _, instance := range o.Serves {
			if s := f.row(instance, pos); s != nil {
				s.serve(f.medium(o.Medium), o.Medium.Tier, by)
			}
		}
	}
}

// finish turns states into rows and forgets the slots of this fold.
func (f *Folder) finish() []Hit {
	f.hits = f.hits[:cap(f.hits)] // further hits of wider folds keep their buffers
	for len(f.hits) < len(f.state) {
		f.hits = append(f.hits, Hit{})
	}
	f.hits = f.hits[:len(f.state)]
	for i := range f.state {
		s, hit := &f.state[i], &f.hits[i]
		f.slots[s.at] = 0
		*hit = Hit{At: s.at, Row: Row{Longest: s.pos, Media: f.count(hit.Media[:0], s), Ranks: hit.Ranks[:0]}}
		for j := range s.ranks {
			r := &s.ranks[j]
			hit.Ranks = append(hit.Ranks, r.cascade.rank(r.rank, r.blocks))
		}
	}
	f.media = f.count(f.media[:0], &f.others)
	return f.hits
}

// count appends how many blocks a state has on each medium.
func (f *Folder) count(dst []MediumCount, s *rowState) []MediumCount {
	for _, m := range s.media {
		if m.medium <= int32(Disk) || m.blocks > 0 {
			dst = append(dst, MediumCount{f.name(m.medium), m.blocks})
		}
	}
	sortByName(dst[3:])
	return dst
}
