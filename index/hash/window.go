package hash

import "slices"

// A block of a multimodal prompt has placeholders where its images are, the same
// for every image: so each item in it has a number, and the numbers of a block
// are hashed behind its tokens. An engine with a draft model keeps with a block what
// depends on the tokens behind it too: one token with EAGLE, several with multi-token
// prediction. Such a block is hashed over a window that reaches as far.
//
//	tokens   t0 t1 .. tb-1 | tb ..      items   7 3 |
//	plain    [-----------]              XXH3-64(seed, tokens LE64(3) LE64(7))
//	ahead 1  [-------------- ]

// AppendWindows appends the hash of each block of size tokens to dst, taken over the
// ahead tokens behind the block as well: blocks behind which there are fewer have
// none. items, if not nil, has the numbers of every block, in any order.
func (s Scheme) AppendWindows(dst []uint64, tokens []uint32, size, ahead int, items [][]uint64) []uint64 {
	if size < 1 {
		return dst
	}
	for i := 0; len(tokens) >= size+ahead; i++ {
		window := tokens[:size+ahead]
		tokens = tokens[size:]
		if i < len(items) && len(items[i]) > 0 {
			dst = append(dst, s.LocalWithItems(window, items[i]))
		} else {
			dst = append(dst, s.Local(window))
		}
	}
	return dst
}

// LocalWithItems returns the hash of one block's tokens and the numbers of its items, whose
// order does not matter.
func (s Scheme) LocalWithItems(tokens []uint32, items []uint64) uint64 {
	if !slices.IsSorted(items) {
		items = slices.Clone(items)
		slices.Sort(items)
	}
	return hashWithItems(tokens, items, s.Seed)
}
