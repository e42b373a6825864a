package index

import (
	"math/bits"
	"math/rand/v2"
	"unsafe"
)

// flat is a flat hash table with uint64 keys, linear probing and no pointers
// next to its two arrays, so the garbage collector has nothing to scan while V
// has none. The zero value is empty.
//
//	keys  [ 0 | k3 | k1 | 0 | ... ]   0 is a free slot, so no key may be 0
//	vals  [   | v3 | v1 |   | ... ]
//
// It grows above 3/4 load and halves below 1/8. Pointers to values are valid
// until the next insert or remove.
type flat[V any] struct {
	keys  []uint64
	vals  []V
	n     int  // slots in use
	shift uint // 64 - log2(len(keys))
}

// minSlots is the smallest array. A table that was used once keeps it, so that
// one going back and forth between no and one key does not allocate.
const minSlots = 8

// mixKey makes the order of tables unknown to peers, who choose the keys. A peer that knew
// it could choose keys which all begin their probes at one slot, and make each lookup a
// walk through the table.
var mixKey = rand.Uint64()

// mix spreads keys over all bits: engine hashes may be small or sequential numbers. A
// multiplication to 128 bits whose halves are joined is enough for that, and takes two
// instructions.
func mix(k uint64) uint64 {
	hi, lo := bits.Mul64(k^mixKey, 0xd6e8feb86659fd93)
	return hi ^ lo
}

// homeSlot returns the slot where the probe for a key begins.
func (t *flat[V]) homeSlot(k uint64) int { return int(mix(k) >> t.shift) }

// len returns the number of keys.
func (t *flat[V]) len() int { return t.n }

// find returns the value of a key, nil if it is missing.
func (t *flat[V]) find(k uint64) *V {
	if t.n == 0 || k == 0 {
		return nil
	}
	mask := len(t.keys) - 1
	for i := t.homeSlot(k); ; i = (i + 1) & mask {
		switch t.keys[i] {
		case k:
			return &t.vals[i]
		case 0:
			return nil
		}
	}
}

// insertKey returns the value of a key, a zero value where it was missing. The pointer
// leads into the table, so it is for use at once: the next insertion may move everything.
func (t *flat[V]) insertKey(k uint64) *V {
	if k == 0 {
		panic("BUG: the key 0 marks free places")
	}
	if 4*(t.n+1) > 3*len(t.keys) {
		// Do not grow for a key that is there already.
		if v := t.find(k); v != nil {
			return v
		}
		t.resizeSlots(max(minSlots, 2*len(t.keys)))
	}
	mask := len(t.keys) - 1
	for i := t.homeSlot(k); ; i = (i + 1) & mask {
		switch t.keys[i] {
		case k:
			return &t.vals[i]
		case 0:
			t.keys[i] = k
			t.n++
			return &t.vals[i]
		}
	}
}

// deleteKey deletes a key, if it is there.
func (t *flat[V]) deleteKey(k uint64) {
	if t.n == 0 || k == 0 {
		return
	}
	var none V
	mask := len(t.keys) - 1
	i := t.homeSlot(k)
	for t.keys[i] != k {
		if t.keys[i] == 0 {
			return
		}
		i = (i + 1) & mask
	}
	// Pull back what probed over the slot, so that no probe ends too early.
	for j := (i + 1) & mask; t.keys[j] != 0; j = (j + 1) & mask {
		if (j-t.homeSlot(t.keys[j]))&mask >= (j-i)&mask {
			t.keys[i], t.vals[i] = t.keys[j], t.vals[j]
			i = j
		}
	}
	t.keys[i], t.vals[i] = 0, none
	t.n--
	if len(t.keys) > minSlots && 8*t.n < len(t.keys) {
		t.resizeSlots(len(t.keys) / 2)
	}
}

// resizeSlots moves everything into arrays of a new size, a power of two.
func (t *flat[V]) resizeSlots(slots int) {
	keys, vals := t.keys, t.vals
	t.keys, t.vals = make([]uint64, slots), make([]V, slots)
	t.shift = uint(64 - bits.TrailingZeros(uint(slots)))
	mask := slots - 1
	for i, k := range keys {
		if k == 0 {
			continue
		}
		j := t.homeSlot(k)
		for t.keys[j] != 0 {
			j = (j + 1) & mask
		}
		t.keys[j], t.vals[j] = k, vals[i]
	}
}

// each yields each key with its value, which may change meanwhile. The table may not: an
// insertion may move everything to other arrays, and a deletion moves what probed over the
// slot, so the loop would see some keys twice and others not at all.
func (t *flat[V]) each(yield func(k uint64, v *V) bool) {
	for i, k := range t.keys {
		if k != 0 && !yield(k, &t.vals[i]) {
			return
		}
	}
}

// bytes returns the memory of the arrays.
func (t *flat[V]) bytes() int {
	var v V
	return len(t.keys) * int(8+unsafe.Sizeof(v))
}
