package placement

import (
	"math"
	"math/rand/v2"
	"reflect"
	"testing"
)

// TestLn compares the logarithm with that of the standard library.
func TestLn(t *testing.T) {
	dice := rand.New(rand.NewPCG(1, 2))
	f := func(u float64) {
		t.Helper()
		if got, want := ln(u), math.Log(u); math.Abs(got-want) > 1e-13*math.Abs(want) {
			t.Errorf("ln(%g) = %g, not %g", u, got, want)
		}
	}
	f(0.5 / (1 << 52))
	f(1 - 0.5/(1<<52))
	f(0.5)
	f(math.Sqrt2 / 2)
	for range 10_000 {
		f(dice.Float64())
		f(math.Exp(-35 * dice.Float64()))
		f(1 - math.Exp(-35*dice.Float64()))
	}
}

// TestScoreBits holds the bits of scores, on every processor and in every release: replicas of
// two releases place the same shards.
func TestScoreBits(t *testing.T) {
	f := func(shard, replica string, weight float64, want uint64) {
		t.Helper()
		if got := math.Float64bits(score(hashName(shard), hashName(replica), weight)); got != want {
			t.Errorf("score of %q on %q: %#x, want %#x", shard, replica, got, want)
		}
	}
	f("", "a", 1, 0x3ff0020df5ea0b98)
	f("default|deepseek|16", "conductor-0", 1, 0x3ff12ea3928f5f32)
	f("default|deepseek|16", "conductor-1", 2.5, 0x400e0a7888db0ab2)
}

// TestPlaceSameInEveryRelease holds a whole placement, for the same reason.
func TestPlaceSameInEveryRelease(t *testing.T) {
	w := evenWorld(6, 4)
	w.shards[0].Load, w.shards[1].Queries, w.replicas[2].Weight = 3, 4, 2
	want := map[string][]string{
		"shard-0": {"replica-2", "replica-3"}, "shard-1": {"replica-2", "replica-0"}, "shard-2": {"replica-1", "replica-2"},
		"shard-3": {"replica-0", "replica-2"}, "shard-4": {"replica-3", "replica-2"}, "shard-5": {"replica-2", "replica-1"},
	}
	if got := w.place(); !reflect.DeepEqual(got, want) {
		t.Errorf("placed %v, want %v", got, want)
	}
}
