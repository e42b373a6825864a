package membership

import (
	"testing"
	"time"

	"example.com/conductor/internal/redistest"
)

// TestClocksApart lets the clocks of two replicas be ten seconds ahead and behind, and one of them
// jump. Leases and the order of changes are those of the store's clock.
func TestClocksApart(t *testing.T) {
	t.Parallel()
	url := redistest.Start(t).URL()
	ahead, right, behind := newPeer(t, url, "a"), newPeer(t, url, "b"), newPeer(t, url, "c")
	all := []*peer{ahead, right, behind}
	ahead.now, behind.now = ahead.now.Add(10*time.Second), behind.now.Add(-10*time.Second)
	alive := func(when string) {
		t.Helper()
		beat(all...)
		for _, p := range all {
			st := p.members.Status()
			if st.ids() != "abc" || st.Lost != 0 {
				t.Errorf("%s: replica %s sees %q, %d losses", when, p.members.ID(), st.ids(), st.Lost)
			}
			for _, r := range st.Replicas {
				if left := r.Expires.Sub(p.now); left <= 0 || left > lease {
					t.Errorf("%s: by the clock of replica %s the lease of %s ends in %v", when, p.members.ID(), r.ID, left)
				}
			}
		}
	}
	alive("clocks apart")
	ahead.register(source("x", "first"))
	alive("one change")
	holds(t, "x:first", all...)
	behind.register(source("x", "second"))
	alive("a later change by the earlier clock")
	holds(t, "x:second", all...)
	right.register(source("y", "m"))
	alive("another source")
	behind.unregister("x")
	alive("an unregistration by the earlier clock")
	holds(t, "y:m", all...)
	for _, p := range all {
		p.later()
	}
	alive("changes are confirmed")
	holds(t, "y:m", all...)
	ahead.now = ahead.now.Add(-20 * time.Second)
	ahead.register(source("z", "m"))
	alive("a clock that was set back")
	holds(t, "y:m z:m", all...)
	behind.now = behind.now.Add(20 * time.Second)
	behind.register(source("y", "again"))
	alive("a clock that was set forward")
	holds(t, "y:again z:m", all...)
}
