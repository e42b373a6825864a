package wire

import "math"

// RankOf returns the data-parallel rank a batch names, without decoding its events.
// ok is false when it names none or is no batch.
func RankOf(payload []byte) (rank int, ok bool) {
	c := cursor{b: payload, maxDepth: depthCap}
	switch k, n := c.head(); {
	case k == kArray && n >= 3:
		c.skip(2)
		return c.rank()
	case k == kMap:
		for range n {
			k, size := c.head()
			if k != kStr {
				return 0, false
			}
			switch string(c.take(size)) {
			case "data_parallel_rank", "attn_dp_rank", "dp_rank":
				return c.rank()
			}
			c.skip(1)
		}
	}
	return 0, false
}

func (c *cursor) rank() (int, bool) {
	k, n := c.head()
	return int(n), k == kUint && n <= math.MaxInt32
}
