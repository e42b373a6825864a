package conductor

import (
	"cmp"
	"slices"
	"time"

	"kvconductor/conductor/normalize"
	"kvconductor/conductor/scope"
	"kvconductor/events/stream"
	"kvconductor/index"
	"kvconductor/tiers"
)

// Image is what an image of all holdings says before the chunks of its contexts. Blocks of pools
// are in no image: their objects are not, which alone say when blocks go.
type Image struct {
	HashSeed uint64
	Sources  []SourceMark // of pools without a mark; without an instance if left out
	Contexts []ImageContext
	// Paused is how long events waited for the moment of the image.
	Paused time.Duration
}

// ImageContext is a context of an image.
type ImageContext struct {
	Partition
	BlockSize int // tokens
	Lora      string
	Salt      string
	Groups    map[int]string // kinds of attention groups, as far as engines have said them
	Holders   []ImageHolder  // by the numbers of the chunks
}

// ImageHolder is an owner of blocks in a context of an image.
type ImageHolder struct {
	Source  int // place in Image.Sources
	Rank    int32
	Medium  string
	Group   int
	Backend string
	Owned   bool
	// Older are blocks of the period before, where the source has a time to live. Unverified are
	// those of a source without a mark.
	Older, Unverified bool
}

// WriteImage writes what sources hold at one moment: first the head, then each chunk of the
// contexts, which are named by their place in the head. The sources are those registered for one
// deployment, or all if of is nil. Chunk must not keep the bytes. Events of these sources wait
// as for Snapshot.
func (c *Conductor) WriteImage(of *scope.Deployment, head func(*Image) error, chunk func(context int, kind index.ChunkKind, blocks int, bytes []byte) error) error {
	c.cutting.Lock()
	defer c.cutting.Unlock()
	snap := c.cut(of)
	img, owners := snap.image(c.opts.HashSeed)
	err := head(img)
	for i := range snap.contexts {
		s := &snap.contexts[i]
		if err != nil {
			s.cut.Drop()
			continue
		}
		numbers := index.Numbers{
			Source: func(name index.Source) (uint32, bool) {
				at, found := snap.place(s.sources[name])
				return uint32(at), found
			},
			Owner: func(name index.Owner) (uint32, bool) {
				n, ok := owners[i][name]
				return n, ok
			},
		}
		err = s.cut.Image(numbers, func(kind index.ChunkKind, blocks int, bytes []byte) error { return chunk(i, kind, blocks, bytes) })
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
func (c *registry) HeldDeployments() []HeldDeployment {
	at := make(map[scope.Deployment]*HeldDeployment)
	for _, s := range c.registered() {
		if s.recovered || s.reg.pool() {
			continue
		}
		d := at[s.deploymentKey()]
		if d == nil {
			d = &HeldDeployment{Deployment: s.deploymentKey(), Synced: true}
			at[d.Deployment] = d
		}
		d.Blocks += s.blocks()
		d.Synced = d.Synced && s.stream.Status().State == stream.Synced
	}
	all := make([]HeldDeployment, 0, len(at))
	for _, d := range at {
		if d.Blocks > 0 {
			all = append(all, *d)
		}
	}
	slices.SortFunc(all, func(a, b HeldDeployment) int {
		return cmp.Or(cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.Model, b.Model), cmp.Compare(a.BlockSize, b.BlockSize))
	})
	return all
}

// ImageOfSources returns the head of an image of the registrations alone.
func (c *Conductor) ImageOfSources() *Image {
	img := &Image{HashSeed: c.opts.HashSeed}
	for _, s := range c.registered() {
		if !s.recovered {
			img.Sources = append(img.Sources, SourceMark{Registration: s.reg, Static: s.static})
		}
	}
	return img
}

// image returns the head of an image, and the numbers of the owners of each context.
func (s *Snapshot) image(seed uint64) (img *Image, owners []map[index.Owner]uint32) {
	img = &Image{HashSeed: seed, Sources: slices.Clone(s.Sources), Paused: s.paused}
	for i := range img.Sources {
		if m := &img.Sources[i]; m.pool() {
			m.Mark = nil
		}
	}
	for i := range s.contexts {
		sc := &s.contexts[i]
		at, key := sc.context.deployment.key, sc.context.key
		c := ImageContext{Partition: Partition{at.Tenant, at.Model}, BlockSize: at.BlockSize, Lora: key.Lora, Salt: key.Salt, Groups: sc.groups}
		numbers := make(map[index.Owner]uint32)
		for name, h := range sc.holders {
			if h.source.pool() {
				continue
			}
			source, _ := s.place(h.source)
			numbers[name] = uint32(len(c.Holders))
			c.Holders = append(c.Holders, ImageHolder{
				Source: source, Rank: h.key.Rank, Medium: h.key.Medium, Group: h.key.Group, Backend: h.key.Backend, Owned: h.key.Owned,
				Older: h.older, Unverified: h.unverified,
			})
		}
		img.Contexts, owners = append(img.Contexts, c), append(owners, numbers)
	}
	return img, owners
}

// place returns the place of a source in Sources.
func (s *Snapshot) place(reg Registration) (at int, found bool) {
	return slices.BinarySearchFunc(s.Sources, reg.Key(), func(m SourceMark, key Key) int { return m.Key().compare(key) })
}

// ImageLoading brings back the blocks of one context of an image.
type ImageLoading struct {
	r       *Recovery
	c       *ImageContext
	img     *Image
	before  int // r.Blocks
	loader  *index.Loader
	owners  []index.Owner  // by number; noOwner is left out
	sources []index.Source // by place in Image.Sources; index.NoSource is left out
	into    *indexContext
	// scratch takes the image where the context has blocks already. Its blocks go on from there
	// in stretches.
	scratch *index.Index
	locals  map[uint64]uint64 // by client hash, where the two differ, of scratch
}

const noOwner = ^index.Owner(0)

// Image takes the sources of an image. It reports those of another hash seed as a mistake: no
// query would find their blocks.
func (r *Recovery) Image(img *Image) error {
	if img.HashSeed != r.c.opts.HashSeed {
		return Invalid("hash.seed", "conflict", "the snapshot is of hash.seed %d, this server has %d", img.HashSeed, r.c.opts.HashSeed)
	}
	for _, m := range img.Sources {
		if m.leftOut() {
			continue
		}
		if err := r.Source(m); err != nil {
			return err
		}
	}
	return nil
}

// leftOut reports whether only the place of a source is there.
func (m *SourceMark) leftOut() bool { return m.Instance == "" }

// Context begins to bring back a context of an image, whose sources were taken.
func (r *Recovery) Context(img *Image, c *ImageContext) (*ImageLoading, error) {
	l := &ImageLoading{r: r, c: c, img: img, before: r.Blocks}
	l.sources = slices.Repeat([]index.Source{index.NoSource}, len(img.Sources))
	for i := range c.Holders {
		owner, err := l.holder(&c.Holders[i])
		if err != nil {
			return nil, err
		}
		l.owners = append(l.owners, owner)
	}
	if l.into == nil {
		return l, nil // its sources are not here
	}
	for group, kind := range c.Groups {
		r.c.learnGroup(scope.Group{Deployment: l.scope().Deployment, Index: group}, kind)
	}
	x := l.into.index
	if !x.Empty() {
		l.scratch = index.New(index.Options{Scheme: r.c.scheme, MaxOrphans: r.c.opts.MaxOrphans, KeepClientHashes: true})
		x = l.scratch
		for i := range l.sources {
			l.sources[i] = x.NewSource()
		}
		for i, h := range c.Holders {
			if l.owners[i] != noOwner {
				l.owners[i] = x.NewOwner(l.sources[h.Source])
			}
		}
	}
	for _, src := range l.sources {
		if s := r.c.sourceOf(l.into, src); s != nil && l.scratch == nil && !s.reg.pool() {
			x.Teaches(src)
		}
	}
	l.loader = x.NewLoader(
		func(n uint32) (index.Source, bool) {
			return at(l.sources, n, index.NoSource)
		},
		func(n uint32) (index.Owner, bool) {
			return at(l.owners, n, noOwner)
		}, nil)
	l.loader.Learn = func(clientHash, local uint64, root bool) {
		l.into.learn([]uint64{clientHash}, []uint64{local}, root)
	}
	if l.scratch != nil {
		l.locals = make(map[uint64]uint64)
		l.loader.Learn = func(clientHash, local uint64, _ bool) { l.locals[clientHash] = local }
	}
	return l, nil
}

// at returns an element of a list, and whether it is there and not none.
func at[T comparable](list []T, n uint32, none T) (T, bool) {
	if int64(n) >= int64(len(list)) || list[n] == none {
		return none, false
	}
	return list[n], true
}

func (l *ImageLoading) scope() scope.Context {
	return scope.Context{
		Deployment: scope.Deployment{Tenant: l.c.Tenant, Model: l.c.Model, BlockSize: l.c.BlockSize}, Variant: scope.Variant{Lora: l.c.Lora, Salt: l.c.Salt},
	}
}

// holder returns the owner that a holder of the image becomes, noOwner if it is left out.
func (l *ImageLoading) holder(h *ImageHolder) (index.Owner, error) {
	if h.Source < 0 || h.Source >= len(l.img.Sources) {
		return noOwner, Invalid("source", "out_of_range", "a holder is of source %d of %d", h.Source, len(l.img.Sources))
	}
	m := &l.img.Sources[h.Source]
	if m.leftOut() {
		return noOwner, nil
	}
	s, err := l.r.lock(m.Registration, true)
	if s == nil {
		return noOwner, err
	}
	defer s.turn.Unlock()
	if s.reg.pool() || !s.reg.mayAnnounce(l.c.Tenant) || h.Owned && s.reg.Owned == OwnedDrop {
		return noOwner, nil
	}
	ns := s.namespaceIn(l.scope())
	l.into, l.sources[h.Source] = ns.context, ns.source
	ns.useLookAheads(&l.r.c.contexts, max(s.peerLookAheads, noLookAhead))
	medium := tiers.Parse(h.Medium)
	key := normalize.Owner{Rank: h.Rank, Medium: medium.Name, Group: h.Group, Backend: h.Backend, Owned: h.Owned}
	owner := s.holder(ns, key, medium)
	if !s.marked || h.Unverified {
		l.r.c.unscoped.Store(true)
		return s.unverifiedGeneration(ns, owner, key, medium), nil
	}
	if h.Older {
		return s.previousGeneration(ns, owner, key, medium), nil
	}
	return owner.current, nil
}

// Chunk takes a chunk of the context. After an error the recovery is to be undone.
func (l *ImageLoading) Chunk(kind index.ChunkKind, bytes []byte) error {
	if l.loader == nil {
		return nil
	}
	err := l.loader.Load(kind, bytes)
	l.r.Blocks = l.before + l.loader.Blocks
	return err
}

// Done ends the context.
func (l *ImageLoading) Done() error {
	if l.loader == nil {
		return nil
	}
	l.loader.Done()
	l.r.Refused += l.loader.Refused
	if l.scratch == nil {
		l.waiters()
		return nil
	}
	l.r.Blocks = l.before
	return l.spread()
}

// waiters notes the sources whose blocks wait for tokens.
func (l *ImageLoading) waiters() {
	for i := range l.img.Sources {
		if l.sources[i] == index.NoSource {
			continue
		}
		s, err := l.r.lock(l.img.Sources[i].Registration, true)
		if s == nil || err != nil {
			continue
		}
		if s.reg.Type != TypeStandard && l.into.index.Raw(l.sources[i]) {
			l.r.c.addWaiter(s, l.into)
		}
		s.turn.Unlock()
	}
}

// spread brings back the blocks of scratch.
func (l *ImageLoading) spread() (err error) {
	holders := make(map[index.Owner]int)
	for i, o := range l.owners {
		holders[o] = i
	}
	st := Stored{Partition: l.c.Partition, BlockSize: l.c.BlockSize, Lora: l.c.Lora, Salt: l.c.Salt}
	snap := l.scratch.Snapshot()
	snap.Walk(func(index.Owner) bool { return true }, func(e *Stretch) bool {
		h := &l.c.Holders[holders[e.Owner]]
		st.Source, st.Rank, st.Medium, st.Group = l.img.Sources[h.Source].Registration, h.Rank, tiers.Parse(h.Medium), h.Group
		st.Backend, st.Owned, st.Stretch, st.Local = h.Backend, h.Owned, e, nil
		if e.ClientHashes[0] != 0 && l.into.translates {
			st.Local = make([]uint64, len(e.ClientHashes))
			for i, clientHash := range e.ClientHashes {
				local, differs := l.locals[clientHash]
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
