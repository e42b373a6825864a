package index

import (
	"fmt"
	"slices"
	"testing"

	"example.com/conductor/index/hash"
	"example.com/conductor/internal/must"
)

// identityLab is an index with the base identity and two others, and owners of two sources that
// teach and of one that does not.
type identityLab struct {
	*testing.T
	x       *Index
	a, b    Identity
	c       []uint64 // constants by Identity
	gpu     Owner
	other   Owner
	pool    Owner
	sources [3]Source
}

func newIdentityLab(t *testing.T) *identityLab {
	return newIdentityLabOf(t, Options{Scheme: hash.DefaultScheme(), KeepClientHashes: true})
}

func newIdentityLabOf(t *testing.T, o Options) *identityLab {
	l := &identityLab{T: t, x: New(o)}
	l.c = []uint64{0, 0x1234_5678_9abc_def1, 0x0fed_cba9_8765_4321}
	l.a, l.b = l.x.NewIdentity(l.c[1]), l.x.NewIdentity(l.c[2])
	for i, o := range []*Owner{&l.gpu, &l.other, &l.pool} {
		l.sources[i] = l.x.NewSource()
		*o = l.x.NewOwner(l.sources[i])
	}
	return l
}

// want compares who holds the blocks of a chain in each identity, as "owners x blocks".
func (l *identityLab) want(local []uint64, want ...string) {
	l.Helper()
	for id, want := range want {
		l.wantOf(l.c[id], local, want)
	}
}

// wantOf is want for one identity, given by its constant.
func (l *identityLab) wantOf(constant uint64, local []uint64, want string) {
	l.Helper()
	must.Succeed(l, l.x.Check())
	c := hash.DefaultScheme().AppendChain(nil, local)
	var m Match
	got := ""
	l.x.matchKeys(constant, c, &m)
	for owners, blocks := range ownersHolding(&m) {
		got += fmt.Sprintf("%vx%d ", owners, blocks)
	}
	if got != want {
		l.Errorf("constant %x: %q, want %q", constant, got, want)
	}
	var lazy Match
	l.x.matchChain(constant, &prompt{local, c}, &lazy)
	if lazy.Blocks != m.Blocks || !slices.Equal(lazy.Prefixes, m.Prefixes) {
		l.Errorf("constant %x: lazily %v, want %v", constant, lazy, m)
	}
}

// A chain that goes on behind a block keeps the identity of the block, whatever its events say.
func TestIdentityIsInherited(t *testing.T) {
	l := newIdentityLab(t)
	local := make([]uint64, 200)
	for i := range local {
		local[i] = uint64(1000 + i)
	}
	for id, first := range []uint64{1, 10_000, 20_000} { // names
		for from, step := 0, 1; from < len(local); from, step = from+step, step+5 {
			e := Store{Owner: l.gpu}
			for i := from; i < min(from+step, len(local)); i++ {
				e.Engine, e.Local = append(e.Engine, first+uint64(i)), append(e.Local, local[i])
			}
			if from == 0 {
				e.Identity = Identity(id)
			} else {
				e.Parent, e.HasParent = first+uint64(from)-1, true
				e.Identity = Identity(from % 3)
			}
			if res := l.x.Store(&e); !res.Placed || res.Identity != Identity(id) || res.Added != len(e.Engine) {
				t.Fatalf("identity %d: %+v", id, res)
			}
		}
	}
	l.want(local, "[0]x200 ", "[0]x200 ", "[0]x200 ")
	for id, first := range []uint64{1, 10_000, 20_000} {
		known := l.x.askAll(l.sources[0], []uint64{first, first + 1, first + 199})
		chain := hash.DefaultScheme().AppendChain(nil, local)
		for i, at := range []int{0, 1, 199} {
			if known[i].Key != chain[at] || known[i].Identity != Identity(id) || !known[i].Named {
				t.Errorf("identity %d, block %d: %+v", id, at, known[i])
			}
		}
		if names := l.x.Inspect().NamesAt(l.c[id], &prompt{local, chain}, 70); !slices.Equal(names, []uint64{first + 70}) {
			t.Errorf("names of block 70 of identity %d: %v", id, names)
		}
	}
	if got := l.x.IdentityBlocks(nil); !slices.Equal(got, []int{200, 200, 200}) {
		t.Errorf("blocks %v", got)
	}
	l.x.Remove(l.gpu, []uint64{10_000 + 150}, nil, CopySet)
	l.want(local, "[0]x200 ", "[0]x150 ", "[0]x200 ")
	if n := l.x.ClearIdentity(l.gpu, l.b); n != 200 {
		t.Errorf("%d blocks cleared", n)
	}
	l.want(local, "[0]x200 ", "[0]x150 ", "")
	if l.x.DropIdentity(l.a) || !l.x.DropIdentity(l.b) || l.x.DropIdentity(l.b) || l.x.DropIdentity(0) {
		t.Error("the wrong identities were dropped")
	}
	if id := l.x.NewIdentity(77); id != l.b {
		t.Errorf("a new identity has the number %d", id)
	}
	l.want(local, "[0]x200 ", "[0]x150 ", "")
	l.x.ClearOwner(l.gpu)
	l.x.compactAll()
	if !l.x.DropIdentity(l.a) {
		t.Error("a piece is left")
	}
}

