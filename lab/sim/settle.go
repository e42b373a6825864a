package sim

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"example.com/conductor/lab/harness"
)

// Waiting for the server polls /services: first often, since most batches are
// applied within a millisecond, then seldom, so that the polls do not hold up
// what they wait for.
const (
	firstPoll = 500 * time.Microsecond
	lastPoll  = 20 * time.Millisecond
	// leastPatience is how short a wait becomes while the server does not catch
	// up at all; without it every settled query would cost the full timeout.
	leastPatience = 20 * time.Millisecond
)

// settle waits until the server has applied every batch. The caller keeps
// others from publishing. After a wait in vain the next one is shorter.
func (d *driver) settle(ctx context.Context) bool {
	if d.fleet.Faults {
		if err := d.remind(func(r *rank) bool { return r.pub.Lost() }); err != nil {
			d.fail(err)
		}
	}
	d.mu.Lock()
	patience := d.patience
	d.mu.Unlock()

	ok := d.await(ctx, patience, d.fleet.Servers == nil) == nil
	if ctx.Err() != nil {
		return ok
	}
	d.tally.waited(ok)

	d.mu.Lock()
	defer d.mu.Unlock()
	if ok {
		d.patience = d.fleet.SettleTimeout
	} else {
		d.patience = max(d.patience/2, leastPatience)
	}
	return ok
}

// await polls until no source lags. The error names the first source that does. Without patience it
// gives up as soon as no server follows a source.
func (d *driver) await(ctx context.Context, most time.Duration, patient bool) error {
	deadline := time.Now().Add(most)
	pause := firstPoll
	for {
		lag, unfollowed, err := d.lagging(ctx)
		if err == nil && len(lag) == 0 {
			return nil
		}
		if err == nil {
			err = fmt.Errorf("%d sources lag behind, the first: %s", len(lag), lag[0])
		}
		if unfollowed && !patient || time.Now().Add(pause).After(deadline) {
			return err
		}
		if !harness.Wait(ctx, pause) {
			return ctx.Err()
		}
		pause = min(2*pause, lastPoll)
	}
}

// lagging returns the ranks, and the pool, whose newest batch the server has not
// applied, and whether no server follows some of them.
func (d *driver) lagging(ctx context.Context) (lag []string, unfollowed bool, err error) {
	known, err := d.client.services(ctx)
	if err != nil {
		return nil, false, err
	}
	for _, r := range d.fleet.ranks {
		name, newest := r.key, r.pub.LastSeq()
		s, ok := known[name]
		at := seqOf(s.LastSeq)
		switch {
		case !ok:
			unfollowed = true
			lag = append(lag, name+" is not in /services")
		case at != newest || !r.lives(s.State):
			lag = append(lag, fmt.Sprintf("%s is %s at batch %d of %d%s", name, s.State, at, newest, because(s.Reason)))
		}
	}
	if p := d.fleet.pool; p != nil {
		s, newest := known[p.key], p.pub.LastSeq()
		if at := seqOf(s.LastSeq); at != newest {
			lag = append(lag, fmt.Sprintf("%s is %s at batch %d of %d", p.key, cmp.Or(s.State, "without detail"), at, newest))
		}
	}
	return lag, unfollowed, nil
}

// seqOf returns a watermark, -1 for none.
func seqOf(watermark *int64) int64 {
	if watermark == nil {
		return -1
	}
	return *watermark
}

// because returns a reason in brackets, nothing if there is none.
func because(reason string) string {
	if reason == "" {
		return ""
	}
	return " (" + reason + ")"
}
