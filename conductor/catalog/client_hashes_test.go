package catalog

import (
	"testing"
	"time"

	"example.com/conductor/conductor/expect"
	"example.com/conductor/conductor/names"
	"example.com/conductor/index"
	"example.com/conductor/index/hash"
)

// A deployment that translates forgets the client hashes of blocks that are gone, and no others. It
// does so also if a block has several client hashes and the index keeps one.
func TestForgetsClientHashes(t *testing.T) {
	x, id := translating(), new(names.Identity)
	owner := x.Index.NewOwner(x.Index.NewSource())
	store := func(local, clientHash uint64) {
		clientHashes, locals := []uint64{clientHash}, []uint64{local}
		x.Index.Store(&index.Store{Owner: owner, Engine: clientHashes, Local: locals,
			ClientHashes: func(index.Identity) []uint64 { return clientHashes }, Copies: index.CopySet})
		x.LearnClientHashes(clientHashes, locals, id, true)
	}
	f := func(clientHash, want uint64, known bool) {
		t.Helper()
		if got, ok := x.LocalHashOf(clientHash); ok != known || known && got != want {
			t.Errorf("%d is %d, %t, want %d, %t", clientHash, got, ok, want, known)
		}
	}
	f(7, 7, false)
	x.LearnClientHashes([]uint64{7}, []uint64{7}, id, true)
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
		x.Index.Remove(owner, []uint64{1000*i + 1}, nil, index.CopySet)
	}
	if n := len(x.translation.of); n > minTranslations+2 {
		t.Errorf("%d client hashes are kept for one block", n)
	}
	f(11, 10, true)
	f(12, 10, true)
	f(1001, 1001, false)
	// Nor does it list what it has forgotten.
	for clientHash, local := range x.translation.of {
		if x.IdentityOf(clientHash) != id {
			t.Errorf("%d for %d is not listed", clientHash, local)
		}
	}
	if listed, want := len(x.translation.firsts), len(x.translation.of); listed != want {
		t.Errorf("%d client hashes are listed, %d known", listed, want)
	}

	// What a snapshot may still come across is known to it.
	known := x.ClientHashes()
	x.Index.Remove(owner, []uint64{11, 12}, nil, index.CopySet)
	for i := uint64(1); i <= more; i++ {
		store(1000*i, 1000*i+1)
		x.Index.Remove(owner, []uint64{1000*i + 1}, nil, index.CopySet)
	}
	f(11, 11, false)
	if got, ok := x.LocalHashIn(known, 11); got != 10 || !ok {
		t.Errorf("a snapshot reads %d, %t", got, ok)
	}
}

// translating returns a deployment that keeps client hashes.
func translating() *Deployment {
	d := &Deployment{Scheme: hash.DefaultScheme(), Expected: expect.New(1<<20, time.Now).NewSpace("t", 16),
		Index: index.New(index.Options{Scheme: hash.DefaultScheme(), KeepClientHashes: true})}
	d.Names = names.New(d.Index, 0, WeightOfIdentity)
	d.translation.on = true
	return d
}