// Of an event that counts by names, blocks with known hashes are those of the hashes. Others come
// behind the block before them, or begin a prompt.
func TestStoreByName(t *testing.T) {
	for _, named := range []bool{false, true} {
		l := newIdentityLab(t)
		if named {
			l.x.NameAllBlocks() // events take the way next to others
		}
		local := make([]uint64, 150)
		var engine, wrong []uint64
		for i := range local {
			local[i] = uint64(1000 + i)
			engine, wrong = append(engine, uint64(5000+i)), append(wrong, 7)
		}
		l.x.Store(&Store{Owner: l.gpu, Identity: l.a, Engine: engine[:100], Local: local[:100]})
		// The tokens say nothing of known blocks, and the others lie behind the last known one.
		e := Store{Owner: l.pool, Engine: engine, Local: slices.Concat(wrong[:100], local[100:]), ByName: true}
		res := l.x.Store(&e)
		if want := (StoreResult{Added: 150, ByName: 100, Identity: l.a, Placed: true}); res != want {
			t.Fatalf("%+v, want %+v", res, want)
		}
		l.want(local, "", "[0 2]x100 [2]x50 ", "")
		if res := l.x.Store(&e); res.Copies != 150 || res.Added != 0 {
			t.Errorf("once more: %+v", res)
		}
		// Behind its parent; nothing is known of it.
		res = l.x.Store(&Store{Owner: l.pool, Parent: 5149, HasParent: true, Engine: []uint64{1, 2}, Local: []uint64{3, 4}, ByName: true})
		if res.Added != 2 || res.Identity != l.a {
			t.Errorf("behind a parent: %+v", res)
		}
		l.want(slices.Concat(local, []uint64{3, 4}), "", "[0 2]x100 [2]x52 ", "")
		// At the beginning of a prompt of the identity that it says.
		res = l.x.Store(&Store{Owner: l.pool, Identity: l.b, Engine: []uint64{11, 12}, Local: []uint64{3, 4}, ByName: true})
		if res.Added != 2 || res.Identity != l.b {
			t.Errorf("at the beginning: %+v", res)
		}
		l.want([]uint64{3, 4}, "", "", "[2]x2 ")
		// A known block between unknown ones: blocks behind it go on there.
		res = l.x.Store(&Store{Owner: l.pool, Engine: []uint64{21, 5000, 22}, Local: []uint64{3, 4, 5}, ByName: true})
		if res.Added != 2 || res.Copies != 1 || res.Identity != 0 {
			t.Errorf("from one chain to another: %+v", res)
		}
		l.want([]uint64{3}, "[2]x1 ", "", "[2]x1 ")
		l.want([]uint64{1000, 5}, "", "[0 2]x1 [2]x1 ", "")
		// Known blocks behind one with a new name.
		res = l.x.Store(&Store{Owner: l.other, Identity: l.a, Engine: []uint64{31, 5001, 5002}, Local: []uint64{1000, 1001, 1002},
			ByName: true})
		if want := (StoreResult{Added: 3, ByName: 2, Identity: l.a, Placed: true, Chained: true}); res != want {
			t.Errorf("behind a new name: %+v, want %+v", res, want)
		}
	}
}

