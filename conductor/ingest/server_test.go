package ingest

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"example.com/conductor/conductor/catalog"
	"example.com/conductor/conductor/match"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/conductor/status"
	"example.com/conductor/events/stream"
	"example.com/conductor/events/tape"
	"example.com/conductor/index"
	"example.com/conductor/index/hash"
)

// server is what a Conductor is made of, as far as the tests of this package need it: the package that puts it together
// imports this one.
type server struct {
	catalog *catalog.Catalog
	sources *Sources
	matcher *match.Matcher
	now     func() time.Time
}

// serverOptions are those of a Conductor that the tests set.
type serverOptions struct {
	HashSeed      uint64
	GhostBytes    int64
	RemovalsBytes int
	MaxContexts   int
	MaxTokenID    uint32
	Copies        index.CopyPolicy
	Stream        stream.Config
	Reaches       func(endpoint string) error
	Tape          *tape.Tape
	Log           zerolog.Logger
	Now           func() time.Time
	Gate          <-chan struct{}
}

func newServer(o serverOptions) *server {
	if o.Now == nil {
		o.Now = time.Now
	}
	scheme := hash.Scheme{Seed: o.HashSeed}
	s := &server{now: o.Now, catalog: catalog.New(catalog.Options{
		Index: index.Options{Scheme: scheme, Ghosts: index.NewGhosts(o.GhostBytes), Budget: index.NewBudget(0),
			WideBase: catalog.ClientSeed(scope.Variant{}) != o.HashSeed},
		MaxIdentities: o.MaxContexts, ExpectedBytes: 1 << 20, Now: o.Now, Log: o.Log,
	})}
	s.sources = New(s.catalog, Options{Copies: o.Copies, Stream: o.Stream, Reaches: o.Reaches, RemovalsBytes: o.RemovalsBytes,
		Tape: o.Tape, Log: o.Log, Now: o.Now, Gate: o.Gate})
	s.sources.Tune(Limits{MaxTokenID: o.MaxTokenID})
	s.matcher = match.New(s.catalog, nil, o.Now)
	return s
}

func (s *server) Close() { s.sources.Close() }

func (s *server) Register(r registration.Registration, o RegisterOptions) error {
	return s.sources.Register(r, o)
}

func (s *server) Unregister(key registration.Key) (registration.Key, error) {
	return s.sources.Unregister(key)
}

func (s *server) Registrations() []registration.Registration { return s.sources.Registrations() }

func (s *server) Sources() *Sources { return s.sources }

func (s *server) Services() []status.Source { return Rows(s.sources.All()) }

func (s *server) Check() []error { return s.sources.Check() }

func (s *server) Query(q match.Query) match.Answer { return s.matcher.Query(q) }

func (s *server) Answer(q *match.Query, use func(*match.Answer)) { s.matcher.Answer(q, use) }

// fleetMetrics are the metrics of sources.
type fleetMetrics struct {
	sources *Sources
	series  status.SourceSeries
}

func (m *fleetMetrics) Describe(ch chan<- *prometheus.Desc) { status.DescribeFleet(ch) }

func (m *fleetMetrics) Collect(ch chan<- prometheus.Metric) {
	m.sources.Fleet().Send(ch, m.series, m.sources.now())
}
