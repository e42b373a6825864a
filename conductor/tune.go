package conductor

import (
	"example.com/conductor/conductor/ingest"
	"example.com/conductor/conductor/meter"
	"example.com/conductor/conductor/status"
)

// Tunables are options that may change while the Conductor runs. See Options for the meaning.
type Tunables struct {
	MaxSources, MinSynced int
	MaxSourcesBy          ingest.Room
	// MaxTenantSources bounds the sources that clients register for one tenant, 0 for no bound.
	MaxTenantSources int
	SaltedOnly       bool
	MaxTokenID       uint32
	// MaxError is the part of reported tokens that may be wrong, 0 for no bound: see View.Feedback.
	MaxError float64
	// ExpectedBytes bounds the memory for what instances are expected to have; 0 leaves that bound as it is.
	ExpectedBytes int64
	// SourceSeries says which sources have series of their own in /metrics.
	SourceSeries status.SourceSeries
}

// Tune replaces the tunables. Sources beyond a smaller MaxSources stay.
func (c *Conductor) Tune(t Tunables) {
	c.tuned.Store(&t)
	c.meter.Tune(meter.Limits{MinSynced: t.MinSynced, Series: t.SourceSeries})
	c.feedback.Tune(t.MaxError, t.SourceSeries)
	c.matcher.HideUnsalted(t.SaltedOnly)
	c.sources.Tune(ingest.Limits{MaxSources: t.MaxSources, MaxSourcesBy: t.MaxSourcesBy,
		MaxTenantSources: t.MaxTenantSources, MaxTokenID: t.MaxTokenID})
	if t.ExpectedBytes > 0 {
		c.catalog.Expected().SetLimit(t.ExpectedBytes)
	}
}
