package index

import (
	"maps"
	"slices"
	"testing"

	"example.com/conductor/index/hash"
	"example.com/conductor/internal/must"
)

// clientHashes returns the client hashes of a snapshot by the names of blocks.
func (l *identityLab) clientHashes() map[uint64]uint64 {
	all := map[uint64]uint64{}
	l.x.Checkpoint().Snapshot().Walk(func(Owner) bool { return true }, func(s *Stretch) bool {
		for i, engine := range s.Engine {
			all[engine] = s.ClientHashes[i]
		}
		return true
	})
	must.Report(l, l.x.Check())
	return all
}

// The index asks for client hashes once it knows whose the blocks are: of the identity of the parent
// or of known names, whatever the event says, and once for each. The base identity has none of its
// own without WideBase.
func TestClientHashesAreOfAnIdentity(t *testing.T) {
	for _, o := range []Options{{}, {WideBase: true}, {NameAll: true}, {WideBase: true, NameAll: true}} {
		o.Scheme, o.KeepClientHashes = hash.DefaultScheme(), true
		l := newIdentityLabOf(t, o)
		asked := []Identity{}
		store := func(e Store) {
			e.Owner, e.Copies = l.gpu, CopySet
			e.ClientHashes = func(id Identity) (all []uint64) {
				asked = append(asked, id)
				for _, local := range e.Local {
					all = append(all, local+1000*(uint64(id)+1))
				}
				return all
			}
			l.x.Store(&e)
		}
		want := func(name string, ids []Identity, want map[uint64]uint64) {
			t.Helper()
			asked = slices.DeleteFunc(asked, func(id Identity) bool { return id == 0 && !o.WideBase }) // may be asked, and is not kept
			if !slices.Equal(asked, ids) {
				t.Errorf("%s: asked for %d, want %d", name, asked, ids)
			}
			asked = nil
			got := l.clientHashes()
			for engine, clientHash := range want {
				if got[engine] != clientHash {
					t.Errorf("%s: block %d has the client hash %d, want %d", name, engine, got[engine], clientHash)
				}
			}
		}
		store(Store{Identity: l.a, Engine: []uint64{101, 102}, Local: []uint64{1, 2}})
		want("a prompt", []Identity{l.a}, map[uint64]uint64{101: 2001, 102: 2002})
		store(Store{Identity: l.b, Parent: 102, HasParent: true, Engine: []uint64{103}, Local: []uint64{3}})
		want("behind a parent", []Identity{l.a}, map[uint64]uint64{103: 2003})
		store(Store{Identity: l.b, Engine: []uint64{201, 101, 104}, Local: []uint64{1, 9, 4}, ByName: true})
		want("by names", []Identity{l.b, l.a}, map[uint64]uint64{201: 3001, 101: 2001, 104: 2004})
		base, ids := uint64(5), []Identity(nil)
		if o.WideBase {
			base, ids = 1005, []Identity{0}
		}
		store(Store{Engine: []uint64{301}, Local: []uint64{5}})
		want("base", ids, map[uint64]uint64{301: base, 101: 2001})
		l.x.Store(&Store{Owner: l.gpu, Identity: l.b, Engine: []uint64{401}, Local: []uint64{6}})
		want("without a function", nil, map[uint64]uint64{401: 6})
	}
	l := newIdentityLabOf(t, Options{Scheme: hash.DefaultScheme()})
	l.x.Store(&Store{Owner: l.gpu, Identity: l.a, Engine: []uint64{1}, Local: []uint64{1}, ClientHashes: func(Identity) []uint64 {
		t.Error("an index that keeps none asks for client hashes")
		return nil
	}})
}

