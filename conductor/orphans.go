package conductor

import (
	"slices"

	"kvconductor/conductor/normalize"
	"kvconductor/index"
)

// adopt moves blocks that waited in the source's home for a parent to the context
// in which that parent has turned up: adapter and salt are inherited, the adapter not
// by standardized hashes.
func (s *placement) adopt(ns *namespace, parents []uint64, standard bool) {
	home := s.byContext[s.homeContext()]
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
func (s *placement) adoptOne(ns, home *namespace, key normalize.Owner, h *holder, parent uint64, o index.Orphan) {
	name := []uint64{o.Engine}
	res := home.context.index.Remove(h.current, name, []int{0}, s.copies(key))
	if h.hasPrevious {
		old := home.context.index.Remove(h.previous, name, []int{0}, s.copies(key))
		res.Removed += old.Removed
	}
	if res.Removed == 0 {
		return
	}
	var clientHashes []uint64
	if ns.context.translates {
		clientHashes = []uint64{0} // its tokens are gone
	}
	medium := s.media[key.Medium]
	ns.useLookAheads(s.contexts, home.lookAheads)
	ns.context.index.Store(&index.Store{
		Owner: s.holder(ns, key, medium).current, Parent: parent, HasParent: true,
		Engine: name, Local: []uint64{o.Local}, ClientHashes: clientHashes, Copies: s.copies(key),
	})
	s.noteResolved(ns.context, name)
	s.noteContests(ns.context)
}
