package normalize

import (
	"cmp"
	"slices"

	"example.com/conductor/events"
	"example.com/conductor/tiers"
)

const (
	// maxParked bounds the events of one group that wait for its kind or the size of its blocks to be known.
	// Both come with its first self-describing event, so few ever wait.
	maxParked = 1024
	// maxAllParked bounds those of all groups of a source.
	maxAllParked = 4 * maxParked
	// maxRankGroups bounds the groups of a rank. Publishers choose the numbers, models have about ten at most, and
	// every query asks all groups of a rank. Events of further ones are left out.
	maxRankGroups = 64
	// maxGroups bounds the groups of all ranks of a source, because publishers choose the numbers of ranks too.
	maxGroups = 1024
)

// MainGroup reports whether layers of an attention kind look at all tokens before.
func MainGroup(kind string) bool {
	switch kind {
	case "full_attention", "mla_attention", "sink_full_attention":
		return true
	}
	return false
}

// IndexedGroup reports whether blocks of an attention kind decide what an engine takes from its cache. The others are those of
// encoders, which a prompt has none of, and kinds of later engines.
func IndexedGroup(kind string) bool { return MainGroup(kind) || needOf(kind) != tiers.NeedAll }

// ForEncoders reports whether groups of a kind are those of encoders, which have no part in what an engine takes of a prompt.
func ForEncoders(kind string) bool {
	return kind == "encoder_only_attention" || kind == "cross_attention"
}

// needOf returns what groups of a kind need of their blocks; tiers.NeedAll also for kinds that are not indexed.
func needOf(kind string) tiers.Need {
	switch kind {
	case "sliding_window", "sliding_window_mla":
		return tiers.NeedWindow
	case "mamba":
		return tiers.NeedState
	case "chunked_local_attention": // events do not say how long a chunk is
		return tiers.NeedUnknown
	}
	return tiers.NeedAll
}

// Spec is what a rank has announced of one of its groups.
type Spec struct {
	Rank   int32
	Group  int
	Kind   string // kv_cache_spec_kind
	Window int    // tokens, 0 without a sliding window
	Block  int    // tokens of a block, 0 if no event said it
	// Unit is the least number of tokens in a block that was announced, if that is less than Block.
	Unit int
}

// NeedIn returns the group as a hit depends on it, with blocks of size tokens in the index.
func (s *Spec) NeedIn(size int) tiers.Group {
	g := tiers.Group{Number: s.Group, Need: needOf(s.Kind), Block: 1}
	if s.Block > 0 {
		g.Block = s.Block / size
	}
	switch {
	case !IndexedGroup(s.Kind), s.Block%size != 0, g.Block > MaxParts:
		return tiers.Group{Number: s.Group, Need: tiers.NeedUnknown, Block: 1} // its blocks are not indexed
	case g.Need == tiers.NeedWindow:
		own := g.Block * size
		g.Window = max(1, (s.Window-1+own-1)/own) * g.Block
	}
	return g
}

// NeedBelow returns the group as a hit on a medium below the device depends on it. For a window of w tokens vLLM's OffloadingConnector
// asks for blocks of w tokens where a block of the group ends, although attention looks at the w - 1 before the boundary only.
func (s *Spec) NeedBelow(size int) tiers.Group {
	g := s.NeedIn(size)
	if own := g.Block * size; g.Need == tiers.NeedWindow {
		g.Window, g.Least = max(1, (s.Window+own-1)/own)*g.Block, (s.Window-1+size-1)/size
	}
	return g
}

// NoGroup is the Owner.Group of blocks of no group: see ownerGroup.
const NoGroup = -1

// groupKey names one KV-cache group of one publisher rank.
type groupKey struct {
	rank  int32
	group int
}

// groupState is the state of one group.
type groupState struct {
	spec   Spec // without a Kind while that is unknown
	parked []parkedEvent
	// unnamed is true if the group has stored blocks without naming its kind, and a ruling has said so.
	unnamed bool
	// unsized is true if too many events waited for the size of the group's blocks. No event waits for it any more.
	unsized bool
}

// parkedEvent waits for the kind of its group, or for the size of its blocks.
type parkedEvent struct {
	event events.Event
	rank  int32
}

// groups learns, per rank and group of one source, which groups are indexed.
// The zero value is ready; it belongs to the source's goroutine.
type groups struct {
	states map[groupKey]*groupState
	ofRank map[int32]int // how many states each rank has
	parked int           // events of all states
	window int           // largest announced, in tokens
	// several is true once a group without full attention was announced.
	several bool
}

// verdict says what to do with an event.
type verdict uint8

const (
	admit    verdict = iota // index it
	park                    // keep it until the kind of its group, or the size of the group's blocks, is known
	skip                    // another group's
	overflow                // would wait, but too many do
	beyond                  // of a group beyond the bounds
)