// What waits under a hash gets its place when any source says what the hash means, of all sources
// and with what waits behind it.
func TestWaitingMovesOfAllSources(t *testing.T) {
	l := newIdentityLab(t)
	l.x.Store(&Store{Owner: l.pool, Engine: []uint64{101, 102}, Copies: CopyCount})
	l.x.Store(&Store{Owner: l.pool, Engine: []uint64{101}, Copies: CopyCount})
	l.x.Store(&Store{Owner: l.other, Parent: 102, HasParent: true, Engine: []uint64{103, 104}, Local: []uint64{3, 4}})
	if n := l.x.waiting(l.sources[1]); n != 2 {
		t.Fatalf("%d blocks wait", n)
	}
	res := l.x.Store(&Store{Owner: l.gpu, Identity: l.a, Engine: []uint64{101, 102, 103}, Local: []uint64{1, 2, 3}})
	if want := (StoreResult{Added: 3, Identity: l.a, Placed: true, Chained: true}); res != want {
		t.Errorf("%+v, want %+v", res, want)
	}
	l.want([]uint64{1, 2, 3, 4}, "", "[0 2]x2 [0 1]x1 [1]x1 ", "")
	if n := l.x.waiting(l.sources[1]); n != 0 || l.x.HasLoose() {
		t.Errorf("%d blocks wait", n)
	}
	for i, want := range []RemoveResult{{Copies: 1}, {Removed: 1}, {Unknown: 1}} {
		if got := l.x.Remove(l.pool, []uint64{101}, nil, CopyCount); got != want {
			t.Errorf("removal %d: %+v, want %+v", i, got, want)
		}
	}
}

// Blocks also wait under hashes that publishers make of the names of others.
func TestAlsoWaiting(t *testing.T) {
	const salt = 0xabc
	l := newIdentityLab(t)
	l.x.Store(&Store{Owner: l.gpu, Identity: l.b, Engine: []uint64{101, 102}, Local: []uint64{1, 2}})
	l.x.Store(&Store{Owner: l.pool, Engine: []uint64{101 ^ salt, 102 ^ salt, 103 ^ salt}})
	l.want([]uint64{1, 2, 3}, "", "", "[0]x2 ")
	for range 2 { // the second one finds all names
		l.x.Store(&Store{Owner: l.gpu, Identity: l.b, Engine: []uint64{101, 102, 103}, Local: []uint64{1, 2, 3}, AlsoWaiting: salt,
			Copies: CopySet})
		l.want([]uint64{1, 2, 3}, "", "", "[0 2]x3 ")
	}
	if res := l.x.Remove(l.pool, []uint64{102 ^ salt}, nil, CopySet); res.Removed != 1 {
		t.Errorf("%+v", res)
	}
	l.want([]uint64{1, 2, 3}, "", "", "[0 2]x1 [0]x1 [0 2]x1 ")
}

