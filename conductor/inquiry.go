package conductor

import (
	"kvconductor/conductor/scope"
	"kvconductor/events"
	"kvconductor/index"
)

// inquiry is what contexts know of the hashes of the stored event that a source applies.
// The context of the event is asked once, for the parent and all blocks that have places of
// their own. Other contexts are asked for the parent and the first block, which tell that the
// event is not theirs:
//
//	variantOf, place --one hash--> inquiry --several hashes, the first time--> index.Ask
//
// Answers may be older than changes by other sources, as the answer to a single question
// may be. A block that comes to wait by its hash is looked for again: see wait.
type inquiry struct {
	event   *events.Event
	each    bool     // each block has a place of its own
	parents int      // 1 if it has a parent
	hashes  []uint64 // the parent's and those of blocks, as far as a context was asked
	answers []inquired
	known   []index.Known // of all answers

	at   scope.Context // of here
	here *indexContext // the context that means asked for last, nil for none
}

// inquired is where the answer of a context is.
type inquired struct {
	context *indexContext
	before  lookAheads // that names could have when the context was asked
	from    int        // in inquiry.known, of the first hash
	n       int        // hashes that the context was asked for
}

// maxInquired is how many contexts an inquiry remembers: it looks through them for each hash,
// and salts may be as many as users. Further contexts are asked for one hash at a time.
const maxInquired = 8

// parentHash stands for the parent among the positions of an event's blocks.
const parentHash = -1 // inquiry.hashes has it before the first

// begin forgets the event before.
func (q *inquiry) begin(e *events.Event, each bool) {
	if cap(q.known) > localsKept {
		*q = inquiry{}
	}
	q.event, q.each, q.parents, q.hashes = e, each, 0, q.hashes[:0]
	if e.HasParent {
		q.parents, q.hashes = 1, append(q.hashes, e.Parent)
	}
	clear(q.answers)
	q.answers, q.known, q.here = q.answers[:0], q.known[:0], nil
}

// known returns what a context knows of a block of the event, or of its parent, and the
// look-aheads that names could have when the context was asked.
func (s *placement) known(x *indexContext, e *events.Event, block int) (index.Known, lookAheads) {
	q := &s.asked
	if q.event != e {
		q.begin(e, true)
	}
	at := q.parents + block
	for i := range q.answers {
		a := &q.answers[i]
		if a.context != x {
			continue
		}
		if at >= a.n {
			s.ask(a, q.parents+len(e.Hashes))
		}
		return q.known[a.from+at], a.before
	}
	if len(q.answers) == maxInquired {
		var one [1]index.Known
		before := x.lookAheads.ofNames()
		return x.index.Ask(s.sourceIn(x), []uint64{hashAt(e, block)}, one[:0])[0], before
	}
	n := q.parents + 1
	if at >= n || q.each && len(s.namespaces) < 2 {
		n = q.parents + len(e.Hashes)
	}
	q.answers = append(q.answers, inquired{context: x})
	a := &q.answers[len(q.answers)-1]
	s.ask(a, n)
	return q.known[a.from+at], a.before
}

// ask asks a context for the first n hashes.
func (s *placement) ask(a *inquired, n int) {
	q := &s.asked
	if len(q.hashes) < n {
		q.hashes = append(q.hashes, q.event.Hashes[len(q.hashes)-q.parents:n-q.parents]...)
	}
	a.before, a.from, a.n = a.context.lookAheads.ofNames(), len(q.known), n
	q.known = a.context.index.Ask(s.sourceIn(a.context), q.hashes[:n], q.known)
}

// knows reports whether the hash of a block of the event, or of its parent, means something
// to the source in a namespace.
func (s *placement) knows(ns *namespace, e *events.Event, block int) bool {
	k, _ := s.known(ns.context, e, block)
	return k.Own
}

// meaningOf returns the meaning of a block of the event, or of its parent, as contexts.meaningOf does.
func (s *placement) meaningOf(dk scope.Deployment, e *events.Event, block int, home scope.Variant, fits func(scope.Variant) bool, most int) (m meaning, known bool) {
	d, m, known := s.meaningHere(scope.Context{Deployment: dk, Variant: home}, e, block)
	switch {
	case d == nil:
		return meaning{}, false
	case known && fits(home):
		return m, true
	}
	return s.contexts.meaningElsewhere(d, hashAt(e, block), home, fits, most)
}

// hashAt returns the hash of a block of an event, or of its parent.
func hashAt(e *events.Event, block int) uint64 {
	if block == parentHash {
		return e.Parent
	}
	return e.Hashes[block]
}

// meaningHere returns what the hash of a block of the event, or of its parent, means in one
// context. The deployment is nil if there is none.
func (s *placement) meaningHere(at scope.Context, e *events.Event, block int) (d *deployment, m meaning, known bool) {
	x := s.asked.here
	if x == nil || s.asked.at != at {
		d = s.contexts.deployment(at.Deployment)
		if d == nil {
			return nil, m, false
		}
		if x = d.context(at.Variant); x == nil {
			return d, m, false
		}
	}
	k, before := s.known(x, e, block)
	s.asked.at, s.asked.here = at, x
	if !k.Named {
		s.contexts.recallForgotten(x) // now, when it may have forgotten
		return x.deployment, m, false
	}
	return x.deployment, x.meaning(k.Key, before), true
}
