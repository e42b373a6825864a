package stream

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"example.com/conductor/internal/alloctest"
)

// held against a sorted slice.
func TestHeldAgainstSlice(t *testing.T) {
	for seed := range uint64(50) {
		rnd := rand.New(rand.NewPCG(seed, 2))
		var h heldBatches
		var want []uint64
		bytes := 0
		for step := range 2000 {
			switch n := rnd.IntN(10); {
			case n < 5 || len(want) == 0:
				seq := rnd.Uint64N(300)
				if n < 2 && len(want) > 0 {
					seq = want[len(want)-1] + 1
				}
				if at, found := slices.BinarySearch(want, seq); !found {
					want = slices.Insert(want, at, seq)
					h.addBatch(queuedBatch{message: message{seq: seq, payload: make([]byte, seq%7)}})
					bytes += int(seq % 7)
				} else if got := h.findBatch(seq); got == nil || got.seq != seq {
					t.Fatalf("seed %d step %d: %d is not found", seed, step, seq)
				}
			case n == 5 && rnd.IntN(100) == 0:
				h.dropAll()
				want, bytes = nil, 0
			default:
				if it := h.popFirst(); it.seq != want[0] {
					t.Fatalf("seed %d step %d: popped %d, want %d", seed, step, it.seq, want[0])
				}
				bytes -= int(want[0] % 7)
				want = want[1:]
			}
			if h.count() != len(want) || h.bytes != bytes {
				t.Fatalf("seed %d step %d: %d items of %d bytes, want %d of %d", seed, step, h.count(), h.bytes, len(want), bytes)
			}
			if len(want) > 0 && (h.firstBatch().seq != want[0] || h.lastSequence() != want[len(want)-1]) {
				t.Fatalf("seed %d step %d: %d..%d, want %d..%d", seed, step, h.firstBatch().seq, h.lastSequence(), want[0],
					want[len(want)-1])
			}
			if seq := rnd.Uint64N(300); (h.findBatch(seq) != nil) != slices.Contains(want, seq) {
				t.Fatalf("seed %d step %d: find(%d) is wrong", seed, step, seq)
			}
		}
	}
}

func TestPrintsForgetOldest(t *testing.T) {
	var p fingerprints
	f := func(seq uint64, payload string, wantSame, wantKnown bool) {
		t.Helper()
		if same, known := p.compareBytes(seq, []byte(payload)); same != wantSame || known != wantKnown {
			t.Errorf("%d %q: same %v, known %v", seq, payload, same, known)
		}
	}
	f(0, "", false, false)
	for seq := range uint64(3 * maxPrints) {
		p.addFingerprint(newFingerprint(seq, fmt.Append(nil, seq)), maxPrints)
	}
	if len(p.slots) != maxPrints {
		t.Errorf("%d slots, want %d", len(p.slots), maxPrints)
	}
	f(3*maxPrints-1, fmt.Sprint(3*maxPrints-1), true, true)
	f(3*maxPrints-1, "other", false, true)
	f(2*maxPrints, fmt.Sprint(2*maxPrints), true, true)
	f(2*maxPrints-1, fmt.Sprint(2*maxPrints-1), false, false)
	f(3*maxPrints, "", false, false)
	p.addFingerprint(newFingerprint(1<<63, []byte("far")), maxPrints)
	f(1<<63, "far", true, true)
	p.forgetAll()
	f(1<<63, "far", false, false)
}

// A live batch in sequence costs no allocation but those of its decoding.
func TestLiveBatchAllocatesNothing(t *testing.T) {
	m := newMachine(machineConfig{decode: benchDecode})
	r := rig{m: m}
	r.feed(input{kind: inConnected})
	payload, seq := make([]byte, 100), uint64(0)
	one := func() {
		m.handleInput(input{kind: inLive, message: message{seq: seq, payload: payload}}, r.now)
		if _, _, ok := m.nextStep(r.now); !ok {
			t.Fatal("nothing to apply")
		}
		seq++
	}
	for range 2 * maxPrints { // the fingerprints have grown
		one()
	}
	if n := alloctest.PerRun(1000, one); n != 0 {
		t.Errorf("%v allocations a batch", n)
	}
}
