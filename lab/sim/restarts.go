package sim

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"text/tabwriter"
	"time"

	"example.com/conductor/lab/harness"
)

// Restarts says how the server is killed and started again while the fleet works.
type Restarts struct {
	// Times is how often, Every the mean pause before each.
	Times int
	Every time.Duration
	// Restart kills the server, starts it again, and returns once it is ready. Downtime tells how
	// long that took.
	Restart func(ctx context.Context) (Downtime, error)
}

// Downtime is one restart of the server.
type Downtime struct {
	Answers time.Duration `json:"answers_ns"` // until it answered, sure of itself or not
	Ready   time.Duration `json:"ready_ns"`   // until it was ready
	Blocks  int           `json:"blocks"`     // of the snapshot that it began with
}

// outage tells queries that were under way while the server was down from others.
type outage struct{ edges atomic.Int64 } // beginnings and ends of downtimes

// during reports whether the server was down at some moment since edges were read.
func (o *outage) during(edges int64) bool { return edges%2 != 0 || o.edges.Load() != edges }

// restarts restarts the server some times, until ctx ends.
func (d *driver) restarts(ctx context.Context) {
	dice := rand.New(rand.NewPCG(d.fleet.Seed, 0x6b696c6c))
	for range d.fleet.Restarts.Times {
		if !harness.Wait(ctx, d.fleet.Restarts.Every/2+time.Duration(dice.Int64N(int64(d.fleet.Restarts.Every)))) {
			return
		}
		d.outage.edges.Add(1)
		down, err := d.fleet.Restarts.Restart(ctx)
		d.outage.edges.Add(1)
		if err != nil {
			if ctx.Err() == nil {
				d.fail(fmt.Errorf("cannot restart the server: %w", err))
			}
			return
		}
		d.tally.mu.Lock()
		d.tally.downtimes = append(d.tally.downtimes, down)
		d.tally.mu.Unlock()
	}
}

// unanswered counts a query that a restart cost.
func (t *tally) unanswered() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lostToRestarts++
}

// restartTable writes the restarts of the server.
func (r *Report) restartTable(t *tabwriter.Writer) {
	fmt.Fprintf(t, "\nrestart\tkilled to answering\tkilled to ready\tblocks of the snapshot\n")
	for i, d := range r.Restarts {
		fmt.Fprintf(t, "%d\t%.2f s\t%.2f s\t%s\n", i+1, d.Answers.Seconds(), d.Ready.Seconds(), thousands(d.Blocks))
	}
	fmt.Fprintf(t, "queries meanwhile\t%s without an answer\n", thousands(r.LostToRestarts))
	t.Flush()
}
