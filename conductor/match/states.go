package match

import (
	"slices"

	"example.com/conductor/conductor/catalog"
	"example.com/conductor/events/stream"
)

// fromSynced are the states of sources, the best first: how much of what the engine has may be missing from a row.
var fromSynced = [...]stream.State{stream.Synced, stream.Approximate, stream.Partial, stream.Replaying, stream.Connecting, stream.Stale,
	stream.Paused, stream.Failed}

// instanceState is the state of an instance at one moment.
type instanceState struct {
	state  stream.State
	epochs uint64 // of its sources, added up
	left   bool   // one of them was unregistered or replaced
}

// stateOf returns the state of the source of an instance that is furthest from synced.
func stateOf(in *catalog.Instance) (s instanceState) {
	worst := 0
	for _, m := range in.Members {
		state, epoch := m.State()
		worst = max(worst, slices.Index(fromSynced[:], state))
		s.epochs += epoch
		s.left = s.left || m.HasLeft()
	}
	s.state = fromSynced[worst]
	return s
}

// readStates reads the states of all instances of a roster. It does so before the index is read, see Matcher.detail.
func (sc *scratch) readStates(r *catalog.Roster) {
	sc.states = sc.states[:0]
	for i := range r.Instances {
		sc.states = append(sc.states, stateOf(&r.Instances[i]))
	}
}

// recheckStates looks at the states again behind the index, as recheck does, and puts the worse one into each row. An instance whose
// blocks may have left in between counts as one that fetches its history.
func (sc *scratch) recheckStates(r *catalog.Roster) {
	for i := range sc.rows {
		row := &sc.rows[i]
		before, after := sc.states[row.at], stateOf(&r.Instances[row.at])
		if row.State = worse(before.state, after.state); after.left || after.epochs != before.epochs {
			row.State = worse(row.State, stream.Replaying)
		}
	}
}

func worse(a, b stream.State) stream.State {
	return fromSynced[max(slices.Index(fromSynced[:], a), slices.Index(fromSynced[:], b))]
}

// StateOf returns the state of the source of an instance that is furthest from synced.
func StateOf(in *catalog.Instance) stream.State { return stateOf(in).state }
