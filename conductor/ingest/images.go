package ingest

import (
	"cmp"
	"slices"

	"example.com/conductor/conductor/catalog"
	"example.com/conductor/conductor/image"
	"example.com/conductor/conductor/invalid"
	"example.com/conductor/conductor/names"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/index"
	"example.com/conductor/tiers"
)

// WriteImage writes what sources hold at one moment: first the head, from which head may delete
// identities to leave them out, then each chunk of the deployments, which are named by their position in
// the head. The sources are those registered for one deployment, or all if of is nil. Chunk must not
// keep the bytes. Events of these sources wait as for Snapshot.
func (h Snapshots) WriteImage(of *scope.Deployment, head func(*image.Head) error,
	chunk func(deployment int, kind index.ChunkKind, blocks int, bytes []byte) error) error {
	h.sources.copying.Lock()
	defer h.sources.copying.Unlock()
	snap := h.takeCheckpoints(of)
	next := 0 // deployment to be written
	defer func() {
		for ; next < len(snap.deployments); next++ { // after an error, or a panic
			snap.deployments[next].checkpoint.Release()
		}
	}()
	h.yieldToQueries()
	img, owners := snap.image(h.sources.scheme.Seed)
	h.yieldToQueries()
	err := head(img)
	h.yieldToQueries()
	for err == nil && next < len(snap.deployments) {
		i, s := next, &snap.deployments[next]
		next++ // writing it ends its checkpoint
		numbers := index.Numbers{
			Source: func(name index.Source) (uint32, bool) {
				at, found := s.positions[name]
				return uint32(at), found
			},
			Owner: func(name index.Owner) (uint32, bool) {
				n, ok := owners[i][name]
				return n, ok
			},
			Identity: func(n index.Identity) bool {
				_, known := img.Deployments[i].Identities[uint32(n)]
				return known || n == 0
			},
		}
		err = s.checkpoint.WriteImage(numbers, func(kind index.ChunkKind, blocks int, bytes []byte) error {
			return chunk(i, kind, blocks, bytes)
		})
	}
	return err
}

// HeldDeployment is what the registered engines of a deployment hold.
type HeldDeployment struct {
	scope.Deployment
	Blocks int
	Synced bool // all of them are
}

// HeldDeployments returns the deployments that WriteImage has something of, ordered by name.
func (h Snapshots) HeldDeployments() []HeldDeployment {
	at := make(map[scope.Deployment]*HeldDeployment)
	for _, s := range h.sources.All() {
		if s.recovered || s.Registration.IsPool() {
			continue
		}
		d := at[s.holdings.deploymentKey()]
		if d == nil {
			d = &HeldDeployment{Deployment: s.holdings.deploymentKey(), Synced: true}
			at[d.Deployment] = d
		}
		d.Blocks += s.holdings.blocks()
		d.Synced = d.Synced && s.feed.Status().State.Ready()
	}
	all := make([]HeldDeployment, 0, len(at))
	for _, d := range at {
		if d.Blocks > 0 {
			all = append(all, *d)
		}
	}
	slices.SortFunc(all, func(a, b HeldDeployment) int { return a.Compare(b.Deployment) })
	return all
}

// image returns the head of an image, and the numbers of the owners of each deployment. It clears Mark of
// the pools in s.Sources itself, so s is of no other use afterwards.
func (s *Snapshot) image(seed uint64) (img *image.Head, owners []map[index.Owner]uint32) {
	img = &image.Head{HashSeed: seed, Sources: s.Sources, Paused: s.paused}
	for i := range img.Sources {
		if m := &img.Sources[i]; m.IsPool() {
			m.Mark = nil
		}
	}
	for i := range s.deployments {
		sd := &s.deployments[i]
		at := sd.Deployment.Key
		d := image.Deployment{
			Shard: scope.Shard{Tenant: at.Tenant, Model: at.Model}, BlockSize: at.BlockSize, Groups: sd.groups,
			Secret: sd.Deployment.Names.Secret(), Identities: make(map[uint32]scope.Variant),
		}
		for _, n := range sd.checkpoint.Identities() {
			if id := sd.identities[n]; id != nil && n != 0 {
				d.Identities[uint32(n)] = id.Variant
			}
		}
		numbers := make(map[index.Owner]uint32, len(sd.holders))
		d.Holders = make([]image.Holder, 0, len(sd.holders))
		for name, h := range sd.holders {
			if h.source.IsPool() {
				continue
			}
			numbers[name] = uint32(len(d.Holders))
			d.Holders = append(d.Holders, image.Holder{Source: h.at, Owner: h.key, Older: h.older, Unverified: h.unverified})
		}
		img.Deployments, owners = append(img.Deployments, d), append(owners, numbers)
	}
	return img, owners
}

