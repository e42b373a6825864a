package sim

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
)

// Report is the outcome of a run.
type Report struct {
	Source      string        `json:"source"`
	Seed        uint64        `json:"seed"`
	BlockSize   int           `json:"block_size"`
	Interrupted bool          `json:"interrupted"`
	Elapsed     time.Duration `json:"elapsed_ns"`

	Requests     int `json:"requests"`
	PromptTokens int `json:"prompt_tokens"`
	OutputTokens int `json:"output_tokens"`
	Reused       int `json:"reused_tokens"` // prompt tokens the engines had not to compute

	Events  int    `json:"events"`
	Batches int    `json:"batches"`
	Stored  Blocks `json:"blocks_stored"`
	Removed Blocks `json:"blocks_removed"` // clears included
	Copies  int    `json:"blocks_stored_again"`
	Clears  int    `json:"clears"`
	Replays int    `json:"replays"`

	Queries          int           `json:"queries"`
	FailedQueries    int           `json:"failed_queries"`
	LastFailure      string        `json:"last_failure,omitempty"`
	QueriesPerSecond float64       `json:"queries_per_second"`
	P50              time.Duration `json:"query_p50_ns"`
	P99              time.Duration `json:"query_p99_ns"`

	True     HitRate `json:"true_hits_percent"`
	Answered HitRate `json:"answered_hits_percent"`

	Restarts       []Downtime `json:"restarts,omitempty"`         // of the server
	LostToRestarts int        `json:"lost_to_restarts,omitempty"` // queries without an answer meanwhile

	Outages []Outage `json:"outages,omitempty"` // of several servers

	Answers   Answers    `json:"answers"`
	Wrong     []string   `json:"wrong_answers,omitempty"`
	Lag       string     `json:"lag,omitempty"` // sources the server had not caught up with at the end
	Instances []Instance `json:"instances"`
	Pool      *Pool      `json:"pool,omitempty"`
	Samples   []Sample   `json:"samples,omitempty"`
}

// Blocks are counts by tier.
type Blocks struct {
	Device int `json:"device"`
	Host   int `json:"host"`
	Disk   int `json:"disk"`
}

func (b Blocks) sum() int { return b.Device + b.Host + b.Disk }

func (b *Blocks) add(device, host, disk int) {
	b.Device += device
	b.Host += host
	b.Disk += disk
}

// String lists the counts by medium.
func (b Blocks) String() string {
	return fmt.Sprintf("GPU %s, CPU %s, DISK %s", thousands(b.Device), thousands(b.Host), thousands(b.Disk))
}

// HitRate is matched prompt tokens in percent, for the instance each request
// went to.
type HitRate struct {
	GPU  float64 `json:"gpu"`
	CPU  float64 `json:"cpu"`
	Disk float64 `json:"disk"`
	Any  float64 `json:"any"`
}

// Answers counts the rows of all answers, one per instance and query.
type Answers struct {
	Compared  int `json:"compared"`
	Settled   int `json:"settled"`            // of those, rows without an event in flight
	Wrong     int `json:"wrong"`              // settled rows that differ
	Over      int `json:"wrong_over"`         // of those, with a field above the truth
	Under     int `json:"wrong_under"`        // of those, with a field below the truth
	Behind    int `json:"behind"`             // rows that differ with an event in flight
	Partial   int `json:"partial"`            // rows that say of themselves that history is missing
	Truncated int `json:"truncated"`          // rows that say of themselves that they may be too short
	Unserved  int `json:"unserved,omitempty"` // queries that no server answered: 503
	Waits     int `json:"waits"`              // that ended with every rank caught up
	Timeouts  int `json:"waits_in_vain"`
}

// Add adds the counts of another fleet.
func (a *Answers) Add(b Answers) {
	a.Compared += b.Compared
	a.Settled += b.Settled
	a.Wrong += b.Wrong
	a.Over += b.Over
	a.Under += b.Under
	a.Behind += b.Behind
	a.Partial += b.Partial
	a.Truncated += b.Truncated
	a.Unserved += b.Unserved
	a.Waits += b.Waits
	a.Timeouts += b.Timeouts
}

// Instance is one line of the table: a rank of an instance.
type Instance struct {
	Instance  string `json:"instance"`
	Rank      int    `json:"rank"`
	Publisher string `json:"publisher"`
	Requests  int    `json:"requests"`
	Batches   int    `json:"batches"`
	Events    int    `json:"events"`
	Holds     Blocks `json:"holds"`
	State     string `json:"state"` // of the rank, by the server

	Faults     *Faults     `json:"faults,omitempty"`     // done to the rank
	Recoveries *Recoveries `json:"recoveries,omitempty"` // the server's counts of the rank
}

