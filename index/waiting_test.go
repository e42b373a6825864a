package index

import (
	"slices"
	"testing"

	"example.com/conductor/index/hash"
	"example.com/conductor/internal/must"
)

// wantLoose compares who holds blocks that wait under hashes of an identity, given without its constant.
func (l *identityLab) wantLoose(id Identity, hashes []uint64, want ...[]uint32) {
	l.Helper()
	must.Succeed(l, l.x.Check())
	var m Match
	l.x.Match(Lookup{Constant: l.c[id], Chain: keys(hashes), Loose: true}, nil, &m)
	var got [][]uint32
	for owners, blocks := range ownersHolding(&m) {
		for range blocks {
			got = append(got, owners)
		}
	}
	if !slices.EqualFunc(got, want, slices.Equal) {
		l.Errorf("under hashes of identity %d: %v, want %v", id, got, want)
	}
}

// wantBlocks compares the blocks by identity.
func (l *identityLab) wantBlocks(want ...int) {
	l.Helper()
	if got := l.x.IdentityBlocks(nil); !slices.Equal(got, want) {
		l.Errorf("blocks by identity %v, want %v", got, want)
	}
}

// fold returns hashes with the constant of an identity in them.
func (l *identityLab) fold(id Identity, hashes ...uint64) []uint64 {
	for i := range hashes {
		hashes[i] ^= l.c[id]
	}
	return hashes
}

// What sources without tokens hold under hashes without the constant of the identity gets its place with
// the block. What sources that announce tokens hold so does not: they mean blocks of their own.
func TestWaitingWithoutConstant(t *testing.T) {
	for _, named := range []bool{false, true} {
		l := newIdentityLabOf(t, Options{Scheme: hash.DefaultScheme(), NameAll: named})
		l.x.Store(&Store{Owner: l.pool, Engine: []uint64{101, 102, 103}, Copies: CopySet})
		l.x.Store(&Store{Owner: l.other, Parent: 1, HasParent: true, Engine: []uint64{201}, Local: []uint64{9}})
		l.wantLoose(0, []uint64{101, 102, 103}, []uint32{2}, []uint32{2}, []uint32{2})
		for range 2 { // the second one finds all names
			l.x.Store(&Store{Owner: l.gpu, Identity: l.a, Engine: l.fold(l.a, 101, 102), Local: []uint64{1, 2}, Copies: CopySet})
			l.x.Store(&Store{Owner: l.gpu, Identity: l.b, Engine: l.fold(l.b, 201), Local: []uint64{9}, Copies: CopySet})
			l.want([]uint64{1, 2}, "", "[0 2]x2 ", "")
			l.want([]uint64{9}, "", "", "[0]x1 ")
			l.wantLoose(0, []uint64{201}, []uint32{1})
			l.wantLoose(0, []uint64{103}, []uint32{2})
		}
		// The pool and the engine name the block in their own way from then on.
		if got := l.x.askAll(l.sources[2], append(l.fold(l.a, 101), 101)); got[0].Key != got[1].Key || got[1].Identity != l.a {
			t.Errorf("%+v", got)
		}
		if res := l.x.Remove(l.pool, []uint64{101}, nil, CopySet); res.Removed != 1 {
			t.Errorf("%+v", res)
		}
		l.want([]uint64{1, 2}, "", "[0]x1 [0 2]x1 ", "")
		// What comes behind a block that waits moves with it.
		l.x.Store(&Store{Owner: l.pool, Engine: []uint64{301}})
		l.x.Store(&Store{Owner: l.gpu, Identity: l.a, Parent: 102 ^ l.c[l.a], HasParent: true, Engine: l.fold(l.a, 301),
			Local: []uint64{3}})
		l.want([]uint64{1, 2, 3}, "", "[0]x1 [0 2]x2 ", "")
	}
}

