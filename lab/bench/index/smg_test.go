package index

import (
	"math/bits"
	"testing"
)

// The random numbers and keys are those of smg's benchmark.
func TestSMGVectors(t *testing.T) {
	r := splitMix(smgSeed)
	for _, want := range []uint64{0x0d0c9acbd4559c0c, 0x9909bedea44e8705, 0x66b803c093aaee7f} {
		if got := r.next(); got != want {
			t.Errorf("got %016x, want %016x", got, want)
		}
	}
	if got := smgChild(0x0d0c9acbd4559c0d, 0x9909bedea44e8705); got != 0x026c5d052fb19f67 {
		t.Errorf("key 1 is %016x", got)
	}
}

// The stream has the shares, batches, tails and gaps of its profile.
func TestSMGShape(t *testing.T) {
	const target = 200_000
	for name, p := range smgProfiles {
		s := makeSMG(p, target)
		var stores, repeats, gaps, holes int
		held := newOracle(smgHolders)
		classes := map[class]int{}
		for i := range s.ops {
			o := &s.ops[i]
			switch {
			case o.kind == query:
				classes[o.class]++
				if o.class == gate && o.to-o.from != smgGate {
					t.Fatalf("%s: a gate query of %d blocks", name, o.to-o.from)
				}
			case o.kind == store:
				if o.to-o.from > smgBatch {
					t.Fatalf("%s: a batch of %d blocks", name, o.to-o.from)
				}
				if held[o.owner][s.seq[o.from]] > 0 {
					repeats++
				} else {
					stores++
				}
				if o.hasParent && (o.parent != s.seq[o.from-1] || held[o.owner][o.parent] == 0) {
					t.Fatalf("%s: the parent of a batch is not held", name)
				}
			case i < s.load && o.to-o.from == 1:
				gaps++
				if held[o.owner][s.gone[o.from]] == 0 {
					t.Fatalf("%s: a gap is not held", name)
				}
			}
			held.applyOp(s, o)
		}
		if p.holes > 0 {
			holes = len(s.gone) - gaps
		}
		if n := held.CountMemberships(); n < target || n > 2*target {
			t.Errorf("%s: %d memberships of a target of %d", name, n, target)
		}
		if got, want := repeats*100/stores, int(p.repeats); got < want-2 || got > want+2 {
			t.Errorf("%s: %d %% of batches come again, want %d", name, got, want)
		}
		if (p.holes > 0) != (len(s.gone) > target/100) && name != "churn" {
			t.Errorf("%s: %d blocks removed, %d of them holes", name, len(s.gone), holes)
		}
		for _, c := range []class{oneHolder, eightHolders, manyHolders, miss} {
			if classes[c] == 0 {
				t.Errorf("%s: no queries of class %s", name, classNames[c])
			}
		}
		if classes[miss] != 1000 || name == "pinned" && classes[gate] == 0 {
			t.Errorf("%s: %v", name, classes)
		}
	}
}

// A tail's keys belong to its holder.
func TestSMGTailKeys(t *testing.T) {
	s := makeSMG(smgProfiles["pinned"], 50_000)
	seen := map[uint64]uint32{}
	for i := range s.ops {
		if o := &s.ops[i]; o.kind == store && o.hasParent {
			key := ((o.parent^bits.RotateLeft64(s.local[o.from], 29))*golden + uint64(o.owner)) | 1
			if s.seq[o.from] != key && s.seq[o.from] != smgChild(o.parent, s.local[o.from]) {
				t.Fatalf("operation %d: key %016x belongs to no rule", i, s.seq[o.from])
			}
			if s.seq[o.from] == key {
				if was, ok := seen[key]; ok && was != o.owner {
					t.Fatalf("holders %d and %d have a tail with one key", was, o.owner)
				}
				seen[key] = o.owner
			}
		}
	}
	if len(seen) == 0 {
		t.Error("no batch begins in a tail")
	}
}
