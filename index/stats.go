package index

import "unsafe"

// Stats are the sizes of an index.
type Stats struct {
	Blocks      int // distinct keys
	Memberships int // pairs (owner, key)
	Aliases     int // engine hashes whose canonical key is known, over all sources
	Raw         int // engine hashes held under themselves, over all sources
	Orphans     int // links that wait for their parent, over all sources
	Sets        int // distinct owner sets
	Bytes       int // memory of all tables and lists, without the allocator's rounding
}

// Stats returns the sizes. It costs the number of sources and owners, not blocks.
func (x *Index) Stats() Stats {
	x.mu.RLock()
	defer x.mu.RUnlock()
	st := Stats{
		Blocks:      x.blocks.len(),
		Memberships: x.memberships,
		Raw:         x.raw,
		Sets:        x.sets.len(),
		Bytes: int(unsafe.Sizeof(*x)) + x.blocks.bytes() + x.sets.bytes() +
			8*cap(x.sources) + 8*cap(x.owners) + cap(x.work)*int(unsafe.Sizeof(step{})),
	}
	for _, s := range x.sources {
		if s != nil {
			st.Aliases += s.engines.len()
			st.Orphans += s.room.used
			st.Bytes += int(unsafe.Sizeof(*s)) + s.engines.bytes() + s.room.bytes() + 4*cap(s.owners)
		}
	}
	st.Aliases -= x.raw
	for _, o := range x.owners {
		if o != nil {
			st.Bytes += int(unsafe.Sizeof(*o)) + o.copies.bytes() + o.shared.bytes()
		}
	}
	return st
}
