package dynamo

import (
	"net/http"
	"slices"

	"example.com/conductor/conductor/registration"
)

// Tests make gaps by pausing a listener: what its publisher sends meanwhile is
// lost, and asked for again afterwards.

// pauseListener is POST /test/pause_listener.
func (d *Dialect) pauseListener(r *exchange) error {
	return d.control(r, "paused", r.view(d).Pause, statusPending, statusActive)
}

// resumeListener is POST /test/resume_listener.
func (d *Dialect) resumeListener(r *exchange) error {
	return d.control(r, "resumed", r.view(d).Unpause, statusPaused, statusFailed)
}

// control does something to a listener whose status is one of several.
func (d *Dialect) control(r *exchange, done string, do func(registration.Key) error, from ...string) error {
	var instance string
	var dpRank *uint64
	if err := r.decode("ListenerControlRequest", identity(&instance), rankOrNull(&dpRank)); err != nil {
		return err
	}
	want := uint64(0)
	if dpRank != nil {
		want = *dpRank
	}
	known := false
	for _, s := range r.view(d).Services() {
		if s.Instance != instance || !isListener(&s) {
			continue
		}
		known = true
		if uint64(s.Rank) != want {
			continue
		}
		if status := listenerStatus(&s); !slices.Contains(from, status) {
			return refusef(http.StatusConflict, "instance %s dp_rank %d cannot be %s from status %s", instance, want, done, status)
		}
		if err := do(s.Key()); err != nil {
			return err
		}
		return ok(r.gin, http.StatusOK)
	}
	if known {
		return noRank(instance, want)
	}
	return noInstance(instance)
}
