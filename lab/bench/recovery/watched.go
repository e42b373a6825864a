package recovery

import (
	"time"

	"example.com/conductor/lab/harness"
)

// Watched is what a server costs that follows a large fleet.
type Watched struct {
	Busy         int     `json:"busy"`        // engines that publish
	IdleCores    float64 `json:"idle_cores"`  // while no engine publishes
	BusyCores    float64 `json:"busy_cores"`  // while the busy ones do
	RSSBytes     int64   `json:"rss_bytes"`   // after that
	StackBytes   float64 `json:"stack_bytes"` // of it
	HeapBytes    float64 `json:"heap_bytes"`  // of it, in use
	Goroutines   float64 `json:"goroutines"`
	Files        float64 `json:"open_files"`
	MetricsBytes int     `json:"metrics_bytes"`
	Metrics      Figure  `json:"metrics_ms"` // time of a scrape
}

// measureWatched takes what the server costs, first while nothing is published, then while some engines publish.
func (r *run) measureWatched(s *harness.Server) (*harness.Server, error) {
	w := &Watched{Busy: r.Busy}
	r.report.Watched = w
	cores := func() float64 {
		from, begun := s.CPU(), time.Now()
		time.Sleep(r.Watch)
		return (s.CPU() - from).Seconds() / time.Since(begun).Seconds()
	}
	r.Progress.Say("watching %d silent engines", r.Instances)
	if _, err := r.engines.awaitRest(); err != nil {
		return nil, err
	}
	time.Sleep(min(r.Watch/4, 2*time.Second))
	w.IdleCores = cores()
	r.Progress.Say("watching %d engines, %d of which publish %.0f batches/s", r.Instances, r.Busy, r.Rate)
	if err := r.engines.sendOrder(order{Rate: r.Rate, Busy: r.Busy}); err != nil {
		return nil, err
	}
	w.BusyCores = cores()
	for range r.Rounds {
		begun := time.Now()
		text, err := s.Get("/metrics")
		if err != nil {
			return nil, err
		}
		w.Metrics.addValue(time.Since(begun).Seconds() * 1e3)
		w.MetricsBytes = len(text)
	}
	w.RSSBytes = s.RSS()
	for name, to := range map[string]*float64{
		"go_goroutines": &w.Goroutines, "process_open_fds": &w.Files, "go_memstats_stack_inuse_bytes": &w.StackBytes,
		"go_memstats_heap_inuse_bytes": &w.HeapBytes,
	} {
		var err error
		if *to, err = s.Metric(name); err != nil {
			return nil, err
		}
	}
	return s, nil
}
