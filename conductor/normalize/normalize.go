// Package normalize turns the batches of one publisher into changes that say the same
// thing for every engine.
//
//	events.Batch --tenant and ownership rules--> order of event_id --> moves as stores and removals
//	    --> group filter --> context, owner, cut into registered blocks, local hashes --> []Change
//
// A Normalizer belongs to one source and is not for concurrent use. It learns from the
// events of an epoch, and forgets with Reset. It holds no index and no lock, and calls
// no other room but the Findings of its source. Result counts what it leaves out. It hashes each token once. Batches
// without cut blocks cost no allocation once the buffers have grown.
package normalize

import (
	"slices"

	"example.com/conductor/conductor/doctor"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/events"
	"example.com/conductor/index/hash"
	"example.com/conductor/tiers"
)

// Options are what a registration says about the events of its source.
type Options struct {
	Registered  scope.Context
	Rank        int
	Pool        bool // the source is no engine: its ranks count for nothing
	Standard    bool // hashes are declared to be canonical keys
	DropOwned   bool // events about blocks of the cache runner count for nothing
	ClearDevice bool // a clear that names no medium takes the blocks of the device
	MayAnnounce func(tenant string) bool
	IsAlias     func(model string) bool // it is an alias of the registered model; nil is for none
	Scheme      hash.Scheme
	Findings    *doctor.Findings
	// Medium returns what a medium counts as; stores is true if blocks are stored there. It is
	// tiers.ParseMedium if nil.
	Medium func(raw string, stores bool) tiers.Medium
}

// Kind is the effect of a Change.
type Kind uint8

const (
	Stored  Kind = iota + 1 // blocks appeared on a medium
	Removed                 // blocks left a medium
	Cleared                 // all blocks of a rank left
	Object                  // an object of a pool was stored or removed
	Purged                  // the blocks of an attention group do not count any more
	Learned                 // more is known of an attention group: Change.Spec
)

// Owner identifies a holder of blocks within one context of a source. Group -1 and group
// 0 are one: publishers omit the index where there is a single group.
type Owner struct {
	Rank    int32
	Medium  string // canonical, as tiers.Medium.Name
	Group   int
	Backend string // of standardized events; "" when not published
	Objects bool   // of a pool: the blocks are those of objects
	Owned   bool   // of the engine's cache runner, next to the engine's own copies
	// Chunk is how many registered blocks the publisher uses whole or not at all; 0 is one.
	Chunk int
	// Listed says that the publisher names every block of a chunk, in stores and in removals. Else it names the last one.
	Listed bool
}

// Change is one event as the application applies it.
type Change struct {
	Kind  Kind
	Event *events.Event // as published
	// Spec is that of a Learned change.
	Spec *Spec
	// Owner of the blocks. A Purged or Learned change has the Rank and the Group.
	// A Cleared change has the Rank and the Medium, "" for all media, and is Owned if only the runner's copies go.
	Owner  Owner
	Medium tiers.Medium // of a Stored or Removed change

	// The rest is of Stored changes. Context is what the event and the registration name.
	Context scope.Context
	Refused events.Reason // why no block can be indexed, "" if they can
	Cut     *events.Event // Event with every block cut into Parts of the registered size
	Parts   int
	EverCut bool // a block of this epoch had several parts
	// Chunk is how many registered blocks each hash of an event without tokens stands for, 0 if the event
	// does not say.
	Chunk int
	// Runs says that hashes of Cut which no other group has announced are those of the blocks just before the next hash: the group
	// keeps blocks by runs, each up to a boundary that all groups have.
	Runs bool
	// Local are the local hashes of the blocks of Cut, nil where the tokens do not pair with
	// the blocks: then only the engine hashes count.
	Local []uint64
	// Canonical is true if the engine hashes are taken for canonical keys.
	Canonical bool
}

// Drop is a count of events or hashes that were left out.
type Drop struct {
	Reason events.Reason
	Count  int
}

// Result is what a batch says. It is valid until the next call of Batch or Release.
type Result struct {
	Changes []Change
	Dropped []Drop
}

// Lists have the memory of one result. They go from one normalizer to the next, so that a silent source takes no
// memory for them.
type Lists struct {
	out   Result
	local []uint64
}

// What a batch may leave behind for others, in elements: 32 KiB of hashes, some 150 KiB of changes.
const (
	maxKept        = 4096
	maxKeptChanges = 512
)

