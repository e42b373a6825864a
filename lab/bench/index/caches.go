package index

import "math/rand/v2"

// caches are the prefix caches of a fleet.
type caches struct {
	p       *prompts
	s       *Stream
	workers []*cache
	choices int
	r       *rand.Rand
}

// cache is one worker: a device, and below it host, disk and a pool where there are any.
type cache struct {
	tiers []*tier
	work  int // blocks asked of it so far
}

// tier is blocks that one owner announces. Workers share the tier of a pool.
type tier struct {
	*lru
	owner  int
	family uint8 // of its engine hashes
	bare   bool  // announced without tokens
}

// simulateFleet runs the requests of a trace through a fleet and returns its stream of queries
// and events.
func simulateFleet(c *Config) (*Stream, *prompts, error) {
	p, err := openPrompts(c)
	if err != nil {
		return nil, nil, err
	}
	s := serveChains(c, p, nil)
	return s, p, nil
}

// serveChains serves every chain; after each one it calls step, if there is one.
func serveChains(c *Config, p *prompts, step func(*caches)) *Stream {
	f := &caches{p: p, choices: c.Choices, r: rand.New(rand.NewPCG(c.Seed, 1)),
		s: &Stream{owners: (c.Workers + c.Pools) * c.Tiers, tiers: c.Tiers}}
	add := func(tiers []*tier, source, family, at int, bare bool) []*tier {
		return append(tiers, &tier{newLRU(c.Capacity), source*c.Tiers + at, uint8(family % c.HashSeeds), bare})
	}
	var pools []*tier
	for i := range c.Pools {
		pools = add(pools, c.Workers+i, i, 0, true)
	}
	for i := range c.Workers {
		w := &cache{}
		for j := range c.Tiers {
			w.tiers = add(w.tiers, i, i, j, j > 0 && c.HashOnly)
		}
		if c.Pools > 0 {
			w.tiers = append(w.tiers, pools[i%c.Pools])
		}
		f.workers = append(f.workers, w)
	}
	for _, chain := range p.chains {
		if len(chain) == 0 {
			continue
		}
		w := f.routeChain(chain)
		from := f.s.addQuery(p, chain)
		f.serveChain(w, chain[:min(len(chain), c.Capacity)], from)
		if step != nil {
			step(f)
		}
	}
	f.s.load = len(f.s.ops)
	return f.s
}

// routeChain draws Config.Choices workers at random. It returns the one whose device holds
// most of the chain, and among equals the one that has worked least. With more choices
// more conversations stay on one worker; popular beginnings spread over the fleet.
func (f *caches) routeChain(chain []int32) int {
	best, most := -1, -1
	for range f.choices {
		i := f.r.IntN(len(f.workers))
		held := f.workers[i].tiers[0].held(chain)
		if held > most || held == most && f.workers[i].work < f.workers[best].work {
			best, most = i, held
		}
	}
	return best
}

// serveChain computes a chain on a worker: the device stores the blocks that it lacks, and
// evicts as many of its oldest first. from is the place of the chain in the stream.
func (f *caches) serveChain(id int, chain []int32, from uint32) {
	w := f.workers[id]
	w.work += len(chain)
	hit := w.tiers[0].held(chain)
	for _, t := range w.tiers {
		for i := len(chain) - 1; i >= 0; i-- {
			t.touch(chain[i])
		}
	}
	f.makeRoom(id, 0, len(chain)-hit)
	for i := len(chain) - 1; i >= 0; i-- {
		w.tiers[0].put(chain[i])
	}
	if hit < len(chain) {
		parent := int32(-1)
		if hit > 0 {
			parent = chain[hit-1]
		}
		f.s.addStore(f.p, w.tiers[0], parent, from+uint32(hit), from+uint32(len(chain)))
	}
}

// makeRoom evicts from a tier until n more blocks fit. Blocks that leave are first
// stored on the tier below.
func (f *caches) makeRoom(id, at, n int) {
	w := f.workers[id]
	out := w.tiers[at].evict(nil, n)
	if len(out) == 0 {
		return
	}
	if at+1 < len(w.tiers) {
		f.demoteBlocks(id, at+1, out)
	}
	f.s.addRemoval(f.p, w.tiers[at], out)
}

// demoteBlocks stores evicted blocks, oldest first, on a lower tier. A block that the tier
// holds already becomes its newest. So a parent is newer than its children on a lower
// tier too, and a worker that holds a block holds its parent on some tier.
func (f *caches) demoteBlocks(id, at int, out []int32) {
	l := f.workers[id].tiers[at]
	fresh := 0
	for _, b := range out {
		if !l.touch(b) { // or it might make room for the others
			fresh++
		}
	}
	f.makeRoom(id, at, fresh)
	parentsFirst := make([]int32, fresh)
	for _, b := range out {
		if l.put(b) {
			fresh--
			parentsFirst[fresh] = b
		}
	}
	f.s.storeRuns(f.p, l, parentsFirst)
}
