package conductor

import (
	"slices"
	"sync"
	"sync/atomic"

	"kvconductor/conductor/normalize"
	"kvconductor/conductor/scope"
	"kvconductor/events"
	"kvconductor/index"
	"kvconductor/tiers"
)

// holdings are what one source holds, by context. They alone enter and leave contexts, hand
// out owners, and take blocks away. The turn of the source guards them where nothing else
// is said.
type holdings struct {
	contexts *contexts
	owner    *source // as the waiting lists of contexts name it
	reg      Registration
	policy   index.CopyPolicy // of reg, for the engine's own copies

	// announced lists adapters under which the source stored blocks without being
	// registered for them. Guarded by Conductor.mu.
	announced []string

	digest    *index.SharedDigest          // of the blocks, see digest.go
	media     map[string]tiers.Medium      // announced so far, by name
	past      past                         // what the source lost lately, see past.go
	byContext map[scope.Context]*namespace // namespaces by their context

	mu         sync.Mutex
	namespaces []*namespace               // changed with turn held; guarded by mu for others
	tallies    map[tallyKey]*atomic.Int64 // blocks on devices; guarded by mu
}

// heldLookAheads returns the look-aheads of the blocks that the source holds. turn is held.
func (s *holdings) heldLookAheads() lookAheads {
	var all lookAheads
	for _, ns := range s.namespaces {
		if ns.blocks() > 0 {
			all |= ns.lookAheads
		}
	}
	return all
}

// withdraw takes blocks from every context that has them, and returns how many of
// them one had.
func (s *holdings) withdraw(e *events.Event, key normalize.Owner) int {
	found := 0
	for _, ns := range s.namespaces {
		h, ok := ns.owners[key]
		if !ok || !ns.within(e) {
			continue
		}
		hashes, remaining := e.Hashes, e.Remaining
		if ns.parts() > 0 {
			hashes, remaining = s.withParts(ns, hashes, remaining)
		}
		all := h.remove(ns.context.index, hashes, remaining, s.copies(key))
		found += all * len(e.Hashes) / max(len(hashes), 1)
		s.contexts.recallForgotten(ns.context)
	}
	return found
}

// remove takes blocks from both generations, and returns how many memberships that
// were, copies included.
func (h *holder) remove(x *index.Index, hashes []uint64, remaining []int, policy index.CopyPolicy) int {
	res := x.Remove(h.current, hashes, remaining, policy)
	all := res.Removed + res.Copies
	if h.hasPrevious {
		res = x.Remove(h.previous, hashes, remaining, policy)
		all += res.Removed + res.Copies
	}
	return all
}

// clear drops all blocks of a holder, and returns how many it held.
func (ns *namespace) clear(h *holder) int {
	n := ns.context.index.Clear(h.current)
	if h.hasPrevious {
		n += ns.context.index.Clear(h.previous)
	}
	ns.context.tidy()
	return n
}

// within reports whether an event that takes blocks away is about a namespace.
func (ns *namespace) within(e *events.Event) bool {
	at := ns.key()
	return at.Within(e)
}

// purgeGroup drops blocks of a group that was indexed before its kind was known.
func (s *holdings) purgeGroup(rank int32, group int) {
	for _, ns := range s.namespaces {
		for key, h := range ns.owners {
			if key.Rank == rank && key.Group == group {
				ns.clear(h)
			}
		}
	}
}

// alone reports whether the source holds blocks in no context but this one.
func (s *holdings) alone(at scope.Context) bool {
	return len(s.namespaces) == 0 || len(s.namespaces) == 1 && s.byContext[at] != nil
}

// sourceIn returns the source's namespace of engine hashes in a context, index.NoSource if
// it has none.
func (s *holdings) sourceIn(x *indexContext) index.Source {
	if ns := s.byContext[x.scope()]; ns != nil {
		return ns.source
	}
	return index.NoSource
}

// parts is the most parts a published block of the deployment had, 0 while none had
// several.
func (ns *namespace) parts() int { return int(ns.context.deployment.parts.Load()) }

