package status

import (
	"math"
	"time"

	"example.com/conductor/conductor/doctor"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/events/stream"
	"example.com/conductor/tiers"
)

// Source is one registered source and the state of its stream.
type Source struct {
	registration.Registration
	// Pending: it is held back at the gate. Recovered: it came from a peer and is
	// not registered here. Static: the configuration names it.
	Pending, Recovered, Static bool
	// By is who registered it.
	By registration.Registrar

	// Status is that of the stream. Its Dropped has what the application left out as well, its LastError the
	// last failure of either.
	stream.Status
	LastSeq    *uint64 // as in Status, nil before the first applied batch
	Blocks     int     // block memberships: a block on two tiers counts twice
	Media      []MediumBlocks
	Groups     []Group // by rank and number; nil if each rank has one and that has full attention
	Orphans    int     // of them, those that wait for their parent to be known
	Incomplete int     // blocks of a pool that lack objects
	Objects    int     // a pool's that are bound to a block; other objects of the block may be missing
	// HistoryFrom is where the blocks come from, one of ingest.FromEngine to ingest.FromReports.
	HistoryFrom string

	SnapshotBlocks int  // that the last snapshot of the engine left
	AsksSnapshots  bool // it asks its engine for snapshots; also where SnapshotEndpoint is hidden

	// Waits is how long the oldest of the queued batches has waited, 0 without any.
	Waits time.Duration
	// Events counts the events of all applied batches.
	Events uint64

	Findings []doctor.Finding
	Age      time.Duration // since the last batch, -1 before it
	// Expected is how good the expectations of the instance were, of all its ranks together; nil without a report,
	// and of pools.
	Expected *Expectations
}

// Group is an attention group of a rank, as its engine has announced it.
type Group struct {
	Rank, Number int
	Kind         string // "" if no event has named it
	Window       int    // tokens, 0 without a sliding window
	BlockSize    int    // tokens, 0 if it was not announced
	Blocks       int    // memberships, in registered blocks
}

// MediumBlocks are the block memberships of one medium.
type MediumBlocks struct {
	tiers.Medium
	Blocks int
}

// Faults returns how many findings an operator should do something about.
func (s *Source) Faults() (n int) {
	for i := range s.Findings {
		if s.Findings[i].Fault() {
			n++
		}
	}
	return n
}

// Expectations is how good the expectations of an instance were. Blocks are in tokens. Counts begin when the
// instance is registered, and leave with it.
type Expectations struct {
	Tenant, Instance string
	Prompts          uint64 // reports
	Expected         uint64 // what they said beyond what the instance had: the sum of all below
	Confirmed        uint64 // announced in time
	Expired          uint64 // not announced in time
	TakenBack        uint64 // by the router
	Dropped          uint64 // its source restarted, was cleared or left, or the memory for expectations had no room
	Evicted          uint64 // an approximate instance had no room, or their time there was over
	Pending          uint64 // expected now
	// Delay is how long blocks took from their report to their announcement, of late, those that came late
	// too: p50, p90 and p99, rounded up; 0 where none is known.
	Delay [3]time.Duration
	// TTL is what a report without one gets now, the longest of the ranks; 0 for an approximate instance whose blocks
	// stay until there is no room.
	TTL time.Duration
}

// Share returns the part of the tokens that were confirmed, of those confirmed and expired. known is false while there
// are none.
func (e *Expectations) Share() (part float64, known bool) {
	ended := e.Confirmed + e.Expired
	if ended == 0 {
		return 0, false
	}
	return Round(float64(e.Confirmed) / float64(ended)), true
}

// Round rounds a share to four digits.
func Round(v float64) float64 { return math.Round(v*1e4) / 1e4 }
