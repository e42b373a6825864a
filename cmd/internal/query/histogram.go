package query

import (
	"math"
	"math/bits"
	"time"
)

// histogram counts durations in buckets of three percent: 32 for every power of two.
type histogram struct {
	counts [64 * subBuckets]uint64
	n      uint64
	most   time.Duration
}

const (
	subBits    = 5
	subBuckets = 1 << subBits
)

func bucketOf(d time.Duration) int {
	v := uint64(max(d, 0))
	if v < subBuckets {
		return int(v)
	}
	shift := bits.Len64(v) - subBits - 1
	return (shift+1)<<subBits + int(v>>shift) - subBuckets
}

// bucketTop is the longest duration of a bucket.
func bucketTop(i int) time.Duration {
	if i < subBuckets {
		return time.Duration(i)
	}
	shift := i>>subBits - 1
	low := uint64(i&(subBuckets-1)+subBuckets) << shift
	return time.Duration(low + 1<<shift - 1)
}

func (h *histogram) add(d time.Duration) {
	h.counts[bucketOf(d)]++
	h.n++
	h.most = max(h.most, d)
}

func (h *histogram) merge(other *histogram) {
	for i, n := range other.counts {
		h.counts[i] += n
	}
	h.n += other.n
	h.most = max(h.most, other.most)
}

// at returns the duration that a part q of all does not exceed, 0 of none.
func (h *histogram) at(q float64) time.Duration {
	rank, seen := uint64(math.Ceil(q*float64(h.n))), uint64(0)
	for i, n := range h.counts {
		if seen += n; n > 0 && seen >= rank {
			return min(bucketTop(i), h.most)
		}
	}
	return 0
}
