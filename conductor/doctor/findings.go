package doctor

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

// Finding is something about a source that makes its answers less than they could
// be and that an operator can change. A source has at most one of each code.
type Finding struct {
	Code    string
	Message string // the observation, the registered value, the remedy
	Since   time.Time
}

// Severity returns how much the finding matters.
func (f *Finding) Severity() Severity { return SeverityOf(f.Code) }

// Fault reports whether an operator should look at the finding.
func (f *Finding) Fault() bool { return f.Severity() != Info }

// Codes of findings.
const (
	// FindingBlockSize: most blocks have a size that is no multiple of the registered one.
	FindingBlockSize = "block_size_mismatch"
	// FindingLargerBlocks: blocks are several registered blocks long. No fault.
	FindingLargerBlocks = "larger_blocks"
	// FindingContext: everything announced belongs to another model or adapter
	// than the registered one.
	FindingContext = "other_context"
	// FindingRank: batches carry another rank than the registered one, or two
	// sources follow one publisher.
	FindingRank = "rank_conflict"
	// FindingSeveralRanks: the publisher sends several ranks over one socket. No fault.
	FindingSeveralRanks = "several_ranks"
	// FindingSeed: equal tokens have different engine hashes.
	FindingSeed = "random_seed"
	// FindingProfile: the engine names its blocks another way than the hash profile
	// says, or a pool's profile is not that of its engines.
	FindingProfile = "hash_profile"
	// FindingStale: the source is stale, see stream.Stale.
	FindingStale = "stale"
	// FindingSilent: nothing arrives while queries ask for the deployment.
	FindingSilent = "silent"
	// FindingMedium: a medium that is in no table; its blocks are the lowest tier.
	FindingMedium = "unknown_medium"
	// FindingVersion: events of a form that no known version has.
	FindingVersion = "unknown_version"
	// FindingStorm: several publishers send over the connection of the source.
	FindingStorm = "restart_storm"
	// FindingForeignReplay: the replay service of the source is another engine's.
	FindingForeignReplay = "foreign_replay"
	// FindingUnusable: most of the last messages cannot be used.
	FindingUnusable = "unusable_messages"
	// FindingEventGap: a stream of standardized events left numbers out.
	FindingEventGap = "event_gap"
	// FindingStreams: more streams of standardized events than are followed.
	FindingStreams = "too_many_streams"
	// FindingAdapter: blocks of an adapter that has a number and no name.
	FindingAdapter = "unnamed_adapter"
	// FindingExtraKey: the engine keeps blocks of equal tokens apart, and its events do not.
	FindingExtraKey = "unnamed_extra_key"
	// FindingCopies: the engine announces blocks again that it reuses, and they are
	// counted as copies.
	FindingCopies = "copies_grow"
	// FindingForeignTenant: events name a tenant that the source may not announce for.
	FindingForeignTenant = "foreign_tenant"
	// FindingAssumed: blocks below the device come without adapter and salt, and nothing says whose they are.
	FindingAssumed = "assumed_identity"
	// FindingParents: most blocks wait for parents that no event has announced.
	FindingParents = "unknown_parents"
	// FindingChunks: blocks below the device come by the last hash of a chunk, and which blocks the chunk
	// has is a guess, or not known.
	FindingChunks = "offload_chunks"
	// FindingLayers: events do not say what some of the engine's attention groups need of the cache.
	FindingLayers = "unknown_layers"
	// FindingLostNames: blocks came by the names of blocks that index.ghost_bytes had no room for.
	FindingLostNames = "lost_names"
	// FindingContest: sources announce one hash with different tokens.
	FindingContest = "contested_hash"
	// FindingConnection: a connection sends in the name of a source that follows another.
	FindingConnection = "foreign_connection"
	// FindingHashScheme: hashes that were declared canonical are not.
	FindingHashScheme = "hash_scheme"
	// FindingNoRemovals: a publisher stores on a medium and never removes from it.
	FindingNoRemovals = "no_removals"
	// FindingAlias: an alias of the registration does not mean its model.
	FindingAlias = "alias_conflict"
	// FindingUnasked: queries ask for the model, none with the salt or adapter of the blocks.
	FindingUnasked = "unasked"
	// FindingShortLived: the engine evicts blocks within seconds.
	FindingShortLived = "short_lived"
	// FindingFeedback: reports of requests contradict answers.
	FindingFeedback = "feedback_error"
	// FindingDrops: reports of requests lack the last block that answers promise, as with a drafter that is not registered.
	FindingDrops = "drops_last_block"
	// FindingUnconfirmed: the engine announces nothing of what routers report for it.
	FindingUnconfirmed = "unconfirmed"
	// FindingDrift: another replica holds other blocks of the source behind the same batch.
	FindingDrift = "drift"
	// FindingBehind: another replica has applied more batches of the source.
	FindingBehind = "behind"
	// FindingEngineSnapshot: the engine gives no snapshot, and the history of the source is not whole.
	FindingEngineSnapshot = "engine_snapshot"
	// FindingNotDurable: the disk did not take the registration.
	FindingNotDurable = "not_durable"
	// FindingNothing: next to nothing that the source announces counts in answers.
	FindingNothing = "nothing_counts"
	// FindingLearned: settings of the registration came from the engine. No fault.
	FindingLearned = "learned"
)