// What waits under hashes with the constant of an identity is of that identity; a snapshot, a replica and
// an image say so. What has tokens and waits for its parent is of the base one.
func TestIdentityOfWaitingBlocks(t *testing.T) {
	l := newIdentityLab(t)
	l.x.Store(&Store{Owner: l.pool, Identity: l.a, Engine: l.fold(l.a, 101, 102)})
	l.x.Store(&Store{Owner: l.pool, Identity: l.b, Engine: l.fold(l.b, 101)})
	l.x.Store(&Store{Owner: l.pool, Engine: []uint64{101, 107}})
	l.x.Store(&Store{Owner: l.other, Identity: l.a, Parent: 1, HasParent: true, Engine: []uint64{109}, Local: []uint64{9}})
	l.wantBlocks(3, 2, 1)
	type waiting struct {
		owner   Owner
		id      Identity
		engine  uint64
		waiting bool
	}
	want := map[waiting]bool{
		{l.pool, l.a, 101, false}: true, {l.pool, l.a, 102, false}: true, {l.pool, l.b, 101, false}: true,
		{l.pool, 0, 101, false}: true, {l.pool, 0, 107, false}: true, {l.other, l.a, 109 ^ l.c[l.a], true}: true, // a guess
	}
	walk := func(x *Index, each func(*Stretch)) {
		t.Helper()
		left := len(want)
		x.Checkpoint().Snapshot().Walk(all, func(s *Stretch) bool {
			if !want[waiting{s.Owner, s.Identity, s.Engine[0] ^ l.c[s.Identity], s.Waiting}] || len(s.Engine) != 1 || !s.Waiting &&
				s.Key != s.Engine[0]^l.c[s.Identity] {
				t.Errorf("%+v", s)
			}
			left--
			each(s)
			return true
		})
		if left != 0 {
			t.Errorf("%d blocks more than expected", -left)
		}
	}
	replica, loaded := newIdentityLab(t), newIdentityLab(t)
	walk(l.x, func(s *Stretch) {
		var local []uint64
		if s.ClientHashes[0] != 0 {
			local = s.ClientHashes
		}
		replica.x.RestoreStretch(s.Owner, s, local, false)
	})
	walk(replica.x, func(*Stretch) {})
	load(t, loaded.x, imageOf(t, l.x))
	for _, l := range []*identityLab{l, replica, loaded} {
		l.wantBlocks(3, 2, 1)
		l.wantLoose(l.a, []uint64{101, 102}, []uint32{2}, []uint32{2})
		l.wantLoose(l.b, []uint64{101, 102}, []uint32{2})
		l.wantLoose(0, []uint64{101, 102}, []uint32{2})
		for _, engine := range append(l.fold(l.a, 101), 101) {
			if held := l.x.ResolveHash(l.sources[2], engine); held.Named ||
				l.x.tree.findHeldRaw(l.x.holders.sources[l.sources[2]], engine).isNone() {
				t.Errorf("%+v", held)
			}
		}
		if n := l.x.ClearIdentity(l.pool, 0); n != 2 {
			t.Errorf("%d blocks of the base identity cleared", n)
		}
		l.wantBlocks(1, 2, 1)
		if l.x.DropIdentity(l.b) {
			t.Error("an identity was dropped that a block waits for")
		}
		if n := l.x.ClearIdentity(l.pool, l.b); n != 1 || !l.x.DropIdentity(l.b) {
			t.Errorf("%d blocks cleared", n)
		}
		l.wantBlocks(1, 2, 0)
		// Blocks move when the hashes get a meaning.
		l.x.Store(&Store{Owner: l.gpu, Identity: l.a, Engine: l.fold(l.a, 101, 102), Local: []uint64{1, 2}})
		l.wantOf(l.c[l.a], []uint64{1, 2}, "[0 2]x2 ")
		l.wantBlocks(1, 2, 0)
	}
}

// A block that is known by its key alone is of its own identity, also if others wait under the key as if
// that were a hash of another one.
func TestKeyIsHashOfAnother(t *testing.T) {
	l := newIdentityLab(t)
	l.x.Store(&Store{Owner: l.pool, Identity: l.a, Engine: []uint64{777}})
	l.wantBlocks(0, 1, 0)
	l.x.Store(&Store{Owner: l.other, Engine: []uint64{5}, Rootless: true, Key: 777, HasKey: true})
	l.wantBlocks(1, 0, 0)
	must.Succeed(t, l.x.Check())
	if got := l.x.askAll(l.sources[1], []uint64{5}); got[0].Identity != 0 || got[0].Key != 777 {
		t.Errorf("%+v", got)
	}
}

// A lookup among what waits takes the hashes of one identity.
func TestLooseLookupHasConstant(t *testing.T) {
	l := newIdentityLab(t)
	l.x.Store(&Store{Owner: l.pool, Identity: l.a, Engine: l.fold(l.a, 101, 102)})
	l.x.Store(&Store{Owner: l.other, Engine: []uint64{101}})
	hashes := []uint64{101, 102}
	l.wantLoose(l.a, hashes, []uint32{2}, []uint32{2})
	l.wantLoose(l.b, hashes)
	l.wantLoose(0, hashes, []uint32{1})
	var m Match
	l.x.Match(Lookup{Chain: keys(hashes), Loose: true}, []Lookup{{Constant: l.c[l.a], Chain: keys(hashes), Loose: true}}, &m)
	if m.Blocks != 2 || len(m.Prefixes) != 2 || m.Prefixes[1] != (Prefix{Owner: uint32(l.pool), Blocks: 2}) {
		t.Errorf("%+v", m)
	}
}

// newSayingLab is a lab whose identities have adapters and salts: a has an adapter, b has another one and
// a salt.
func newSayingLab(t *testing.T, o Options) *identityLab {
	kinds := [][2]string{{}, {"a", ""}, {"b", "s"}}
	o.Scheme, o.KeepClientHashes = hash.DefaultScheme(), true
	o.Agree = func(says Says, a, b Identity) bool {
		return (says&SaysAdapter == 0 || kinds[a][0] == kinds[b][0]) && (says&SaysSalt == 0 || kinds[a][1] == kinds[b][1])
	}
	return newIdentityLabOf(t, o)
}

