package conductor

import (
	"math"
	"slices"

	"kvconductor/conductor/normalize"
	"kvconductor/conductor/scope"
	"kvconductor/events"
	"kvconductor/index"
	"kvconductor/tiers"
)

// A block without tokens goes to the context of the deployment that knows its hash, or knew
// it until lately. If none does, the block waits under its hash in the home context of its
// source. It moves when an engine announces the hash with tokens:
//
//	pool    store(hash) -> findPlace: no -> waits in home, home is awaiting -> findPlace again
//	engine  store(hash, tokens) -> is hash in an awaiting context? -> the pool's turn: move
//
// Both sides write before they look, so one of them sees the other. Meanwhile a query under
// a hash profile finds the block by its hash.

// place is the namespace and the key to which a hash belongs.
type place struct {
	ns    *namespace
	key   uint64 // to be taught, valid if named
	named bool
	// recalled says that recall alone knows the name, so no source holds the block.
	recalled bool
	// lookAheads are those that the block may have; valid if named.
	lookAheads lookAheads
}

// findPlace finds the place of a block of the event that comes without tokens, in a context
// that fits, likely's first. It reports false where none knows its hash.
func (s *placement) findPlace(e *events.Event, dk scope.Deployment, block int, likely *namespace, fits func(scope.Variant) bool) (place, bool) {
	if !s.reg.pool() { // a pool holds blocks under hashes without knowing their meaning
		if ns := s.namespaceKnowing(e, dk, block, likely); ns != nil {
			return place{ns: ns}, true
		}
	}
	m, known := s.meaningOf(dk, e, block, s.homeContext().Variant, fits, searched(e))
	if !known {
		return place{}, false
	}
	return place{ns: s.namespaceIn(scope.Context{Deployment: dk, Variant: m.at}), key: m.key, named: true, lookAheads: m.lookAheads}, true
}

// maxSearched is how many contexts are searched for the hash of an event with tokens: a
// tenth of a millisecond. Salts may be as many as users.
const maxSearched = 1024

// searched returns how many contexts to search for a hash of an event. Tokens place most
// blocks without a search; a hash without tokens says all there is.
func searched(e *events.Event) int {
	if len(e.Tokens) > 0 {
		return maxSearched
	}
	return math.MaxInt
}

// meantContext returns the context in which the deployment knows, or knew until lately,
// the first hash of an event or its parent; otherwise if there is none. An engine
// repeats the hash on a lower tier, maybe after the block has left its device.
//
// It reports false if otherwise is a guess: the event begins prompts, its hash is unknown,
// and the blocks may belong to an adapter or a salt. Behind an unknown parent blocks wait
// for the parent's context.
func (s *placement) meantContext(e *events.Event, dk scope.Deployment, otherwise scope.Variant) (at scope.Variant, sure bool) {
	if s.knownIn(scope.Context{Deployment: dk, Variant: otherwise}, e) {
		return otherwise, true
	}
	h := s.heirs(e, dk)
	if m, known := h.recalled(dk); known {
		return m.at, true
	}
	if !s.ambiguous(e, dk) {
		return otherwise, true
	}
	m, known := h.meaning(dk, 0, otherwise)
	if !known && e.HasParent {
		m, known = h.meaning(dk, parentHash, otherwise)
	}
	if !known {
		return otherwise, e.HasParent
	}
	return m.at, true
}

// knownIn reports whether the source's context knows the first hash of an event or its
// parent.
func (s *placement) knownIn(at scope.Context, e *events.Event) bool {
	ns := s.byContext[at]
	if ns == nil {
		return false
	}
	k, _ := s.known(ns.context, e, 0)
	if !k.Named && e.HasParent {
		k, _ = s.known(ns.context, e, parentHash)
	}
	return k.Named
}

// ambiguous reports whether an event leaves its adapter or salt open in a deployment that
// has had adapters or salts.
func (s *placement) ambiguous(e *events.Event, dk scope.Deployment) bool {
	d := s.contexts.deployment(dk)
	return d != nil && e.Salt == nil && (d.salted.Load() || e.LoraName == nil && d.adapted.Load())
}

