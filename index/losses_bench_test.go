package index

import (
	"fmt"
	"testing"
)

// BenchmarkLosses is BenchmarkStoreRemove by whole prompts and by single blocks from the end, as
// engines evict them, with and without a ring of losses; compare them within one run.
func BenchmarkLosses(b *testing.B) {
	for _, remembers := range []bool{false, true} {
		for _, single := range []bool{false, true} {
			b.Run(fmt.Sprintf("remembers=%t/single=%t", remembers, single), func(b *testing.B) {
				f := newFleet(128, 512, 256)
				f.fill()
				if remembers {
					for _, o := range f.owners {
						f.x.RecordLosses(o, NewLosses(64<<10), 1)
					}
				}
				b.ReportAllocs()
				b.ResetTimer()
				var buf []uint64
				n := 0
				for i := 0; b.Loop(); i++ {
					p, w := i%len(f.chains), i%len(f.owners)
					buf = f.store(buf, w, p)
					if n += 2 * len(buf); !single {
						f.x.Remove(f.owners[w], buf, nil, CopySet)
						continue
					}
					for k := len(buf) - 1; k >= 0; k-- {
						f.x.Remove(f.owners[w], buf[k:k+1], nil, CopySet)
					}
				}
				perBlock(b, n)
			})
		}
	}
}