// Loading brings back the blocks of one deployment of an image.
type Loading struct {
	r       *Recovery
	d       *image.Deployment
	img     *image.Head
	before  int // r.Blocks
	loader  *index.Loader
	owners  []index.Owner  // by number; noOwner is left out
	sources []index.Source // by position in Head.Sources; index.NoSource is left out
	into    *catalog.Deployment
	// identities of the index that is loaded, by their numbers in the image
	identities map[uint32]*names.Identity
	// scratch is set if the deployment already has blocks, may get some from sources of others, or has constants of its
	// own: the image is loaded into it, and spread brings its blocks over in stretches.
	scratch *scratchIndex
}

// scratchIndex is an index for one image.
type scratchIndex struct {
	x      *index.Index
	names  *names.Table
	locals map[uint64]uint64 // by client hash, where the two differ
}

const noOwner = ^index.Owner(0)

// Image takes the sources of an image. It reports those of another hash seed as a mistake: no
// query would find their blocks.
func (r *Recovery) Image(img *image.Head) error {
	if img.HashSeed != r.c.scheme.Seed {
		return invalid.Field("hash.seed", "conflict", "the snapshot is of hash.seed %d, this server has %d", img.HashSeed,
			r.c.scheme.Seed)
	}
	for _, m := range img.Sources {
		if m.LeftOut() {
			continue
		}
		if err := r.Source(m); err != nil {
			return err
		}
	}
	return nil
}

// Deployment begins to bring back a deployment of an image, whose sources were taken.
func (r *Recovery) Deployment(img *image.Head, d *image.Deployment) (*Loading, error) {
	l := &Loading{r: r, d: d, img: img, before: r.Blocks}
	l.sources = slices.Repeat([]index.Source{index.NoSource}, len(img.Sources))
	known := r.c.catalog.Deployment(l.key())
	if known == nil {
		if err := r.mayMake(l.key()); err != nil {
			return nil, err
		}
	}
	adopted := d.Sealed() || known != nil && known.Index.IsEmpty() && known.Names.Adopt(d.Secret)
	for i := range d.Holders {
		owner, err := l.holder(&d.Holders[i])
		if err != nil {
			return nil, err
		}
		l.owners = append(l.owners, owner)
	}
	if l.into == nil {
		return l, nil // its sources are not here
	}
	for group, kind := range d.Groups {
		r.c.catalog.LearnGroup(scope.Group{Deployment: l.key(), Index: group}, kind)
	}
	x, table := l.into.Index, l.into.Names
	l.begin(x, table)
	if r.Beside || !l.loader.IsAlone(r.numbersIn(l.into)) || !adopted && !table.Adopt(d.Secret) {
		opts := r.c.catalog.IndexOptions()
		x = index.New(index.Options{Scheme: r.c.scheme, MaxOrphans: opts.MaxOrphans, KeepClientHashes: true, WideBase: opts.WideBase,
			MaxBytes: opts.MaxBytes, Budget: index.NewBudget(r.Room())})
		table = names.New(x, 0, catalog.WeightOfIdentity)
		table.Adopt(d.Secret)
		l.scratch = &scratchIndex{x, table, make(map[uint64]uint64)}
		for i := range l.sources {
			l.sources[i] = x.NewSource()
		}
		for i, h := range d.Holders {
			if l.owners[i] != noOwner {
				l.owners[i] = x.NewOwner(l.sources[h.Source])
			}
		}
		l.begin(x, table)
	}
	for _, src := range l.sources {
		if s := l.into.HolderOf(src); s != nil && l.scratch == nil && !s.Registration.IsPool() {
			x.MarkTeaching(src)
		}
	}
	for n, v := range d.Identities {
		if d.Sealed() {
			break // their keys mean nothing here
		}
		id, err := table.Enter(v)
		if err != nil {
			continue // its blocks are left out
		}
		l.identities[n] = id
	}
	l.loader.Learn = func(clientHash, local uint64, n index.Identity, root bool) {
		if l.scratch != nil {
			l.scratch.locals[clientHash] = local
		} else if id := table.Of(n); id != nil {
			l.into.LearnClientHashes([]uint64{clientHash}, []uint64{local}, id, root)
		}
	}
	return l, nil
}

