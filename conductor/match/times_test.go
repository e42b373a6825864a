package match

import (
	"math"
	"testing"

	"example.com/conductor/conductor/catalog"
)

func TestQueryTimes(t *testing.T) {
	m := newQueryMetrics()
	if q := m.times().Quantile(0.5); !math.IsNaN(q) {
		t.Errorf("without queries: %v", q)
	}
	for range 98 {
		m.by[catalog.ByTokens].Observe(12e-6)
	}
	before := m.times()
	m.by[catalog.ByHashes].Observe(90e-6)
	m.by[catalog.ByTokens].Observe(1)
	f := func(times QueryTimes, part, low, high float64) {
		t.Helper()
		if q := times.Quantile(part); q < low || q > high {
			t.Errorf("quantile %v is %v, want %v to %v", part, q, low, high)
		}
	}
	f(before, 0.5, 10e-6, 15e-6)
	f(m.times(), 0.5, 10e-6, 15e-6)
	f(m.times(), 0.99, 75e-6, 100e-6)
	f(m.times().Since(before), 0.25, 75e-6, 100e-6)
	f(m.times().Since(before), 0.99, 0.25, 0.25)
	f(m.times().Since(nil), 0.5, 10e-6, 15e-6)
}
