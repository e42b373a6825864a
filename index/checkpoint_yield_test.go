package index

import (
	"testing"

	"example.com/conductor/index/hash"
)

// A cut yields between pieces, so that who copies it can let others have the processor.
func TestCutYields(t *testing.T) {
	x := New(Options{Scheme: hash.DefaultScheme(), KeepClientHashes: true})
	o := x.NewOwner(x.NewSource())
	const chains = 3 * yieldSteps
	for i := range uint64(chains) {
		x.Store(&Store{Owner: o, Engine: []uint64{i + 1}, Local: []uint64{i + 1}})
	}
	c := x.Checkpoint()
	yields := 0
	c.Yield = func() { yields++ }
	if s := c.Snapshot(); len(s.pieces) != chains || yields != chains/yieldSteps {
		t.Errorf("%d pieces were copied with %d yields between them", len(s.pieces), yields)
	}
}
