package ingest

import (
	"cmp"
	"slices"

	"example.com/conductor/conductor/catalog"
	"example.com/conductor/conductor/doctor"
	"example.com/conductor/conductor/status"
	"example.com/conductor/events/stream"
	"example.com/conductor/index"
	"example.com/conductor/tiers"
)

// reasonEventGap is the reason of a source whose publisher left event numbers out of
// batches that are without a gap, until the stream of events is cleared.
const reasonEventGap = doctor.FindingEventGap

// heldBlocks are the holdings of all owners, by deployment.
type heldBlocks map[*catalog.Deployment]index.Holdings

// in returns the holdings in a deployment.
func (h heldBlocks) in(d *catalog.Deployment) index.Holdings {
	all, known := h[d]
	if !known {
		all = d.Index.Holdings()
		h[d] = all
	}
	return all
}

// countMedia returns the memberships of the source by medium and by attention group, and how many of its blocks wait for their
// parent.
func (s *holdings) countMedia(held heldBlocks) (media []status.MediumBlocks, groups []status.Group, orphans int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ofGroups := make(map[groupOf]int)
	for _, ns := range s.namespaces {
		in := held.in(ns.Deployment)
		orphans += in.WaitingOf(ns.Source)
		for key, h := range ns.owners {
			at := slices.IndexFunc(media, func(m status.MediumBlocks) bool { return m.Name == key.Medium })
			if at < 0 {
				at, media = len(media), append(media, status.MediumBlocks{Medium: tiers.ParseMedium(key.Medium)})
			}
			for _, o := range h.owners {
				media[at].Blocks += in.Of(o)
				ofGroups[groupOf{key.Rank, key.Group}] += in.Of(o)
			}
		}
	}
	slices.SortFunc(media, func(a, b status.MediumBlocks) int {
		return cmp.Or(cmp.Compare(a.Tier, b.Tier), cmp.Compare(a.Name, b.Name))
	})
	return media, groupRows(s.specs, ofGroups), orphans
}

// Rows returns the rows of sources. It locks each of their indexes once.
func Rows(sources []*Source) []status.Source {
	states := make([]stream.Status, len(sources))
	for i, s := range sources {
		states[i] = s.feed.Status()
	}
	held := make(heldBlocks) // read after the states: a row has the blocks of its LastSeq
	all := make([]status.Source, len(sources))
	for i, s := range sources {
		all[i] = s.service(states[i], held)
	}
	return all
}

// service returns the row of the source.
func (s *Source) service(st stream.Status, held heldBlocks) status.Source {
	v := status.Source{
		Registration: *s.Member.Registered(), Pending: s.AtGate(), Recovered: s.recovered, Static: s.Static, By: s.by,
		Status: st, HistoryFrom: historyFrom(s), Events: s.applied.Load(), Objects: int(s.applier.objects.Load()),
		Incomplete:     incompleteBlocks(s),
		SnapshotBlocks: int(s.snapshotted.Load()), AsksSnapshots: s.Registration.SnapshotEndpoint != "",
		Findings: s.Findings(&st), Age: -1,
	}
	v.SnapshotState, v.Dropped = cmp.Or(st.SnapshotState, stream.SnapshotWaits), s.Drops(st)
	v.Media, v.Groups, v.Orphans = s.holdings.countMedia(held)
	for _, m := range v.Media {
		v.Blocks += m.Blocks
	}
	if !st.OldestAt.IsZero() {
		v.Waits = max(s.shared.now().Sub(st.OldestAt), 0)
	}
	if !st.LastBatchAt.IsZero() {
		v.Age = max(s.shared.now().Sub(st.LastBatchAt), 0)
	}
	if st.HasSeq {
		v.LastSeq = &st.LastSeq
	}
	s.holdings.mu.Lock()
	if s.lastErr != "" {
		v.LastError = s.lastErr
	}
	s.holdings.mu.Unlock()
	return v
}