// A block that is known by its key alone has an identity, and so has what waits behind it.
func TestKeysOfIdentities(t *testing.T) {
	l := newIdentityLab(t)
	local := []uint64{1, 2, 3, 4}
	seq := hash.DefaultScheme().AppendChain(nil, local)
	l.x.Store(&Store{Owner: l.other, Parent: 102, HasParent: true, Engine: []uint64{103, 104}, Local: local[2:]})
	l.x.Store(&Store{Owner: l.other, Engine: []uint64{101}, Rootless: true, Identity: l.b, Key: seq[0], HasKey: true})
	l.x.Store(&Store{Owner: l.other, Engine: []uint64{102}, Rootless: true, Identity: l.b, Key: seq[1], HasKey: true})
	l.want(local, "", "", "[1]x4 ")
	if got := l.x.askAll(l.sources[1], []uint64{102, 103}); got[0].Identity != l.b || got[0].Key != seq[1] || got[1].Key != seq[2] {
		t.Errorf("%+v", got)
	}
	// What waits under the key as a name is of the identity once that is known.
	key := seq[0] ^ 0x1234_5678_9abc_def1
	l.x.Store(&Store{Owner: l.pool, Engine: []uint64{key}})
	l.want(local, "", "[2]x1 ", "[1]x4 ")
	l.x.Store(&Store{Owner: l.gpu, Identity: l.a, Engine: []uint64{901}, Local: local[:1], Key: seq[0], HasKey: true, Rootless: true})
	l.want(local, "", "[0 2]x1 ", "[1]x4 ")
	l.x.Store(&Store{Owner: l.gpu, Identity: l.b, Parent: 901, HasParent: true, Engine: []uint64{902}, Local: local[1:2]})
	l.want(local, "", "[0 2]x1 [0]x1 ", "[1]x4 ")
	l.x.Store(&Store{Owner: l.pool, Engine: []uint64{700}})
	l.x.Store(&Store{Owner: l.pool, Engine: []uint64{700}, Rootless: true, Identity: l.b, Key: seq[3], HasKey: true, Copies: CopySet})
	l.want(local, "", "[0 2]x1 [0]x1 ", "[1]x3 [1 2]x1 ")
}

// Losses and refusals tell identities apart.
func TestIdentitiesAreToldApart(t *testing.T) {
	l := newIdentityLab(t)
	losses := NewLosses(1 << 12)
	l.x.RecordLosses(l.gpu, losses, 1)
	p := &prompt{[]uint64{1, 2, 3}, hash.DefaultScheme().AppendChain(nil, []uint64{1, 2, 3})}
	for id, name := range []uint64{100, 200, 300} {
		l.x.Store(&Store{Owner: l.gpu, Identity: Identity(id), Engine: []uint64{name, name + 1, name + 2}, Local: p.local})
	}
	losses.SetMark(9)
	l.x.Remove(l.gpu, []uint64{202, 201}, nil, CopySet)
	for id := range Identity(3) {
		if mark, found := losses.Find(l.c[id], p, 2, 1); found != (id == l.a) || found && mark != 9 {
			t.Errorf("identity %d: mark %d, %v", id, mark, found)
		}
	}
	l.x.bounds.maxBytes = 1
	if res := l.x.Store(&Store{Owner: l.gpu, Identity: l.a, Parent: 200, HasParent: true, Engine: []uint64{205},
		Local: []uint64{2}}); res.Refused != 1 {
		t.Errorf("%+v", res)
	}
	for id := range Identity(3) {
		var m Match
		l.x.matchChain(l.c[id], p, &m)
		if got := l.x.Inspect().WasRefused(l.c[id], p.seq[1]); got != (id == l.a) || m.Truncated != (id == l.a) {
			t.Errorf("identity %d: refused %v, truncated %v", id, got, m.Truncated)
		}
	}
	must.Succeed(t, l.x.Check())
}

// Digests with weights differ if the same words are of different identities.
func TestWeights(t *testing.T) {
	l := newIdentityLab(t)
	var shared SharedDigest
	l.x.JoinDigest(&shared, l.gpu, 3)
	l.x.SetWeight(l.a, 5)
	for id, name := range []uint64{100, 200, 300} {
		l.x.Store(&Store{Owner: l.gpu, Identity: Identity(id), Engine: []uint64{name, name + 1}, Local: []uint64{1, 10}})
	}
	l.x.SetWeight(l.b, 7)
	if got, want := l.x.Digest(l.gpu), (Digest{6, 0, 11 + 5*11 + 7*11}); got != want || shared.Load().Sum != 3*want.Sum {
		t.Errorf("%+v and %+v, want %+v", got, shared.Load(), want)
	}
	l.x.Remove(l.gpu, []uint64{201, 301}, nil, CopySet)
	if got, want := l.x.Digest(l.gpu), (Digest{4, 0, 11 + 5 + 7}); got != want || shared.Load().Sum != 3*want.Sum {
		t.Errorf("%+v and %+v, want %+v", got, shared.Load(), want)
	}
	must.Succeed(t, l.x.Check())
}

