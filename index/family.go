package index

import "sync/atomic"

// What an engine hash means is shared, who uses it is not kept: engines with one
// hash function and seed use the same ones, others never do. So a source that
// announces a block under an engine hash which another has taught is of its
// family, and of several hashes with one key those that its family taught are its
// own. It matters to Snapshot alone, which has to name blocks as their holder does.

// taught notes that the source uses an entry of the aliases.
func (h *hand) taught(e *alias) {
	by := h.a.taught(e)
	me := uint32(h.s.name) + 1
	now := atomic.LoadUint32(by)
	if now == me || now == 0 && atomic.CompareAndSwapUint32(by, 0, me) {
		return
	}
	if now = atomic.LoadUint32(by); now == me {
		return
	}
	other := h.x.sources[now-1]
	if other == nil { // its family is forgotten
		atomic.StoreUint32(by, me)
		return
	}
	if other.family.Load() != h.s.family.Load() {
		h.x.relate(h.s, other)
	}
}

// uses notes that the source names a block of this key by what others have taught.
func (h *hand) uses(engine, key uint64) {
	if h.a.by == nil {
		return
	}
	if e := h.a.entry(engine); e != nil && atomic.LoadUint64(&e.key) == key {
		h.taught(e)
	}
}

// relate makes two families one. The gate is held to read.
func (x *Index) relate(s, other *source) {
	x.kin.Lock()
	defer x.kin.Unlock()
	a, b := s.family.Load(), other.family.Load()
	for _, k := range x.sources {
		if k != nil && k.family.Load() == b {
			k.family.Store(a)
		}
	}
}

// label keeps a value with the key in a slot; 0 is none of either.
func (h *hand) label(at uint32, label uint64) {
	if h.t.labels == nil || at == 0 || label == 0 {
		return
	}
	if p := &h.t.labels[at-1]; atomic.LoadUint64(p) != label {
		atomic.StoreUint64(p, label)
	}
}
