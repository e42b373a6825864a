package status

import (
	"slices"

	"example.com/conductor/conductor/registration"
	"example.com/conductor/events/stream"
)

// Readiness says whether routers may rely on the answers.
type Readiness struct {
	Ready bool
	// Waiting are static sources still being brought up; GivenUp those that are
	// not synced and no longer waited for, with the reason.
	Waiting, GivenUp []SourceState
	// Recovering: the gate of conductor.Options.Gate is closed.
	Recovering bool
	// IndexBytes is what the indexes take of IndexLimit (index.max_bytes_total), both 0 without
	// a limit.
	IndexBytes, IndexLimit int64
	// Synced are the sources that are synced, and MinSynced how many there must be.
	Synced, MinSynced int

	states map[string]*stateCounts // of all sources, by tenant
}

// SourceState is one source and why it is in its state.
type SourceState struct {
	Key    registration.Key
	State  stream.State
	Reason string
	Fault  string // why it cannot be followed, for clients that may see causes
}

// Decide sets Ready once all sources are counted.
func (r *Readiness) Decide() {
	r.Ready = !r.Recovering && len(r.Waiting) == 0 && r.Synced >= r.MinSynced
}

// Count counts a source.
func (r *Readiness) Count(static bool, s SourceState) {
	if r.states == nil {
		r.states = make(map[string]*stateCounts)
	}
	if r.states[s.Key.Tenant] == nil {
		r.states[s.Key.Tenant] = new(stateCounts)
	}
	r.states[s.Key.Tenant][slices.Index(states, s.State)]++
	if s.State.Ready() {
		r.Synced++
	}
	if !static {
		return
	}
	switch s.State {
	case stream.Synced, stream.Approximate:
	case stream.Connecting, stream.Replaying:
		r.Waiting = append(r.Waiting, s)
	default:
		r.GivenUp = append(r.GivenUp, s)
	}
}
