package conductor

import (
	"testing"
	"time"

	"example.com/conductor/conductor/expect"
	"example.com/conductor/conductor/names"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/index"
	"example.com/conductor/index/hash"
)

// A context that translates forgets the client hashes of blocks that are gone, and no others. It
// does so also if a block has several client hashes and the index keeps one.
func TestContextForgetsClientHashes(t *testing.T) {
	x, id := translating(), new(names.Identity)
	owner := x.index.NewOwner(x.index.NewSource())
	store := func(local, clientHash uint64) {
		clientHashes, locals := []uint64{clientHash}, []uint64{local}
		x.index.Store(&index.Store{Owner: owner, Engine: clientHashes, Local: locals,
			ClientHashes: func(index.Identity) []uint64 { return clientHashes }, Copies: index.CopySet})
		x.learn(clientHashes, locals, id, true)
	}
	f := func(clientHash, want uint64, known bool) {
		t.Helper()
		if got, ok := x.translation.localOf(clientHash); ok != known || known && got != want {
			t.Errorf("%d is %d, %t, want %d, %t", clientHash, got, ok, want, known)
		}
	}
	f(7, 7, false)
	x.learn([]uint64{7}, []uint64{7}, id, true)
	if len(x.translation.of) > 0 {
		t.Error("a client hash that is its local hash is kept")
	}
	store(10, 11)
	store(10, 12)
	f(11, 10, true)
	f(12, 10, true)
	f(7, 7, false)

	const more = 3 * minTranslations
	for i := uint64(1); i <= more; i++ {
		store(1000*i, 1000*i+1)
		x.index.Remove(owner, []uint64{1000*i + 1}, nil, index.CopySet)
	}
	if n := len(x.translation.of); n > minTranslations+2 {
		t.Errorf("%d client hashes are kept for one block", n)
	}
	f(11, 10, true)
	f(12, 10, true)
	f(1001, 1001, false)
	// Nor does it list what it has forgotten.
	for clientHash, local := range x.translation.of {
		if x.translation.first(clientHash) != id {
			t.Errorf("%d for %d is not listed", clientHash, local)
		}
	}
	if listed, want := len(x.translation.firsts), len(x.translation.of); listed != want {
		t.Errorf("%d client hashes are listed, %d known", listed, want)
	}

	// What a snapshot may still come across is known to it.
	c := snapDeployment{deployment: x, known: x.translation.all()}
	x.index.Remove(owner, []uint64{11, 12}, nil, index.CopySet)
	for i := uint64(1); i <= more; i++ {
		store(1000*i, 1000*i+1)
		x.index.Remove(owner, []uint64{1000*i + 1}, nil, index.CopySet)
	}
	f(11, 11, false)
	if got, ok := c.localOf(11); got != 10 || !ok {
		t.Errorf("a snapshot reads %d, %t", got, ok)
	}
}

// TestScratchBuffersBounded holds that what answered a giant prompt keeps neither the
// caller's memory, nor a context that may go, nor much of its own.
func TestScratchBuffersBounded(t *testing.T) {
	const n = keepHashes + 1
	x, c := translating(), New(Options{})
	defer c.Close()
	id := x.names.Look(scope.Variant{Salt: "s"})
	locals := make([]uint64, n)
	x.translation.of, x.translation.firsts = make(map[uint64]uint64, n), make(map[uint64]*names.Identity)
	for i := range locals {
		locals[i] = uint64(i) + 1
		x.translation.of[locals[i]] = locals[i]
	}
	x.translation.firsts[locals[0]] = id
	x.index.Store(&index.Store{
		Owner: x.index.NewOwner(x.index.NewSource()), Identity: x.index.NewIdentity(id.Constant), Engine: locals, Local: locals,
		ClientHashes: func(index.Identity) []uint64 { return locals }, Copies: index.CopySet,
	})
	sc := new(scratch)
	f := func(name string, q *Query, blocks int) {
		t.Helper()
		q.BlockSize = 1
		sc.lookup(x, x.identityAsked(q), q, c)
		if sc.match.Blocks != blocks {
			t.Errorf("%s: %d blocks match, want %d", name, sc.match.Blocks, blocks)
		}
		sc.release()
		if sc.hashes != nil || sc.clientChain.clientHashes != nil || sc.clientChain.deployment != nil {
			t.Errorf("%s: %d hashes, %d client hashes and the deployment %p are kept", name, len(sc.hashes),
				len(sc.clientChain.clientHashes), sc.clientChain.deployment)
		}
		if cap(sc.clientChain.local) > keepHashes || cap(sc.clientChain.seq) > keepHashes {
			t.Errorf("%s: room for %d and %d hashes", name, cap(sc.clientChain.local), cap(sc.clientChain.seq))
		}
	}
	f("client hashes", &Query{ByClientHash: true, ClientHashes: locals}, n)
	f("unscoped", &Query{SearchUnscoped: true, Tokens: make([]uint32, n)}, 0)
	f("few", &Query{ByClientHash: true, ClientHashes: locals[:9]}, 9)
	if cap(sc.clientChain.local) == 0 {
		t.Error("a buffer that is not a giant's is not kept")
	}
	f("hashes", &Query{ByHash: true, Hashes: locals, Salt: "s"}, 1) // a first block's are one
}

// translating returns a deployment that keeps client hashes.
func translating() *deployment {
	d := &deployment{scheme: hash.Default(), expected: expect.New(1<<20, time.Now).NewSpace("t", 16),
		index: index.New(index.Options{Scheme: hash.Default(), KeepClientHashes: true})}
	d.names = names.New(d.index, 0, weightOfIdentity)
	d.translation.on = true
	return d
}
