package conductor

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"kvconductor/conductor/scope"
	"kvconductor/events"
	"kvconductor/events/stream"
)

// Finding is something about a source that makes its answers less than they could
// be and that an operator can change. A source has at most one of each code.
type Finding struct {
	Code    string
	Message string // what was seen, what is registered, what to do
	Since   time.Time
}

// Codes of findings.
const (
	// FindingBlockSize: most blocks have another size than the registered one.
	FindingBlockSize = "block_size_mismatch"
	// FindingContext: everything announced belongs to another model or adapter
	// than the registered one.
	FindingContext = "other_context"
	// FindingRank: batches carry another rank than the registered one, or two
	// sources follow one publisher.
	FindingRank = "rank_conflict"
	// FindingSeed: equal tokens have different engine hashes.
	FindingSeed = "random_seed"
	// FindingProfile: the engine names its blocks another way than the hash profile
	// says, or a pool's profile is not that of its engines.
	FindingProfile = "hash_profile"
	// FindingSilent: nothing arrives while queries ask for the deployment.
	FindingSilent = "silent"
	// FindingMedium: a medium that is in no table; its blocks are the lowest tier.
	FindingMedium = "unknown_medium"
	// FindingVersion: events of a form that no known version has.
	FindingVersion = "unknown_version"
	// FindingEventGap: a stream of standardized events left numbers out.
	FindingEventGap = "event_gap"
	// FindingStreams: more streams of standardized events than are followed.
	FindingStreams = "too_many_streams"
	// FindingAdapter: blocks of an adapter that has a number and no name.
	FindingAdapter = "unnamed_adapter"
	// FindingCopies: the engine announces blocks again that it reuses, and they are
	// counted as copies.
	FindingCopies = "copies_grow"
	// FindingForeignTenant: events name a tenant that the source may not announce for.
	FindingForeignTenant = "foreign_tenant"
	// FindingHashScheme: hashes that were declared canonical are not.
	FindingHashScheme = "hash_scheme"
	// FindingNoRemovals: a publisher stores on a medium and never removes from it.
	FindingNoRemovals = "no_removals"
)

const (
	// How many stored events with tokens tell what a source is about.
	doctorSample = 32
	// Fewer odd ones than this may be a last short page.
	doctorOdd = 4
	// Prompts whose beginnings are compared between sources.
	maxSeeds = 256
	// DefaultSilentAfter outlasts the pauses of a fleet at night that is still asked.
	DefaultSilentAfter = 5 * time.Minute
)

// doctor is what is known of one source's health. Counters belong to run.
type doctor struct {
	sized, odd int    // stored events with tokens, and those of another size
	home, away int    // those in the registered context, and elsewhere
	seeds      int    // beginnings compared
	ranked     bool   // the rank was looked at
	note       string // set when the form was looked at
	profile    profileCheck
	copies     copyCheck
	pool       bool                  // the source is one; never changes
	unremoved  map[string]*unremoved // by medium; see unremovedOn
	neverFrom  []string              // media of the finding no_removals

	mu       sync.Mutex
	findings map[string]Finding
	told     map[string]bool // logged already
}

// find reports a finding; the first report of a code is the one that stays.
func (s *source) find(code, format string, args ...any) {
	d := &s.doctor
	d.mu.Lock()
	_, known := d.findings[code]
	if known {
		d.mu.Unlock()
		return
	}
	f := Finding{Code: code, Message: fmt.Sprintf(format, args...), Since: s.conductor.now()}
	if d.findings == nil {
		d.findings, d.told = make(map[string]Finding), make(map[string]bool)
	}
	d.findings[code] = f
	told := d.told[code]
	d.told[code] = true
	d.mu.Unlock()
	if !told {
		level := zerolog.WarnLevel
		if code == FindingSeed {
			level = zerolog.InfoLevel // of use only where blocks come without tokens
		}
		s.conductor.log.WithLevel(level).Str("source", s.reg.Key().String()).Str("finding", code).Msg(f.Message)
	}
}

