package catalog

import (
	"slices"
	"sync/atomic"

	"github.com/rs/zerolog"

	"example.com/conductor/conductor/doctor"
	"example.com/conductor/conductor/lifetime"
	"example.com/conductor/conductor/names"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/events/stream"
	"example.com/conductor/index"
	"example.com/conductor/index/hash"
)

// Member is one source as its deployment and queries see it. What follows its publisher is not known here.
type Member struct {
	Registration registration.Registration // never changed; Registered has the live fields of now
	Profile      hash.Profile              // of Registration
	Findings     *doctor.Findings
	Ranks        *doctor.Ranks                 // that its batches have named
	Lives        lifetime.Tracker              // how long blocks stay with the engine
	Status       func() stream.Status          // of its stream
	State        func() (stream.State, uint64) // State and Epoch of Status, at less cost
	Window       atomic.Int64                  // the largest sliding window that a group of it announced, in tokens
	// Stores counts the stores of its events. It grows once the index has the blocks, and before they can confirm a report.
	Stores atomic.Uint64
	Heard  atomic.Int64 // when its last batch with events was applied, see steady.Nanos; 0: none was

	registered atomic.Pointer[registration.Registration] // Registration with the live fields of now; changed under Catalog.mu
	Home       *Deployment                               // that it is registered for, nil for a pool; set by Join
	InstanceID int32                                     // the number of its instance there

	// announced has the adapters under which the source stored blocks without being registered for
	// them. Those that the deployment has forgotten leave it when it has mostAnnounced. Guarded by
	// Catalog.mu.
	announced     map[string]bool
	mostAnnounced int

	left atomic.Bool // it was in the catalog, and is not any more
}

// NewMember returns the member of a registration without faults, which is in no deployment yet.
func NewMember(r registration.Registration, findings *doctor.Findings, status func() stream.Status) *Member {
	m := &Member{Registration: r, Profile: r.ResolvedProfile(), Findings: findings, Status: status,
		State: func() (stream.State, uint64) {
			st := status()
			return st.State, st.Epoch
		},
		Ranks: doctor.NewRanks(r.Key().String(), r.Rank, findings)}
	m.registered.Store(&r)
	return m
}

// Aliases returns the further names of the source's model that it has now.
func (m *Member) Aliases() []string { return m.Registered().Aliases }

// HasLeft reports whether the source was unregistered or replaced. Its blocks go after that.
func (m *Member) HasLeft() bool { return m.left.Load() }

// Key returns the key of the source.
func (m *Member) Key() registration.Key { return m.Registration.Key() }

// Registered returns the registration of the source with the live fields that it has now. It must not be changed.
func (m *Member) Registered() *registration.Registration { return m.registered.Load() }

// IsAlias reports whether a name is an alias of the source's model.
func (m *Member) IsAlias(name string) bool { return slices.Contains(m.Aliases(), name) }

// LogFindings logs each finding of the source once.
func (m *Member) LogFindings(log *zerolog.Logger) {
	for _, f := range m.Findings.Unlogged() {
		level := zerolog.WarnLevel
		if f.Severity() == doctor.Info {
			level = zerolog.InfoLevel
		}
		log.WithLevel(level).Str("source", m.Key().String()).Str("finding", f.Code).Msg(f.Message)
	}
}

// Namespace is what one source has in one deployment: its number in the index, and the names of its blocks.
type Namespace struct {
	Deployment *Deployment
	Member     *Member // changed by HandOver, under Catalog.mu and the turn of its source
	Source     index.Source
	Names      *names.Speaker
	InstanceID int32      // id in the deployment, or tiers.Pool
	Serves     []int32    // ids of the instances a pool is bound to; nil for all
	LookAheads LookAheads // of the blocks it holds or held; owned by the source, and changed with Catalog.mu held
	// EngineBlock is the greatest common divisor of the sizes of the blocks that the source's engine has or had on its device, in
	// registered blocks; 0 before the first. The source owns it, and changes it with NoteEngineBlock.
	EngineBlock int
}

// NamingOf returns how a source names its blocks.
func NamingOf(r *registration.Registration) names.Kind {
	switch {
	case r.IsPool():
		return names.Pool
	case r.Type == registration.TypeSGLang:
		return names.Salting
	case r.Type == registration.TypeStandard:
		return names.Standard
	}
	return names.Engine
}

// MaxAdapters bounds the adapters that a source is remembered to have, by number and by name.
const MaxAdapters = 1 << 12
