package stream

import "github.com/zeebo/xxh3"

const (
	// 16 fingerprints are 256 bytes: most engines of a large fleet are silent, and the table doubles as batches come.
	minPrints = 16
	// Duplicates come from a replay that overlaps live batches, a few hundred at
	// the most; 4096 fingerprints are 64 KiB a stream.
	maxPrints = 4096
)

// fingerprints remembers what bytes were consumed at recent sequences, to tell a
// duplicate from the same sequence in another lifetime of the publisher. It is
// direct-mapped by sequence, so it holds the last maxPrints of a dense run, and
// grows with the stream.
//
// A sequence that is not remembered, because it is too old or was never
// consumed, cannot be told. On the live path it is taken for a restart: TCP
// does not repeat, so nothing but a restart brings an old number back, and
// mistaking a repetition for a restart costs a replay, while the opposite
// leaves dead blocks in the index for good.
type fingerprints struct {
	slots []fingerprint // length is a power of two
	n     int           // slots in use
}

type fingerprint struct {
	seq1 uint64 // sequence + 1; 0 is an empty slot
	hash uint64
}

// newFingerprint is the fingerprint of the bytes at seq.
func newFingerprint(seq uint64, payload []byte) fingerprint {
	return fingerprint{seq + 1, xxh3.Hash(payload)}
}

func (v fingerprint) sequence() uint64 { return v.seq1 - 1 }

// addFingerprint remembers a batch, and forgets an older one if there are most.
func (p *fingerprints) addFingerprint(v fingerprint, most int) {
	if p.n == len(p.slots) && len(p.slots) < most {
		p.growTable()
	}
	p.storeFingerprint(v)
}

func (p *fingerprints) storeFingerprint(v fingerprint) {
	s := &p.slots[v.sequence()&uint64(len(p.slots)-1)]
	if s.seq1 == 0 {
		p.n++
	}
	*s = v
}

func (p *fingerprints) growTable() {
	old := p.slots
	p.slots, p.n = make([]fingerprint, max(minPrints, 2*len(old))), 0
	for _, v := range old {
		p.storeFingerprint(v)
	}
}

// compareBytes reports whether payload is what was consumed at seq; known is false if that is
// not remembered. It hashes the payload, which is what a duplicate costs.
func (p *fingerprints) compareBytes(seq uint64, payload []byte) (same, known bool) {
	if len(p.slots) == 0 {
		return false, false
	}
	s := p.slots[seq&uint64(len(p.slots)-1)]
	if s.seq1 != seq+1 {
		return false, false
	}
	return s == newFingerprint(seq, payload), true
}

// hasBetween reports whether something consumed from a sequence on, and below another, is
// remembered: a verification that skips such a batch has met a publisher that does not have
// it.
func (p *fingerprints) hasBetween(from, below uint64) bool {
	for n := uint64(0); from+n < below && n < uint64(len(p.slots)); n++ {
		if s := p.slots[(from+n)&uint64(len(p.slots)-1)]; s.seq1 > from && s.seq1 <= below {
			return true
		}
	}
	return false
}

func (p *fingerprints) forgetAll() { *p = fingerprints{} }
