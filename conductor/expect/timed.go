package expect

import "maps"

// timed is a heap, in the sense of container/heap, of what ends at some time; the next one to end is the first element.
// Its elements know their places in it.
type timed[T interface {
	endTime() int64
	heapIndex() *int
}] []T

func (e *expectation) endTime() int64  { return e.ends }
func (e *expectation) heapIndex() *int { return &e.position }
func (p *node) endTime() int64         { return p.until }
func (p *node) heapIndex() *int        { return &p.position }

func (h timed[T]) Len() int           { return len(h) }
func (h timed[T]) Less(i, j int) bool { return h[i].endTime() < h[j].endTime() }
func (h timed[T]) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	*h[i].heapIndex(), *h[j].heapIndex() = i, j
}

// Push implements heap.Interface.
func (h *timed[T]) Push(x any) {
	e := x.(T)
	*e.heapIndex() = len(*h)
	*h = append(*h, e)
}

// Pop implements heap.Interface.
func (h *timed[T]) Pop() any {
	old := *h
	last := len(old) - 1
	e := old[last]
	var none T
	old[last] = none
	if *h = old[:last]; last == 0 {
		*h = nil
	}
	return e
}

// shrinkMap copies a map from which most entries have been deleted, because a map keeps the memory of all that it ever
// had. most is how many it had since it was made. An empty map becomes nil.
func shrinkMap[K comparable, V any](m *map[K]V, most *int) (shrunk bool) {
	n := len(*m)
	*most = max(*most, n)
	if n > 0 && (*most < 1024 || 8*n > *most) {
		return false
	}
	var all map[K]V
	if n > 0 {
		all = make(map[K]V, n)
		maps.Copy(all, *m)
	}
	*m, *most = all, n
	return true
}
