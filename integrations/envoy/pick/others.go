package pick

import (
	"cmp"
	"context"
	"slices"
	"time"
)

// othersShare bounds the part of the time that goes into asking what others do: a call that takes t is followed by a pause of
// at least othersShare·t.
const othersShare = 20

// staleOthers is how many pauses an answer counts, if there is no new one.
const staleOthers = 3

// computed names a report whose prompt got its first token at some time. It does not keep the prompt.
type computed struct {
	tenant, id string
	at         time.Time
}

// announcedWithin is how long after the first token an engine has announced what it has computed, and Conductor knows.
const announcedWithin = 200 * time.Millisecond

// maxComputed bounds load.computed.
const maxComputed = 64

// finish notes that prompts have their first token. Reports that Conductor has not answered yet are left out.
func (l *load) finish(reports []*report, now time.Time) {
	for _, r := range reports {
		if r.done.IsZero() || r.dropped {
			continue
		}
		if len(l.computed) >= maxComputed {
			l.computed = slices.Delete(l.computed, 0, 1)
		}
		l.computed = append(l.computed, computed{r.Tenant, r.RequestID, now})
	}
}

// takeBackComputed takes reports back that Conductor may expect blocks of although they are computed. An engine does not announce each
// block: some have been loaded from its host memory, some it hashes in another way. Until their time is over, such blocks would look
// to all pickers like work that waits. Nothing is taken back if nothing more is expected than is queued. The caller holds mu.
func (c *Chooser) takeBackComputed(l *load) {
	if l.others == 0 {
		l.computed = nil
		return
	}
	now, n := c.Now(), 0
	for n < len(l.computed) && now.Sub(l.computed[n].at) >= announcedWithin {
		n++
	}
	c.reporter.takeBackComputed(l.computed[:n])
	l.computed = slices.Delete(l.computed, 0, n)
}

// followOthers asks what engines compute for other pickers, until ctx ends.
func (c *Chooser) followOthers(ctx context.Context) {
	pause := c.OthersEvery
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		pause = c.AskOthers(ctx)
	}
}

// AskOthers asks Conductor how many tokens engines are expected to compute, and takes those off that this picker has sent itself. The
// answer counts until several more pauses are over. It returns how long to pause. Run does so by itself; a caller whose clock is not the
// machine's sets a long OthersEvery and calls AskOthers when its own time has come.
func (c *Chooser) AskOthers(ctx context.Context) (pause time.Duration) {
	began := time.Now()
	pending := make(map[string]float64)
	if err := c.reporter.tell(ctx, func(ctx context.Context) error {
		all, err := c.Conductor.Services(ctx)
		for _, s := range all {
			if s.Expected != nil && cmp.Or(s.TenantID, "default") == cmp.Or(c.Tenant, "default") {
				pending[s.InstanceID] = float64(s.Expected.Pending) // of the instance; each of its ranks says it
			}
		}
		return err
	}); err != nil {
		c.Log.Debug().Err(err).Msg("cannot ask Conductor what engines compute for others")
		return max(c.OthersEvery, reportTimeout)
	}
	pause = max(c.OthersEvery, othersShare*time.Since(began))
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fleet == nil {
		return pause
	}
	for _, e := range c.fleet.all {
		if e.others = max(0, pending[e.Instance.Instance]-e.load.queued()); !e.Approximate {
			c.takeBackComputed(e.load)
		}
	}
	c.othersUntil = c.Now().Add(staleOthers * pause)
	return pause
}