// Recoveries are the server's counts of one source.
type Recoveries struct {
	Epoch      uint64 `json:"epoch"`
	Gaps       int    `json:"gaps"`
	Replayed   int    `json:"replayed_batches"`
	Restarts   int    `json:"restarts"`
	Overruns   int    `json:"overruns"`
	Reconnects int    `json:"reconnects"`
}

// Err returns why the server did not pass, nil if it did.
func (r *Report) Err() error {
	var errs []error
	a := r.Answers
	if a.Wrong > 0 {
		errs = append(errs, fmt.Errorf("%d of %d settled answers are wrong", a.Wrong, a.Settled))
	}
	if a.Settled == 0 {
		errs = append(errs, fmt.Errorf("none of %d answers was settled, so nothing was compared", a.Compared))
	}
	if r.FailedQueries > 0 {
		errs = append(errs, fmt.Errorf("%d queries failed, the last with: %s", r.FailedQueries, r.LastFailure))
	}
	if r.Lag != "" {
		errs = append(errs, fmt.Errorf("the server never caught up: %s", r.Lag))
	}
	return errors.Join(append(errs, r.Pool.err())...)
}

// fill takes the counts of a run into the report.
func (d *driver) fill(ctx context.Context, r *Report) {
	r.Source, r.Seed, r.BlockSize = d.fleet.Source.String(), d.fleet.Seed, d.fleet.BlockSize

	t := d.tally
	t.mu.Lock()
	r.Requests, r.PromptTokens, r.OutputTokens = t.requests, t.promptTokens, t.outputTokens
	r.Queries, r.FailedQueries = t.latencies.Count()+t.failed, t.failed
	if t.lastFailure != nil {
		r.LastFailure = t.lastFailure.Error()
	}
	r.P50, r.P99 = t.latencies.At(50), t.latencies.At(99)
	r.QueriesPerSecond = float64(t.requests) / max(r.Elapsed.Seconds(), 1e-9)
	r.True, r.Answered = t.truth.rate(t.promptTokens), t.answered.rate(t.promptTokens)
	r.Answers = t.Answers
	r.Restarts, r.LostToRestarts = t.downtimes, t.lostToRestarts
	r.Outages = t.outages
	only := t.pooled.rate(t.promptTokens)
	for _, f := range t.examples {
		r.Wrong = append(r.Wrong, f.String())
	}
	t.mu.Unlock()

	states := d.states(ctx)
	d.fleet.mu.Lock()
	defer d.fleet.mu.Unlock()
	for _, k := range d.fleet.ranks {
		s := k.engine.Stats()
		r.Events += k.events
		r.Batches += k.batches
		r.Stored.add(s.Stored[0], s.Stored[1], s.Stored[2])
		r.Removed.add(s.Removed[0]+s.Cleared[0], s.Removed[1]+s.Cleared[1], s.Removed[2]+s.Cleared[2])
		r.Copies += s.Copies
		r.Clears += s.Clears
		r.Replays += k.pub.Replays()
		r.Reused += (s.Reused[0] + s.Reused[1] + s.Reused[2] + s.Reused[3]) * d.fleet.BlockSize
		device, host, disk := k.engine.Blocks()
		in := Instance{
			Instance: k.instance.id, Rank: k.n, Publisher: k.describe,
			Requests: s.Requests, Batches: k.batches, Events: k.events,
			Holds: Blocks{device, host, disk},
			State: states[k.key].text(),
		}
		if d.fleet.Faults {
			faults, s := k.faults, states[k.key]
			in.Faults = &faults
			in.Recoveries = &Recoveries{s.Epoch, s.Gaps, s.Replayed, s.Restarts, s.Overruns, s.Reconnects}
		}
		r.Instances = append(r.Instances, in)
	}
	if r.Pool = d.poolReport(states); r.Pool != nil {
		r.Pool.Only = only
	}
}

// states returns the server's view of its sources; empty if it does not answer.
func (d *driver) states(ctx context.Context) map[string]service {
	if ctx.Err() != nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(context.Background(), farewell)
		defer cancel()
	}
	states, _ := d.client.services(ctx)
	return states
}

// text is the state and why it is so.
func (s service) text() string {
	return s.State + because(s.Reason)
}

// faultTable writes the faults of each rank and the server's counts of it.
func (r *Report) faultTable(t *tabwriter.Writer) {
	fmt.Fprintf(t, "\ninstance\tlost batches\tcuts\tstalls\trestarts\tspoiled replays\t|  "+
		"epoch\tgaps\treplayed\trestarts\toverruns\treconnects\n")
	for _, i := range r.Instances {
		if f, s := i.Faults, i.Recoveries; f != nil && s != nil {
			fmt.Fprintf(t, "%s/%d\t%d\t%d\t%d\t%d\t%d\t|  %d\t%d\t%s\t%d\t%d\t%d\n", i.Instance, i.Rank,
				f.Lost, f.Cuts, f.Stalls, f.Restarts, f.Spoiled, s.Epoch, s.Gaps, thousands(s.Replayed), s.Restarts, s.Overruns,
				s.Reconnects)
		}
	}
	t.Flush()
}

