package store

import (
	"context"
	"errors"
	"maps"
	"time"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/scope"
)

// Status is what a Shelf has done, and what it knows of the store.
type Status struct {
	Written   int            // snapshots
	Failed    map[string]int // snapshots that were not, by reason
	Error     string         // of the last one that failed, "" since one was written
	Evicted   int            // snapshots of other deployments taken down to make room
	Sealed    int            // sources and contexts with a salt that the last one left out
	Snapshots int            // on the shelf, of all replicas
	Bytes     int64          // of them
	Malformed int            // entries on the shelf that are none
	// Oldest is the moment of the oldest snapshot of a deployment that this replica writes, the zero
	// value if it writes none. A deployment without one counts since that was seen.
	Oldest time.Time
	// Loaded are blocks brought back from the shelf, LeftOut snapshots that could not be, by reason.
	Loaded   int
	LeftOut  map[string]int
	Progress conductor.Progress // of the restore under way
}

// Status returns what was done so far.
func (s *Shelf) Status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.status
	st.Failed, st.LeftOut = maps.Clone(st.Failed), maps.Clone(st.LeftOut)
	return st
}

// Progress returns how far the restore under way has come, the zero value for none.
func (s *Shelf) Progress() conductor.Progress {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.status.Progress
}

func (s *Shelf) note(change func(*Status)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(&s.status)
}

// Keep writes snapshots until ctx ends. It looks for old ones four times an interval, and at once
// when the store has lost something.
func (s *Shelf) Keep(ctx context.Context) {
	if s.cfg.Interval <= 0 {
		return
	}
	look := max(s.cfg.Interval/4, 100*time.Millisecond)
	tick := time.NewTicker(look)
	defer tick.Stop()
	lost, up := s.cfg.Fleet.Status().Lost, false
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.cfg.Fleet.Changed():
			st := s.cfg.Fleet.Status()
			again, news := st.Lost > lost, st.Up && !up
			if lost, up = st.Lost, st.Up; again || news {
				s.look(ctx, again)
			}
		case <-tick.C:
			s.look(ctx, false)
		}
	}
}

// look writes the snapshots that are due, all of them again if the store has lost something: chunks
// may be gone whose manifest is there.
func (s *Shelf) look(ctx context.Context, again bool) {
	all, now, err := s.list(ctx)
	if err != nil {
		return // the fleet says so
	}
	known := make(map[scope.Deployment]*manifest, len(all))
	for i := range all {
		known[all[i].deployment()] = &all[i]
	}
	oldest, moments := time.Time{}, make(map[scope.Deployment]time.Time)
	for _, d := range s.cfg.Conductor.HeldDeployments() {
		if s.cfg.Wanted != nil && !s.cfg.Wanted(d.Deployment) {
			continue
		}
		m := known[d.Deployment]
		at, seen := s.moments[d.Deployment]
		switch {
		case (again || s.due(m, d, now)) && s.try(ctx, d, m), m == nil && !seen:
			at = time.Now()
		case m != nil:
			at = time.Now().Add(time.Duration(m.At-now) * time.Millisecond)
		}
		if moments[d.Deployment] = at; oldest.IsZero() || at.Before(oldest) {
			oldest = at
		}
	}
	s.moments = moments
	s.note(func(st *Status) { st.Oldest = oldest })
}

// due reports whether this replica should write a deployment. One whose sources are all synced
// goes before others: it replaces what another kind wrote, and those wait half an interval longer.
func (s *Shelf) due(m *manifest, d conductor.HeldDeployment, now int64) bool {
	if m == nil || d.Synced && !m.Synced {
		return true
	}
	age := time.Duration(now-m.At) * time.Millisecond
	if !d.Synced {
		return age >= s.cfg.Interval*3/2
	}
	return age >= s.cfg.Interval || age < -s.cfg.Interval
}

// try writes a deployment, and reports whether it is written, by this replica or another.
func (s *Shelf) try(ctx context.Context, d conductor.HeldDeployment, known *manifest) bool {
	err := s.write(ctx, d, known)
	if err == nil || ctx.Err() != nil || errors.Is(err, errTaken) {
		return true
	}
	reason := failedStore
	switch {
	case errors.Is(err, errLease):
		reason = failedLease
	case errors.Is(err, errRoom):
		reason = failedRoom
	}
	before := ""
	s.note(func(st *Status) {
		before = st.Error
		st.Failed[reason]++
		st.Error = err.Error()
	})
	if before != err.Error() {
		s.cfg.Log.Warn().Err(err).Str("model", d.Model).Str("tenant", d.Tenant).Str("reason", reason).Msg("a snapshot cannot be put on the shelf, trying again")
	}
	return false
}
