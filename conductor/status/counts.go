package status

import (
	"maps"

	"example.com/conductor/events"
)

// Counts are the counters of a source, or of several.
type Counts struct {
	gaps, replayed, restarts, overruns, duplicates, reconnects uint64
	Dropped                                                    map[events.Reason]uint64
	Snapshots                                                  map[string]uint64 // requests for snapshots of engines, by result
}

// snapshotApplied is the result of a request for a snapshot of an engine that did not fail.
const snapshotApplied = "applied"

// Add adds o to n.
func (n *Counts) Add(o *Counts) {
	n.gaps += o.gaps
	n.replayed += o.replayed
	n.restarts += o.restarts
	n.overruns += o.overruns
	n.duplicates += o.duplicates
	n.reconnects += o.reconnects
	n.Dropped = sumOf(n.Dropped, o.Dropped)
	n.Snapshots = sumOf(n.Snapshots, o.Snapshots)
}

// sumOf adds more to sums and returns it, or a new map if it is nil and there is more.
func sumOf[K comparable](sums, more map[K]uint64) map[K]uint64 {
	if sums == nil && len(more) > 0 {
		sums = make(map[K]uint64)
	}
	for k, n := range more {
		sums[k] += n
	}
	return sums
}

// SplitNamed takes the counters by reason and result out of n: groups do not have them.
func (n *Counts) SplitNamed() *Counts {
	named := &Counts{Dropped: n.Dropped, Snapshots: n.Snapshots}
	n.Dropped, n.Snapshots = nil, nil
	return named
}

// Counts returns the counters of a source.
func (s *Source) Counts() Counts {
	return Counts{s.Gaps, s.Replayed, s.Restarts, s.Overruns, s.Duplicates, s.Reconnects, s.Dropped, s.snapshotResults()}
}

// snapshotResults counts requests for snapshots of the engine by result, nil for a source that has
// made none and never does.
func (s *Source) snapshotResults() map[string]uint64 {
	if !s.AsksSnapshots && s.Snapshots == 0 && len(s.SnapshotFailures) == 0 {
		return nil
	}
	all := map[string]uint64{snapshotApplied: s.Snapshots}
	maps.Copy(all, s.SnapshotFailures)
	return all
}

// Others stands for the names beyond a bound of series.
const Others = "(others)"
