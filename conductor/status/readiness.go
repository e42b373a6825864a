package status

import (
	"slices"

	"example.com/conductor/conductor/doctor"
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

	states map[string]*tenantCounts // of all sources, by tenant
}

// SourceState is one source and why it is in its state.
type SourceState struct {
	Key    registration.Key
	State  stream.State
	Reason string
	Fault  string // why it cannot be followed, for clients that may see causes
	// Erring: a finding of severity error says that answers are wrong or lack something, whatever the state.
	Erring bool
}

// Unfound is an engine that has not told where it publishes.
type Unfound struct {
	SourceState
	Static bool // the configuration names it, so that a server which has just started waits for it
}

// StateOf returns the state of a source by its row, without the fault.
func StateOf(s *Source) SourceState {
	erring := slices.ContainsFunc(s.Findings, func(f doctor.Finding) bool { return f.Severity() == doctor.Error })
	return SourceState{Key: s.Key(), State: s.State, Reason: s.Reason, Erring: erring}
}

// Decide sets Ready once all sources are counted.
func (r *Readiness) Decide() {
	r.Ready = !r.Recovering && len(r.Waiting) == 0 && r.Synced >= r.MinSynced
}

// Count counts a source.
func (r *Readiness) Count(static bool, s SourceState) {
	if r.states == nil {
		r.states = make(map[string]*tenantCounts)
	}
	of := r.states[s.Key.Tenant]
	if of == nil {
		of = new(tenantCounts)
		r.states[s.Key.Tenant] = of
	}
	if s.Erring && doctor.SeverityOf(string(s.State)) != doctor.Error {
		of.erring++
	} else {
		of.states[slices.Index(states, s.State)]++
	}
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
