package demo

import (
	"errors"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"example.com/conductor/lab/sim"
)

// ShardsReport is the outcome of Shards.
type ShardsReport struct {
	Seed    uint64        `json:"seed"`
	Elapsed time.Duration `json:"elapsed_ns"`
	Began   time.Time     `json:"began"`
	Killed  time.Time     `json:"killed,omitzero"`
	Added   time.Time     `json:"added,omitzero"`
	Servers int           `json:"servers"`
	Owners  int           `json:"owners"` // of each model
	Retried int           `json:"retried"`
	Answers sim.Answers   `json:"answers"`
	Models  []ShardsModel `json:"models"`
	shardCounts

	failed []error
}

// ShardsModel is one model of the report.
type ShardsModel struct {
	Model   string      `json:"model"`
	Queries int         `json:"queries"`
	Answers sim.Answers `json:"answers"`
	Wrong   []string    `json:"wrong_answers,omitempty"`
	// AfterKill is how long after the kill the last query found no server, 0 if all were answered.
	AfterKill time.Duration `json:"unserved_after_kill_ns"`
	Outages   []sim.Outage  `json:"outages,omitempty"`
	P50       time.Duration `json:"query_p50_ns"`
	P99       time.Duration `json:"query_p99_ns"`
}

// fill takes over the reports of the fleets and the counts of the servers.
func (r *ShardsReport) fill(reports []*sim.Report, g *serverGroup) {
	for i, one := range reports {
		m := ShardsModel{Model: fmt.Sprintf("model-%d", i), Queries: one.Queries, Answers: one.Answers, Wrong: one.Wrong,
			Outages: one.Outages, P50: one.P50, P99: one.P99}
		for _, o := range one.Outages {
			// Outages after the server was added are no part of the kill.
			if !r.Killed.IsZero() && o.Ended.After(r.Killed) && (r.Added.IsZero() || o.Began.Before(r.Added)) {
				m.AfterKill = o.Ended.Sub(r.Killed)
			}
		}
		r.Models = append(r.Models, m)
		r.Answers.Add(one.Answers)
		if err := one.Err(); err != nil {
			r.failed = append(r.failed, fmt.Errorf("%s: %w", m.Model, err))
		}
	}
	r.Retried = g.asked.Retried()
	for _, s := range g.servers {
		g.dead = append(g.dead, s.counts())
	}
	for _, c := range g.dead {
		r.Forwarded += c.Forwarded
		r.Moves += c.Moves
	}
}

// Err returns why the servers did not pass, nil if they did.
func (r *ShardsReport) Err() error { return errors.Join(r.failed...) }

// Table writes the report for people.
func (r *ShardsReport) Table(w io.Writer) {
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintf(t, "\nmodel\tqueries\tp50\tp99\tcompared\tsettled\twrong\tbehind\tpartial\tunserved (503)\tunserved after the kill\n")
	for _, m := range r.Models {
		a := m.Answers
		fmt.Fprintf(t, "%s\t%d\t%s\t%s\t%d\t%d\t%d\t%d\t%d\t%d\t%.2f s\n", m.Model, m.Queries, m.P50.Round(10*time.Microsecond),
			m.P99.Round(10*time.Microsecond),
			a.Compared, a.Settled, a.Wrong, a.Behind, a.Partial, a.Unserved, m.AfterKill.Seconds())
	}
	a := r.Answers
	fmt.Fprintf(t, "all\t\t\t\t%d\t%d\t%d\t%d\t%d\t%d\t\n", a.Compared, a.Settled, a.Wrong, a.Behind, a.Partial, a.Unserved)
	t.Flush()
	fmt.Fprintf(w, "\n%d servers, %d owners of each model: %d queries forwarded, %d moves of models, %d requests asked again at another "+
		"server\n",
		r.Servers, r.Owners, r.Forwarded, r.Moves, r.Retried)
	for _, m := range r.Models {
		for _, text := range m.Wrong {
			fmt.Fprintf(w, "wrong: %s: %s\n", m.Model, text)
		}
	}
	fmt.Fprintf(w, "\n%s\n", r.Closing())
}

// Closing says in a sentence what the run has shown.
func (r *ShardsReport) Closing() string {
	meanwhile := ""
	if !r.Killed.IsZero() {
		meanwhile = ", one of them was killed"
	}
	if !r.Added.IsZero() {
		meanwhile += " and another one was added"
	}
	return fmt.Sprintf("%d servers shared %d models for %.0f s%s; %s.", r.Servers, len(r.Models), r.Elapsed.Seconds(), meanwhile,
		r.Answers.Closing())
}
