package index

import "unsafe"

// Stats are the sizes of an index.
type Stats struct {
	Blocks      int // blocks with an owner; with Clear and DropSource exact after the sweep
	Memberships int // pairs (owner, block)
	Aliases     int // engine hashes whose key is known, once for all that hash alike
	Raw         int // memberships under an engine hash, less those whose key others taught
	Orphans     int // links that wait for their parent, over all sources
	Sets        int // distinct owner sets
	Bytes       int // memory of all tables and lists, without the allocator's rounding
	AliasBytes  int // of them for names; those in pieces count as pieces
	SetBytes    int // of them for owner sets
}

// sweepable is the number of pages that Stats sweeps to count exactly: a million blocks.
const sweepable = 1 << 13

// Stats returns the sizes. It costs the number of sources and owners, not blocks.
func (x *Index) Stats() Stats {
	x.mu.Lock()
	defer x.mu.Unlock()
	if len(x.lines.heads) <= sweepable || x.total() == 0 {
		for x.sweep.left > 0 {
			x.sweepOn(sweepable)
		}
	}
	x.tend(nil)
	d := x.ids.Load()
	st := Stats{
		Blocks:     x.live,
		Aliases:    x.aliases,
		Sets:       x.sets.live(),
		AliasBytes: x.names.size,
		SetBytes:   x.sets.bytes(),
	}
	st.Bytes = int(unsafe.Sizeof(*x)) + x.lines.bytes() + x.heads.size + x.loose.size + st.SetBytes + st.AliasBytes +
		4*len(d.owner) + 8*len(d.retired) + 8*cap(x.sources) + 8*cap(x.owners) + 4*cap(x.families) + 16*cap(x.forgotten) + 48*len(x.privates)
	for _, s := range x.sources {
		if s == nil {
			continue
		}
		st.Memberships += s.held
		st.Aliases += s.private.len()
		st.AliasBytes += s.private.bytes()
		st.Orphans += s.room.used
		st.Bytes += int(unsafe.Sizeof(*s)) + s.private.bytes() + s.room.bytes() + 8*cap(s.owners) + 8*cap(s.vague.pieces) + int(unsafe.Sizeof(named{}))*cap(s.work)
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