// withParts adds to hashes that come without a size the parts of theirs which are
// known in a namespace, and the counts that go with them. Engines have announced blocks
// of several parts.
func (s *holdings) withParts(ns *namespace, hashes []uint64, counts []int) ([]uint64, []int) {
	var all []uint64
	var left []int
	for i, h := range hashes {
		from := len(all)
		for n := 1; n < ns.parts(); n++ {
			part := normalize.PartName(h, n)
			if !ns.context.index.Knows(ns.source, part) {
				break
			}
			all = append(all, part)
		}
		slices.Reverse(all[from:])
		all = append(all, h)
		if counts != nil {
			for range len(all) - from {
				left = append(left, counts[i])
			}
		}
	}
	return all, left
}

// copies returns what repeated stores mean for a holder. In a pool that announces blocks
// one is there or not, however often it is announced; the pool distinguishes objects before. The
// cache runner holds a block once.
func (s *holdings) copies(key normalize.Owner) index.CopyPolicy {
	switch {
	case key.Objects:
		return index.CopyCount
	case s.reg.pool(), key.Owned:
		return index.CopySet
	}
	return s.policy
}

// copiesOf returns what a stored change means for blocks its holder has. An engine that
// names a session may announce blocks that it reuses, which no removal will match.
func (s *holdings) copiesOf(c *normalize.Change) index.CopyPolicy {
	if c.Event.Session && c.Medium.Tier == tiers.Device {
		return index.CopySet
	}
	return s.copies(c.Owner)
}

// previousGeneration returns the previous generation of a holder, making it when new.
func (s *holdings) previousGeneration(ns *namespace, h *holder, key normalize.Owner, medium tiers.Medium) index.Owner {
	if !h.hasPrevious {
		old := s.newOwner(ns, key, medium)
		s.mu.Lock()
		h.previous, h.hasPrevious = old, true
		s.mu.Unlock()
	}
	return h.previous
}

// unverifiedGeneration is previousGeneration, for blocks that are a guess at those the engine
// holds.
func (s *holdings) unverifiedGeneration(ns *namespace, h *holder, key normalize.Owner, medium tiers.Medium) index.Owner {
	h.unverified = true
	return s.previousGeneration(ns, h, key, medium)
}

// placed reports whether the block before a stretch has a place.
func (ns *namespace) placed(e *index.Stretch) bool {
	return e.HasParent && ns.context.index.Placed(ns.source, e.Parent)
}

// dropUnverified drops what was recovered without a mark, now that the source has seen the
// whole history of its publisher. turn is held.
func (s *holdings) dropUnverified() {
	found := false
	for _, ns := range s.namespaces {
		for _, h := range ns.owners {
			if h.unverified {
				ns.context.index.Clear(h.previous)
				ns.context.tidy()
				h.unverified, found = false, true
			}
		}
	}
	if found {
		s.leaveEmptyContexts()
	}
}

// hasUnverified reports whether an older generation holds blocks that a peer knew, without a
// mark. turn is held.
func (s *holdings) hasUnverified() bool {
	for _, ns := range s.namespaces {
		for _, h := range ns.owners {
			if h.unverified {
				return true
			}
		}
	}
	return false
}

// snapshotHolders adds who the owners of the source are. turn is held.
func (s *holdings) snapshotHolders(contexts map[*indexContext]*snapContext) {
	for _, ns := range s.namespaces {
		of := contexts[ns.context]
		if of == nil {
			of = &snapContext{context: ns.context, holders: make(map[index.Owner]snapHolder), sources: make(map[index.Source]Registration)}
			contexts[ns.context] = of
		}
		of.sources[ns.source] = s.reg
		for key, h := range ns.owners {
			holder := snapHolder{key: key, source: s.reg, medium: s.media[key.Medium]}
			of.holders[h.current] = holder
			if h.hasPrevious {
				holder.older, holder.unverified = true, h.unverified
				of.holders[h.previous] = holder
			}
		}
	}
}

// namespace is what one source holds in one context.
type namespace struct {
	context    *indexContext
	source     index.Source
	instance   int32   // id in the deployment, or tiers.Pool
	serves     []int32 // ids of the instances a pool is bound to; nil for all
	owners     map[normalize.Owner]*holder
	lookAheads lookAheads // of the blocks it holds or held; owned by run
}

// holder is the owner of a normalize.Owner, in two generations where the source has a
// time to live.
type holder struct {
	current     index.Owner
	previous    index.Owner // blocks announced in the period before; valid when hasPrevious
	hasPrevious bool
	unverified  bool // old holds blocks that a peer knew, without a mark
}

func (s *holdings) deploymentKey() scope.Deployment { return s.reg.deploymentKey() }

