package sim

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"example.com/conductor/lab/sim/proxy"
	"example.com/conductor/lab/sim/truth"
)

// Stage is what fleets that run side by side have in common with a script: it stops all of them,
// looks at the servers, and lets them go on.
type Stage struct {
	mu      sync.Mutex
	drivers []*driver     // guarded by mu
	entered chan struct{} // closed with each fleet that has begun; guarded by mu
}

// NewStage returns a Stage without fleets.
func NewStage() *Stage { return &Stage{entered: make(chan struct{})} }

// enter adds a fleet that works.
func (s *Stage) enter(d *driver) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drivers = append(s.drivers, d)
	close(s.entered)
	s.entered = make(chan struct{})
}

// Await waits until a number of fleets work.
func (s *Stage) Await(ctx context.Context, fleets int) error {
	for {
		s.mu.Lock()
		n, entered := len(s.drivers), s.entered
		s.mu.Unlock()
		if n >= fleets {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-entered:
		}
	}
}

// Quiet stops all fleets, waits until the servers have applied all that was published, and calls f.
// Then it asks earlier prompts of each fleet again. It returns an error if the servers do not catch
// up within most, or if a settled answer was wrong until now.
func (s *Stage) Quiet(ctx context.Context, most time.Duration, f func() error) error {
	s.mu.Lock()
	all := s.drivers
	s.mu.Unlock()
	for _, d := range all {
		d.publishing.Lock()
		defer d.publishing.Unlock()
	}
	for _, d := range all {
		if err := d.await(ctx, most, true); err != nil {
			return fmt.Errorf("model %s: %w", d.fleet.Model, err)
		}
	}
	if err := f(); err != nil {
		return err
	}
	for _, d := range all {
		d.audit(ctx)
		d.tally.mu.Lock()
		wrong, examples := d.tally.Wrong, d.tally.examples
		d.tally.mu.Unlock()
		if wrong > 0 {
			return fmt.Errorf("model %s: %d settled answers are wrong, the first: %s", d.fleet.Model, wrong, examples[0])
		}
	}
	return nil
}

// Holds returns the blocks that each rank of the fleets holds, each once a tier, by the key of its
// registration. Call it while the fleets are quiet.
func (s *Stage) Holds() map[string]Blocks {
	s.mu.Lock()
	defer s.mu.Unlock()
	holds := make(map[string]Blocks)
	for _, d := range s.drivers {
		d.fleet.mu.Lock()
		for i, r := range d.fleet.ranks {
			var b Blocks
			r.instance.tree.Each(i, func(_ truth.ID, held truth.Tier) {
				b.add(int(held&truth.Device/truth.Device), int(held&truth.Host/truth.Host), int(held&truth.Disk/truth.Disk))
			})
			holds[r.key] = b
		}
		d.fleet.mu.Unlock()
	}
	return holds
}

// Ways returns the proxies between servers and the publishers of the fleets, replays included.
func (s *Stage) Ways() (all []*proxy.Proxy) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range s.drivers {
		for _, r := range d.fleet.ranks {
			if r.live != nil {
				all = append(all, r.live, r.replay)
			}
		}
	}
	return all
}

// Registered returns the bodies of registrations of all ranks of the fleets, with the addresses of
// the publishers themselves.
func (s *Stage) Registered() (bodies [][]byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range s.drivers {
		for _, r := range d.fleet.ranks {
			g := d.fleet.registration(r)
			g.Endpoint, g.ReplayEndpoint = r.pub.Endpoint(), r.pub.ReplayEndpoint()
			body, err := json.Marshal(g)
			if err != nil {
				panic("BUG: a registration has no JSON form: " + err.Error())
			}
			bodies = append(bodies, body)
		}
	}
	return bodies
}
