package ingest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"

	"example.com/conductor/conductor/catalog"
	"example.com/conductor/conductor/image"
	"example.com/conductor/conductor/names"
	"example.com/conductor/conductor/normalize"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/index"
)

// reasonNotRegistered is the reason of a recovered source without a registration. It has
// no subscription, and expires.
const reasonNotRegistered = "not_registered"

// Recovery brings back a snapshot: of all that a server holds before the gate of Options.Gate
// opens, of sources that are not registered yet at any time. Done or Undo ends it.
//
//	peer's marks  --Source--> the registered source that waits at the gate, or a
//	peer's blocks --Stored-->   recovered source, which a registration takes over
//
// With the mark of a source, the snapshot holds exactly the blocks that its engine held
// there, and the stream goes on behind the mark. Without marks, the blocks are a guess at
// those the engine holds. Their holders keep them apart, as the previous generation, until
// the source's own history is whole.
//
// A recovery owns the sources that it fills: it claims each of them before it gives it anything,
// unless the source runs already or another recovery has it (Source.recovery). A source asks for
// its first step once the gate is open and the recovery that owns it has ended. So a mark is
// never set, and no block comes back, while the stream of the source runs. Once the gate is open,
// a recovery finds sources without a registration alone. A source that is registered before Done
// takes nothing over, and begins with what its publisher replays. So does one that the recovery has found unregistered.
type Recovery struct {
	c       *Sources
	owned   map[*catalog.Member]*Source // claimed and not released; guarded by Sources.mu
	ended   chan struct{}               // closed by Done and Undo
	open    *Loading                    // the deployment that is being brought back, nil if none is
	ttl     time.Duration
	sources map[registration.Key]*Source // by the key in the snapshot; nil takes nothing
	resumes bool                         // Done has begun
	made    int                          // deployments that only this recovery has entered
	pending []*pendingStretch            // stretches that came before their parents; the budget is charged for them
	charged int64
	Origin  string // FromPeer, FromSnapshot or FromShelf
	Refill  bool   // sources without a registration that another recovery filled are filled again
	Blocks  int    // blocks brought back
	Refused int    // blocks of sources that run already, or of deployments and tenants not theirs
	// Beside brings the blocks of an image back one by one. Without it an image fails with index.ErrOthers if sources of
	// others begin to store blocks in its deployment meanwhile.
	Beside bool
}

// ErrNoRoom is the error of a snapshot that takes more memory than index.max_bytes_total allows, although the index
// refuses blocks there: its names do, or blocks whose parents do not come.
var ErrNoRoom = errors.New("it takes more memory than index.max_bytes_total allows")

// Room returns the bytes that all indexes may take, 0 if there is no bound.
func (r *Recovery) Room() int64 {
	_, most := r.c.catalog.IndexOptions().Budget.Used()
	return most
}

// full reports whether the snapshot takes more memory than there is. An index that refuses blocks
// stays below that.
func (r *Recovery) full() bool {
	used, most := r.c.catalog.IndexOptions().Budget.Used()
	return most > 0 && used > most+most/8
}

// mayMake returns an error if blocks in a deployment would make one too many: each takes some memory
// without any block.
func (r *Recovery) mayMake(at scope.Deployment) error {
	if r.c.catalog.Deployment(at) != nil {
		return nil
	}
	most := r.c.limits.Load().MaxSources
	if r.made++; most > 0 && r.made > most {
		return fmt.Errorf("it has blocks of more than %d models that are not registered here", most)
	}
	return nil
}

// pendingStretch is a stretch that came before its parent. Another tier or another holder
// has the parent, or none has it any more.
type pendingStretch struct {
	source *Source
	ns     *namespace
	to     index.Owner
	blocks index.Stretch
	id     *names.Identity
	local  []uint64
	tries  int
	done   bool
}

// Recover begins a recovery. Sources without a registration expire ttl after Done; 0 is
// never.
func (h Snapshots) Recover(ttl time.Duration) *Recovery {
	return &Recovery{
		c: h.sources, ttl: ttl, Origin: FromPeer, sources: make(map[registration.Key]*Source),
		owned: make(map[*catalog.Member]*Source), ended: make(chan struct{}),
	}
}