// withdraw takes a finding back.
func (s *source) withdraw(code string) {
	s.doctor.mu.Lock()
	delete(s.doctor.findings, code)
	s.doctor.mu.Unlock()
}

// recover begins anew for a publisher that has: what was found of the old one is
// withdrawn, but for what its registration alone shows.
func (d *doctor) recover() {
	d.sized, d.odd, d.home, d.away, d.seeds, d.ranked, d.note, d.profile = 0, 0, 0, 0, 0, false, "", profileCheck{}
	d.copies = copyCheck{}
	d.unremoved, d.neverFrom = nil, nil
	d.mu.Lock()
	maps.DeleteFunc(d.findings, func(code string, _ Finding) bool {
		return code != FindingRank && !(code == FindingProfile && d.pool)
	})
	d.mu.Unlock()
}

// list returns the findings by code.
func (d *doctor) list() []Finding {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.SortedFunc(maps.Values(d.findings), func(a, b Finding) int {
		if a.Code < b.Code {
			return -1
		}
		return 1
	})
}

// lookAtBatch looks at what a batch says of itself.
func (s *source) lookAtBatch(b *events.Batch) {
	if b.Note != "" && s.doctor.note == "" {
		s.doctor.note = b.Note
		s.find(FindingVersion, "an event was skipped, %s: a newer engine or a broken one; other events are unaffected", b.Note)
	}
	if s.offsets = s.offsets || b.Offsets; !s.offsets {
		s.drop(events.AmbiguousExtraKey, b.Ambiguous)
	}
	if s.doctor.ranked || b.Rank < 0 || b.Rank == s.reg.Rank {
		return
	}
	s.doctor.ranked = true
	other := Key{Instance: s.reg.Instance, Tenant: s.reg.Tenant, Rank: b.Rank}
	if s.conductor.has(other) {
		s.find(FindingRank, "batches carry data-parallel rank %d, registered is %d, and %s claims that rank too: their blocks add up; check the endpoints of both", b.Rank, s.reg.Rank, other)
		return
	}
	s.find(FindingRank, "batches carry data-parallel rank %d, registered is %d: blocks count for rank %d; register dp_rank %d", b.Rank, s.reg.Rank, b.Rank, b.Rank)
}

// lookAtSize looks at the block size of a stored event, before its blocks are cut.
func (s *source) lookAtSize(e *events.Event, registered int) {
	d := &s.doctor
	if d.sized >= doctorSample || len(e.Tokens) == 0 || e.Envelope {
		return
	}
	d.sized++
	if e.BlockSize == 0 || e.BlockSize == registered {
		return
	}
	if d.odd++; d.odd < doctorOdd || 2*d.odd < d.sized {
		return
	}
	if e.BlockSize%registered == 0 {
		s.find(FindingBlockSize, "events announce blocks of %d tokens, registered is %d: each is indexed as %d blocks; register block_size %d if routers ask in that size", e.BlockSize, registered, e.BlockSize/registered, e.BlockSize)
		return
	}
	s.find(FindingBlockSize, "events announce blocks of %d tokens, registered is %d: they cannot be indexed; register block_size %d", e.BlockSize, registered, e.BlockSize)
}

// lookAtContext looks at where a stored event belongs. Salts differ by user and say
// nothing about a registration.
func (s *source) lookAtContext(at scope.Context) {
	d := &s.doctor
	if d.home+d.away >= doctorSample || s.reg.pool() {
		return
	}
	home := s.home()
	if at.Deployment == home.Deployment && at.Variant.Lora == home.Variant.Lora {
		d.home++
		s.withdraw(FindingContext)
		return
	}
	if d.away++; d.home > 0 || d.away < doctorOdd {
		return
	}
	s.find(FindingContext, "every event is about model %q, adapter %q, block size %d, tenant %q; registered is model %q, adapter %q, block size %d, tenant %q: queries for those find nothing",
		at.Deployment.Model, at.Variant.Lora, at.Deployment.BlockSize, at.Deployment.Tenant,
		home.Deployment.Model, home.Variant.Lora, home.Deployment.BlockSize, home.Deployment.Tenant)
}

