package index

import (
	"slices"
	"testing"
)

// ClearIdentity clears one identity of one owner.
func (x *Index) ClearIdentity(name Owner, id Identity) int {
	return x.ClearIdentities([]Owner{name}, func(of Identity) bool { return of == id }, nil)
}

// What several owners lose at once has names, which the caller may hear. Other identities, and other sources, keep theirs.
func TestClearIdentities(t *testing.T) {
	l := newIdentityLab(t)
	other := l.x.NewOwner(l.sources[0])
	foreign := l.x.NewOwner(l.x.NewSource())
	local := []uint64{5, 6}
	for id, first := range []uint64{11, 21, 31} {
		for _, o := range []Owner{l.gpu, other} {
			l.x.Store(&Store{Owner: o, Identity: Identity(id), Engine: []uint64{first, first + 1}, Local: local})
		}
	}
	l.x.Store(&Store{Owner: foreign, Identity: l.a, Engine: []uint64{91, 92}, Local: local})
	if _, only := l.x.Inspect().OnlyName(l.sources[0], []Owner{l.gpu}, 22); only {
		t.Error("a block has two names and one of them is the only one")
	}
	if id, only := l.x.Inspect().OnlyName(l.sources[0], []Owner{other}, 31); !only || id != l.b {
		t.Errorf("the only name of a block: %v, of identity %d", only, id)
	}
	if _, only := l.x.Inspect().OnlyName(l.sources[0], []Owner{foreign}, 31); only {
		t.Error("an owner holds no block and has its name")
	}
	names := map[uint64]bool{}
	owners := []Owner{l.gpu, other}
	if n := l.x.ClearIdentities(owners, func(id Identity) bool { return id != 0 }, func(h uint64) { names[h] = true }); n != 8 {
		t.Errorf("%d blocks cleared", n)
	}
	for _, h := range []uint64{21, 22, 31, 32} {
		if !names[h] {
			t.Errorf("the name %d was not told: %v", h, names)
		}
	}
	if names[11] {
		t.Error("a name of another identity was told")
	}
	if n := []int{l.x.BlocksOf(l.gpu), l.x.BlocksOf(other), l.x.BlocksOf(foreign)}; !slices.Equal(n, []int{2, 2, 2}) {
		t.Errorf("blocks left: %v", n)
	}
	if err := l.x.Check(); err != nil {
		t.Error(err)
	}
}