// ruling is what judgeEvent has decided about one event.
type ruling struct {
	verdict verdict
	// ready holds events that waited for what this one taught, in order; they
	// are applied before it.
	ready []parkedEvent
	// purge is true when blocks of the group were indexed and must not be.
	purge bool
	// learned is the group if the event told something new of it, nil if not. It has no Kind if the group stores blocks and no event
	// has named its kind.
	learned *Spec
	// lost counts waiting events that turned out to be of another group.
	lost int
}

// judgeEvent learns the kind of its group from an event that names it, and decides what becomes of the event.
func (g *groups) judgeEvent(e *events.Event, rank int32) ruling {
	if e.Group < 0 && e.GroupKind == "" {
		return ruling{verdict: admit}
	}
	key := groupKey{rank: rank, group: max(e.Group, 0)}
	st := g.stateOf(key)
	switch {
	case st != nil:
	case key.group == 0 && (e.GroupKind == "" || MainGroup(e.GroupKind)): // as if its rank had no groups
		return ruling{verdict: admit}
	default: // nothing is learned of it: without a state all would be new at every event
		return ruling{verdict: beyond}
	}
	var r ruling
	if st.learn(e) {
		spec := st.spec
		spec.Rank, spec.Group = key.rank, key.group
		r.learned = &spec
		switch {
		case !IndexedGroup(spec.Kind):
			r.purge = true
			for _, p := range g.unpark(st) {
				r.lost += p.event.Count()
			}
		case !g.lacksSize(key, st):
			r.ready = g.unpark(st)
		}
		g.window = max(g.window, spec.Window)
		g.several = g.several || !MainGroup(spec.Kind)
	}
	if st.spec.Kind == "" && key.group > 0 && e.Kind == events.Stored && !st.unnamed {
		st.unnamed = true
		r.learned = &Spec{Rank: key.rank, Group: key.group}
	}
	known, crowded := st.spec.Kind != "", len(st.parked) >= maxParked || g.parked >= maxAllParked
	waitsForKind := !known && (key.group > 0 || isBare(e) && g.namesKinds(rank))
	waitsForSize := known && g.lacksSize(key, st) && isBare(e)
	if waitsForSize && crowded { // a later removal must not overtake the stores that wait
		st.unsized, r.ready, waitsForSize = true, g.unpark(st), false
	}
	switch {
	case len(e.Hashes) == 0: // it names no block, so it changes nothing
		r.verdict = admit
	case known && !IndexedGroup(st.spec.Kind):
		r.verdict = skip
	case !waitsForKind && !waitsForSize:
		r.verdict = admit
	case crowded:
		r.verdict = overflow
	default:
		// Its batch will be released.
		own := *e
		own.Hashes, own.Tokens = slices.Clone(e.Hashes), slices.Clone(e.Tokens)
		st.parked = append(st.parked, parkedEvent{event: own, rank: rank})
		g.parked++
		r.verdict = park
	}
	return r
}

// isBare reports whether an event names blocks below the device by their hashes alone.
func isBare(e *events.Event) bool {
	return len(e.Tokens) == 0 && e.BlockSize == 0 && tiers.ParseMedium(e.Medium).Tier > tiers.Device
}

// lacksSize reports whether events of a group have to wait until the size of its blocks is known. They do if the rank has other groups,
// because one hash names a block of each, and these may be larger.
func (g *groups) lacksSize(key groupKey, st *groupState) bool {
	return st.spec.Block == 0 && g.ofRank[key.rank] > 1 && !st.unsized
}

// unpark returns the waiting events of a group and forgets them.
func (g *groups) unpark(st *groupState) []parkedEvent {
	all := st.parked
	g.parked -= len(all)
	st.parked = nil
	return all
}

// stateOf returns the state of a group, which it makes if the group is new. It returns nil if there is no room for another.
func (g *groups) stateOf(key groupKey) *groupState {
	st := g.states[key]
	if st != nil || len(g.states) >= maxGroups || g.ofRank[key.rank] >= maxRankGroups {
		return st
	}
	if g.states == nil {
		g.states, g.ofRank = make(map[groupKey]*groupState), make(map[int32]int)
	}
	st = new(groupState)
	g.states[key] = st
	g.ofRank[key.rank]++
	return st
}

// learn takes what a stored event that names its kind says of the group, and reports whether it is new.
func (st *groupState) learn(e *events.Event) bool {
	was := st.spec
	s := &st.spec
	if e.GroupKind == "" {
		return false
	}
	if s.Kind != e.GroupKind {
		*s = Spec{Kind: e.GroupKind}
	}
	s.Window = max(s.Window, e.Window)
	if size := e.BlockSize; size > 0 && len(e.Hashes) > 0 && size != s.Block && size != s.Unit {
		if s.Block > 0 && (s.Unit == 0 || min(size, s.Block) < s.Unit) {
			s.Unit = min(size, s.Block)
		}
		s.Block = max(s.Block, size)
	}
	return *s != was
}

