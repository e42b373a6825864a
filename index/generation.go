package index

import (
	"math/bits"
	"sync"
	"sync/atomic"
	"unsafe"
)

// generation is everything a reader looks at, published by one pointer. Within it
// keys keep their slots and set ids their meaning; what nobody needs any more
// leaves when the next one is built.
type generation struct {
	table *table
	sets  *sets
	memo  memo
	ids   *ids
	kids  kids
	live  atomic.Int64 // keys with a set

	bornSets int // sets when it was built
}

// ids are the internal owner ids of a generation. An owner that is cleared gets
// another, and the old one is retired: readers leave it out of their answers.
type ids struct {
	ext      []uint32 // external id
	retired  []uint64 // bitmap, words written atomically
	open     []uint64 // bitmap of owners that may lack the parent of a block they hold
	opened   atomic.Int64
	epoch    atomic.Uint64 // grows when an owner is closed again
	n        int           // ids in use; guarded by the gate
	gone     int           // ids retired; guarded by the gate
	unsorted atomic.Bool   // ext does not ascend
}

func newIDs(n int) *ids {
	n = (n + 63) / 64 * 64
	return &ids{ext: make([]uint32, n), retired: make([]uint64, n/64), open: make([]uint64, n/64)}
}

func (d *ids) isOpen(id uint32) bool {
	return atomic.LoadUint64(&d.open[id>>6])>>(id&63)&1 != 0
}

// setOpen says that an owner may lack a parent. It comes before the change of a
// set that makes it so.
func (d *ids) setOpen(id uint32) {
	if bit := uint64(1) << (id & 63); atomic.OrUint64(&d.open[id>>6], bit)&bit == 0 {
		d.opened.Add(1)
	}
}

// setClosed says that it does not.
func (d *ids) setClosed(id uint32) {
	d.epoch.Add(1) // readers that saw it closed before and after look again
	if bit := uint64(1) << (id & 63); atomic.AndUint64(&d.open[id>>6], ^bit)&bit != 0 {
		d.opened.Add(-1)
	}
}

// living returns the words of a set without those retired by now.
func (d *ids) living(w uint64, i int) uint64 { return w &^ atomic.LoadUint64(&d.retired[i]) }

func (d *ids) bytes() int { return 4*len(d.ext) + 16*len(d.retired) }

// kids lists the further children of keys that have more than one.
type kids struct {
	mu    sync.Mutex
	lists map[uint64][]uint32 // key -> links, beside slot.child
	n     int
}

func (k *kids) add(parent uint64, link uint32) {
	k.mu.Lock()
	if k.lists == nil {
		k.lists = make(map[uint64][]uint32)
	}
	k.lists[parent] = append(k.lists[parent], link)
	k.n++
	k.mu.Unlock()
}

func (k *kids) bytes() int { return 64*len(k.lists) + 6*k.n }

