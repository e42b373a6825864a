package index

import "unsafe"

// Stats are the sizes of an index.
type Stats struct {
	Blocks      int // keys somebody holds; with Clear and DropSource exact after the next rebuild
	Memberships int // pairs (owner, key)
	Aliases     int // engine hashes whose key is known, once for all that hash alike
	Raw         int // memberships under an engine hash, less those whose key others taught
	Orphans     int // links that wait for their parent, over all sources
	Sets        int // distinct owner sets since the last rebuild
	Bytes       int // memory of all tables and lists, without the allocator's rounding
	AliasBytes  int // of them for aliases
	SetBytes    int // of them for owner sets
}

// compactable is the largest table, in slots, that Stats compacts to count exactly.
const compactable = 1 << 16

// Stats returns the sizes. It costs the number of sources and owners, not blocks.
func (x *Index) Stats() Stats {
	x.tend()
	x.gate.Lock()
	defer x.gate.Unlock()
	if g := x.gen.Load(); !x.manual && g.ids.gone > 0 && (len(g.table.buckets)*bucketSlots <= compactable || x.total() == 0) {
		x.rebuild(0, 0)
		x.dead.Store(0)
	}
	g, a := x.gen.Load(), x.aliases.Load()
	st := Stats{
		Blocks:     int(g.live.Load()),
		Aliases:    int(a.used.Load()),
		Sets:       int(g.sets.n) - 1,
		AliasBytes: a.bytes(),
		SetBytes:   g.sets.size() + g.memo.bytes(),
	}
	st.Bytes = int(unsafe.Sizeof(*x)) + g.table.bytes() + st.SetBytes + st.AliasBytes + g.ids.bytes() + g.kids.bytes() + 8*cap(x.sources) + 8*cap(x.owners)
	for _, s := range x.sources {
		if s == nil {
			continue
		}
		st.Memberships += s.held
		st.Aliases += s.private.len()
		st.AliasBytes += s.private.bytes()
		st.Orphans += s.room.used
		st.Bytes += int(unsafe.Sizeof(*s)) + s.private.bytes() + s.room.bytes() + 8*cap(s.owners) + 16*cap(s.work) + 4*cap(s.suspects)
		for _, o := range s.owners {
			st.Raw += o.raw
			st.Bytes += int(unsafe.Sizeof(*o)) + o.copies.bytes()
		}
	}
	return st
}

func (x *Index) total() (n int) {
	for _, s := range x.sources {
		if s != nil {
			n += s.held
		}
	}
	return n
}
