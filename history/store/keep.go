package store

import (
	"context"
	"errors"
	"maps"
	"time"

	"example.com/conductor/conductor/ingest"
	"example.com/conductor/conductor/scope"
)

// Status is what a Keeper has done, and what it knows of the store.
type Status struct {
	Written   int            // snapshots
	Failed    map[string]int // snapshots that were not, by reason
	Error     string         // of the last one that failed, "" since one was written
	Evicted   int            // snapshots of other deployments taken down to make room
	Snapshots int            // on the shelf, of all replicas
	Bytes     int64          // of them
	Malformed int            // entries on the shelf that are none
	// Oldest is the moment of the oldest snapshot of a deployment that this replica writes, the zero
	// value if it writes none. A deployment without one counts since that was seen.
	Oldest time.Time
	// Loaded are blocks brought back from the shelf, LeftOut snapshots that could not be, by reason.
	Loaded  int
	LeftOut map[string]int
}

// failure is an error with its reason, a label of metrics.
type failure struct {
	reason string
	error
}

// reasonOf returns the reason of an error, or another one if it has none.
func reasonOf(err error, otherwise string) string {
	if f, ok := errors.AsType[*failure](err); ok {
		return f.reason
	}
	return otherwise
}

// Status returns what was done so far.
func (k *Keeper) Status() Status {
	k.mu.Lock()
	defer k.mu.Unlock()
	st := k.status
	st.Failed, st.LeftOut = maps.Clone(st.Failed), maps.Clone(st.LeftOut)
	return st
}

// updateStatus lets change change the status.
func (k *Keeper) updateStatus(change func(*Status)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	change(&k.status)
}

// Run writes snapshots until ctx ends. It looks for old ones four times an interval, and at once
// when the store has lost something.
func (k *Keeper) Run(ctx context.Context) {
	if k.cfg.Interval <= 0 {
		return
	}
	look := max(k.cfg.Interval/4, 100*time.Millisecond)
	tick := time.NewTicker(look)
	defer tick.Stop()
	lost, up := k.cfg.Group.Status().Lost, false
	for {
		select {
		case <-ctx.Done():
			return
		case <-k.cfg.Group.Changed():
			st := k.cfg.Group.Status()
			again, news := st.Lost > lost, st.Up && !up
			if lost, up = st.Lost, st.Up; again || news {
				k.writeDue(ctx, again)
			}
		case <-tick.C:
			k.writeDue(ctx, false)
		}
	}
}

// writeDue writes the snapshots that are due, all of them again if the store has lost something: chunks
// may be gone whose manifest is there.
func (k *Keeper) writeDue(ctx context.Context, again bool) {
	all, now, err := k.readManifests(ctx)
	if err != nil {
		return // the group logs it already
	}
	oldest, moments := time.Time{}, make(map[scope.Deployment]time.Time)
	for _, d := range k.cfg.Conductor.Sources().Snapshots().HeldDeployments() {
		if k.cfg.Wanted != nil && !k.cfg.Wanted(d.Deployment) {
			continue
		}
		m := manifestOf(all, d.Deployment)
		at, seen := k.moments[d.Deployment]
		switch {
		case (again || k.isDue(m, d, now)) && k.tryWrite(ctx, d, m), m == nil && !seen:
			at = time.Now()
		case m != nil:
			at = time.Now().Add(time.Duration(m.At-now) * time.Millisecond)
		}
		if moments[d.Deployment] = at; oldest.IsZero() || at.Before(oldest) {
			oldest = at
		}
	}
	k.moments = moments
	k.updateStatus(func(st *Status) { st.Oldest = oldest })
}

// isDue reports whether this replica should write a deployment. One whose sources are all synced
// goes before others: it replaces what another kind wrote, and those wait half an interval longer.
func (k *Keeper) isDue(m *manifest, d ingest.HeldDeployment, now int64) bool {
	if m == nil || d.Synced && !m.Synced {
		return true
	}
	age := time.Duration(now-m.At) * time.Millisecond
	if !d.Synced {
		return age >= k.cfg.Interval*3/2
	}
	return age >= k.cfg.Interval || age < -k.cfg.Interval
}

// tryWrite writes a deployment, and reports whether it is written, by this replica or another.
func (k *Keeper) tryWrite(ctx context.Context, d ingest.HeldDeployment, known *manifest) bool {
	err := k.writeDeployment(ctx, d, known)
	if err == nil || ctx.Err() != nil || errors.Is(err, errTaken) {
		return true
	}
	reason, before := reasonOf(err, failedStore), ""
	k.updateStatus(func(st *Status) {
		before = st.Error
		st.Failed[reason]++
		st.Error = err.Error()
	})
	if before != err.Error() {
		k.cfg.Log.Warn().Err(err).Str("model", d.Model).Str("tenant", d.Tenant).Str("reason", reason).
			Msg("a snapshot cannot be put on the shelf, trying again")
	}
	return false
}