// reset empties the lists, so that they refer to no events. It frees those that have grown large.
func (l *Lists) reset() {
	clear(l.out.Changes)
	l.out.Changes, l.out.Dropped, l.local = l.out.Changes[:0], l.out.Dropped[:0], l.local[:0]
	if cap(l.local) > maxKept {
		l.local = nil
	}
	if cap(l.out.Changes) > maxKeptChanges {
		l.out.Changes = nil
	}
}

// Normalizer has the state of one publisher.
type Normalizer struct {
	opts       Options
	groups     groups
	order      order
	declared   declared
	parts      int    // most parts that a published block had, 0 while none had several
	lookAheads uint64 // announced in this epoch; bit L stands for L tokens
	offsets    bool   // events.Batch.Offsets of any batch of the epoch
	zero       bool   // a block of hash 0 was announced in this epoch
	lists      *Lists // of the batch at hand, nil without one
}

// New returns the normalizer of a source.
func New(opts Options) *Normalizer {
	if opts.Medium == nil {
		opts.Medium = func(raw string, _ bool) tiers.Medium { return tiers.ParseMedium(raw) }
	}
	return &Normalizer{opts: opts}
}

// Reset forgets everything about the publisher, because it begins a new epoch.
func (n *Normalizer) Reset() { *n = Normalizer{opts: n.opts} }

// Specs returns the attention groups that are known, by rank and number, without a kind where no event has named it. It returns nil if
// each rank has one and it is group 0 with full attention.
func (n *Normalizer) Specs() []Spec {
	all := n.groups.specs()
	if slices.ContainsFunc(all, func(s Spec) bool { return s.Group > 0 || !MainGroup(s.Kind) }) {
		return all
	}
	return nil
}

// Waiting returns how many events wait for the kind of their attention group, and how many for the size of its blocks.
func (n *Normalizer) Waiting() (kind, size int) {
	for _, st := range n.groups.states {
		if st.spec.Kind == "" {
			kind += len(st.parked)
		} else {
			size += len(st.parked)
		}
	}
	return kind, size
}

// RecallSpec notes what a snapshot says of an attention group. It reports false if the source has too many groups already.
func (n *Normalizer) RecallSpec(s Spec) bool { return n.groups.recall(s) }

// Window returns the largest window that a group has announced, in tokens.
func (n *Normalizer) Window() int { return n.groups.window }

// Parts returns the most parts that a block of the epoch had, 0 while none had several.
func (n *Normalizer) Parts() int { return n.parts }

// RaiseParts notes that blocks of the epoch had several parts.
func (n *Normalizer) RaiseParts(parts int) { n.parts = max(n.parts, parts) }

// ZeroHash reports whether a block of hash 0 was announced in this epoch.
func (n *Normalizer) ZeroHash() bool { return n.zero }

// NoteZeroHash notes that a block of hash 0 was announced in this epoch.
func (n *Normalizer) NoteZeroHash() { n.zero = true }

// readRoot removes the parent of an event that names parent 0. As long as the publisher has announced no block of hash 0, it
// means the beginning of a prompt by that.
func (n *Normalizer) readRoot(e *events.Event) {
	if n.zero {
		return
	}
	if e.Parent == 0 {
		e.HasParent = false
	}
	n.zero = slices.Contains(e.Hashes, 0)
}

// Batch returns the changes of a batch in the order in which they apply. It reorders the
// events of the batch, and overwrites those that it leaves out.
func (n *Normalizer) Batch(b *events.Batch) Result {
	n.borrowLists().reset()
	if n.offsets = n.offsets || b.Offsets; !n.offsets {
		n.countDropped(events.AmbiguousExtraKey, b.Ambiguous)
	}
	rank := int32(n.opts.Rank)
	if b.Rank >= 0 {
		rank = int32(b.Rank)
	}
	b.Events = n.withoutRefused(b.Events)
	n.orderByID(b, rank)
	n.groups.fullFirst(b.Events, rank)
	for i := range b.Events {
		e := &b.Events[i]
		switch {
		case !n.opts.Pool:
			n.admitEvent(e, rankOf(e, rank))
		case e.Kind == events.Cleared || e.ObjectKey == "" || len(e.Tokens) > 0:
			n.admitEvent(e, int32(n.opts.Rank))
		default:
			n.lists.out.Changes = append(n.lists.out.Changes, Change{Kind: Object, Event: e})
		}
	}
	return n.lists.out
}