// heirs tells which contexts an event may inherit from. Engines do not hash names that
// registrations add, so those do not follow from a hash, unless they are the source's own.
type heirs struct {
	source                  *placement
	event                   *events.Event
	announced, loras, salts []string
}

func (s *placement) heirs(e *events.Event, dk scope.Deployment) *heirs {
	s.contexts.mu.RLock()
	defer s.contexts.mu.RUnlock()
	h := &heirs{source: s, event: e, announced: s.announced}
	if d := s.contexts.deployments[dk]; d != nil {
		h.loras, h.salts = d.loras, d.salts
	}
	return h
}

// fit reports whether the event may belong to a context.
func (h *heirs) fit(k scope.Variant) bool {
	hashed := func(name string, registered []string) bool { return name != "" && !slices.Contains(registered, name) }
	reg := &h.source.reg
	return scope.Agrees(h.event.LoraName, k.Lora) && h.source.shares(k.Lora) &&
		(k.Lora == reg.Lora || slices.Contains(h.announced, k.Lora) || hashed(k.Lora, h.loras)) &&
		(k.Salt == reg.Salt || hashed(k.Salt, h.salts))
}

// recalled returns what the event's first hash or its parent meant.
func (h *heirs) recalled(dk scope.Deployment) (meaning, bool) {
	e, r := h.event, h.source.contexts.recall
	m, known := r.findName(dk, e.Hashes[0])
	if known = known && h.fit(m.at); !known && e.HasParent {
		m, known = r.findName(dk, e.Parent)
		known = known && h.fit(m.at)
	}
	return m, known
}

// meaning returns what the hash of a block of the event, or of its parent, means. The
// context is otherwise if the event may inherit from none that knows it.
func (h *heirs) meaning(dk scope.Deployment, block int, otherwise scope.Variant) (meaning, bool) {
	s, e := h.source, h.event
	m, known := s.meaningOf(dk, e, block, otherwise, func(scope.Variant) bool { return true }, maxSearched)
	if !known || h.fit(m.at) {
		return m, known
	}
	if m, known = s.meaningOf(dk, e, block, otherwise, h.fit, maxSearched); !known {
		m.at = otherwise
	}
	return m, true
}

// meantIn returns the place of a block of the event in one context, if a source has taught
// its hash there. A block that waits by the hash teaches nothing.
func (s *placement) meantIn(at scope.Context, e *events.Event, block int) (place, bool) {
	d, m, known := s.meaningHere(at, e, block)
	recalled := false
	if !known && d != nil {
		m, recalled = s.contexts.recall.findCounted(at.Deployment, e.Hashes[block])
		recalled = recalled && m.at == at.Variant
	}
	if !known && !recalled {
		return place{}, false
	}
	if ns := s.byContext[at]; ns != nil {
		// Blocks that wait under a hash which recall alone knows join those of the event.
		if k, _ := s.known(ns.context, e, block); k.Own && !(recalled && k.Raw) {
			return place{ns: ns}, true
		}
	}
	return place{ns: s.namespaceIn(at), key: m.key, lookAheads: m.lookAheads, named: true, recalled: recalled}, true
}

// noteResolved notes the announced hashes under which blocks of others wait.
func (s *placement) noteResolved(x *indexContext, hashes []uint64) {
	awaiting := x.deployment.awaiting.Load()
	if awaiting == nil {
		return
	}
	for _, w := range *awaiting {
		s.waited = w.index.HeldOf(hashes, s.waited[:0])
		var known []uint64
		for _, h := range s.waited {
			// Held under the hash itself: by those who wait, by an orphan of ours, or
			// because the hash is the key.
			if key, found := x.index.Means(h); found && key != h {
				known = append(known, h)
			}
		}
		if len(known) > 0 {
			s.notice.resolved = append(s.notice.resolved, resolved{w, known})
		}
	}
}

