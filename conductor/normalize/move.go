package normalize

import "example.com/conductor/events"

// admitMove passes an event that moves blocks on as two. If both media are one, nothing moves.
//
// The event names an attention group, but no kind of it. A number under which the source has announced nothing is no
// group: some releases write 0 there always.
func (n *Normalizer) admitMove(e *events.Event, rank int32) {
	from := n.opts.Medium(e.From, false)
	if n.opts.Medium(e.Medium, false) == from {
		return
	}
	stored, removed := e.Apart()
	if !n.groups.knowsGroup(rank, e.Group) {
		stored.Group, removed.Group = -1, -1
	}
	// A hash stands for as many registered blocks as it was announced with on the medium that it leaves.
	stored.BlockSize = n.opts.Registered.Deployment.BlockSize
	n.admitEvent(&stored, rank)
	n.admitEvent(&removed, rank)
}