// Findings are the findings about one source. All methods are safe for concurrent use.
type Findings struct {
	now func() time.Time

	mu       sync.Mutex
	current  map[string]Finding // by code; guarded by mu
	reported map[string]bool    // codes that Unlogged has returned or will return; guarded by mu
	unlogged []Finding          // guarded by mu
}

// Report adds a finding. The first report of a code is the one that stays.
func (f *Findings) Report(code, format string, args ...any) {
	f.addFinding(false, code, format, args...)
}

// Update adds a finding, or changes the message of the one there is.
func (f *Findings) Update(code, format string, args ...any) {
	f.addFinding(true, code, format, args...)
}

func (f *Findings) addFinding(replace bool, code, format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if was, known := f.current[code]; known {
		if replace {
			was.Message = fmt.Sprintf(format, args...)
			f.current[code] = was
		}
		return
	}
	if f.current == nil {
		f.current, f.reported = make(map[string]Finding), make(map[string]bool)
	}
	found := Finding{Code: code, Message: fmt.Sprintf(format, args...), Since: f.now()}
	f.current[code] = found
	if !f.reported[code] {
		f.reported[code] = true
		f.unlogged = append(f.unlogged, found)
	}
}

// ReportMedium adds the finding of a medium that tiers.ParseMedium does not know.
func (f *Findings) ReportMedium(raw string) {
	f.Report(FindingMedium, "medium %.64q is unknown: its blocks count as a tier of their own below all others", raw)
}

// Has reports whether there is a finding of a code.
func (f *Findings) Has(code string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, has := f.current[code]
	return has
}

// HasError reports whether a finding is of severity Error.
func (f *Findings) HasError() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for code := range f.current {
		if SeverityOf(code) == Error {
			return true
		}
	}
	return false
}

// Withdraw removes the finding of a code.
func (f *Findings) Withdraw(code string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.current, code)
}

// withdrawWhere removes the findings whose code goes accepts.
func (f *Findings) withdrawWhere(goes func(code string) bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	maps.DeleteFunc(f.current, func(code string, _ Finding) bool { return goes(code) })
}

// List returns the findings, sorted by code.
func (f *Findings) List() []Finding {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.SortedFunc(maps.Values(f.current), func(a, b Finding) int { return strings.Compare(a.Code, b.Code) })
}

// Unlogged returns the findings that no earlier call returned, the first of each code
// only.
func (f *Findings) Unlogged() []Finding {
	f.mu.Lock()
	defer f.mu.Unlock()
	list := f.unlogged
	f.unlogged = nil
	return list
}
