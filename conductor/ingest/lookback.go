package ingest

import (
	"cmp"
	"slices"
	"time"

	"example.com/conductor/conductor/catalog"
	"example.com/conductor/conductor/inspect"
	"example.com/conductor/conductor/lmcache"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/index"
	"example.com/conductor/index/hash"
)

// Past is what a source remembers of a block that it lacks.
type Past struct {
	Removals   []Removal // events that took the block
	Emptied    []Emptied // times that the rank lost all of its blocks at once
	Remembered bool      // removals are remembered at all
	Forgotten  bool      // those up to Since are forgotten
	Since      uint64
}

// Removal is an event that removed a block.
type Removal struct {
	Seq    uint64
	Medium string
}

// Emptied is the last time that a rank lost all of its blocks on a medium at once.
type Emptied struct {
	Medium string
	Cause  inspect.Reason // Cleared or Expired
	Seq    uint64         // of Cleared
	At     time.Time
	Blocks int
}

// LookBack returns what the source remembers of a block of a prompt under one rank. The chains are those of the prompt, one
// for each look-ahead, under an identity's constant.
func (s *Source) LookBack(at scope.Deployment, rank int32, constant uint64, chains []*hash.Chain, block int) (p Past) {
	s.turn.Lock()
	defer s.turn.Unlock()
	past := &s.holdings.past
	p.Remembered = past.losses != nil
	p.Since, p.Forgotten = past.losses.Since()
	for name := range s.holdings.media {
		label := lossLabel(at, rank, name)
		for _, c := range chains {
			if seq, found := past.losses.Find(constant, c, block, label); found {
				p.Removals = append(p.Removals, Removal{seq, name})
				break
			}
		}
		for _, e := range past.emptied {
			if e.label == label {
				p.Emptied = append(p.Emptied, Emptied{Medium: name, Cause: e.cause, Seq: e.seq, At: e.at, Blocks: e.blocks})
			}
		}
	}
	return p
}

// LackingObjects returns which objects a pool of a store lacks, of blocks that have some. engine returns the hashes by which
// engines may name the block.
func (s *Source) LackingObjects(engine func() []uint64) (all []lmcache.Lack) {
	if s.applier.pool == nil {
		return nil
	}
	hashes := engine()
	s.turn.Lock()
	defer s.turn.Unlock()
	for _, h := range hashes {
		for _, part := range s.applier.pool.Parts(h) {
			if part.Have < part.Want {
				all = append(all, lmcache.Lack{Have: part.Have, Want: part.Want, Certain: true, Medium: part.Medium.Name})
			}
		}
	}
	return all
}

// LackingChunks returns which shards of the chunk with tokens [from, to) of a prompt LMCache has not reported, those
// that are surely of the prompt first.
func (s *Source) LackingChunks(p *lmcache.Prompt, from, to int) []lmcache.Lack {
	f, is := s.feed.(*pushed)
	if !is {
		return nil
	}
	all := f.hub.Lacks(f.feed, p, from, to)
	slices.SortFunc(all, func(a, b lmcache.Lack) int {
		if a.Certain != b.Certain && a.Certain {
			return -1
		}
		return cmp.Or(cmp.Compare(a.Medium, b.Medium), b.Have-a.Have, a.Want-b.Want)
	})
	return all
}

// NumberIn returns the number of the source in the index of a deployment, if it has entered that.
func (s *Source) NumberIn(d *catalog.Deployment) (n index.Source, entered bool) {
	s.holdings.mu.Lock()
	defer s.holdings.mu.Unlock()
	if ns := s.holdings.in(d); ns != nil {
		return ns.Source, true
	}
	return 0, false
}

// EachOwner calls f for each owner that the source has in a deployment, with its rank.
func (s *Source) EachOwner(d *catalog.Deployment, f func(o index.Owner, rank int32)) {
	s.holdings.mu.Lock()
	defer s.holdings.mu.Unlock()
	ns := s.holdings.in(d)
	if ns == nil {
		return
	}
	for key, h := range ns.owners {
		for _, o := range h.owners {
			f(o, key.Rank)
		}
	}
}

// HeldOnDevices returns how many blocks of a deployment a rank holds on devices.
func (s *Source) HeldOnDevices(d scope.Deployment, rank int32) int {
	s.holdings.mu.Lock()
	defer s.holdings.mu.Unlock()
	if n := s.holdings.tallies[tallyKey{d, rank}]; n != nil {
		return int(n.Load())
	}
	return 0
}

// SourceMemory is the memory of all sources, in bytes by what it is for.
type SourceMemory struct{ Streams, Pushed, Removals, Lives, Histories, Pools int64 }

// Memory returns the memory of all sources.
func (c *Sources) Memory() (m SourceMemory) {
	m.Pushed = c.pushes.bytes()
	for _, s := range c.All() {
		st := s.feed.Status()
		m.Streams += int64(st.Bytes)
		if s.Registration.IsPushed() {
			m.Pushed += int64(st.QueuedBytes)
		}
		m.Removals += int64(s.holdings.past.losses.Bytes())
		m.Lives += int64(s.Member.Lives.Bytes())
		m.Histories += int64(s.states.Bytes())
		m.Pools += s.applier.bound.Load()
	}
	return m
}

// Check verifies the invariants of every index and of what sources say of it, and returns the first violation of each.
func (c *Sources) Check() []error {
	var errs []error
	for _, d := range c.catalog.Indexed() {
		if err := d.Index.Check(); err != nil {
			errs = append(errs, err)
		}
	}
	all, release := c.lockSources(nil)
	defer release()
	for _, s := range all {
		if err := checkDigest(s); err != nil {
			errs = append(errs, err)
		}
	}
	return errs
}