// Lend gives the normalizer empty lists for its next batch. It makes lists of its own if it has none.
func (n *Normalizer) Lend(l *Lists) { n.lists = l }

// Release ends the use of what Batch has returned and Event has set, and returns empty lists for Lend, of this
// normalizer or another. Without it the result keeps the memory of the events.
func (n *Normalizer) Release() *Lists {
	l := n.borrowLists()
	l.reset()
	n.lists = nil
	return l
}

// borrowLists returns the lists of the batch at hand, which it makes if Lend gave none.
func (n *Normalizer) borrowLists() *Lists {
	if n.lists == nil {
		n.lists = new(Lists)
	}
	return n.lists
}

// countDropped counts events or hashes that are left out, with the reason why.
func (n *Normalizer) countDropped(reason events.Reason, count int) {
	if count > 0 {
		l := n.borrowLists()
		l.out.Dropped = append(l.out.Dropped, Drop{reason, count})
	}
}

// rankOf returns the rank of an event: its own if it names one, else that of its batch.
func rankOf(e *events.Event, rank int32) int32 {
	if e.Rank != nil {
		return int32(*e.Rank)
	}
	return rank
}

// withoutRefused returns the events that the source may announce, in their order, and counts
// the others. An empty tenant or model becomes an absent one. withoutRefused reuses list.
func (n *Normalizer) withoutRefused(list []events.Event) []events.Event {
	kept := 0
	for i := range list {
		e := &list[i]
		e.Tenant, e.Model = unlessEmpty(e.Tenant), unlessEmpty(e.Model)
		if e.Model != nil && n.opts.IsAlias != nil && n.opts.IsAlias(*e.Model) {
			e.Model = nil // the registered one
		}
		switch {
		case e.Tenant != nil && !n.opts.MayAnnounce(*e.Tenant):
			n.countDropped(events.ForeignTenant, e.Count())
			n.opts.Findings.Report(doctor.FindingForeignTenant,
				"an event names tenant %q, registered is %q: such events index nothing; register the source for that tenant, or name the "+
					"tenant in may_announce of its entry in the configuration file",
				*e.Tenant, n.opts.Registered.Deployment.Tenant)
			continue
		case e.Owned && n.opts.DropOwned:
			n.countDropped(events.Foreign, e.Count())
			continue
		}
		if kept < i {
			list[kept] = *e
		}
		kept++
	}
	return list[:kept]
}

// unlessEmpty returns an optional name, nil if it is empty.
func unlessEmpty(name *string) *string {
	if name != nil && *name == "" {
		return nil
	}
	return name
}

// admitEvent passes an event through the group filter, and adds the changes that follow: those of the event if it is admitted,
// and those of events that had waited for it.
func (n *Normalizer) admitEvent(e *events.Event, rank int32) {
	if e.Kind == events.Cleared {
		medium := n.clearedMedium(e)
		n.groups.dropParked(e, rank, func(raw string) bool { return medium == "" || n.opts.Medium(raw, false).Name == medium })
		n.lists.out.Changes = append(n.lists.out.Changes, Change{
			Kind: Cleared, Event: e, Owner: Owner{Rank: rank, Medium: medium, Owned: e.Owned},
		})
		return
	}
	if e.Kind == events.Moved {
		n.admitMove(e, rank)
		return
	}
	n.readRoot(e)
	r := n.groups.judgeEvent(e, rank)
	group := Owner{Rank: rank, Group: max(e.Group, 0)}
	if r.learned != nil {
		n.lists.out.Changes = append(n.lists.out.Changes, Change{Kind: Learned, Event: e, Spec: r.learned, Owner: group})
	}
	if r.purge {
		n.lists.out.Changes = append(n.lists.out.Changes, Change{Kind: Purged, Event: e, Owner: group})
	}
	n.countDropped(events.OtherGroup, r.lost)
	for i := range r.ready {
		n.addEvent(&r.ready[i].event, r.ready[i].rank)
	}
	switch r.verdict {
	case admit:
		n.addEvent(e, rank)
	case skip:
		n.countDropped(events.OtherGroup, e.Count())
	case overflow:
		n.countDropped(events.GroupUnknown, e.Count())
	case beyond:
		n.countDropped(events.OwnerLimit, e.Count())
	}
}

