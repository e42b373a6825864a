package conductor_test

import "maps"

// ident is an adapter and a salt, "" for none.
type ident struct{ lora, salt string }

// identBlock is a block: the identity and a letter for each block of its prompt, up to itself.
type identBlock struct {
	ident
	path string
}

// Kinds of events.
const (
	identStored  = "BlockStored"
	identRemoved = "BlockRemoved"
	identCleared = "AllBlocksCleared"
)

const identDevice = "GPU"

// identEvent is an event as a source publishes it.
type identEvent struct {
	source    int
	kind      string
	medium    string
	hashes    []uint64
	parent    uint64
	hasParent bool
	blocks    string // a letter for each hash, "" without tokens
	named     ident  // what the event names; "" names nothing
}

// identSource is a registered source, and what it holds.
type identSource struct {
	name       string
	pool       bool
	registered ident
	// held has for each medium the blocks, and by which rule each is there. Those of a pool
	// follow from waiting.
	held map[string]map[identBlock]string
	// waiting has the hashes without a meaning. Of a pool it has all hashes.
	waiting map[string]map[uint64]bool
	stored  map[ident]bool // identities that the source has stored blocks of
}

// identOracle says by the rules alone who holds which blocks. All hashes that any engine has
// announced with tokens stay known, also without a holder.
//
// A source that is registered with an adapter or a salt does not hash those: its names are its
// own. So names has the registered identity first.
type identOracle struct {
	sources []*identSource
	names   map[ident]map[uint64]identBlock
	ever    map[identBlock]bool // blocks that any source has held
	rules   map[string]int      // how often each rule decided
}

func newIdentOracle(sources []identSource) *identOracle {
	o := &identOracle{names: map[ident]map[uint64]identBlock{}, ever: map[identBlock]bool{}, rules: map[string]int{}}
	for _, s := range sources {
		s.held, s.waiting, s.stored = map[string]map[identBlock]string{}, map[string]map[uint64]bool{}, map[ident]bool{}
		o.sources = append(o.sources, &s)
	}
	return o
}

// meaning returns the block that a source means by a hash. A pool means what engines without a
// registered identity do, else what others do.
func (o *identOracle) meaning(s *identSource, hash uint64) (b identBlock, known bool) {
	if b, known = o.names[s.registered][hash]; known || !s.pool {
		return b, known
	}
	for _, names := range o.names { // at most one engine of a fleet has a registered identity
		if b, known = names[hash]; known {
			return b, true
		}
	}
	return b, false
}

// apply applies an event. It returns why the rules say nothing of it, "" if they do.
func (o *identOracle) apply(e identEvent) (undefined string) {
	s := o.sources[e.source]
	switch {
	case e.kind == identCleared:
		clear(s.held)
		clear(s.waiting)
	case e.kind == identRemoved:
		for _, h := range e.hashes {
			o.remove(s, e.medium, h)
		}
	case e.blocks == "":
		for _, h := range e.hashes {
			o.storeByHash(s, e.medium, h)
		}
	default:
		undefined = o.storeTokens(s, e)
	}
	o.fillPools()
	return undefined
}

func (o *identOracle) remove(s *identSource, medium string, hash uint64) {
	block, known := o.meaning(s, hash)
	if !s.pool {
		delete(s.held[medium], block)
		delete(s.waiting[medium], hash)
		return
	}
	// A second hash of the block is no second copy.
	maps.DeleteFunc(s.waiting[medium], func(h uint64, _ bool) bool {
		other, knownToo := o.meaning(s, h)
		return h == hash || known && knownToo && other == block
	})
}

func (o *identOracle) storeByHash(s *identSource, medium string, hash uint64) {
	block, known := o.meaning(s, hash)
	if known && !s.pool {
		o.hold(s, medium, block, "1 hash")
		return
	}
	if s.waiting[medium] == nil {
		s.waiting[medium] = map[uint64]bool{}
	}
	s.waiting[medium][hash] = true
}