// kindOf returns the kind of a group of a rank, "" if that is not known.
func (g *groups) kindOf(e *events.Event, rank int32) string {
	if e.GroupKind != "" {
		return e.GroupKind
	}
	if st := g.states[groupKey{rank: rank, group: max(e.Group, 0)}]; st != nil {
		return st.spec.Kind
	}
	return ""
}

// ownerGroup returns the group whose owner has the blocks of an event: its own, 0 if it names none, and NoGroup if it names none
// while its rank has announced several groups or none with full attention. No engine does that, but Dynamo's tests do.
func (g *groups) ownerGroup(e *events.Event, rank int32) int {
	if e.Group >= 0 || e.GroupKind != "" || !g.hasSeveral(rank) {
		return max(e.Group, 0)
	}
	return NoGroup
}

// namesKinds reports whether a rank has named the kind of a group.
func (g *groups) namesKinds(rank int32) bool {
	for key, st := range g.states {
		if key.rank == rank && st.spec.Kind != "" {
			return true
		}
	}
	return false
}

// hasFull reports whether a rank has announced a group with full attention.
func (g *groups) hasFull(rank int32) bool {
	for key, st := range g.states {
		if key.rank == rank && MainGroup(st.spec.Kind) {
			return true
		}
	}
	return false
}

// hasSeveral reports whether a rank has announced a group other than group 0 with full attention.
func (g *groups) hasSeveral(rank int32) bool {
	for key, st := range g.states {
		if key.rank == rank && st.spec.Kind != "" && (key.group > 0 || !MainGroup(st.spec.Kind)) {
			return true
		}
	}
	return false
}

// fullFirst puts the events of groups with full attention before those of others, in each stretch without a clear. An engine
// announces what a step did group by group, so that the order between groups says nothing. Groups that keep only some blocks of
// a prompt name these by their hashes alone, and full attention tells which blocks those are.
func (g *groups) fullFirst(all []events.Event, rank int32) {
	several := g.several
	for i := 0; i < len(all) && !several; i++ {
		several = all[i].GroupKind != "" && !MainGroup(all[i].GroupKind)
	}
	if !several {
		return
	}
	for len(all) > 0 {
		n := slices.IndexFunc(all, func(e events.Event) bool { return e.Kind != events.Stored && e.Kind != events.Removed })
		if n < 0 {
			n = len(all)
		}
		if part := all[:n]; n > 1 {
			slices.SortStableFunc(part, func(a, b events.Event) int { return g.order(&a, rank) - g.order(&b, rank) })
		}
		all = all[min(n+1, len(all)):]
	}
}

// order is 0 for events of full attention, 1 for others.
func (g *groups) order(e *events.Event, rank int32) int {
	if e.Group < 0 && e.GroupKind == "" { // of no group: what that means, the events before it tell
		return 1
	}
	if kind := g.kindOf(e, rankOf(e, rank)); kind == "" || MainGroup(kind) {
		return 0
	}
	return 1
}

// recall notes what a snapshot says of a group that nothing is known of. It reports false if there is no room for the group.
func (g *groups) recall(spec Spec) bool {
	st := g.stateOf(groupKey{rank: spec.Rank, group: spec.Group})
	if st == nil {
		return false
	}
	if st.spec.Kind == "" && len(st.parked) == 0 {
		st.spec, st.unnamed = spec, spec.Kind == ""
		g.window = max(g.window, spec.Window)
		g.several = g.several || spec.Kind != "" && !MainGroup(spec.Kind)
	}
	return true
}

// specs returns the groups whose kind is known or that have stored blocks without it, by rank and number.
func (g *groups) specs() (all []Spec) {
	for key, st := range g.states {
		if st.spec.Kind != "" || st.unnamed {
			spec := st.spec
			spec.Rank, spec.Group = key.rank, key.group
			all = append(all, spec)
		}
	}
	slices.SortFunc(all, func(a, b Spec) int { return cmp.Or(cmp.Compare(a.Rank, b.Rank), cmp.Compare(a.Group, b.Group)) })
	return all
}

// knowsGroup reports whether a rank has announced anything in a group.
func (g *groups) knowsGroup(rank int32, group int) bool {
	return g.states[groupKey{rank: rank, group: max(group, 0)}] != nil
}

// dropParked forgets the waiting stores that a cleared event takes away: those of the rank on media for which on returns true.
// If the event is limited to a tenant, a model or the like, it forgets none. At worst a block then stays until its removal.
func (g *groups) dropParked(e *events.Event, rank int32, on func(medium string) bool) {
	if e.Tenant != nil || e.Model != nil || e.Backend != nil || e.LoraName != nil || e.Salt != nil {
		return
	}
	for key, st := range g.states {
		if key.rank == rank {
			before := len(st.parked)
			st.parked = slices.DeleteFunc(st.parked, func(p parkedEvent) bool {
				return on(p.event.Medium) && (p.event.Owned || !e.Owned)
			})
			g.parked -= before - len(st.parked)
		}
	}
}
