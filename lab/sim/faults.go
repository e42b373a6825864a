package sim

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"example.com/conductor/lab/sim/proxy"
	"example.com/conductor/lab/sim/publisher"
)

// Faults counts the faults of a rank.
type Faults struct {
	Lost     int `json:"lost_batches"` // never sent live, only in the ring
	Cuts     int `json:"cuts"`
	Stalls   int `json:"stalls"`
	Restarts int `json:"restarts"`
	Spoiled  int `json:"spoiled_replays"` // cut short or never answered
}

const (
	// faultEvery is how often some rank is disturbed.
	faultEvery = 250 * time.Millisecond
	// shortRing is the ring of one rank, in batches, so that replays cannot always fill its gaps.
	shortRing = 64
)

// disturbed is the part of a rank that faults need.
type disturbed struct {
	live, replay *proxy.Proxy
	faults       Faults // guarded by Fleet.mu
}

// reroute puts proxies that can be disturbed in front of a rank's publisher.
func (r *rank) reroute() (err error) {
	if r.live, err = proxy.Open(strings.TrimPrefix(r.pub.Endpoint(), "tcp://")); err == nil {
		r.replay, err = proxy.Open(strings.TrimPrefix(r.pub.ReplayEndpoint(), "tcp://"))
	}
	return err
}

// endpoints returns the addresses of the rank's registration.
func (r *rank) endpoints() (live, replay string) {
	if r.live == nil {
		return r.pub.Endpoint(), r.pub.ReplayEndpoint()
	}
	return "tcp://" + r.live.Addr(), "tcp://" + r.replay.Addr()
}

// disturb does something to a random rank now and then, until ctx ends.
func (d *driver) disturb(ctx context.Context) {
	dice := rand.New(rand.NewPCG(d.fleet.Seed, 0x6661756c74))
	for _, r := range d.fleet.ranks {
		spoils := rand.New(rand.NewPCG(d.fleet.Seed, uint64(len(r.key))+uint64(r.n)))
		r.replay.Spoil(func() proxy.Spoil { return d.spoil(r, spoils) })
	}
	tick := time.NewTicker(faultEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		r := d.fleet.ranks[dice.IntN(len(d.fleet.ranks))]
		d.publishing.Lock()
		d.fleet.mu.Lock()
		var err error
		switch n := dice.IntN(100); {
		case n < 45:
			burst := 1 + dice.IntN(20)
			r.pub.Lose(burst)
			r.faults.Lost += burst
		case n < 65:
			r.live.Cut()
			r.faults.Cuts++
		case n < 80:
			r.live.Hold(time.Duration(50+dice.IntN(450)) * time.Millisecond)
			r.faults.Stalls++
		default:
			err = d.restart(ctx, r)
		}
		d.fleet.mu.Unlock()
		d.publishing.Unlock()
		if err != nil {
			d.fail(err)
			return
		}
	}
}

// spoil decides about one replay of a rank.
func (d *driver) spoil(r *rank, dice *rand.Rand) proxy.Spoil {
	n := dice.IntN(100)
	if n >= 20 {
		return proxy.Spoil{}
	}
	go func() { // the proxy calls under its own lock
		d.fleet.mu.Lock()
		r.faults.Spoiled++
		d.fleet.mu.Unlock()
	}()
	if n < 2 {
		return proxy.Spoil{Swallow: true}
	}
	return proxy.Spoil{After: 1 + dice.IntN(1<<20)}
}

// restart gives a rank the fate of a process that was killed: an empty cache,
// sequences from the start, another publisher behind the same address. It waits
// until the server has seen the connection end: from then on a source that says
// synced is about the new life. Fleet.mu is held.
func (d *driver) restart(ctx context.Context, r *rank) error {
	if err := d.fleet.work(r, 0); err != nil {
		return err
	}
	defer r.instance.restarts.Add(1)
	before := d.states(ctx)[r.key]
	cleared := r.engine.Clear() // for the truth; the killed process publishes nothing
	r.requests = 0
	r.faults.Restarts++
	pub, err := publisher.Listen(r.options)
	if err != nil {
		return fmt.Errorf("instance %q rank %d: %w", r.instance.id, r.n, err)
	}
	old := r.pub
	r.pub = pub
	r.live.Turn(strings.TrimPrefix(pub.Endpoint(), "tcp://"))
	r.replay.Turn(strings.TrimPrefix(pub.ReplayEndpoint(), "tcp://"))
	old.Close()
	for end := time.Now().Add(d.fleet.SettleTimeout); time.Now().Before(end); {
		if s := d.states(ctx)[r.key]; s.State != "synced" && s.State != "partial" || s.Reconnects > before.Reconnects {
			break
		}
	}
	if r.clearsAtStart {
		return d.fleet.publish(r, cleared)
	}
	return nil
}

// heal ends all faults. A further batch shows readers that the last one was lost.
func (d *driver) heal() error {
	for _, r := range d.fleet.ranks {
		r.replay.Spoil(nil)
		r.pub.Lose(0)
	}
	return d.remind(func(*rank) bool { return true })
}

// remind publishes an empty batch for ranks whose newest batch was lost. A reader learns
// from the next batch that one is missing, and an engine at work soon publishes one.
func (d *driver) remind(which func(*rank) bool) error {
	d.fleet.mu.Lock()
	defer d.fleet.mu.Unlock()
	for _, r := range d.fleet.ranks {
		if which(r) {
			r.pub.Lose(0)
			if err := d.fleet.publish(r, nil); err != nil {
				return err
			}
		}
	}
	return nil
}

// lives reports whether the server's state of a rank is about its present life.
func (r *rank) lives(state string) bool {
	return r.instance.restarts.Load() == 0 || state == "synced" || state == "partial"
}
