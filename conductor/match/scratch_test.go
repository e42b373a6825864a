package match

import (
	"testing"
	"time"

	"example.com/conductor/conductor/catalog"
	"example.com/conductor/conductor/doctor"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/index"
	"example.com/conductor/index/hash"
)

// TestScratchBuffersBounded holds that what answered a giant prompt keeps neither the
// caller's memory, nor a context that may go, nor much of its own.
func TestScratchBuffersBounded(t *testing.T) {
	const n = keepHashes + 1
	c := catalog.New(catalog.Options{Index: index.Options{Scheme: hash.DefaultScheme(), KeepClientHashes: true}, ExpectedBytes: 1 << 20,
		Now: time.Now})
	key := scope.Deployment{Tenant: scope.DefaultTenant, Model: "m", BlockSize: 1}
	c.Join(catalog.NewMember(registration.Registration{Instance: "i", Tenant: key.Tenant, Model: key.Model, BlockSize: 1},
		&doctor.New(doctor.Registered{}, time.Now).Findings, nil))
	x, matcher := c.Deployment(key), New(c, nil, time.Now)
	id := x.Names.Look(scope.Variant{Salt: "s"})
	locals, clientHashes := make([]uint64, n), make([]uint64, n)
	for i := range locals {
		locals[i] = uint64(i) + 1
		clientHashes[i] = locals[i] + 1<<32
	}
	x.Index.Store(&index.Store{
		Owner: x.Index.NewOwner(x.Index.NewSource()), Identity: x.Index.NewIdentity(id.Constant), Engine: locals, Local: locals,
		ClientHashes: func(index.Identity) []uint64 { return clientHashes }, Copies: index.CopySet,
	})
	x.LearnClientHashes(clientHashes, locals, id, true)
	sc := new(scratch)
	f := func(name string, q *Query, blocks int) {
		t.Helper()
		q.BlockSize = 1
		sc.lookup(x, identityAsked(x, q), q, matcher)
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
	f("client hashes", &Query{ByClientHash: true, ClientHashes: clientHashes}, n)
	f("unscoped", &Query{SearchUnscoped: true, Tokens: make([]uint32, n)}, 0)
	f("few", &Query{ByClientHash: true, ClientHashes: clientHashes[:9]}, 9)
	if cap(sc.clientChain.local) == 0 {
		t.Error("a buffer that is not a giant's is not kept")
	}
	f("hashes", &Query{ByHash: true, Hashes: locals, Salt: "s"}, 1) // a first block's are one
}
