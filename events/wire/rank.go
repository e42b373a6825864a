package wire

import "math"

// RankOf returns the data-parallel rank a batch names, without decoding its events.
// ok is false when it names none or is no batch.
func RankOf(payload []byte) (rank int, ok bool) {
	c := cursor{b: payload, maxDepth: depthCap}
	switch k, n := c.readHeader(); {
	case k == kArray && n >= 3:
		c.skipValues(2)
		return c.readPlainRank()
	case k == kMap:
		for range n {
			k, size := c.readHeader()
			if k != kStr {
				return 0, false
			}
			switch string(c.readBytes(size)) {
			case "data_parallel_rank", "attn_dp_rank", "dp_rank":
				return c.readPlainRank()
			}
			c.skipValues(1)
		}
	}
	return 0, false
}

func (c *cursor) readPlainRank() (int, bool) {
	k, n := c.readHeader()
	return int(n), k == kUint && n <= math.MaxInt32
}