// seedKey is the first block of a prompt as publishers of one type see it.
type seedKey struct {
	typ   string
	local uint64
}

// seed is who announced it first, and under which hash.
type seed struct {
	engine uint64
	by     Key
}

// seeds are the beginnings of prompts seen in one context.
type seeds struct {
	mu    sync.Mutex
	first map[seedKey]seed
}

// lookAtSeed compares the engine hash of a prompt's first block with what others
// called the same tokens. It compares blocks of the base model without a salt: releases
// hash adapters, salts and images in several forms, and vLLM the path of an adapter.
func (s *source) lookAtSeed(ns *namespace, engine, local uint64) {
	at := ns.context.key
	if s.doctor.seeds >= doctorSample || at != (scope.Variant{}) {
		return
	}
	s.doctor.seeds++
	x := &ns.context.seeds
	key := seedKey{s.reg.Type, local}
	x.mu.Lock()
	old, known := x.first[key]
	if !known && len(x.first) < maxSeeds {
		if x.first == nil {
			x.first = make(map[seedKey]seed)
		}
		x.first[key] = seed{engine, s.reg.Key()}
	}
	x.mu.Unlock()
	switch {
	case !known || old.engine == engine:
	case old.by == s.reg.Key():
		s.find(FindingSeed, "equal tokens have another engine hash than before (%#x, then %#x): the engine's hash seed is random; blocks announced without tokens cannot be told from those of other engines, set PYTHONHASHSEED", old.engine, engine)
	default:
		s.find(FindingSeed, "equal tokens have another engine hash than at %s (%#x there, %#x here): seed or algorithm differ; blocks announced without tokens cannot be told across engines, set the same PYTHONHASHSEED and algorithm", old.by, old.engine, engine)
	}
}

// lookAtEndpoint looks for another source that follows the same publisher. c.mu is
// held.
func (c *Conductor) lookAtEndpoint(s *source) {
	for key, other := range c.sources {
		if key != s.reg.Key() && other.reg.publisher() == s.reg.publisher() {
			s.find(FindingRank, "%s follows the same publisher %s: one of the two is registered with a wrong endpoint", key, s.reg.Endpoint)
			return
		}
	}
}

// sharedSocket reports whether several publishers deliver at an endpoint.
func sharedSocket(endpoint string) bool { return strings.HasPrefix(endpoint, "bind:") }

// ask notes that queries are interested in a deployment. A second is fine enough.
func (d *deployment) ask(now time.Time) {
	if t := now.Unix(); d.askedAt.Load() != t {
		d.askedAt.Store(t)
	}
}

// lookAtSilence compares when a source was heard last with when it was asked for.
func (s *source) lookAtSilence(now time.Time) {
	limit := s.conductor.opts.SilentAfter
	s.conductor.mu.RLock()
	d := s.conductor.deployments[s.deploymentKey()]
	s.conductor.mu.RUnlock()
	if d == nil || limit <= 0 || s.conductor.past {
		return
	}
	st := s.stream.Status()
	heard := s.opened
	if at := s.heard.Load(); at != 0 {
		heard = time.Unix(0, at)
	}
	asked := time.Unix(d.askedAt.Load(), 0)
	switch quiet := now.Sub(heard); {
	case quiet < limit:
		s.withdraw(FindingSilent)
	case now.Sub(asked) < limit && (st.State == stream.Synced || st.State == stream.Partial):
		s.find(FindingSilent, "no event for %s while queries ask for model %q: is prefix caching on, and are KV events enabled in the engine?", quiet.Round(time.Second), s.reg.Model)
	}
}

// watch looks for findings that only time shows, until the Conductor is closed.
func (c *Conductor) watch() {
	defer close(c.watched)
	tick := time.NewTicker(c.opts.SilentAfter / 4)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			now := c.now()
			for _, s := range c.registered() {
				s.lookAtSilence(now)
				if !c.past {
					s.guard(func() { s.lookAtUnremoved(now) })
				}
			}
		case <-c.stopWatch:
			return
		}
	}
}