// namespaceIn returns the source's namespace in a context, entering it when new.
func (s *holdings) namespaceIn(key scope.Context) *namespace {
	ns, ok := s.byContext[key]
	if !ok {
		ns = s.contexts.enterContext(s.owner, key)
		s.byContext[key] = ns
		s.mu.Lock()
		s.namespaces = append(s.namespaces, ns)
		s.mu.Unlock()
	}
	return ns
}

// fewContexts is how many contexts a source may enter while the indexes are full: the answers of
// a context that refuses blocks say so.
const fewContexts = 16

// refusesContext returns why the source may not enter one more context, "" if it may or if it is
// in there. A context takes some 13 KB before it has a block, and publishers name adapters and
// salts as they like.
func (s *holdings) refusesContext(key scope.Context) events.Reason {
	switch most := s.contexts.maxContexts; {
	case s.byContext[key] != nil:
		return ""
	case most > 0 && len(s.namespaces) >= most:
		return events.ContextLimit
	case len(s.namespaces) >= fewContexts && s.contexts.options.Budget.Full():
		return events.OverBudget
	}
	return ""
}

// leaveContext leaves a namespace and drops its blocks.
func (s *holdings) leaveContext(ns *namespace) {
	s.mu.Lock()
	s.namespaces = slices.DeleteFunc(s.namespaces, func(other *namespace) bool { return other == ns })
	s.mu.Unlock()
	delete(s.byContext, ns.key())
	s.contexts.exitContext(s.owner, ns)
	s.owner.decideContests(ns.context, nil)
}

// leaveEmptyContexts leaves namespaces that hold nothing any more: salts may be as many
// as users. The registered one stays, it would only come back.
func (s *holdings) leaveEmptyContexts() {
	home := s.homeContext()
	for i := len(s.namespaces) - 1; i >= 0; i-- {
		if ns := s.namespaces[i]; ns.key() != home && ns.blocks() == 0 {
			s.leaveContext(ns)
		}
	}
}

// homeContext is the context the registration names.
func (s *holdings) homeContext() scope.Context { return s.reg.context() }

func (ns *namespace) key() scope.Context {
	return scope.Context{Deployment: ns.context.deployment.key, Variant: ns.context.key}
}

// blocks returns the memberships in the namespace. Callers but run hold mu of
// its source.
func (ns *namespace) blocks() int {
	n := 0
	for _, h := range ns.owners {
		n += ns.context.index.Blocks(h.current)
		if h.hasPrevious {
			n += ns.context.index.Blocks(h.previous)
		}
	}
	return n
}

// holder returns the holder for a key, making it when new.
func (s *holdings) holder(ns *namespace, key normalize.Owner, medium tiers.Medium) *holder {
	if h, ok := ns.owners[key]; ok {
		return h
	}
	h := &holder{current: s.newOwner(ns, key, medium)}
	s.countIn(ns, key, h.current)
	s.media[medium.Name] = medium
	s.mu.Lock()
	ns.owners[key] = h
	s.mu.Unlock()
	return h
}

func (s *holdings) newOwner(ns *namespace, key normalize.Owner, medium tiers.Medium) index.Owner {
	var tally *atomic.Int64
	if medium.Tier == tiers.Device {
		tally = s.tally(ns.context.deployment.key, key.Rank)
	} else {
		ns.context.deployment.tiered.Store(true)
	}
	o := ns.context.newOwner(ns.source, tiers.Owner{Instance: ns.instance, Rank: key.Rank, Medium: medium, Serves: ns.serves}, tally)
	s.past.follow(ns, key, o)
	return o
}

// blocks returns how many block memberships the source has, over all contexts.
func (s *holdings) blocks() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, ns := range s.namespaces {
		n += ns.blocks()
	}
	return n
}

// tallyKey is what blocks of one source are counted by, over adapters and salts.
type tallyKey struct {
	deployment scope.Deployment
	rank       int32
}

// tally returns the number of blocks a rank holds on devices.
func (s *holdings) tally(of scope.Deployment, rank int32) *atomic.Int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := tallyKey{of, rank}
	n := s.tallies[key]
	if n == nil {
		if s.tallies == nil {
			s.tallies = make(map[tallyKey]*atomic.Int64)
		}
		n = new(atomic.Int64)
		s.tallies[key] = n
	}
	return n
}
