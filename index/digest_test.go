package index

import (
	"math/rand/v2"
	"testing"

	"example.com/conductor/internal/must"
)

// TestDigestIsOrderFree stores and removes the same blocks in different orders, cut
// differently, under other names and next to another source. The digests are equal.
func TestDigestIsOrderFree(t *testing.T) {
	rng := rand.New(rand.NewPCG(18, 1))
	local := make([]uint64, 300)
	for i := range local {
		local[i] = rng.Uint64()
	}
	// fill stores a chain in pieces of at most step blocks, and returns the digest of its owner.
	fill := func(step int, salt uint64, other bool) (*Index, Owner, *SharedDigest) {
		x, d := New(Options{}), new(SharedDigest)
		src := x.NewSource()
		o := x.NewOwner(src)
		x.JoinDigest(d, o, 3)
		if other {
			p := x.NewOwner(x.NewSource())
			x.Store(&Store{Owner: p, Engine: name(salt, 0, 40), Local: local[:40]})
		}
		for at := 0; at < len(local); at += step {
			end := min(at+step, len(local))
			e := Store{Owner: o, Engine: name(salt, at, end), Local: local[at:end]}
			if at > 0 {
				e.Parent, e.HasParent = uint64(at)+salt, true
			}
			x.Store(&e)
		}
		must.Succeed(t, x.Check())
		return x, o, d
	}
	x, o, d := fill(64, 1000, false)
	want := x.Digest(o)
	if want.Blocks != len(local) || want.Loose != 0 || want.Sum == 0 || d.Load() != (Digest{want.Blocks, 0, 3 * want.Sum}) {
		t.Fatalf("%+v, shared %+v", want, d.Load())
	}
	e := new(SharedDigest)
	if x.JoinDigest(e, o, 5); d.Load() != (Digest{}) || e.Load() != (Digest{want.Blocks, 0, 5 * want.Sum}) {
		t.Fatalf("%+v is left, %+v counted", d.Load(), e.Load())
	}
	x.JoinDigest(d, o, 3)
	for step := range 70 {
		y, p, e := fill(step+1, uint64(step)*7777, step%2 == 0)
		if got := y.Digest(p); got != want || e.Load() != d.Load() {
			t.Fatalf("in pieces of %d blocks: %+v, want %+v", step+1, got, want)
		}
		all := name(uint64(step)*7777, 0, len(local))
		for _, i := range rng.Perm(len(all))[:100] {
			y.Remove(p, all[i:i+1], nil, CopySet)
		}
		if y.Digest(p) == want {
			t.Fatal("the digest does not see that blocks have left")
		}
		must.Succeed(t, y.Check())
		y.ClearOwner(p)
		if y.Digest(p) != (Digest{}) || e.Load() != (Digest{}) {
			t.Fatalf("after a clear: %+v, shared %+v", y.Digest(p), e.Load())
		}
	}
}

// name returns engine hashes of blocks.
func name(salt uint64, from, to int) (all []uint64) {
	for i := from; i < to; i++ {
		all = append(all, uint64(i)+1+salt)
	}
	return all
}

// TestDigestOfLooseBlock moves an orphan into its chain. Its digest is then that of a block that
// came in order.
func TestDigestOfLooseBlock(t *testing.T) {
	x, y := New(Options{}), New(Options{})
	a, b := x.NewOwner(x.NewSource()), y.NewOwner(y.NewSource())
	first := Store{Engine: []uint64{1}, Local: []uint64{11}}
	second := Store{Parent: 1, HasParent: true, Engine: []uint64{2, 3}, Local: []uint64{12, 13}}
	first.Owner, second.Owner = a, a
	x.Store(&first)
	x.Store(&second)
	first.Owner, second.Owner = b, b
	y.Store(&second)
	if d := y.Digest(b); d.Blocks != 2 || d.Loose != 2 {
		t.Errorf("orphans: %+v", d)
	}
	y.Store(&first)
	if got, want := y.Digest(b), x.Digest(a); got != want || got != (Digest{Blocks: 3, Sum: 11 + 12 + 13}) {
		t.Errorf("%+v, want %+v", got, want)
	}
	must.Succeed(t, y.Check())
}

// Replicas are different processes: a digest depends on nothing that is random in one.
func TestDigestIsTheSameEverywhere(t *testing.T) {
	x := New(Options{})
	o := x.NewOwner(x.NewSource())
	x.Store(&Store{Owner: o, Engine: []uint64{1, 2}, Local: []uint64{10, 20}})
	x.Store(&Store{Owner: o, Engine: []uint64{3}})
	if got, want := x.Digest(o), (Digest{Blocks: 3, Loose: 1, Sum: 0xa7217502fe662017}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}
