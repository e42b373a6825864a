package query

import (
	"context"
	"errors"
	"time"

	"example.com/conductor/lab/harness"
)

// Paced are the figures of requests that come at their own times: see pacer.
type Paced struct {
	Rate     float64 `json:"requests_per_sec"` // asked for
	Requests int     `json:"requests"`
	P50      float64 `json:"p50_us"`
	P99      float64 `json:"p99_us"`
	P999     float64 `json:"p999_us"`
	Max      float64 `json:"max_us"`
	Tail     float64 `json:"p999_to_p50"`
	// of requests that had a free connection at their time: the client's own part of P999
	Late      float64 `json:"client_late_p999_us"`
	ServerCPU float64 `json:"server_cpu_us_per_request"` // that of events and snapshots included
	Batches   float64 `json:"batches_per_sec"`           // published meanwhile
	Snapshots int     `json:"snapshots"`                 // written meanwhile
	Write     float64 `json:"snapshot_write_seconds"`    // the last one
	Pause     float64 `json:"snapshot_pause_seconds"`    // events waited while it was begun
}

// traced is how long a trace is: some 10 MB for each second.
const traced = 5 * time.Second

// askAtRate asks at a rate for the time of a measurement.
func (s *served) askAtRate(ctx context.Context, c *Config, k *client, rate float64) (*Paced, error) {
	p, err := newPacer(k, s.Address, rate)
	if err != nil {
		return nil, err
	}
	defer p.close()
	c.Progress.Say("asking at %.0f requests a second, %v", rate, c.Duration)
	var latencies harness.Latencies
	if err := p.run(ctx, min(c.Duration/4, time.Second), &latencies); err != nil {
		return nil, err
	}
	latencies.Reset()
	p.late.Reset()
	written, err := s.countSnapshots()
	if err != nil {
		return nil, err
	}
	batches, err := s.countBatches()
	if err != nil {
		return nil, err
	}
	wait := func() error { return nil }
	if c.Trace != "" {
		// The server traces whole seconds, and profile rounds up: a second less ends within the window.
		wait = s.recordProfile("trace", c.Trace, min(traced, c.Duration)-time.Second)
	}
	begun, before := time.Now(), s.CPU()
	err = p.run(ctx, c.Duration, &latencies)
	took, used := time.Since(begun), s.CPU()-before
	if err := errors.Join(err, wait()); err != nil {
		return nil, err
	}
	more, err := s.countBatches()
	if err != nil {
		return nil, err
	}
	us := func(percent float64) float64 { return float64(latencies.At(percent)) / 1e3 }
	r := &Paced{
		Rate: rate, Requests: latencies.Count(), P50: us(50), P99: us(99), P999: us(99.9), Max: us(100), Tail: us(99.9) / us(50),
		Late:      float64(p.late.At(99.9)) / 1e3,
		ServerCPU: float64(used) / 1e3 / float64(max(latencies.Count(), 1)), Batches: float64(more-batches) / took.Seconds(),
	}
	after, err := s.countSnapshots()
	if err != nil || !c.Snapshot {
		return r, err
	}
	r.Snapshots = after - written
	if r.Write, err = s.Metric("conductor_snapshot_write_seconds"); err == nil {
		r.Pause, err = s.Metric("conductor_snapshot_pause_seconds")
	}
	return r, err
}

// countSnapshots returns how many snapshots the server has written.
func (s *served) countSnapshots() (int, error) {
	n, err := s.Metric("conductor_snapshots_written_total")
	return int(n), err
}

// countBatches returns how many batches were published while it was measured.
func (s *served) countBatches() (int, error) {
	if s.churn == nil {
		return 0, nil
	}
	return s.churn.sendOrder(orderPublish)
}
