package catalog

import (
	"sync"

	"example.com/conductor/conductor/names"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/index"
	"example.com/conductor/index/hash"
)

// A client hash is the local hash of a block as Dynamo's clients compute it: they mix
// adapter and salt in. Ours leave them out, because they name the identity:
//
//	tokens, items --XXH3(1337 + lora + salt)--> client hash   what clients send and dumps show
//	              --XXH3(hash.seed)-----------> local hash    what chains into seq hashes
//
// For the base model without a salt, and the usual seed, both are one. Where
// they differ, a deployment remembers which is which. Both cover the look-ahead of a block.

// ClientSeed is the seed of the local hashes Dynamo's clients compute for an adapter and salt.
func ClientSeed(v scope.Variant) uint64 { return hash.DeriveSeed(hash.DefaultSeed, v.Lora, v.Salt) }

// TranslatesClientHashes reports whether client hashes under an adapter and salt differ from local hashes, and are
// kept.
func (d *Deployment) TranslatesClientHashes(v scope.Variant) bool {
	return d.translation.on && ClientSeed(v) != d.Scheme.Seed
}

// translation maps client hashes to local hashes, where the two differ. What no block has any more is
// forgotten now and then.
type translation struct {
	on bool // client hashes are kept

	mu     sync.RWMutex
	of     map[uint64]uint64          // client hash -> local; guarded by mu
	firsts map[uint64]*names.Identity // client hash of a block that begins prompts -> whose; guarded by mu
	full   int                        // entries at which to look for dead ones; guarded by mu
}

// minTranslations is how many entries are kept whether or not a block has them.
const minTranslations = 4096

// LearnClientHashes notes the client hashes of stored blocks, nil if they are local hashes. The first begins prompts
// if root.
func (d *Deployment) LearnClientHashes(clientHashes, local []uint64, id *names.Identity, root bool) {
	if len(local) == 0 || len(clientHashes) == 0 {
		return
	}
	t := &d.translation
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.of == nil {
		t.of, t.firsts, t.full = make(map[uint64]uint64), make(map[uint64]*names.Identity), minTranslations
	}
	for i, h := range clientHashes {
		if h != local[i] {
			t.of[h] = local[i]
		}
	}
	if root && clientHashes[0] != local[0] {
		t.firsts[clientHashes[0]] = id
	}
	if len(t.of) > t.full {
		t.forget(d.Index)
	}
}

// IdentityOf returns the identity of the prompts that begin with a client hash, nil if it is not known.
func (d *Deployment) IdentityOf(clientHash uint64) *names.Identity {
	t := &d.translation
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.firsts[clientHash]
}

// forget drops the client hashes of local hashes that no block has. Those
// stored but not yet learned are not in the map: none of them is lost. mu is held.
func (t *translation) forget(in *index.Index) {
	held := make(map[uint64]bool, len(t.of))
	for _, local := range t.of {
		held[local] = false
	}
	in.Inspect().EachClientHash(func(clientHash uint64) {
		if local, ok := t.of[clientHash]; ok {
			clientHash = local
		}
		if _, ours := held[clientHash]; ours {
			held[clientHash] = true
		}
	})
	living := make(map[uint64]uint64)
	for clientHash, local := range t.of {
		if held[local] {
			living[clientHash] = local
		} else {
			delete(t.firsts, clientHash)
		}
	}
	t.of, t.full = living, max(minTranslations, 2*len(living))
}

// ClientHashes returns a map from client hashes to local hashes, of those where the two differ. The map keeps what is
// forgotten later; LearnClientHashes still adds to it, so read it with LocalHashIn.
func (d *Deployment) ClientHashes() map[uint64]uint64 {
	t := &d.translation
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.of
}

// LocalHashIn looks a client hash up in all, which an earlier call of ClientHashes has returned.
func (d *Deployment) LocalHashIn(all map[uint64]uint64, clientHash uint64) (uint64, bool) {
	t := &d.translation
	t.mu.RLock()
	defer t.mu.RUnlock()
	h, ok := all[clientHash]
	return h, ok
}

// LocalHashOf returns the local hash of a client hash.
func (d *Deployment) LocalHashOf(clientHash uint64) (uint64, bool) {
	t := &d.translation
	t.mu.RLock()
	defer t.mu.RUnlock()
	h, ok := t.of[clientHash]
	return h, ok
}
