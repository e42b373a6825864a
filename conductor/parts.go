package conductor

import (
	"encoding/binary"
	"slices"

	"github.com/zeebo/xxh3"

	"kvconductor/conductor/scope"
	"kvconductor/events"
	"kvconductor/index"
)

// A publisher may announce blocks of several times the registered size: vLLM with
// context parallelism, a hybrid model's groups, LMCache's chunks. Such a block is
// indexed as parts of the registered size. Its hash names the last part, so that
// its children follow; the parts before it get names of their own:
//
//	published   |---- h, 64 tokens ----|---- i ----|
//	indexed     | h:3 | h:2 | h:1 |  h |  ...      |     registered: 16 tokens

// maxParts is how many parts a block may have: a chunk of 4,096 tokens in blocks
// of 16.
const maxParts = 256

// partName names the part that is n parts before the end of block h.
func partName(h uint64, n int) uint64 {
	var b [10]byte
	binary.LittleEndian.PutUint64(b[:], h)
	binary.LittleEndian.PutUint16(b[8:], uint16(n))
	return xxh3.Hash(b[:])
}

// partsOf reports how many parts each block of a stored event has: 1 where sizes
// agree, 0 where the tokens do not make whole parts, with the reason.
func (s *source) partsOf(e *events.Event, size int) (int, events.Reason) {
	if e.Envelope || e.BlockSize == 0 || e.BlockSize == size || len(e.Tokens) == 0 {
		return 1, ""
	}
	n := e.BlockSize / size
	switch {
	case n == 0:
		return 0, events.PartialBlock
	case e.BlockSize%size != 0 || n > maxParts:
		return 0, events.BlockSizeMismatch
	}
	return n, ""
}

// split returns a stored event with every block cut into n parts.
func (s *source) split(e *events.Event, n int) *events.Event {
	s.parts = max(s.parts, n)
	s.conductor.learnParts(s.deploymentKey().Named(e), n)
	cut := *e
	cut.BlockSize /= n
	cut.Hashes = make([]uint64, 0, n*len(e.Hashes))
	for _, h := range e.Hashes {
		for i := n - 1; i > 0; i-- {
			cut.Hashes = append(cut.Hashes, partName(h, i))
		}
		cut.Hashes = append(cut.Hashes, h)
	}
	if e.Items != nil { // which part has an item is not known: all do
		cut.Items = make([][]uint64, 0, n*len(e.Items))
		for _, items := range e.Items {
			cut.Items = append(cut.Items, slices.Repeat([][]uint64{items}, n)...)
		}
	}
	return &cut
}

// parts is the most parts a published block of the deployment had, 0 while none had
// several.
func (ns *namespace) parts() int { return int(ns.context.deployment.parts.Load()) }

// learnParts notes of how many parts a published block is.
func (c *Conductor) learnParts(dk scope.Deployment, n int) {
	d := c.deployment(dk)
	for d != nil {
		most := d.parts.Load()
		if int(most) >= n || d.parts.CompareAndSwap(most, int32(n)) {
			return
		}
	}
}

// withParts adds to hashes that come without a size the parts of theirs which are
// known in a namespace, and the counts that go with them. Somebody has announced blocks
// of several parts.
func (s *source) withParts(ns *namespace, hashes []uint64, counts []int) ([]uint64, []int) {
	var all []uint64
	var left []int
	for i, h := range hashes {
		from := len(all)
		for n := 1; n < ns.parts(); n++ {
			part := partName(h, n)
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

// adopt moves blocks that waited in the source's home for a parent to the context
// in which that parent has turned up: adapter and salt are inherited, the adapter not
// by standardized hashes.
func (s *source) adopt(ns *namespace, parents []uint64, standard bool) {
	home := s.index[s.home()]
	if home == nil || home == ns || home.context.deployment != ns.context.deployment ||
		standard && home.context.key.Lora != ns.context.key.Lora || home.context.index.Waiting(home.source) == 0 {
		return
	}
	queue := slices.Clone(parents)
	for len(queue) > 0 {
		parent := queue[0]
		queue = queue[1:]
		for _, o := range home.context.index.Children(home.source, parent) {
			for key, h := range home.owners {
				s.adoptOne(ns, home, key, h, parent, o)
			}
			queue = append(queue, o.Engine)
		}
	}
}

// adoptOne moves one block of one holder.
func (s *source) adoptOne(ns, home *namespace, key ownerKey, h *holder, parent uint64, o index.Orphan) {
	name := []uint64{o.Engine}
	res := home.context.index.Remove(h.current, name, []int{0}, s.copies(key))
	if h.hasOld {
		old := home.context.index.Remove(h.old, name, []int{0}, s.copies(key))
		res.Removed += old.Removed
	}
	if res.Removed == 0 {
		return
	}
	var labels []uint64
	if ns.context.translates {
		labels = []uint64{0} // its tokens are gone
	}
	medium := s.media[key.medium]
	ns.useLookAheads(s.conductor, home.lookAheads)
	ns.context.index.Store(&index.Store{
		Owner: s.holder(ns, key, medium).current, Parent: parent, HasParent: true,
		Engine: name, Local: []uint64{o.Local}, Labels: labels, Copies: s.copies(key),
	})
	s.spread(ns.context, name)
}
