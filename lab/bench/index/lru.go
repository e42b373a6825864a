package index

import "container/list"

// lru is one tier of one worker: capacity blocks. The block unused for the longest time
// leaves first.
//
// A worker touches the blocks of a chain from the last to the first. So a parent is
// always newer than its children, the oldest block has no child here, and the remaining
// blocks stay closed.
type lru struct {
	capacity int
	at       map[int32]*list.Element
	order    list.List // blocks, the oldest first
}

func newLRU(capacity int) *lru { return &lru{capacity: capacity, at: map[int32]*list.Element{}} }

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
	l.at[block] = l.order.PushBack(block)
	return true
}

// touch makes a block the newest if it is there.
func (l *lru) touch(block int32) bool {
	at, ok := l.at[block]
	if ok {
		l.order.MoveToBack(at)
	}
	return ok
}

// evict takes the oldest blocks until n more fit, and appends them, oldest first.
func (l *lru) evict(dst []int32, n int) []int32 {
	for len(l.at)+n > l.capacity {
		b := l.order.Remove(l.order.Front()).(int32)
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