// storeTokens finds whose the blocks of an event are. Blocks behind the first one are behind it.
func (o *identOracle) storeTokens(s *identSource, e identEvent) (undefined string) {
	var before identBlock // of the block at hand
	rule := "2 parent"
	if e.hasParent {
		var known bool
		if before, known = o.meaning(s, e.parent); !known {
			return "the parent is unknown"
		}
		if _, held := s.held[identDevice][before]; e.medium == identDevice && !held {
			return "a device stores blocks behind one that it does not hold"
		}
	} else {
		_, known := o.meaning(s, e.hashes[0])
		if e.medium != identDevice && !known && e.named.lora != "" && e.named.salt == "" {
			return "an event below the device names the adapter alone"
		}
		before.ident, rule = o.begin(s, e)
	}
	for i, h := range e.hashes {
		block, by := identBlock{before.ident, before.path + e.blocks[i:i+1]}, rule
		if meant, known := o.meaning(s, h); known {
			switch {
			case e.medium != identDevice:
				block, by = meant, "1 hash"
			case meant != block:
				return "a device announces a hash with another meaning"
			}
		}
		o.hold(s, e.medium, block, by)
		o.announce(s, h, block)
		before, rule = block, "2 behind"
	}
	return ""
}

// begin returns the identity of an event's blocks if they begin a prompt and their hashes are
// unknown.
func (o *identOracle) begin(s *identSource, e identEvent) (at ident, rule string) {
	if e.medium == identDevice || e.named != (ident{}) {
		at = s.registered
		if e.named.lora != "" {
			at.lora = e.named.lora
		}
		if e.named.salt != "" {
			at.salt = e.named.salt
		}
		return at, "3 named"
	}
	found := 0
	for candidate := range s.stored { // fewer than 32
		all := true
		for i := range e.blocks {
			all = all && o.ever[identBlock{candidate, e.blocks[:i+1]}]
		}
		if all {
			at = candidate
			found++
		}
	}
	switch found {
	case 0:
		return s.registered, "5 registration, no chain"
	case 1:
		return at, "4 tokens"
	}
	return s.registered, "5 registration, several chains"
}

func (o *identOracle) hold(s *identSource, medium string, block identBlock, rule string) {
	if s.held[medium] == nil {
		s.held[medium] = map[identBlock]string{}
	}
	s.held[medium][block] = rule
	s.stored[block.ident] = true
	o.ever[block] = true
	o.rules[rule]++
}

// announce notes what a hash means, to blocks that wait by it as well.
func (o *identOracle) announce(by *identSource, hash uint64, block identBlock) {
	if o.names[by.registered] == nil {
		o.names[by.registered] = map[uint64]identBlock{}
	}
	o.names[by.registered][hash] = block
	for _, s := range o.sources {
		for medium, waiting := range s.waiting {
			if !s.pool && s.registered == by.registered && waiting[hash] {
				delete(waiting, hash)
				o.hold(s, medium, block, "1 hash, waited")
			}
		}
	}
}

// fillPools brings up to date what pools hold.
func (o *identOracle) fillPools() {
	for _, s := range o.sources {
		if !s.pool {
			continue
		}
		clear(s.held)
		for medium, hashes := range s.waiting {
			s.held[medium] = map[identBlock]string{}
			for h := range hashes {
				if block, known := o.meaning(s, h); known {
					s.held[medium][block] = "1 hash, pool"
				}
			}
		}
	}
}

// identRow is an answer for one engine: the prefix that is held, and how many of its blocks are on
// each medium.
type identRow struct{ longest, gpu, cpu, disk int }

// serves reports whether an engine has rows under an adapter (ANSWER-1).
func (s *identSource) serves(lora string) bool {
	for at := range s.stored {
		if at.lora == lora {
			return true
		}
	}
	return lora == s.registered.lora
}

// row returns what an engine can serve of a prompt. Pools serve all engines.
func (o *identOracle) row(engine *identSource, at ident, path string) (r identRow) {
	for i := range path {
		block := identBlock{at, path[:i+1]}
		on := func(medium string) int {
			for _, s := range o.sources {
				if _, held := s.held[medium][block]; held && (s == engine || s.pool) {
					return 1
				}
			}
			return 0
		}
		gpu, cpu, disk := on("GPU"), on("CPU"), on("DISK")
		if gpu+cpu+disk == 0 {
			break
		}
		r = identRow{r.longest + 1, r.gpu + gpu, r.cpu + cpu, r.disk + disk}
	}
	return r
}

// known returns how many blocks of a prompt any source has ever held under an identity.
func (o *identOracle) known(at ident, path string) (n int) {
	for n < len(path) && o.ever[identBlock{at, path[:n+1]}] {
		n++
	}
	return n
}