// Blocks go on behind their parent only if what their event says of their identity is true of the
// parent's. Else they wait.
func TestSaysOfParent(t *testing.T) {
	for _, named := range []bool{false, true} {
		l := newSayingLab(t, Options{NameAll: named})
		for id, engine := range []uint64{100, 200, 300} {
			l.x.Store(&Store{Owner: l.gpu, Identity: Identity(id), Engine: []uint64{engine}, Local: []uint64{1},
				Says: SaysAdapter | SaysSalt})
		}
		l.want([]uint64{1}, "[0]x1 ", "[0]x1 ", "[0]x1 ")
		next := uint64(1000)
		for id, parent := range []uint64{100, 200, 300} {
			for says := range Says(4) {
				for of := range Identity(3) {
					next++
					held := says == 0 || of == Identity(id) || l.x.tree.identities.agree(says, of, Identity(id))
					want := StoreResult{Added: 1, Identity: Identity(id), Placed: true, Before: 1, Chained: true}
					if !held {
						want = StoreResult{Added: 1, Orphaned: 1}
					}
					e := Store{Owner: l.gpu, Identity: of, Says: says, Parent: parent, HasParent: true, Engine: []uint64{next},
						Local: []uint64{next}}
					if res := l.x.Store(&e); res != want {
						t.Errorf("behind identity %d, of %d, says %d: %+v, want %+v", id, of, says, res, want)
					}
				}
			}
		}
		// All adapters differ: 6 pairs that say adapters and 6 that say both. 4 pairs have different salts.
		if got := l.x.waiting(l.sources[0]); got != 16 {
			t.Errorf("%d blocks wait", got)
		}
		must.Succeed(t, l.x.Check())
	}
}

// A link that says something else than its parent's identity is dropped when the parent gets a place.
// The block stays, by its hash, and so do those behind it.
func TestSaysOfWaiting(t *testing.T) {
	for _, named := range []bool{false, true} {
		l := newSayingLab(t, Options{NameAll: named})
		wait := func(id Identity, says Says, engine uint64) {
			l.x.Store(&Store{Owner: l.gpu, Identity: id, Says: says, Parent: 100, HasParent: true, Engine: []uint64{engine, engine + 1},
				Local: []uint64{engine, engine + 1}})
		}
		wait(l.a, SaysAdapter, 201) // true
		wait(l.b, SaysAdapter, 301) // false
		wait(l.b, 0, 401)           // a guess
		wait(0, SaysSalt, 501)      // true of another identity
		if n := l.x.waiting(l.sources[0]); n != 8 {
			t.Fatalf("%d blocks wait", n)
		}
		if res := l.x.Store(&Store{Owner: l.gpu, Identity: l.a, Engine: []uint64{100}, Local: []uint64{1}}); res.Resolved != 6 {
			t.Errorf("%+v", res)
		}
		l.want([]uint64{1, 201, 202}, "", "[0]x3 ", "")
		l.want([]uint64{1, 301}, "", "[0]x1 ", "")
		l.want([]uint64{1, 401, 402}, "", "[0]x3 ", "")
		l.want([]uint64{1, 501, 502}, "", "[0]x3 ", "")
		l.wantLoose(0, []uint64{301, 302}, []uint32{0}, []uint32{0})
		if n := l.x.waiting(l.sources[0]); n != 1 {
			t.Errorf("%d blocks wait", n)
		}
		// Its parent comes later.
		l.x.Store(&Store{Owner: l.gpu, Identity: l.b, Says: SaysAdapter, Engine: []uint64{301}, Local: []uint64{301}, Copies: CopySet})
		l.want([]uint64{301, 302}, "", "", "[0]x2 ")
		if l.x.HasLoose() {
			t.Error("something still waits")
		}
	}
}

// What a link says is true of no identity once its own has left, also if another one has the number.
func TestSaysOfLeftIdentity(t *testing.T) {
	for _, again := range []bool{false, true} {
		l := newSayingLab(t, Options{})
		l.x.Store(&Store{Owner: l.gpu, Identity: l.a, Says: SaysSalt, Parent: 100, HasParent: true, Engine: []uint64{201},
			Local: []uint64{2}})
		if !l.x.DropIdentity(l.a) {
			t.Fatal("the identity has a block")
		}
		if again && l.x.NewIdentity(55) != l.a {
			t.Fatal("the number is not used again")
		}
		l.x.Store(&Store{Owner: l.gpu, Engine: []uint64{100}, Local: []uint64{1}})
		l.wantOf(0, []uint64{1, 2}, "[0]x1 ")
		l.wantLoose(0, []uint64{201}, []uint32{0})
	}
}
