package doctor

import "slices"

// Severity says how much a finding, or the state of a source, matters.
type Severity string

// Severities, the worst first.
const (
	Error   Severity = "error"   // answers are wrong, or something is missing in them: an operator must act
	Warning Severity = "warning" // answers are limited, or will be: an operator should look at it
	Info    Severity = "info"    // there is nothing to do
	OK      Severity = "ok"      // of a server as a whole: nothing is wrong with it
)

// severities are in the order in which people should read.
var severities = []Severity{Error, Warning, Info, OK}

// Compare orders severities, the worst first.
func (a Severity) Compare(b Severity) int {
	return slices.Index(severities, a) - slices.Index(severities, b)
}

// severityOf is the severity of each code: of the findings about sources first. A fault of the publisher that Conductor
// works around is a warning, and so is a loss that leaves most blocks of the source in the answers.
var severityOf = map[string]Severity{
	FindingBlockSize:      Error,
	FindingContext:        Error,
	FindingRank:           Error,
	FindingStale:          Error,
	FindingUnusable:       Error,
	FindingStorm:          Error,
	FindingForeignReplay:  Error,
	FindingParents:        Error,
	FindingAdapter:        Error,
	FindingAlias:          Error,
	FindingForeignTenant:  Error,
	FindingConnection:     Error,
	FindingContest:        Error,
	FindingFeedback:       Error,
	FindingDrift:          Error,
	FindingNothing:        Error,
	FindingProfile:        Warning,
	FindingHashScheme:     Warning,
	FindingSilent:         Warning,
	FindingMedium:         Warning,
	FindingVersion:        Warning,
	FindingEventGap:       Warning,
	FindingCopies:         Warning,
	FindingExtraKey:       Warning,
	FindingAssumed:        Warning,
	FindingChunks:         Warning,
	FindingLayers:         Warning,
	FindingLostNames:      Warning,
	FindingNoRemovals:     Warning,
	FindingUnasked:        Warning,
	FindingShortLived:     Warning,
	FindingDrops:          Warning,
	FindingUnconfirmed:    Warning,
	FindingBehind:         Warning,
	FindingEngineSnapshot: Warning,
	FindingNotDurable:     Warning,
	FindingSeveralRanks:   Info,
	FindingLargerBlocks:   Info,
	FindingStreams:        Info, // a publisher that keeps order loses nothing
	FindingSeed:           Info, // it matters only where blocks come without tokens
	FindingLearned:        Info,

	// States of sources; that of a stale one is a finding too.
	"failed":      Error,
	"partial":     Warning,
	"paused":      Warning,
	"connecting":  Info, // it is stale soon, if that lasts
	"replaying":   Info,
	"synced":      OK,
	"approximate": OK,

	// What belongs to no source.
	"no_sources":      Error,
	"not_ready":       Warning, // error, if the summary of /ready says so
	"memory_bound":    Error,
	"discovery":       Error,
	"unclaimed":       Error,
	"unclaimed_topic": Warning,
	"not_registered":  Warning, // queries for other fleets may come here by mistake
}

// SeverityOf returns the severity of a finding by its code, of a state of sources, or of what belongs to no source. A code
// that is not known is of a newer server, and a warning.
func SeverityOf(code string) Severity {
	if s, known := severityOf[code]; known {
		return s
	}
	return Warning
}
