package index

import "testing"

// TestManyNamesOfOneBlock lets a source give one block very many engine hashes, which is memory that the bounds
// count, and drops the source. Taking the names one by one off a list would take minutes.
func TestManyNamesOfOneBlock(t *testing.T) {
	const n = 100_000
	x := New(Options{MaxBytes: 1 << 30})
	s := x.NewSource()
	o := x.NewOwner(s)
	before := x.bounds.tableBytes()
	for i := range uint64(n) {
		x.Store(&Store{Owner: o, Engine: []uint64{i + 1}, Local: []uint64{7}})
	}
	if got := x.bounds.tableBytes() - before; got < n*privateBytes/2 {
		t.Errorf("%d names take %d bytes", n, got)
	}
	x.DropSource(s)
	if len(x.names.privates.of) > 0 || x.names.privates.n.Load() != 0 {
		t.Errorf("%d blocks have %d names", len(x.names.privates.of), x.names.privates.n.Load())
	}
}
