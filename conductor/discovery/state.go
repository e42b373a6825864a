package discovery

import (
	"cmp"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/status"
	"example.com/conductor/events/stream"
)

// State is how far a target has come.
type State struct {
	Target
	Addresses, Sources int
	Error              string // of the last look; "" without one
	Learning           bool   // the error is that the first events have to tell the block size
}

// ErrorFor returns the error of the last look at a target as far as a client may see it, "" without one. To a client that may not see
// causes a target without sources has one from the start: how long it takes tells ports apart.
func ErrorFor(s *State, r conductor.Reader) string {
	if (s.Error != "" || s.Sources == 0) && !r.Causes {
		return "the engine cannot be asked"
	}
	return s.Error
}

// WordFor returns what Word does as far as a client may see it: to one that may not see causes, every error is waiting.
func WordFor(s *State, r conductor.Reader) string {
	if ErrorFor(s, r) != "" && !r.Causes {
		return "waiting"
	}
	return s.Word()
}

// Word returns found once there are sources and no error, learning while the first events have to
// tell the block size, else waiting.
func (s *State) Word() string {
	switch {
	case s.Sources > 0 && s.Error == "":
		return "found"
	case s.Learning:
		return "learning"
	}
	return "waiting"
}

// List returns the targets, sorted by name.
func (m *Manager) List() (all []State) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, t := range m.targets {
		t.shown.Lock()
		all = append(all, State{Target: t.Target, Addresses: t.counts.addresses, Sources: t.counts.sources, Error: t.err,
			Learning: t.learns})
		t.shown.Unlock()
	}
	slices.SortFunc(all, func(a, b State) int {
		return cmp.Or(cmp.Compare(a.Instance, b.Instance), cmp.Compare(a.Tenant, b.Tenant))
	})
	return all
}

// Unfound returns the targets that have no source yet. One is stale after patience, unless the engine has answered and its first
// event has to tell its block size.
func (m *Manager) Unfound(patience time.Duration) (all []status.Unfound) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, t := range m.targets {
		t.shown.Lock()
		if t.counts.sources == 0 && !t.found {
			s := status.SourceState{Key: t.Key(), State: stream.Connecting, Reason: "not_discovered"}
			if m.opts.Now().Sub(t.began) >= patience && (t.Static || !t.learns) {
				s.State = stream.Stale
			}
			all = append(all, status.Unfound{SourceState: s, Static: t.Static})
		}
		t.shown.Unlock()
	}
	return all
}

var (
	descTargets = prometheus.NewDesc("conductor_discovery_targets",
		"Engines and fleets that are asked where they publish, by state: found, waiting for an answer, or learning the block size from "+
			"the first events.", []string{"state"}, nil)
	descAsked = prometheus.NewDesc("conductor_discovery_asked_total", "Engines that were asked where they publish, by result.",
		[]string{"result"}, nil)
)

// Describe implements prometheus.Collector.
func (m *Manager) Describe(ch chan<- *prometheus.Desc) { ch <- descTargets; ch <- descAsked }

// Collect implements prometheus.Collector.
func (m *Manager) Collect(ch chan<- prometheus.Metric) {
	states := map[string]int{"found": 0, "waiting": 0, "learning": 0}
	for _, s := range m.List() {
		states[s.Word()]++
	}
	for state, n := range states {
		ch <- prometheus.MustNewConstMetric(descTargets, prometheus.GaugeValue, float64(n), state)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, result := range []string{"ok", "failed"} {
		ch <- prometheus.MustNewConstMetric(descAsked, prometheus.CounterValue, float64(m.asked[result]), result)
	}
}
