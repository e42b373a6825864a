package conductor

import (
	"testing"

	"kvconductor/conductor/scope"
	"kvconductor/index"
)

// BenchmarkRecallPut remembers names of a context as a rebuild drops them, 4,096 at once.
func BenchmarkRecallPut(b *testing.B) {
	const together = 4096
	r := newRecall(64 << 20)
	defer r.close()
	x := &indexContext{key: scope.Variant{Salt: "s"}, deployment: &deployment{key: scope.Deployment{Tenant: DefaultTenant, Model: "m", BlockSize: 16}}}
	names := make([]index.Name, together)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		for j := range names {
			names[j] = index.Name{Engine: uint64(i*together + j), Key: uint64(j)}
		}
		r.remember(x, names)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*together), "ns/name")
}