// addEvent adds the change of a stored or removed event.
func (n *Normalizer) addEvent(e *events.Event, rank int32) {
	if len(e.Hashes) == 0 {
		return // masked groups publish events that name no block
	}
	n.lists.out.Changes = append(n.lists.out.Changes, Change{})
	n.Event(e, rank, &n.lists.out.Changes[len(n.lists.out.Changes)-1])
}

// Event sets c to the change of one stored or removed event of a rank. The group filter
// does not see the event.
func (n *Normalizer) Event(e *events.Event, rank int32, c *Change) {
	medium := n.opts.Medium(e.Medium, e.Kind == events.Stored)
	if medium.Tier == tiers.Other {
		n.opts.Findings.ReportMedium(e.Medium)
	}
	*c = Change{
		Kind: Stored, Event: e, Medium: medium,
		Owner: Owner{Rank: rank, Medium: medium.Name, Group: n.groups.ownerGroup(e, rank), Owned: e.Owned},
	}
	if e.Backend != nil {
		c.Owner.Backend = *e.Backend
	}
	if e.Kind == events.Removed {
		c.Kind = Removed
		return
	}
	c.Context = n.opts.Registered.Named(e)
	size := c.Context.Deployment.BlockSize
	state := needOf(n.groups.kindOf(e, rank)) == tiers.NeedState
	if keepsSome(e) || state && e.BlockSize > size && n.groups.hasFull(rank) { // full attention tells which block a state is behind
		e = withoutTokens(e)
		c.Runs = needOf(n.groups.kindOf(e, rank)) == tiers.NeedWindow
	}
	if c.Parts, c.Refused = partsOf(e, size); c.Refused == "" && len(e.Tokens) > 0 {
		c.Refused = n.checkLookAhead(e)
	}
	if c.Refused != "" {
		return
	}
	if c.Cut = e; c.Parts > 1 {
		c.Cut = splitBlocks(e, c.Parts)
		n.RaiseParts(c.Parts)
		c.Owner.Chunk = c.Parts
	}
	if len(e.Tokens) == 0 {
		if c.Chunk = n.chunkOf(e, medium.Tier, size); state {
			c.Chunk = 1 // the state behind it is all that counts
		}
	}
	if isDescribedChunk(e, medium.Tier) && !n.opts.Pool {
		c.Owner.Chunk, c.Owner.Listed = len(c.Cut.Hashes), true
	}
	c.EverCut = n.parts > 0
	l := n.borrowLists()
	from := len(l.local)
	if l.local = Locals(l.local, n.opts.Scheme, c.Cut, size); len(l.local) > from {
		c.Local = l.local[from:len(l.local):len(l.local)]
		c.Canonical = n.opts.Standard && e.Envelope && e.Items == nil && n.acceptDeclared(c.Cut, c.Local)
	}
}

// keepsSome reports whether a stored event is of a group that keeps only some of the blocks whose tokens the event has. Which, the
// hashes alone say.
func keepsSome(e *events.Event) bool {
	return e.Group >= 0 && e.BlockSize > 0 && len(e.Hashes) > 0 && len(e.Tokens) > len(e.Hashes)*e.BlockSize+e.Ahead
}

// withoutTokens returns a stored event of blocks by their hashes alone.
func withoutTokens(e *events.Event) *events.Event {
	own := *e
	own.Tokens, own.Items, own.Ahead = nil, nil, 0
	own.Parent, own.HasParent = 0, false
	return &own
}

// clearedMedium returns the canonical name of the medium whose blocks a cleared event
// takes, "" for all media.
func (n *Normalizer) clearedMedium(e *events.Event) string {
	switch {
	case e.Medium != "":
		return n.opts.Medium(e.Medium, false).Name
	case n.opts.ClearDevice && !e.Envelope && !e.Owned:
		return tiers.NameDevice
	}
	return ""
}

// Locals appends the local hash of every block of a stored event. It appends nothing
// where the tokens do not pair with the blocks.
func Locals(dst []uint64, scheme hash.Scheme, e *events.Event, blockSize int) []uint64 {
	switch {
	case len(e.Tokens) == 0 || len(e.Tokens) != len(e.Hashes)*blockSize+e.Ahead:
		return dst
	case e.Items == nil && e.Ahead == 0:
		return scheme.AppendLocals(slices.Grow(dst, len(e.Hashes)), e.Tokens, blockSize)
	}
	return scheme.AppendWindows(dst, e.Tokens, blockSize, e.Ahead, e.Items)
}
