package bench

import (
	"math/rand/v2"
	"slices"

	"kvconductor/index"
	"kvconductor/index/hash"
)

const (
	soakDepth  = 256 // longest prompt, in blocks
	soakOwners = 2   // of a worker
)

// soakChain is a prompt of a soak.
type soakChain struct{ seq, local []uint64 }

// soakWorker is a source with its habits.
type soakWorker struct {
	source index.Source
	owners [soakOwners]index.Owner
	family uint8 // of its own hashes
	canon  bool  // announces canonical hashes without tokens
	policy index.CopyPolicy
}

// prepare makes prompts that share beginnings, and an empty index.
func (k *Soak) prepare() {
	r := rand.New(rand.NewPCG(k.Seed, 0))
	for i := range k.Prompts {
		local := make([]uint64, 1+r.IntN(soakDepth))
		for j := range local {
			local[j] = r.Uint64()
		}
		if i > 0 && r.IntN(3) > 0 {
			other := k.chains[r.IntN(i)].local
			copy(local, other[:r.IntN(len(other)+1)])
		}
		k.chains = append(k.chains, soakChain{hash.Default().Chain(nil, local), local})
	}
	k.x = index.New(index.Options{Scheme: hash.Default()})
	for i := range k.Workers {
		w := soakWorker{canon: i%4 == 0}
		if i%4 == 1 {
			w.family = uint8(i) // its own; all others hash alike
		}
		if i%3 == 0 {
			w.policy = index.CopySet
		}
		k.workers = append(k.workers, w)
		k.join(i)
	}
}

// join gives a worker a fresh source and owners.
func (k *Soak) join(i int) {
	w := &k.workers[i]
	w.source = k.x.NewSource()
	for j := range w.owners {
		w.owners[j] = k.x.NewOwner(w.source)
		for len(k.slots) <= int(w.owners[j]) {
			k.slots = append(k.slots, -1)
		}
		k.slots[w.owners[j]] = i*soakOwners + j
	}
}

// limit is the depth beyond which an owner stores nothing.
func limit(slot int) int { return 16 + slot*37%(soakDepth-15) }

// change stores, removes or clears.
func (k *Soak) change(r *rand.Rand, worker int) {
	k.changed.Add(1)
	w := &k.workers[worker]
	j := r.IntN(soakOwners)
	slot := worker*soakOwners + j
	c := &k.chains[r.IntN(len(k.chains))]
	top := min(len(c.seq), limit(slot))
	switch dice := r.IntN(1000); {
	case dice == 0:
		k.x.Clear(w.owners[j])
		k.oracle.Clear(uint32(slot))
	case dice < 350: // any stretch, held or not
		from := r.IntN(len(c.seq))
		k.remove(w, j, slot, c.seq[from:min(len(c.seq), from+1+r.IntN(64))])
	case dice < 450: // from the end, as engines evict
		d := k.oracle.Depth(uint32(slot), c.seq)
		tail := slices.Clone(c.seq[d-min(d, r.IntN(64)) : d])
		slices.Reverse(tail)
		k.remove(w, j, slot, tail)
	default:
		from := r.IntN(top)
		if !w.canon { // only behind a block that is held is the prefix known
			from = r.IntN(min(top-1, k.oracle.Depth(uint32(slot), c.seq)) + 1)
		}
		k.store(w, j, slot, c, from, min(top, from+1+r.IntN(64)))
	}
}

func (w *soakWorker) names(seq []uint64) []uint64 {
	if w.canon {
		return seq
	}
	out := make([]uint64, len(seq))
	for i, s := range seq {
		out[i] = name(s, w.family)
	}
	return out
}

func (k *Soak) store(w *soakWorker, j, slot int, c *soakChain, from, to int) {
	e := index.Store{Owner: w.owners[j], Engine: w.names(c.seq[from:to]), Copies: w.policy}
	if !w.canon {
		e.Local = c.local[from:to]
	}
	if from > 0 {
		e.HasParent, e.Parent = true, w.names(c.seq[from-1 : from])[0]
	}
	k.x.Store(&e)
	k.oracle.Store(uint32(slot), c.seq[from:to], w.policy == index.CopySet)
}

func (k *Soak) remove(w *soakWorker, j, slot int, seq []uint64) {
	k.x.Remove(w.owners[j], w.names(seq), nil, w.policy)
	k.oracle.Remove(uint32(slot), seq)
}