// An image has the numbers of identities. It is loaded with those that the reader knows, and not
// with other constants.
func TestImageOfIdentities(t *testing.T) {
	l := newIdentityLab(t)
	for id, name := range []uint64{100, 200, 300} {
		l.x.Store(&Store{Owner: l.gpu, Identity: Identity(id), Engine: []uint64{name, name + 1}, Local: []uint64{1, 10}})
	}
	l.x.Store(&Store{Owner: l.gpu, Identity: l.b, Engine: []uint64{400}, Rootless: true, Key: 77, HasKey: true})
	c := l.x.Checkpoint()
	ids := c.Identities()
	c.Release()
	if !slices.Equal(ids, []Identity{l.a, l.b}) {
		t.Errorf("identities %d", ids)
	}
	all := imageOf(t, l.x)
	read := func(constants ...uint64) (*Index, error) {
		x := New(Options{Scheme: hash.DefaultScheme(), KeepClientHashes: true})
		x.NewIdentity(99) // the numbers of the reader are others
		for _, src := range l.sources {
			x.NewSource()
			x.NewOwner(src)
		}
		numbers := map[uint32]Identity{}
		for i, constant := range constants {
			numbers[uint32(i+1)] = x.NewIdentity(constant)
		}
		loader := NewLoader(x, func(n uint32) (Source, bool) { return Source(n), true },
			func(n uint32) (Owner, bool) { return Owner(n), true },
			func(n uint32) (Identity, bool) { id, ok := numbers[n]; return id, ok })
		for _, c := range all {
			if err := loader.Load(c.kind, c.bytes); err != nil {
				return nil, err
			}
		}
		loader.Done()
		must.Succeed(t, x.Check())
		return x, nil
	}
	x, err := read(l.c[1:]...)
	must.Succeed(t, err)
	if got := x.IdentityBlocks(nil); !slices.Equal(got, []int{2, 0, 2, 3}) {
		t.Errorf("blocks %v", got)
	}
	if got := x.askAll(0, []uint64{201, 400}); got[0].Identity != 2 || got[1].Identity != 3 || got[1].Key != 77 {
		t.Errorf("%+v", got)
	}
	if x, err = read(l.c[1]); err != nil || !slices.Equal(x.IdentityBlocks(nil), []int{2, 0, 2}) {
		t.Errorf("without an identity: %v", err)
	}
	if _, err = read(l.c[1], 5); err == nil {
		t.Error("another constant is no error")
	}
}

// An identity with one block takes little memory.
func TestIdentityMemory(t *testing.T) {
	const n = 10_000
	x := New(Options{Scheme: hash.DefaultScheme()})
	o := x.NewOwner(x.NewSource())
	before := x.Stats().Bytes
	for i := range uint64(n) {
		id := x.NewIdentity(mix(i) | 1)
		if i == n-1 {
			t.Logf("%d bytes an identity without blocks", (x.Stats().Bytes-before)/n)
		}
		_ = id
	}
	empty := x.Stats().Bytes
	for i := range uint64(n) {
		x.Store(&Store{Owner: o, Identity: Identity(i + 1), Engine: []uint64{i + 1}, Local: []uint64{5}})
	}
	each := (x.Stats().Bytes - empty) / n
	t.Logf("%d bytes a block of an identity of its own", each)
	if each > 1000 {
		t.Errorf("%d bytes a block", each)
	}
	must.Succeed(t, x.Check())
}
