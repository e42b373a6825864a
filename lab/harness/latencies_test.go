package harness

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// TestLatenciesPrecision holds that a percentile lies at most 0.1 % from the exact one.
func TestLatenciesPrecision(t *testing.T) {
	var parts [3]Latencies
	var exact []time.Duration
	r := rand.New(rand.NewPCG(1, 2))
	for i := range 30_000 {
		d := time.Duration(1) << r.IntN(34)
		d += time.Duration(r.Int64N(int64(d)))
		parts[i%3].Add(d)
		exact = append(exact, d)
	}
	var all Latencies
	for i := range parts {
		all.Merge(&parts[i])
	}
	slices.Sort(exact)
	for _, percent := range []float64{0.1, 50, 90, 99, 99.9, 100} {
		want := exact[int(percent*float64(len(exact))/100+0.5)-1]
		if got := all.At(percent); math.Abs(float64(got-want)) > 1e-3*float64(want) {
			t.Errorf("%v %%: got %v, want %v", percent, got, want)
		}
	}
	if all.Count() != len(exact) {
		t.Errorf("%d of %d are counted", all.Count(), len(exact))
	}
}

func TestLatenciesBounds(t *testing.T) {
	var l Latencies
	if l.At(50) != 0 || l.Count() != 0 {
		t.Error("nothing has a median")
	}
	f := func(d, want time.Duration) {
		t.Helper()
		l.Reset()
		l.Add(d)
		if got := l.At(100); l.Count() != 1 || math.Abs(float64(got-want)) > 1e-3*float64(want) {
			t.Errorf("%v counts as %v, want %v", d, got, want)
		}
	}
	f(-time.Second, 0)
	f(0, 0)
	f(1500, 1500)
	f(longest, longest)
	f(math.MaxInt64, longest)
}
