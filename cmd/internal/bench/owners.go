package bench

import "slices"

// owners is the set of holders of one block in a baseline: a sorted list, which
// for the few holders most blocks have is smaller and faster than a Go map.
type owners struct{ list []uint32 }

func (o *owners) add(owner uint32) {
	if i, found := slices.BinarySearch(o.list, owner); !found {
		o.list = slices.Insert(o.list, i, owner)
	}
}

// remove reports whether the owner was there.
func (o *owners) remove(owner uint32) bool {
	i, found := slices.BinarySearch(o.list, owner)
	if found {
		o.list = slices.Delete(o.list, i, i+1)
	}
	return found
}

func (o *owners) has(owner uint32) bool {
	_, found := slices.BinarySearch(o.list, owner)
	return found
}

// any reports whether one of n owners from the first is there.
func (o *owners) any(first uint32, n int) bool {
	i, _ := slices.BinarySearch(o.list, first)
	return i < len(o.list) && o.list[i] < first+uint32(n)
}
