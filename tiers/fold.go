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

// Run is a stretch of consecutive blocks held by exactly the same owners.
type Run struct {
	Owners []uint32 // indices into the owner table, ascending
	Blocks int
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

// Folder computes rows. Its zero value is ready; keeping one saves allocations.
type Folder struct {
	rows  []Row
	state []rowState // as long as the instances of this fold
	slots []int32    // instance id -> index of its row plus one, 0 when not asked for
	names []string   // names of Other media seen in this fold; medium number - Other
	alive int        // rows whose prefix may still grow
}

// Fold returns one row per instance, in the order of instances. runs start at
// block 0 and follow each other without a gap. Ids of instances are distinct. A
// run may name owners beyond the table (they came to be after it was read): they
// count nowhere, which can only shorten an answer.
func (f *Folder) Fold(runs []Run, owners []Owner, instances []Instance) []Row {
	f.start(instances)
	var held []uint32
	pos := 0
	for _, r := range runs {
		if r.Blocks <= 0 {
			continue
		}
		if f.alive == 0 {
			break
		}
		f.turn(pos, held, r.Owners, owners)
		held = r.Owners
		pos += r.Blocks
	}
	for i := range instances {
		f.settle(&f.state[i], pos)
	}
	return f.finish(instances)
}

// start prepares a row for each instance, all of them alive.
func (f *Folder) start(instances []Instance) {
	f.state = f.state[:cap(f.state)] // rows of wider folds keep their buffers
	for len(f.state) < len(instances) {
		f.state = append(f.state, rowState{})
	}
	f.state = f.state[:len(instances)]
	clear(f.names) // drop references to the caller's strings
	f.names = f.names[:0]
	f.alive = len(instances)
	for i, in := range instances {
		for int(in.ID) >= len(f.slots) {
			f.slots = append(f.slots, 0)
		}
		f.slots[in.ID] = int32(i) + 1
		s := &f.state[i]
		*s = rowState{media: s.media[:0], ranks: s.ranks[:0]}
		for t := Device; t <= Disk; t++ {
			s.media = append(s.media, mediumState{medium: int32(t)})
		}
		for _, r := range in.Ranks {
			s.rankAt(r)
		}
	}
}

// turn applies the difference of two neighbouring runs at block pos: most owners
// hold both, and cost one comparison.
func (f *Folder) turn(pos int, old, now []uint32, owners []Owner) {
	i, j := 0, 0
	for i < len(old) || j < len(now) {
		switch {
		case j == len(now) || i < len(old) && old[i] < now[j]:
			f.change(pos, old[i], owners, -1)
			i++
		case i == len(old) || now[j] < old[i]:
			f.change(pos, now[j], owners, +1)
			j++
		default:
			i++
			j++
		}
	}
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
func (f *Folder) finish(instances []Instance) []Row {
	for len(f.rows) < len(instances) {
		f.rows = append(f.rows, Row{})
	}
	for i, in := range instances {
		f.slots[in.ID] = 0
		s, row := &f.state[i], &f.rows[i]
		*row = Row{Longest: s.pos, Media: row.Media[:0], Ranks: row.Ranks[:0]}
		for _, m := range s.media {
			row.Media = append(row.Media, MediumCount{f.name(m.medium), m.blocks})
		}
		sortByName(row.Media[3:])
		for j := range s.ranks {
			r := &s.ranks[j]
			row.Ranks = append(row.Ranks, Rank{
				Rank: r.rank, Blocks: r.blocks,
				Device: r.boundary(Device), Host: r.boundary(Host),
				Disk: r.boundary(Disk), External: r.boundary(External),
			})
		}
	}
	return f.rows[:len(instances)]
}