// AwaitGate waits until the gate is open, or ctx ends, and returns the error of ctx.
func (h Snapshots) AwaitGate(ctx context.Context) error {
	select {
	case <-h.sources.gate:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// DropUnregistered drops the sources of a model that recoveries have brought and nobody has registered.
func (h Snapshots) DropUnregistered(of scope.Shard) {
	for _, s := range h.sources.All() {
		if d := s.holdings.deploymentKey(); s.recovered && d.Tenant == of.Tenant && d.Model == of.Model && !h.isBeingFilled(s) {
			_, _ = h.sources.UnregisterIf(s.Registration.Key(), s)
		}
	}
}

// isBeingFilled reports whether a recovery fills a source.
func (h Snapshots) isBeingFilled(s *Source) bool {
	h.sources.mu.RLock()
	defer h.sources.mu.RUnlock()
	return s.recovery != nil
}

// BlockSizes returns the block sizes of a partition as Catalog.BlockSizes does.
func (r *Recovery) BlockSizes(p scope.Shard) []int { return r.c.catalog.BlockSizes(p) }

// Source takes the mark of a source.
func (r *Recovery) Source(m image.Source) error {
	if m.IsApproximate() {
		return nil // snapshots have none of its blocks
	}
	s, err := r.lock(m.Registration, true)
	if s == nil {
		return err
	}
	defer s.turn.Unlock()
	s.applier.normal.RaiseParts(m.Parts)
	if m.ZeroHash {
		s.applier.normal.NoteZeroHash()
	}
	s.recallFull(m.FullReports)
	for i := range m.Groups {
		if s.applier.normal.RecallSpec(m.Groups[i]) {
			s.holdings.learnGroup(&m.Groups[i])
		}
	}
	s.applier.noteWindow()
	s.applier.versions.restore(m.Versions)
	s.peerLookAheads |= catalog.LookAheadsOf(m.LookAheads)
	if ns := s.holdings.namespaceIn(s.holdings.deploymentKey()); ns != nil {
		for _, lora := range m.Adapters {
			s.applier.announce(ns, lora)
		}
	}
	if m.Mark != nil {
		s.mark, s.marked = *m.Mark, true
	}
	return nil
}

// Stored brings blocks back. If the snapshot has a mark of their source, Source comes first.
func (r *Recovery) Stored(e *Stored) error {
	s, err := r.lock(e.Source, false)
	if s == nil {
		r.Refused += len(e.Engine)
		return err
	}
	defer s.turn.Unlock()
	if !s.Registration.AllowsTenant(e.Tenant) || e.Owned && s.Registration.Owned == registration.OwnedDrop {
		r.Refused += len(e.Engine)
		return nil
	}
	at := scope.Deployment{Tenant: e.Tenant, Model: e.Model, BlockSize: e.BlockSize}
	if s.holdings.byKey[at] == nil {
		if err := r.mayMake(at); err != nil {
			return err
		}
	}
	if r.full() {
		return ErrNoRoom
	}
	ns := s.holdings.namespaceIn(at)
	e.Medium = s.holdings.mediumOf(e.Medium.Name, true)
	key := normalize.Owner{Rank: e.Rank, Medium: e.Medium.Name, Group: e.Group, Backend: e.Backend, Owned: e.Owned, Chunk: e.Chunk,
		Listed: e.Listed}
	if ns == nil || s.holdings.noRoomFor(ns, key) {
		r.Refused += len(e.Engine)
		return nil
	}
	s.applier.recallParts(at)
	id, err := ns.Names.Table.Enter(scope.Variant{Lora: e.Lora, Salt: e.Salt})
	if err != nil {
		r.Refused += len(e.Engine)
		return nil
	}
	local := e.Local
	if local == nil && e.ClientHashes[0] != 0 {
		if local = e.ClientHashes; ns.Deployment.TranslatesClientHashes(id.Variant) {
			r.Refused += len(e.Engine) // its tokens' hashes here are not known
			return nil
		}
	}
	switch {
	case s.marked:
		ns.UseLookAheads(max(s.peerLookAheads, catalog.NoLookAhead))
	case local == nil:
		ns.UseAnyLookAhead()
	default:
		ns.UseLookAheads(catalog.DynamoLookAheads) // Dynamo's dumps do not tell
	}
	owner := s.holdings.holder(ns, key, e.Medium)
	to := owner.owners[0]
	if !s.marked {
		to = s.holdings.unverifiedGeneration(ns, owner, key, e.Medium)
		r.c.unscoped.Store(true)
	}
	s.applier.announce(ns, id.Lora)
	blocks := *e.Stretch
	waits := local == nil && e.Key == e.Engine[0]
	if fold(&blocks, ns.Names.Has(id)); waits {
		blocks.Key = blocks.Engine[0]
	}
	if local != nil && !e.Waiting && !e.Root && (e.HasParent || e.HasKey) && !ns.placed(&blocks) {
		r.deferUntilParent(s, ns, to, &blocks, id, local)
	}
	if waits && s.Registration.Type != registration.TypeStandard {
		ns.Deployment.AwaitTokens()
	}
	ns.restore(to, &blocks, id, local, false)
	ns.Deployment.LearnClientHashes(e.ClientHashes, e.Local, id, e.Root)
	r.Blocks += len(e.Engine)
	return nil
}

// recallParts notes in a deployment that blocks of the source have parts, which leave together.
func (a *applier) recallParts(at scope.Deployment) { a.shared.catalog.LearnParts(at, a.normal.Parts()) }

// restore lets the index restore a stretch of an identity, which may have left the table since.
func (ns *namespace) restore(to index.Owner, e *index.Stretch, id *names.Identity, local []uint64, complete bool) {
	for !ns.Names.Table.Pin(id) {
		again, err := ns.Names.Table.Enter(id.Variant)
		if err != nil {
			return
		}
		id = again
	}
	defer ns.Names.Table.Unpin()
	e.Identity = id.Number
	ns.Deployment.Index.RestoreStretch(to, e, local, complete)
}

// Done ends the recovery: the sources go on with the blocks that came back.
func (r *Recovery) Done() {
	defer r.end()
	r.attachPending()
	r.resumes = true
	for s := range r.filled() {
		s.applier.origin.Store(&r.Origin)
		resumeFeed(s)
		if s.recovered && r.ttl > 0 {
			s.expires = time.AfterFunc(r.ttl, func() { expire(r.c, s) })
		}
		r.release(s) // with its turn held: who registers it now takes over blocks that are all there
	}
}

// claim makes the recovery the owner of a source, and reports whether it is: no recovery fills a source that runs, or
// that another one fills. Sources.mu is held.
func (r *Recovery) claim(s *Source) bool {
	if s.running || s.recovery != nil && s.recovery != r {
		return false
	}
	s.recovery, r.owned[s.Member] = r, s
	return true
}

// release lets go of a source.
func (r *Recovery) release(s *Source) {
	r.c.mu.Lock()
	defer r.c.mu.Unlock()
	s.recovery = nil
	delete(r.owned, s.Member)
}

// end lets go of all that the recovery still has, and lets its sources run.
func (r *Recovery) end() {
	r.dropPending()
	r.closeLoading()
	r.c.mu.Lock()
	defer r.c.mu.Unlock()
	for _, s := range r.owned {
		s.recovery = nil
	}
	clear(r.owned)
	close(r.ended)
	r.ended = make(chan struct{})
}

// closeLoading gives back what loading a deployment keeps, if one is not whole yet.
func (r *Recovery) closeLoading() {
	if r.open != nil {
		r.open.loader.Done()
		r.open = nil
	}
}

// awaitEnd waits until the gate is open and the recovery that fills a source has ended. It returns false if the source is
// stopped before.
func awaitEnd(c *Sources, s *Source) bool {
	for waits := c.gate; ; {
		select {
		case <-waits:
		case <-s.stopped:
			return false
		}
		c.mu.Lock()
		r := s.recovery
		if s.running = r == nil; r != nil {
			waits = r.ended
		}
		c.mu.Unlock()
		if r == nil {
			return true
		}
	}
}

// pendingBytes is what a pending stretch takes, next to 24 bytes a block.
const pendingBytes = 256

// deferUntilParent notes a stretch whose parent has no place yet.
func (r *Recovery) deferUntilParent(s *Source, ns *namespace, to index.Owner, e *index.Stretch, id *names.Identity, local []uint64) {
	r.pending = append(r.pending, &pendingStretch{source: s, ns: ns, to: to, blocks: index.Stretch{
		HasParent: e.HasParent, Parent: e.Parent, Key: e.Key, HasKey: e.HasKey, Engine: slices.Clone(e.Engine),
		ClientHashes: slices.Clone(e.ClientHashes),
	}, id: id, local: slices.Clone(local)})
	n := int64(pendingBytes + 24*len(e.Engine))
	r.charged += n
	r.c.catalog.IndexOptions().Budget.Charge(n)
}

// mostTries bounds how often a pending stretch is looked at. One that was not placed although a stretch
// with its parent was is a matter of names that contradict each other.
const mostTries = 8

// attachPending ties pending stretches to their parents, as far as those have come since. It looks
// at one again only when a stretch that has its parent got a place.
func (r *Recovery) attachPending() {
	waiting := make(map[uint64][]*pendingStretch) // those that were looked at, by the engine hash of the parent
	freed := func(e *pendingStretch) (all []*pendingStretch) {
		for _, engine := range e.blocks.Engine {
			all = append(all, waiting[engine]...)
			delete(waiting, engine)
		}
		return all
	}
	attach := func(queue []*pendingStretch) {
		for len(queue) > 0 {
			e := queue[0]
			queue = queue[1:]
			if e.done = e.attach(false); e.done {
				queue = append(queue, freed(e)...)
			} else if e.tries++; e.blocks.HasParent && e.tries < mostTries {
				waiting[e.blocks.Parent] = append(waiting[e.blocks.Parent], e)
			}
		}
	}
	attach(slices.Clone(r.pending))
	var next []*pendingStretch
	for _, e := range r.pending {
		if !e.done && e.blocks.HasKey { // its parent does not come any more
			e.done = e.attach(true)
			next = append(next, freed(e)...)
		}
	}
	attach(slices.DeleteFunc(next, func(e *pendingStretch) bool { return e.done }))
	r.dropPending()
}

// dropPending forgets the pending stretches.
func (r *Recovery) dropPending() {
	r.c.catalog.IndexOptions().Budget.Charge(-r.charged)
	r.pending, r.charged = nil, 0
}

// attach stores the stretch if its parent is known, or if complete. It reports whether the
// stretch is done with.
func (e *pendingStretch) attach(complete bool) bool {
	e.source.turn.Lock()
	defer e.source.turn.Unlock()
	if e.source.holdings.byKey[e.ns.Deployment.Key] != e.ns {
		return true // registered or unregistered meanwhile
	}
	known := e.ns.placed(&e.blocks)
	if known || complete {
		e.ns.restore(e.to, &e.blocks, e.id, e.local, complete)
	}
	return known || complete
}

// Undo drops the blocks that came back, so that the next peer can be asked. Where Done began and failed, the sources may have
// resumed behind blocks that they no longer have: they resync.
func (r *Recovery) Undo() {
	defer r.end()
	r.closeLoading()
	var drop, resync []*Source
	for s := range r.filled() {
		s.forgetAll()
		s.marked = false
		if s.recovered {
			drop = append(drop, s)
		} else if r.resumes {
			resync = append(resync, s)
		}
	}
	for _, s := range drop {
		_, _ = r.c.UnregisterIf(s.Registration.Key(), s)
	}
	for _, s := range resync {
		s.feed.Resync("internal_error")
	}
	r.sources, r.made, r.Blocks, r.Refused = make(map[registration.Key]*Source), 0, 0, 0
	r.resumes = false
}

// filled yields the sources that took a part of the snapshot, each with its turn held.
func (r *Recovery) filled() iter.Seq[*Source] {
	return func(yield func(*Source) bool) {
		done := make(map[*Source]bool)
		for key, s := range r.sources {
			for s != nil && !done[s] {
				done[s] = true
				gone, more := inTurn(s, yield)
				if !more {
					return
				}
				if gone {
					s = r.successorOf(s)
					r.sources[key] = s
				}
			}
		}
	}
}

// inTurn lets do have a source with its turn held, unless the source is gone. The turn is free again also if do panics:
// the code that contains that panic takes the turns of all these sources once more.
func inTurn(s *Source, do func(*Source) bool) (gone, more bool) {
	s.turn.Lock()
	defer s.turn.Unlock()
	if s.gone {
		return true, true
	}
	return false, do(s)
}

// lock returns the source that takes the parts of a snapshot about a registration, with its
// turn held, or nil. A source that was registered meanwhile takes the place of the recovered
// one. A source that was unregistered takes nothing more.
func (r *Recovery) lock(reg registration.Registration, exact bool) (*Source, error) {
	for {
		s, err := r.source(reg, exact)
		if s == nil || err != nil {
			return nil, err
		}
		s.turn.Lock()
		if !s.gone {
			return s, nil
		}
		s.turn.Unlock()
		r.sources[withTenant(reg).Key()] = r.successorOf(s)
	}
}

// successorOf returns the source registered in the place of one that is gone, which the recovery fills from now on. It
// returns nil without one, or if it may not be filled.
func (r *Recovery) successorOf(gone *Source) *Source {
	r.c.mu.Lock()
	defer r.c.mu.Unlock()
	s := r.c.sources[gone.Registration.Key()]
	if s == nil || s == gone || s.recovered || !s.AtGate() || s.holdings.deploymentKey() != gone.holdings.deploymentKey() ||
		r.c.refuses(s, *gone.Registration) || !r.claim(s) {
		return nil
	}
	return s
}

// withTenant fills in the tenant of a registration that names none.
func withTenant(reg registration.Registration) registration.Registration {
	reg.Tenant = cmp.Or(reg.Tenant, scope.DefaultTenant)
	return reg
}

// source returns the source that takes the parts of a snapshot about a registration, nil if
// none does. It is the one under its key. For a snapshot without sources it may be one of
// its instance that publishes for several ranks. Else it is a recovered one.
func (r *Recovery) source(reg registration.Registration, exact bool) (*Source, error) {
	reg = withTenant(reg)
	key := reg.Key()
	if s, known := r.sources[key]; known {
		return s, nil
	}
	c := r.c
	if s := c.Find(key); r.Refill && s != nil && s.recovered && s.applier.origin.Load() != nil { // its recovery has ended
		_, _ = c.UnregisterIf(key, s) // gone already is as good
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, ErrClosed
	}
	s, gone := c.sources[key], c.Unregistered.find(key)
	if s == nil && !exact && reg.Endpoint == "" && gone != own {
		s = c.sources.sameInstance(&reg)
	}
	switch {
	case s == nil && gone != 0: // its mark is passed over, so it takes nothing later either
	case s == nil:
		if most := c.limits.Load().MaxSources; most > 0 && c.recovered >= most {
			return nil, fmt.Errorf("it has blocks of more than %d sources that are not registered here: limits.max_sources allows no more",
				most)
		}
		s = newRecovered(c, reg)
		c.sources[key] = s
		r.claim(s)
		go c.followSource(s)
	case s.holdings.deploymentKey() != reg.Deployment(), s.applier.origin.Load() != nil, c.refuses(s, reg), !r.claim(s):
		s = nil // it is another one, or read in another way, a recovery has filled it or does so, or it runs
	}
	r.sources[key] = s
	return s, nil
}

// expire drops a recovered source without a registration.
func expire(c *Sources, s *Source) {
	if key := s.Registration.Key(); c.Find(key) == s {
		c.log.Info().Str("source", key.String()).Int("blocks",
			s.holdings.blocks()).Msg("blocks recovered from a peer expire: nobody has registered their source")
		_, _ = c.UnregisterIf(key, s)
	}
}
