package bench

import "testing"

// One replay of a small synthetic load: every family stored at each holder, then
// asked for.
func BenchmarkReplay(b *testing.B) {
	for _, name := range Structures {
		b.Run(name, func(b *testing.B) {
			c := Config{Synthetic: 20_000, Holders: 4, Workers: 64, Tiers: 1, BlockSize: 128, Events: Canonical, Seed: 1}
			s := synthesize(&c)
			b.ReportAllocs()
			blocks := 0
			for b.Loop() {
				l := load{st: build(&c, name, false), s: s}
				var rows []Depth
				for i := range s.ops {
					if o := &s.ops[i]; o.kind == query {
						rows = l.st.Depths(s.seq[o.from:o.to], s.local[o.from:o.to], rows[:0])
						continue
					}
					l.change(&s.ops[i])
				}
				blocks += s.Size.all()
			}
			b.ReportMetric(float64(blocks)/b.Elapsed().Seconds(), "blocks/s")
		})
	}
}
