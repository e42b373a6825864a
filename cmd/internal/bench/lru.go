package bench

// lru is one tier of one worker: so many blocks, the one unused for the longest
// time leaves first.
//
// Whoever uses a chain touches its blocks from the last to the first. So a
// parent is always newer than its children, the oldest block has no child here,
// and what is left stays closed.
type lru struct {
	capacity int
	at       map[int32]int32 // block -> position in nodes
	nodes    []lruNode       // nodes[0] is the ring's anchor: next is the oldest
	free     []int32
}

type lruNode struct{ block, prev, next int32 }

func newLRU(capacity int) *lru {
	return &lru{capacity: capacity, at: map[int32]int32{}, nodes: make([]lruNode, 1)}
}

func (l *lru) has(block int32) bool {
	_, ok := l.at[block]
	return ok
}

// put makes a block the newest and reports whether it was not there. There must
// be room for it.
func (l *lru) put(block int32) bool {
	if l.touch(block) {
		return false
	}
	if len(l.at) >= l.capacity {
		panic("BUG: a block too many for its tier")
	}
	n := int32(len(l.nodes))
	if k := len(l.free); k > 0 {
		n, l.free = l.free[k-1], l.free[:k-1]
		l.nodes[n].block = block
	} else {
		l.nodes = append(l.nodes, lruNode{block: block})
	}
	l.at[block] = n
	l.link(n)
	return true
}

// touch makes a block the newest if it is there.
func (l *lru) touch(block int32) bool {
	n, ok := l.at[block]
	if ok {
		l.unlink(n)
		l.link(n)
	}
	return ok
}

// evict takes the oldest blocks until n more fit, and appends them, oldest first.
func (l *lru) evict(dst []int32, n int) []int32 {
	for len(l.at)+n > l.capacity {
		oldest := l.nodes[0].next
		b := l.nodes[oldest].block
		l.unlink(oldest)
		l.free = append(l.free, oldest)
		delete(l.at, b)
		dst = append(dst, b)
	}
	return dst
}

// held returns how many leading blocks of a chain are here. It bisects, so it is
// for the device, which is closed.
func (l *lru) held(chain []int32) int {
	lo, hi := 0, len(chain)
	for lo < hi {
		mid := int(uint(lo+hi) >> 1)
		if l.has(chain[mid]) {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo
}

func (l *lru) link(n int32) {
	newest := l.nodes[0].prev
	l.nodes[n].prev, l.nodes[n].next = newest, 0
	l.nodes[newest].next = n
	l.nodes[0].prev = n
}

func (l *lru) unlink(n int32) {
	prev, next := l.nodes[n].prev, l.nodes[n].next
	l.nodes[prev].next = next
	l.nodes[next].prev = prev
}
