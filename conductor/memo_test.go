package conductor_test

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"example.com/conductor/conductor"
	"example.com/conductor/index/hash"
	"example.com/conductor/internal/must"
)

// A memo of digests is in the metrics, and without one there are none of it.
func TestMemoMetrics(t *testing.T) {
	m, err := hash.NewMemo(hash.LeastMemoBytes)
	must.Succeed(t, err)
	defer m.Close()
	p, err := hash.NewProfile(hash.Settings{Strategy: hash.StrategySGLang, Algorithm: hash.AlgorithmPages, PythonHashSeed: "0",
		IndexProjection: hash.ProjectionFirst64})
	must.Succeed(t, err)
	chain, err := p.NewDigestChain("", "")
	must.Succeed(t, err)
	chain.SetMemo(m)
	for range 5 {
		chain.Reset([]uint32{1, 2, 3, 4}, 1)
		chain.At(3)
		m.Wait()
	}

	f := func(m *hash.Memo, want map[string]float64) {
		t.Helper()
		c := conductor.New(conductor.Options{Memo: m, Log: zerolog.Nop()})
		defer c.Close()
		r := prometheus.NewRegistry()
		r.MustRegister(c.Meter())
		families, err := r.Gather()
		must.Succeed(t, err)
		got := make(map[string]float64)
		for _, family := range families {
			for _, one := range family.GetMetric() {
				got[family.GetName()] = one.GetCounter().GetValue() + one.GetGauge().GetValue()
			}
		}
		for _, name := range []string{"conductor_hash_memo_hits_total", "conductor_hash_memo_misses_total", "conductor_hash_memo_bytes"} {
			value, is := got[name]
			expected, should := want[name]
			if is != should || value != expected {
				t.Errorf("%s is %v (%v), want %v (%v)", name, value, is, expected, should)
			}
		}
	}
	f(nil, nil)
	f(m, map[string]float64{
		"conductor_hash_memo_hits_total": 3, "conductor_hash_memo_misses_total": 2, "conductor_hash_memo_bytes": float64(m.Stats().Bytes),
	})
}
