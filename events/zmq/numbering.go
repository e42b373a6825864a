package zmq

// An engine with attention data parallelism sends all its ranks over one connection and numbers them together. One source is
// registered for it, so the messages of the other ranks are that source's too. But behind a forwarder the ranks of one topic may
// be engines that number their messages each for itself, and of those the source must get nothing. Their numbers tell:
//
//	numbered together  0a 1b 2c 3a 4b 5a   other ranks have the numbers between those of the source's rank a
//	each for itself    0a 0b 1a 1b 2b 2a   the numbers of rank a follow each other although others came between
//
// Ranks that number for themselves look like the first case only if the very messages are lost whose numbers the others have. So
// once it has shown three times, a source gets all that the connection sends of its topic; what came before is a gap to it, which
// a replay fills. The second case is final for the connection.

// provenGaps is how many times other ranks have to fill the gap between two messages of the own one.
const provenGaps = 3

// numbering is what the numbers on a connection show about a subject that it holds.
type numbering struct {
	subject subject
	own     uint64 // follows the last number of the subject's own rank
	next    uint64 // follows the last number of any rank, as far as each follows the one before
	others  bool   // another rank has sent something since the last message of the own one
	gaps    int    // that other ranks have filled
	apart   bool   // each rank numbers for itself
}

// addOwn takes the number of a message of the subject's own rank.
func (n *numbering) addOwn(number uint64) {
	switch {
	case !n.others:
	case number == n.own:
		n.apart = true
	case number == n.next:
		n.gaps++
	}
	n.own, n.next, n.others = number+1, number+1, false
}

// takesOther takes the number of a message of another rank, and reports whether the message is the subject's too.
func (n *numbering) takesOther(number uint64) bool {
	n.others = true
	proven := n.gaps >= provenGaps && !n.apart
	if number == n.next || number > n.next && proven {
		n.next = number + 1
		return proven
	}
	return false
}