// moveResolved moves blocks that wait in a context to where their hashes are known now.
func (s *placement) moveResolved(w *indexContext, hashes []uint64) {
	ns := s.byContext[w.scope()]
	if ns == nil {
		return
	}
	// Only an event that names them can have brought blocks where the source is not
	// at home.
	home := s.homeContext().Variant
	fits := func(k scope.Variant) bool {
		return (w.key.Lora == home.Lora || k.Lora == w.key.Lora) && (w.key.Salt == home.Salt || k.Salt == w.key.Salt) && s.shares(k.Lora)
	}
	for _, h := range hashes {
		m, known := s.contexts.meaningOf(w.deployment.key, h, home, fits, math.MaxInt)
		if !known || m.at == w.key && m.key == h {
			continue
		}
		to := ns
		if m.at != w.key {
			to = s.namespaceIn(scope.Context{Deployment: w.deployment.key, Variant: m.at})
		}
		to.useLookAheads(s.contexts, m.lookAheads)
		for owner, holder := range ns.owners {
			if w.index.Holds(holder.current, h) || holder.hasPrevious && w.index.Holds(holder.previous, h) {
				s.moveBlock(ns, to, owner, holder, index.Name{Engine: h, Key: m.key})
			}
		}
	}
	s.leaveEmptyContexts()
}

// moveBlock takes a block of one holder from under its hash to its key, which may be in
// another context, with its copies.
func (s *placement) moveBlock(from, to *namespace, owner normalize.Owner, holder *holder, name index.Name) {
	medium := s.media[owner.Medium]
	switch {
	case from == to:
		to.context.index.Teach(to.source, name.Engine, name.Key)
	default:
		// There first, so that it is never nowhere.
		engine, keys := []uint64{name.Engine}, []uint64{name.Key}
		s.putNamed(to, engine, keys, owner, medium, s.copies(owner))
		n := removeAllCopies(from.context.index, holder.current, name.Engine)
		if holder.hasPrevious {
			n += removeAllCopies(from.context.index, holder.previous, name.Engine)
		}
		for range n - 1 {
			s.putNamed(to, engine, keys, owner, medium, s.copies(owner))
		}
	}
	s.putParts(to, name.Engine, owner, medium, s.copies(owner))
}

// putNamed stores blocks whose keys are known, though maybe not to the context. The namespace
// uses the look-aheads of the names.
func (s *placement) putNamed(ns *namespace, engine, keys []uint64, owner normalize.Owner, medium tiers.Medium, policy index.CopyPolicy) index.StoreResult {
	s.stored = index.Store{Owner: s.holder(ns, owner, medium).current, Engine: engine, Keys: keys, Rootless: true, Copies: policy}
	return ns.context.index.Store(&s.stored)
}

// putParts stores the other parts of a block that was published as several, see
// normalize/parts.go.
func (s *placement) putParts(ns *namespace, engine uint64, owner normalize.Owner, medium tiers.Medium, policy index.CopyPolicy) {
	here := ns.key()
	for n := 1; n < int(ns.context.deployment.parts.Load()); n++ {
		part := normalize.PartName(engine, n)
		m, known := s.contexts.meaningOf(here.Deployment, part, here.Variant, func(k scope.Variant) bool { return k == here.Variant }, 0)
		if !known {
			return
		}
		ns.useLookAheads(s.contexts, m.lookAheads)
		s.putNamed(ns, []uint64{part}, []uint64{m.key}, owner, medium, policy)
	}
}

// removeAllCopies removes a block that is held under its hash with all its copies, and returns
// how many there were.
func removeAllCopies(x *index.Index, o index.Owner, engine uint64) int {
	for n := 1; ; n++ {
		switch res := x.Remove(o, []uint64{engine}, nil, index.CopyCount); {
		case res.Removed > 0:
			return n
		case res.Copies == 0:
			return 0
		}
	}
}