// rebuild replaces the generation by one without retired owners, dead keys, dead
// sets and dead aliases, with room for more keys and aliases. The caller holds the
// gate. Readers go on with the old generation until they ask anew.
func (x *Index) rebuild(keys, names int) {
	old := x.gen.Load()
	n := &generation{sets: newSets()}

	// Owners: the living ones, in order of their names.
	n.ids = newIDs(2*(len(x.owners)-x.dropped) + 64)
	ids := make([]uint32, old.ids.n) // old -> new id, plus one
	same := true
	for name, o := range x.owners {
		if o == nil {
			continue
		}
		id := uint32(n.ids.n)
		n.ids.n++
		n.ids.ext[id] = uint32(name)
		ids[o.id] = id + 1
		if old.ids.isOpen(o.id) {
			n.ids.setOpen(id)
		}
		same = same && o.id == id
		o.id = id
	}

	// Sets, when the first key needs them.
	sets := make([]uint32, old.sets.n) // old -> new id
	for i := range sets {
		sets[i] = ^uint32(0)
	}
	words := make([]uint64, len(n.ids.open))
	remap := func(id uint32) uint32 {
		if to := sets[id]; to != ^uint32(0) {
			return to
		}
		from, first := old.sets.of(id)
		clear(words)
		lo, hi := len(words), 0
		for i, w := range from {
			w = old.ids.living(w, first+i)
			if same {
				if w != 0 {
					words[first+i] = w
					lo, hi = min(lo, first+i), first+i+1
				}
				continue
			}
			for ; w != 0; w &= w - 1 {
				if to := ids[(first+i)<<6+bits.TrailingZeros64(w)]; to != 0 {
					to--
					words[to>>6] |= 1 << (to & 63)
					lo, hi = min(lo, int(to>>6)), max(hi, int(to>>6)+1)
				}
			}
		}
		sets[id] = 0
		if lo < hi {
			sets[id] = n.sets.intern(words[lo:hi], lo)
		}
		return sets[id]
	}
	sets[0] = 0

	live := int(old.live.Load())
	if old.ids.gone > 0 {
		live = 0
		for i := range old.table.buckets {
			b := &old.table.buckets[i]
			for j := range b {
				if id := b[j].word >> setShift; id != 0 && remap(id) != 0 {
					live++
				}
			}
		}
	}

	n.table = newTable(x.tableSize(live, keys, int(old.table.used.Load()), n.sets.size()+n.ids.bytes()), x.labels)
	n.memo = newMemo(len(n.table.buckets) * bucketSlots)
	for i := range old.table.buckets {
		b := &old.table.buckets[i]
		for j := range b {
			s := &b[j]
			id := s.word >> setShift
			if id == 0 || remap(id) == 0 {
				continue
			}
			to := n.table.put(s.key)
			to.word = sets[id]<<setShift | s.word&tagMask
			to.child = s.child
			if x.labels {
				n.table.labels[n.table.number(to)-1] = old.table.labels[i*bucketSlots+j]
			}
		}
	}
	n.table.used.Store(int64(live))
	n.live.Store(int64(live))
	n.rehang(old, sets)
	if n.ids.opened.Load() > 0 && (keys == 0 || x.rebuilds.Load()%8 == 7) {
		n.reopen()
	}
	n.bornSets = int(n.sets.n)
	x.gen.Store(n)
	x.rebuilds.Add(1)
	// Looking each alias up costs more than all the above, so it is done where
	// keys have gone.
	a := x.aliases.Load()
	if gone := int(old.table.used.Load()) - live; keys == 0 || gone > live/8 {
		x.sweepAliases(names, true)
	} else if a.used.Load()+int64(names) > a.limit {
		x.sweepAliases(names, false)
	}
}

// sweepAliases makes room for more aliases; with drop it drops those whose key
// nobody holds.
func (x *Index) sweepAliases(names int, drop bool) {
	g := x.gen.Load()
	for _, s := range x.sources {
		if s != nil && drop {
			s.private.retain(func(_ uint64, key *uint64) bool { return g.table.lookup(*key) != 0 })
		}
	}
	old := x.aliases.Load()
	live := 0
	for i := range old.buckets {
		if drop && i+ahead/4 < len(old.buckets) {
			for _, a := range old.buckets[i+ahead/4] {
				prefetch(unsafe.Pointer(&g.table.buckets[g.table.home(a.key)]))
			}
		}
		b := &old.buckets[i]
		for j := range b {
			if b[j].engine != 0 {
				if b[j].key == 0 || drop && g.table.lookup(b[j].key) == 0 {
					if b[j].key != 0 {
						x.forget(b[j])
					}
					atomic.StoreUint64(&b[j].key, 0)
				} else {
					live++
				}
			}
		}
	}
	if live+names == 0 && !x.manual {
		x.aliases.Store(newAliases(0, x.labels))
		return
	}
	load := emptiest
	if live > roomy {
		load = tightest
	}
	n := newAliases(x.fit(live, bucketsFor(max(live+names, x.floor), load), g.table.bytes()+g.sets.size()+g.ids.bytes(), x.aliasBucket()), x.labels)
	for i := range old.buckets {
		for j, a := range old.buckets[i] {
			if a.key == 0 {
				continue
			}
			by := uint32(0)
			if old.by != nil {
				by = old.by[4*i+j]
			}
			n.put(a, by)
		}
	}
	n.used.Store(int64(live))
	x.aliases.Store(n)
}

// tableSize returns how many buckets a table with so many living keys has when at
// least more are to come, so many slots are in use, and other things of the
// generation take other bytes. Where keys come and go, room is cheaper than
// rebuilding often, and where they are few.
func (x *Index) tableSize(live, more, used, other int) int {
	n, load := max(live+more, x.floor), emptiest
	if n < roomy || more > 0 && used-live > live/8 {
		load = roomiest
	}
	return x.fit(live, bucketsFor(n, load), other+x.aliases.Load().bytes(), x.tableBucket())
}