func (h hits) rate(tokens int) HitRate {
	percent := func(n int) float64 { return 100 * float64(n) / float64(max(tokens, 1)) }
	return HitRate{percent(h[0]), percent(h[1]), percent(h[2]), percent(h[3])}
}

// Table writes the report for people.
func (r *Report) Table(w io.Writer) {
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	how := ""
	if r.Interrupted {
		how = ", interrupted"
	}
	fmt.Fprintf(t, "\n%s, seed %d, %d tokens a block, %.1f s%s\n\n",
		r.Source, r.Seed, r.BlockSize, r.Elapsed.Seconds(), how)

	fmt.Fprintf(t, "instance\tpublisher\trequests\tbatches\tevents\tGPU\tCPU\tDISK\tstate\n")
	for _, i := range r.Instances {
		fmt.Fprintf(t, "%s/%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", i.Instance, i.Rank, i.Publisher,
			thousands(i.Requests), thousands(i.Batches), thousands(i.Events),
			thousands(i.Holds.Device), thousands(i.Holds.Host), thousands(i.Holds.Disk), i.State)
	}
	r.Pool.row(t)
	t.Flush()

	if len(r.Instances) > 0 && r.Instances[0].Faults != nil {
		r.faultTable(t)
	}
	if len(r.Restarts) > 0 {
		r.restartTable(t)
	}

	fmt.Fprintf(t, "\nrequests\t%s\twith %s prompt and %s output tokens\n",
		thousands(r.Requests), thousands(r.PromptTokens), thousands(r.OutputTokens))
	fmt.Fprintf(t, "events\t%s\tin %s batches, %s replays\n",
		thousands(r.Events), thousands(r.Batches), thousands(r.Replays))
	fmt.Fprintf(t, "blocks stored\t%s\t%v; %s were there already\n", thousands(r.Stored.sum()), r.Stored, thousands(r.Copies))
	fmt.Fprintf(t, "blocks removed\t%s\t%v; %s clears\n", thousands(r.Removed.sum()), r.Removed, thousands(r.Clears))
	r.Pool.counts(t, r.PromptTokens)
	fmt.Fprintf(t, "queries\t%s\t%.0f/s, p50 %s, p99 %s, %s failed\n",
		thousands(r.Queries), r.QueriesPerSecond, short(r.P50), short(r.P99), thousands(r.FailedQueries))
	t.Flush()

	fmt.Fprintf(t, "\nhit rate\tGPU\tCPU\tDISK\tany\n")
	type line struct {
		name string
		h    HitRate
	}
	lines := []line{{"true", r.True}, {"answered", r.Answered}}
	if r.Pool != nil {
		lines = append(lines, line{"true, in the pool alone", r.Pool.Only})
	}
	for _, line := range lines {
		fmt.Fprintf(t, "%s\t%.2f %%\t%.2f %%\t%.2f %%\t%.2f %%\n", line.name, line.h.GPU, line.h.CPU, line.h.Disk, line.h.Any)
	}
	t.Flush()

	a := r.Answers
	fmt.Fprintf(t, "\nanswers compared\t%s\n", thousands(a.Compared))
	fmt.Fprintf(t, "settled\t%s\t%s waits for it, %s in vain\n", thousands(a.Settled), thousands(a.Waits), thousands(a.Timeouts))
	fmt.Fprintf(t, "wrong\t%s\tover %s, under %s\n", thousands(a.Wrong), thousands(a.Over), thousands(a.Under))
	fmt.Fprintf(t, "behind\t%s\tan event was in flight\n", thousands(a.Behind))
	fmt.Fprintf(t, "partial\t%s\tthe server says that history is missing\n", thousands(a.Partial))
	fmt.Fprintf(t, "truncated\t%s\tthe server says that more may be held\n", thousands(a.Truncated))
	t.Flush()
	for _, text := range r.Wrong {
		fmt.Fprintf(w, "wrong: %s\n", text)
	}
	for _, s := range r.Samples {
		fmt.Fprintf(w, "\n$ %s\n%s\n", s.Command, s.Answer)
	}
	fmt.Fprintf(w, "\n%s\n", r.Closing())
}

// thousands writes 1234567 as 1,234,567.
func thousands(n int) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// short writes a duration with two or three digits.
func short(d time.Duration) string {
	switch {
	case d < time.Millisecond:
		return fmt.Sprintf("%d µs", d.Microseconds())
	case d < 10*time.Millisecond:
		return strings.Replace(fmt.Sprintf("%.1f ms", d.Seconds()*1e3), ".0 ", " ", 1)
	}
	return fmt.Sprintf("%d ms", d.Milliseconds())
}
