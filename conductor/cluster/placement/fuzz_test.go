package placement

import (
	"encoding/binary"
	"fmt"
	"math"
	"reflect"
	"slices"
	"testing"
)

// FuzzPlace places worlds with any numbers, empty and repeated names, and a previous placement
// that may name replicas and shards that never were.
func FuzzPlace(f *testing.F) {
	number := func(values ...float64) (out []byte) {
		for _, v := range values {
			out = binary.LittleEndian.AppendUint64(out, math.Float64bits(v))
		}
		return out
	}
	f.Add(number(1, 2, 3, 4), number(1, 1, 2), 2, 0.25, 0.5, uint8(0))
	f.Add(number(math.NaN(), -1, math.Inf(1), 1e308, 5e-324), number(math.NaN(), -1, math.Inf(1), 0, 5e-324, 1), 3, math.NaN(), math.Inf(1),
		uint8(1))
	f.Add(number(0, 0, 0), number(1, 1), -1, -1.0, 0.0, uint8(2))
	f.Add([]byte{}, number(1), 1, 1e300, 1e-300, uint8(3))
	f.Add(number(1, 1), []byte{}, math.MaxInt, 5e-324, 5e-324, uint8(3))
	f.Fuzz(func(t *testing.T, loads, weights []byte, owners int, slack, hot float64, names uint8) {
		w := world{opts: Options{Owners: owners, Slack: slack, Hot: hot, Cool: hot / 2}}
		// A few names, the empty one among them, come again and again.
		name := func(i int) string { return fmt.Sprint(i % (3 + int(names)))[min(1, i%5/4):] }
		for i, v := range floats(loads) {
			w.shards = append(w.shards, Shard{Key: name(i), Load: v, Queries: floats(loads)[len(floats(loads))-1-i]})
		}
		for i, v := range floats(weights) {
			w.replicas = append(w.replicas, Replica{ID: name(i), Weight: v})
		}
		now := w.place()
		w.checkNames(t, now)
		slices.Reverse(w.shards)
		slices.Reverse(w.replicas)
		if again := w.place(); !reflect.DeepEqual(again, now) {
			t.Errorf("the order of the input changes %v to %v", now, again)
		}
		for key := range now {
			now[key] = append(now[key], "", "gone", name(int(names)))
		}
		now["gone"] = []string{"gone"}
		w.checkNames(t, w.after(now).place())
	})
}

// floats reads at most 64 numbers.
func floats(data []byte) (out []float64) {
	for ; len(data) >= 8 && len(out) < 64; data = data[8:] {
		out = append(out, math.Float64frombits(binary.LittleEndian.Uint64(data)))
	}
	return out
}

// checkNames holds that every shard has as many distinct owners as it must have, each of them a
// replica that can own shards.
func (w world) checkNames(t *testing.T, owners map[string][]string) {
	t.Helper()
	able := map[string]bool{}
	for _, r := range w.replicas {
		able[r.ID] = able[r.ID] || r.Weight > 0 && r.ID != ""
	}
	n := 0
	for _, ok := range able {
		if ok {
			n++
		}
	}
	for _, s := range w.shards {
		has, ok := owners[s.Key]
		least := w.opts.Owners
		if least <= 0 {
			least = 2
		}
		if !ok || len(has) < min(least, n) {
			t.Errorf("%q: owners %v of %d replicas", s.Key, has, n)
		}
		for i, id := range has {
			if !able[id] || slices.Contains(has[:i], id) {
				t.Errorf("%q: owners %v", s.Key, has)
			}
		}
	}
}
