package hash

import "math/bits"

// Stepper computes Scheme.Next with the seed already mixed in. It is the formula of
// XXH3-64 for 16 bytes, and small enough to be inlined.
type Stepper struct{ low, high uint64 }

// The words of XXH3's default secret, at bytes 24, 32, 40 and 48.
const (
	secret24 = 0x1f67b3b7a4a44072
	secret32 = 0x78e5c0cc4ee679cb
	secret40 = 0x2172ffcc7dd05a82
	secret48 = 0x8e2443f7744608b8
)

// Stepper returns the stepper of the scheme.
func (s Scheme) Stepper() Stepper {
	return Stepper{low: (secret24 ^ secret32) + s.Seed, high: (secret40 ^ secret48) - s.Seed}
}

// Next returns the sequence hash of a block from its parent's and its own local hash. It is short enough
// that the compiler inlines it together with what the index does around it.
func (s Stepper) Next(parentSeq, local uint64) uint64 {
	parentSeq ^= s.low
	local ^= s.high
	over, under := bits.Mul64(parentSeq, local)
	a := 16 + bits.ReverseBytes64(parentSeq) + local + (over ^ under)
	a ^= a >> 37
	a *= 0x165667919e3779f9
	return a ^ a>>32
}
