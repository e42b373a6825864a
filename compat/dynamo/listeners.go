package dynamo

import (
	"fmt"
	"net/http"
	"slices"

	"kvconductor/conductor"
)

// Tests make gaps by pausing a listener: what its publisher sends meanwhile is
// lost, and asked for again afterwards.

// pauseListener is POST /test/pause_listener.
func (d *Dialect) pauseListener(r *exchange) {
	d.control(r, "paused", d.conductor.Pause, statusPending, statusActive)
}

// resumeListener is POST /test/resume_listener.
func (d *Dialect) resumeListener(r *exchange) {
	d.control(r, "resumed", d.conductor.Unpause, statusPaused, statusFailed)
}

// control does something to a listener whose status is one of several.
func (d *Dialect) control(r *exchange, done string, do func(conductor.Key) error, from ...string) {
	var instance string
	var dpRank *uint64
	if !r.decode("ListenerControlRequest", identity(&instance), rankOrNull(&dpRank)) {
		return
	}
	want := uint64(0)
	if dpRank != nil {
		want = *dpRank
	}
	known := false
	for _, s := range d.conductor.Services() {
		if s.Instance != instance || !isListener(&s) {
			continue
		}
		known = true
		if uint64(s.Rank) != want {
			continue
		}
		if status := listenerStatus(&s); !slices.Contains(from, status) {
			refuse(r.Context, http.StatusConflict, fmt.Sprintf("instance %s dp_rank %d cannot be %s from status %s", instance, want, done, status))
			return
		}
		if err := do(s.Key()); err != nil {
			refuseError(r.Context, err)
			return
		}
		ok(r.Context, http.StatusOK)
		return
	}
	if known {
		refuse(r.Context, http.StatusNotFound, noRank(instance, want))
		return
	}
	refuse(r.Context, http.StatusNotFound, noInstance(instance))
}
