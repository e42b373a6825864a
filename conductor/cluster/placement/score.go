package placement

import (
	"crypto/sha256"
	"encoding/binary"
	"math"
	"slices"
)

// hashName returns 64 bits of a name. Names of tenants and models are chosen by clients, so
// the hash is one for which they find no collisions at will.
func hashName(name string) uint64 {
	sum := sha256.Sum256([]byte(name))
	return binary.LittleEndian.Uint64(sum[:])
}

// mixBits spreads the bits of x: the finalizer of splitmix64.
func mixBits(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// score returns how much a shard wants a replica: weight / -ln(u) for a u in (0,1) that the
// two names draw. The replica with the highest score wins, so it is the best of a shard with
// the probability weight / sum of all weights, and a change of one weight moves shards from
// or to that replica alone.
func score(shard, replica uint64, weight float64) float64 {
	u := float64(float64(mixBits(shard^replica)>>12)+0.5) * (1.0 / (1 << 52))
	return weight / -ln(u)
}

// ln returns the natural logarithm of u in (0,1). math.Log rounds differently on processors
// with fused operations; the conversions here forbid them, so every machine has the same bits.
// The error is below 1e-13 of the result.
func ln(u float64) float64 {
	m, exponent := math.Frexp(u)
	if m < math.Sqrt2/2 {
		m, exponent = 2*m, exponent-1
	}
	// ln m = 2 artanh t = 2 (t + t³/3 + t⁵/5 + …), |t| < 0.172
	t := (m - 1) / (m + 1)
	square := float64(t * t)
	sum := 0.0
	for n := 19.0; n >= 1; n -= 2 {
		sum = float64(sum*square) + 1/n
	}
	return float64(float64(2*t)*sum) + float64(float64(exponent)*math.Ln2)
}

// scored is a replica with its score for one shard.
type scored struct {
	score   float64
	replica int32
}

// better orders by score, equal ones by ID.
func better(a, b scored) int {
	switch {
	case a.score > b.score:
		return -1
	case a.score < b.score:
		return 1
	}
	return int(a.replica - b.replica)
}

// rankReplicas returns the replicas for each shard, best first.
func (p *plan) rankReplicas() [][]int32 {
	names := make([]uint64, len(p.replicas))
	for r, replica := range p.replicas {
		names[r] = hashName(replica.ID)
	}
	out := make([][]int32, len(p.shards))
	scores := make([]scored, len(names))
	for s := range p.shards {
		shard := hashName(p.shards[s].Key)
		for r, name := range names {
			scores[r] = scored{score(shard, name, p.replicas[r].Weight), int32(r)}
		}
		slices.SortFunc(scores, better)
		out[s] = make([]int32, len(names))
		for n := range scores {
			out[s][n] = scores[n].replica
		}
	}
	return out
}
