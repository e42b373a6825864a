package watch

import (
	"maps"
	"math"
	"slices"
	"time"

	"example.com/conductor/conductor/catalog"
	"example.com/conductor/conductor/match"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/tiers"
)

const (
	// span is how far the history goes back.
	span = time.Hour
	// maxPoints bounds the points of one tenant or model, some 20 KB.
	maxPoints = int(span / step)
	// maxSeries bounds the tenants, and the models, with a history of their own, some 5 MB each. That of all tenants
	// together comes on top.
	maxSeries = 256
)

// point is what one tenant or model, or all, had at one moment. Rates are means since the point before.
type point struct {
	at                 int64 // Unix seconds
	device, host, disk int
	events, queries    float64 // a second
	asked, cached      uint64  // tokens since the point before
	// Of all tenants together alone: refused requests a second, and what half of the queries and all but one in a
	// hundred stayed below, in seconds, NaN without queries.
	refused, p50, p99 float64
}

// series are the points of one tenant or model, the oldest first.
type series struct {
	points  []point             // guarded by Hub.mu
	events  uint64              // since the newest point
	queries catalog.QueryCounts // at the newest point
	refused uint64              // at the newest point
	times   match.QueryTimes    // at the newest point
}

// history has the series of the tenants and of their models. Hub.mu guards it.
type history struct {
	last     time.Time // of the newest point
	all      series
	byTenant map[string]*series
	byModel  map[scope.Shard]*series
}

// addCollection counts a collection. If it is time for the next point of the history, it adds one for each tenant and model,
// and returns that of all tenants together.
func (h *history) addCollection(c *collection) *point {
	if h.byTenant == nil {
		h.byTenant, h.byModel, h.last = make(map[string]*series), make(map[scope.Shard]*series), c.at
	}
	passed := c.at.Sub(h.last)
	due := passed >= step-pace/2 || len(h.all.points) == 0
	if passed < 0 { // the clock was set back
		h.last, due = c.at, false
	}
	all := newSums()
	for _, t := range c.tenants {
		all.addSums(t)
		all.events += t.events
	}
	addPoints(h.byTenant, c.tenants, c.at, passed, due)
	addPoints(h.byModel, c.models, c.at, passed, due)
	all.queries = c.queries
	h.all.addPoint(c.at, passed, all, due)
	if due {
		h.all.addServer(c, passed)
	}
	if !due {
		return nil
	}
	h.last = c.at
	h.all.points = h.all.freshPoints(c.at)
	return &h.all.points[len(h.all.points)-1]
}

// addPoints does for each tenant, or each model, what addPoint does for one, and forgets those that have been gone for span.
func addPoints[K comparable](to map[K]*series, of map[K]*sums, at time.Time, passed time.Duration, due bool) {
	for name, t := range of {
		s := to[name]
		if s == nil {
			if len(to) >= maxSeries {
				continue
			}
			s = &series{queries: t.queries}
			to[name] = s
		}
		s.addPoint(at, passed, t, due)
	}
	if !due {
		return
	}
	for name, s := range to {
		if s.points = s.freshPoints(at); len(s.points) == 0 && of[name] == nil {
			delete(to, name)
		}
	}
}

// addPoint counts the events of a tenant or model, and adds a point if one is due.
func (s *series) addPoint(at time.Time, passed time.Duration, t *sums, due bool) {
	s.events += t.events
	if !due {
		return
	}
	p := point{at: at.Unix(), device: t.blocksInTier(tiers.Device), host: t.blocksInTier(tiers.Host), disk: t.blocksInTier(tiers.Disk)}
	p.events = rateOf(s.events, 0, 0, passed)
	p.queries = rateOf(t.queries.Queries, s.queries.Queries, 0, passed)
	if t.queries.Asked >= s.queries.Asked && t.queries.Matched >= s.queries.Matched { // else the model is gone and came again
		p.asked, p.cached = t.queries.Asked-s.queries.Asked, t.queries.Matched-s.queries.Matched
	}
	p.p50, p.p99 = math.NaN(), math.NaN()
	s.events, s.queries = 0, t.queries
	if len(s.points) >= maxPoints {
		s.points = slices.Delete(s.points, 0, len(s.points)-maxPoints+1)
	}
	s.points = append(s.points, p)
}

// addServer completes the newest point with what belongs to no tenant.
func (s *series) addServer(c *collection, passed time.Duration) {
	p := &s.points[len(s.points)-1]
	p.refused = rateOf(c.refused, s.refused, 0, passed)
	times := c.times.Since(s.times)
	p.p50, p.p99 = times.Quantile(0.5), times.Quantile(0.99)
	s.refused, s.times = c.refused, c.times
}

// freshPoints returns the points that are not older than span.
func (s *series) freshPoints(now time.Time) []point {
	oldest := now.Add(-span).Unix()
	n, _ := slices.BinarySearchFunc(s.points, oldest, func(p point, at int64) int { return int(p.at - at) })
	return slices.Delete(s.points, 0, n)
}

// pointsOf returns the points of some tenants together, the oldest first: of one of their models, or of all if it is "".
func (h *history) pointsOf(tenants scope.Tenants, model string) []point {
	if tenants.All() && model == "" {
		return h.all.points
	}
	sum := make(map[int64]point)
	add := func(s *series) {
		for _, p := range s.points {
			q := sum[p.at]
			sum[p.at] = point{p.at, q.device + p.device, q.host + p.host, q.disk + p.disk, q.events + p.events, q.queries + p.queries,
				q.asked + p.asked, q.cached + p.cached, math.NaN(), math.NaN(), math.NaN()}
		}
	}
	if model == "" {
		for name, s := range h.byTenant {
			if tenants.Has(name) {
				add(s)
			}
		}
	} else {
		for name, s := range h.byModel {
			if name.Model == model && tenants.Has(name.Tenant) {
				add(s)
			}
		}
	}
	return slices.SortedFunc(maps.Values(sum), func(a, b point) int { return int(a.at - b.at) })
}