// begin makes the loader of an index whose identities are in table.
func (l *Loading) begin(x *index.Index, table *names.Table) {
	l.r.closeLoading()
	l.identities = make(map[uint32]*names.Identity)
	l.loader = index.NewLoader(x,
		func(n uint32) (index.Source, bool) { return at(l.sources, n, index.NoSource) },
		func(n uint32) (index.Owner, bool) { return at(l.owners, n, noOwner) },
		func(n uint32) (index.Identity, bool) {
			if n == 0 {
				return 0, true
			}
			id := l.identities[n]
			if id == nil || table.Of(id.Number) != id { // it has left, and its number may be another one's
				return 0, false
			}
			return id.Number, true
		})
	l.r.open = l
}

// numbersIn returns the numbers that the sources of the recovery have in the index of a deployment.
func (r *Recovery) numbersIn(d *catalog.Deployment) map[index.Source]bool {
	holders := d.Holders()
	r.c.mu.RLock()
	defer r.c.mu.RUnlock()
	own := make(map[index.Source]bool)
	for src, m := range holders {
		if r.owned[m] != nil {
			own[src] = true
		}
	}
	return own
}

// at returns an element of a list, and whether it is there and not none.
func at[T comparable](list []T, n uint32, none T) (T, bool) {
	if int64(n) >= int64(len(list)) || list[n] == none {
		return none, false
	}
	return list[n], true
}

// key returns the deployment.
func (l *Loading) key() scope.Deployment {
	return scope.Deployment{Tenant: l.d.Tenant, Model: l.d.Model, BlockSize: l.d.BlockSize}
}

// holder returns the owner that a holder of the image becomes, noOwner if it is left out.
func (l *Loading) holder(h *image.Holder) (index.Owner, error) {
	if h.Source < 0 || h.Source >= len(l.img.Sources) {
		return noOwner, invalid.Field("source", "out_of_range", "a holder is of source %d of %d", h.Source, len(l.img.Sources))
	}
	m := &l.img.Sources[h.Source]
	if m.LeftOut() {
		return noOwner, nil
	}
	s, err := l.r.lock(m.Registration, true)
	if s == nil {
		return noOwner, err
	}
	defer s.turn.Unlock()
	reg := s.Registration
	if reg.IsPool() || !reg.AllowsTenant(l.d.Tenant) || l.d.Sealed() && reg.Variant() != (scope.Variant{}) ||
		h.Owned && reg.Owned == registration.OwnedDrop {
		return noOwner, nil
	}
	ns := s.holdings.namespaceIn(l.key())
	key, medium := h.Owner, s.holdings.mediumOf(h.Medium, true)
	if key.Medium = medium.Name; ns == nil || s.holdings.noRoomFor(ns, key) {
		return noOwner, nil
	}
	s.applier.recallParts(l.key())
	l.into, l.sources[h.Source] = ns.Deployment, ns.Source
	ns.UseLookAheads(max(s.peerLookAheads, catalog.NoLookAhead))
	owner := s.holdings.holder(ns, key, medium)
	owner.inParts = s.applier.normal.Parts() > 0 && !l.tellsChunks(h)
	if !s.marked || h.Unverified {
		l.r.c.unscoped.Store(true)
		return s.holdings.unverifiedGeneration(ns, owner, key, medium), nil
	}
	if h.Older {
		return s.holdings.previousGeneration(ns, owner, key, medium), nil
	}
	return owner.owners[0], nil
}

