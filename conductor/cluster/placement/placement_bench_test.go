package placement

import (
	"fmt"
	"math"
	"testing"
)

// BenchmarkPlace places shards whose loads follow a Zipf law, without a previous placement and
// after one replica has left.
func BenchmarkPlace(b *testing.B) {
	for _, size := range []struct{ shards, replicas int }{{200, 12}, {10_000, 100}} {
		w := evenWorld(size.shards, size.replicas)
		for k := range w.shards {
			w.shards[k].Load = math.Pow(float64(k+1), -1.1)
			w.shards[k].Queries = w.shards[k].Load / 2
		}
		name := fmt.Sprintf("shards=%d/replicas=%d", size.shards, size.replicas)
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				w.place()
			}
		})
		next := w.after(w.place())
		next.replicas = next.replicas[1:]
		b.Run(name+"/left", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				next.place()
			}
		})
	}
}
