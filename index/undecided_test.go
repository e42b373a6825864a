package index

import "testing"

// Blocks at the beginning of a prompt whose identity nothing tells wait, and what follows them, until another event names
// one of their hashes with its identity. They are no orphans: the source has announced all that is before them.
func TestUndecided(t *testing.T) {
	l := newIdentityLab(t)
	host := l.x.NewOwner(l.sources[0])
	local := []uint64{5, 6, 7}
	store := func(e Store, orphaned, undecided int) {
		t.Helper()
		e.Owner, e.ByName, e.Undecided = host, true, !e.HasParent
		if res := l.x.Store(&e); res.Orphaned != orphaned || res.Undecided != undecided || res.Placed {
			t.Errorf("%+v: %+v", e, res)
		}
	}
	store(Store{Engine: []uint64{11, 12}, Local: local[:2]}, 2, 2)
	store(Store{Engine: []uint64{13}, Local: local[2:], Parent: 12, HasParent: true}, 1, 1)
	store(Store{Engine: []uint64{23}, Local: local[2:], Parent: 22, HasParent: true}, 1, 0)
	l.want(local, "", "", "")
	if h := l.x.Holdings(); h.Waiting[l.sources[0]] != 1 || h.Untold[l.sources[0]] != 3 {
		t.Errorf("%+v", h)
	}
	// The device names the first block alone. The others follow it by their tokens.
	if res := l.x.Store(&Store{Owner: l.gpu, Identity: l.a, Engine: []uint64{11}, Local: local[:1]}); res.Resolved != 3 {
		t.Errorf("%+v", res)
	}
	l.x.Remove(l.gpu, []uint64{11}, nil, CopySet)
	if n := l.x.IdentityBlocks(nil)[l.a]; n != 3 {
		t.Errorf("%d blocks of the identity", n)
	}
	begins := Store{Owner: host, ByName: true, Undecided: true, Begins: l.c[:2], Engine: []uint64{31}, Local: local[:1]}
	if res := l.x.Store(&begins); !res.Begun || res.Identity != l.a || res.Undecided != 0 {
		t.Errorf("tokens that begin prompts of one identity: %+v", res)
	}
	if err := l.x.Check(); err != nil {
		t.Error(err)
	}
}
