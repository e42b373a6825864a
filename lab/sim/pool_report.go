package sim

import (
	"errors"
	"fmt"
	"text/tabwriter"
)

// Pool is the work of the shared pool and its use to the engines.
type Pool struct {
	Batches int    `json:"batches"`
	Events  int    `json:"events"`
	Stored  Blocks `json:"objects_stored"`
	Removed Blocks `json:"objects_removed"`
	Holds   Blocks `json:"holds"`         // whole blocks
	Broken  int    `json:"broken_blocks"` // that lack objects, or are spread over tiers
	State   string `json:"state"`         // of the pool, by the server

	WireTokens int     `json:"events_with_tokens"` // looked for in the published bytes
	Only       HitRate `json:"only_pool_percent"`  // of True: blocks that the chosen instances do not hold themselves
	Loaded     int     `json:"loaded_tokens"`      // prompt tokens engines loaded from it
}

// poolReport returns the pool's part of a report. Fleet.mu is held.
func (d *driver) poolReport(states map[string]service) *Pool {
	p := d.fleet.pool
	if p == nil {
		return nil
	}
	s := p.Stats()
	host, disk, broken := p.Blocks()
	out := &Pool{
		Batches: p.batches, Events: p.events,
		Stored:  Blocks{Host: s.Stored[0], Disk: s.Stored[1]},
		Removed: Blocks{Host: s.Removed[0], Disk: s.Removed[1]},
		Holds:   Blocks{Host: host, Disk: disk}, Broken: broken,
		State:      states[p.key].text(),
		WireTokens: p.pub.Tokens(),
	}
	for _, r := range d.fleet.ranks {
		out.Loaded += r.engine.Stats().Reused[3] * d.fleet.BlockSize
	}
	return out
}

// err returns an error if the master published what no master knows.
func (p *Pool) err() error {
	if p != nil && p.WireTokens > 0 {
		return errors.New("the simulated master published tokens, which no master knows")
	}
	return nil
}

// row writes the pool's line of the table of instances.
func (p *Pool) row(t *tabwriter.Writer) {
	if p != nil {
		fmt.Fprintf(t, "%s\tMooncake master, keys alone\t-\t%s\t%s\t-\t%s\t%s\t%s\n", poolID,
			thousands(p.Batches), thousands(p.Events), thousands(p.Holds.Host), thousands(p.Holds.Disk), p.State)
	}
}

// counts writes the objects of the pool and the tokens that engines loaded from it.
func (p *Pool) counts(t *tabwriter.Writer, promptTokens int) {
	if p == nil {
		return
	}
	fmt.Fprintf(t, "pool objects\t%s\tCPU %s, DISK %s; %s left; %s blocks in part\n", thousands(p.Stored.sum()),
		thousands(p.Stored.Host), thousands(p.Stored.Disk), thousands(p.Removed.sum()), thousands(p.Broken))
	fmt.Fprintf(t, "pool tokens\t%s\twith its events; engines loaded %s prompt tokens, %.2f %%\n", thousands(p.WireTokens),
		thousands(p.Loaded), 100*float64(p.Loaded)/float64(max(promptTokens, 1)))
}