// What waits for its parent has the client hash of an identity that is a guess, and forgets it if the
// parent is of another one, or of one that got the number since.
func TestWaitingClientHash(t *testing.T) {
	for _, named := range []bool{false, true} {
		l := newIdentityLabOf(t, Options{Scheme: hash.DefaultScheme(), KeepClientHashes: true, NameAll: named})
		wait := func(id Identity, engine, parent uint64) {
			l.x.Store(&Store{Owner: l.gpu, Identity: id, Parent: parent, HasParent: true, Engine: []uint64{engine}, Local: []uint64{2},
				ClientHashes: func(of Identity) []uint64 { return []uint64{2 + 1000*(uint64(of)+1)} }})
		}
		wait(l.a, 102, 101)
		wait(l.a, 202, 201)
		wait(0, 302, 301)
		l.x.Checkpoint().Snapshot().Walk(func(Owner) bool { return true }, func(s *Stretch) bool {
			id := Identity(0)
			if s.Parent != 301 {
				id = l.a
			}
			if !s.Waiting || s.Identity != id || s.ClientHashes[0] != 2+1000*(uint64(id)+1) {
				t.Errorf("%+v waits", s)
			}
			return true
		})
		// An image does not say whose client hash it is.
		again := newIdentityLabOf(t, Options{Scheme: hash.DefaultScheme(), KeepClientHashes: true})
		learned := map[uint64]Identity{}
		loader := NewLoader(again.x, func(n uint32) (Source, bool) { return Source(n), true },
			func(n uint32) (Owner, bool) { return Owner(n), true },
			func(uint32) (Identity, bool) { return 0, false })
		loader.Learn = func(clientHash, _ uint64, id Identity, _ bool) { learned[clientHash] = id }
		for _, c := range imageOf(t, l.x) {
			must.Succeed(t, loader.Load(c.kind, c.bytes))
		}
		if loader.Done(); !maps.Equal(learned, map[uint64]Identity{1002: 0}) || again.x.waiting(0) != 3 {
			t.Errorf("learned %v, %d wait", learned, again.x.waiting(0))
		}

		store := func(id Identity, engine uint64) {
			l.x.Store(&Store{Owner: l.gpu, Identity: id, Engine: []uint64{engine}, Local: []uint64{1}})
		}
		store(l.a, 101)
		store(l.b, 201)
		store(0, 301)
		got := l.clientHashes()
		for engine, want := range map[uint64]uint64{102: 2002, 202: 0, 302: 2} {
			if got[engine] != want {
				t.Errorf("block %d has the client hash %d, want %d", engine, got[engine], want)
			}
		}
		c := l.x.NewIdentity(55)
		wait(c, 402, 401)
		if !l.x.DropIdentity(c) || l.x.NewIdentity(66) != c {
			t.Fatal("the number is not used again")
		}
		if got := l.clientHashes()[402]; got != 0 {
			t.Errorf("the client hash %d of a dropped identity", got)
		}
		store(c, 401)
		if got := l.clientHashes()[402]; got != 0 {
			t.Errorf("the client hash %d of a dropped identity", got)
		}
		l.wantOf(66, []uint64{1, 2}, "[0]x2 ")
	}
}

// Who learns from an image gets whose each client hash is, and whether it begins prompts.
func TestLoaderLearnsIdentities(t *testing.T) {
	l := newIdentityLabOf(t, Options{Scheme: hash.DefaultScheme(), KeepClientHashes: true, WideBase: true})
	for id, engine := range []uint64{100, 200, 300} {
		l.x.Store(&Store{Owner: l.gpu, Identity: Identity(id), Engine: []uint64{engine, engine + 1}, Local: []uint64{1, 2},
			ClientHashes: func(id Identity) []uint64 { return []uint64{10*uint64(id) + 11, 10*uint64(id) + 12} }})
	}
	type learned struct {
		local         uint64
		id            Identity
		chainIdentity bool
	}
	read := func(ids func(n uint32) (Identity, bool), want map[uint64]learned, o Options) {
		t.Helper()
		o.Scheme, o.KeepClientHashes = hash.DefaultScheme(), true
		x := newIdentityLabOf(t, o).x
		got := map[uint64]learned{}
		loader := NewLoader(x, func(n uint32) (Source, bool) { return Source(n), true },
			func(n uint32) (Owner, bool) { return Owner(n), true }, ids)
		loader.Learn = func(clientHash, local uint64, id Identity, root bool) { got[clientHash] = learned{local, id, root} }
		for _, c := range imageOf(t, l.x) {
			must.Succeed(t, loader.Load(c.kind, c.bytes))
		}
		loader.Done()
		if !maps.Equal(got, want) {
			t.Errorf("learned %v, want %v", got, want)
		}
		must.Report(t, x.Check())
	}
	same := func(n uint32) (Identity, bool) { return Identity(n), true }
	all := map[uint64]learned{11: {1, 0, true}, 12: {2, 0, false}, 21: {1, l.a, true}, 22: {2, l.a, false}, 31: {1, l.b, true},
		32: {2, l.b, false}}
	read(same, all, Options{WideBase: true})
	read(same, all, Options{})
	read(func(uint32) (Identity, bool) { return 0, false }, map[uint64]learned{11: {1, 0, true}, 12: {2, 0, false}}, Options{})
}

// An image leaves out the blocks of identities that the writer does not want.
func TestImageOfSomeIdentities(t *testing.T) {
	l := newIdentityLab(t)
	for id, engine := range []uint64{100, 200, 300} {
		l.x.Store(&Store{Owner: l.gpu, Identity: Identity(id), Engine: []uint64{engine, engine + 1}, Local: []uint64{1, 2}})
		l.x.Store(&Store{Owner: l.gpu, Identity: Identity(id), Engine: []uint64{engine + 9}, Rootless: true, Key: 77, HasKey: true})
	}
	again := newIdentityLab(t)
	var all []chunk
	must.Succeed(t, l.x.Checkpoint().WriteImage(Numbers{
		Source:   func(s Source) (uint32, bool) { return uint32(s), true },
		Owner:    func(o Owner) (uint32, bool) { return uint32(o), true },
		Identity: func(id Identity) bool { return id != l.a },
	}, func(kind ChunkKind, _ int, b []byte) error {
		all = append(all, chunk{kind, slices.Clone(b)})
		return nil
	}))
	load(t, again.x, all)
	if got := again.x.IdentityBlocks(nil); !slices.Equal(got, []int{3, 0, 3}) {
		t.Errorf("blocks by identity: %d", got)
	}
	must.Report(t, again.x.Check())
	again.want([]uint64{1, 2}, "[0]x2 ", "", "[0]x2 ")
}