// tellsChunks reports whether the image tells apart the chunks that the source of a holder has on its medium.
func (l *Loading) tellsChunks(h *image.Holder) bool {
	return slices.ContainsFunc(l.d.Holders, func(o image.Holder) bool {
		return o.Source == h.Source && o.Medium == h.Medium && o.Chunk > 0
	})
}

// Chunk takes a chunk of the deployment. After an error the recovery is to be undone.
func (l *Loading) Chunk(kind index.ChunkKind, bytes []byte) error {
	if l.loader == nil {
		return nil
	}
	if l.r.full() {
		return ErrNoRoom
	}
	err := l.loader.Load(kind, bytes)
	l.r.Blocks = l.before + l.loader.Blocks
	return err
}

// Done ends the deployment.
func (l *Loading) Done() error {
	if l.loader == nil {
		return nil
	}
	l.r.closeLoading()
	l.r.Refused += l.loader.Refused
	if l.scratch == nil {
		l.noteHeld()
		return nil
	}
	l.r.Blocks = l.before
	return l.spread()
}

// noteHeld notes of each source the adapters and salts of its blocks, and whether some wait for tokens.
func (l *Loading) noteHeld() {
	held := make(map[index.Source][]index.Identity)
	if l.into.Names.Len() > 0 {
		for at := range l.into.Index.Checkpoint().HeldBySource() {
			held[at.Source] = append(held[at.Source], at.Identity)
		}
	}
	for i := range l.img.Sources {
		if l.sources[i] == index.NoSource {
			continue
		}
		l.noteHeldOf(i, held[l.sources[i]])
	}
}

// noteHeldOf is noteHeld for the i-th source of the image, which has blocks of these identities.
func (l *Loading) noteHeldOf(i int, held []index.Identity) {
	s, err := l.r.lock(l.img.Sources[i].Registration, true)
	if s == nil || err != nil {
		return
	}
	defer s.turn.Unlock()
	if s.Registration.Type != registration.TypeStandard && l.into.Index.Inspect().HasRawBlocks(l.sources[i]) {
		l.into.AwaitTokens()
	}
	if ns := s.holdings.byKey[l.key()]; ns != nil && ns.Deployment == l.into { // else it has left since
		for _, n := range held {
			if id := ns.Names.Table.Of(n); id != nil {
				ns.Names.Has(id)
			}
		}
	}
}

// spread brings back the blocks of scratch.
func (l *Loading) spread() (err error) {
	holders := make(map[index.Owner]int)
	for i, o := range l.owners {
		holders[o] = i
	}
	st := Stored{Shard: l.d.Shard, BlockSize: l.d.BlockSize}
	snap := l.scratch.x.Checkpoint().Snapshot()
	snap.Walk(func(index.Owner) bool { return true }, func(e *Stretch) bool {
		h := &l.d.Holders[holders[e.Owner]]
		id := l.scratch.names.Of(e.Identity)
		st.Lora, st.Salt = id.Lora, id.Salt
		st.Source, st.Rank, st.Medium, st.Group = l.img.Sources[h.Source].Registration, h.Rank, tiers.ParseMedium(h.Medium), h.Group
		st.Backend, st.Owned, st.Chunk, st.Listed, st.Stretch, st.Local = h.Backend, h.Owned, h.Chunk, h.Listed, e, nil
		fold(e, l.scratch.names.FoldOf(st.Source.Variant(), catalog.NamingOf(&st.Source), id.Variant)) // out again
		if e.ClientHashes[0] != 0 && l.into.TranslatesClientHashes(id.Variant) {
			st.Local = make([]uint64, len(e.ClientHashes))
			for i, clientHash := range e.ClientHashes {
				local, differs := l.scratch.locals[clientHash]
				if st.Local[i] = local; !differs {
					st.Local[i] = clientHash
				}
			}
		}
		err = cmp.Or(err, l.r.Stored(&st))
		return err == nil
	})
	return err
}
