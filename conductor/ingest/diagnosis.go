package ingest

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"example.com/conductor/conductor/catalog"
	"example.com/conductor/conductor/doctor"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/conductor/steady"
	"example.com/conductor/events"
	"example.com/conductor/events/stream"
	"example.com/conductor/index"
)

// defaultSilentAfter outlasts the pauses of a fleet at night that is still asked.
const defaultSilentAfter = 5 * time.Minute

// logFindings logs each finding of the source once.
func (s *Source) logFindings() { s.Member.LogFindings(&s.shared.log) }

// Findings returns the findings of the doctor, and that the source is stale. Time alone makes a source
// stale, so the finding follows from the state instead of from an event. Its log line is that of the
// state.
func (s *Source) Findings(st *stream.Status) []doctor.Finding {
	all := s.doctor.Findings.List()
	if st.State != stream.Stale {
		return all
	}
	stale := doctor.Finding{Code: doctor.FindingStale, Since: st.StaleAt, Message: staleText(s, st)}
	at, _ := slices.BinarySearchFunc(all, stale, func(a, b doctor.Finding) int { return cmp.Compare(a.Code, b.Code) })
	return slices.Insert(all, at, stale)
}

// staleText says since when nothing was heard of a stale source, and what to check. It leaves the fault of the
// connection out, because not every client may see that.
func staleText(s *Source, st *stream.Status) string {
	const held = "; its blocks stay in the answers until it is heard again or unregistered"
	switch {
	case s.Registration.IsPushed():
		return "no report has come from the cache server since the source was registered: check that it runs and that its reports go to " +
			"this server"
	case strings.HasPrefix(s.Registration.Endpoint, "bind:") && st.LastLifeAt.IsZero():
		return "the engine has never connected to this server: check that it runs, and the address and topic that it publishes to"
	case strings.HasPrefix(s.Registration.Endpoint, "bind:"):
		return "nothing has come from the engine since " + atUTC(st.LastLifeAt) +
			": check that it runs, although an engine without work sends nothing" + held
	case st.LastLifeAt.IsZero():
		return "there has never been a connection to the engine: check that it runs, its endpoint, and the network"
	}
	return "there has been no connection to the engine since " + atUTC(st.LastLifeAt) + ": check that it runs, and the network" + held
}

// atUTC returns a time as messages show it.
func atUTC(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") }

// demand is what queries ask of a deployment: of its engines, or of its pools.
type demand struct {
	ranks, heard  int
	before, fresh uint64 // QueryCounts.Fresh of all kinds of prompts, at the look before and now
}

// demands are the demands at one look.
type demands map[demandKey]*demand

type demandKey struct {
	deployment *catalog.Deployment
	pools      bool
}

// demandsOn counts who shares the queries of each deployment. before are those of the look before.
func demandsOn(sources []*Source, before demands, now time.Time) demands {
	all := make(demands)
	for _, s := range sources {
		key, ok := demandKeyOf(s)
		if !ok {
			continue
		}
		x := all[key]
		if x == nil {
			x = new(demand)
			for _, n := range key.deployment.QueryCounts() {
				x.fresh += n.Fresh
			}
			if was := before[key]; was != nil {
				x.before = was.fresh
			} else {
				x.before = x.fresh
			}
			all[key] = x
		}
		if x.ranks++; now.Sub(lastHeard(s, now)) < s.shared.opts.SilentAfter {
			x.heard++
		}
	}
	return all
}

// demandKeyOf returns whose demand the source has a share of. It reports false if nobody can tell.
func demandKeyOf(s *Source) (key demandKey, ok bool) {
	d := s.shared.catalog.Deployment(s.holdings.deploymentKey())
	if d == nil || s.Registration.IsApproximate() {
		return key, false
	}
	return demandKey{d, s.Registration.IsPool()}, true
}

// lastHeard returns when the last event of the source came, at the earliest when its connection began: what an engine sent
// before it was away says nothing about its settings now.
func lastHeard(s *Source, now time.Time) time.Time {
	heard := s.opened
	if at := s.Member.Heard.Load(); at != 0 {
		heard = steady.Time(at, now)
	}
	if at := s.feed.Status().ConnectedAt; at.After(heard) {
		heard = at
	}
	return heard
}

// observeSilence compares the time since the last event of a source with what it should have announced since then. What
// was asked since the look before does not count yet, and what was asked before this look counts as answered by its event.
func observeSilence(s *Source, now time.Time, all demands) {
	limit := s.shared.opts.SilentAfter
	key, ok := demandKeyOf(s)
	x := all[key]
	if !ok || x == nil || limit <= 0 || s.shared.catalog.IsPast() {
		return
	}
	heard := lastHeard(s, now)
	if !heard.Equal(s.quietFrom) {
		s.quietFrom, s.freshBefore = heard, x.fresh
	}
	state := s.feed.Status().State
	if state != stream.Synced && state != stream.Partial {
		s.freshBefore = x.fresh
	}
	s.doctor.Silence(now.Sub(heard), limit, doctor.Demand{Fresh: x.before - min(x.before, s.freshBefore), Ranks: x.ranks, Heard: x.heard})
}

// observeUse compares the adapters and salts of the blocks that a source stored lately with those that queries ask for.
func observeUse(s *Source, now time.Time) {
	limit := s.shared.opts.SilentAfter
	d := s.shared.catalog.Deployment(s.holdings.deploymentKey())
	if d == nil || limit <= 0 || s.shared.catalog.IsPast() || s.Registration.IsPool() || now.Sub(s.opened) < limit {
		return
	}
	s.doctor.Use(s.holdings.blocks(), isAskedLately(s, now), d.SinceAsked(now) < limit)
}

// isAskedLately reports whether queries have lately asked for an adapter or salt of the blocks that a source stored lately.
func isAskedLately(s *Source, now time.Time) bool {
	s.turn.Lock()
	defer s.turn.Unlock()
	for _, ns := range s.holdings.namespaces {
		for _, id := range ns.Names.Recent() {
			if id.SinceAsked(now) < s.shared.opts.SilentAfter {
				return true
			}
		}
	}
	return false
}

// observeLives tells the doctor how fast the engine evicts.
func observeLives(s *Source, now time.Time) {
	for _, l := range s.Member.Lives.Lives(now) {
		s.doctor.Life(l.Medium, l.Hazard)
	}
}

// observeHolding tells the doctor what the source holds, and how much of that no query finds. turn is held.
func observeHolding(s *Source, held heldBlocks, now time.Time) {
	h := doctor.Holding{Lacking: incompleteBlocks(s)}
	media, _, waiting := s.holdings.countMedia(held)
	for _, m := range media {
		h.Blocks += m.Blocks
	}
	h.Untold = s.holdings.countUnasked(held)
	h.Sparse = isSparse(s.holdings.specs)
	h.WithoutKind, h.WithoutSize = s.applier.normal.Waiting()
	s.doctor.Parents(waiting, h.Blocks, waiting >= cmp.Or(s.shared.catalog.IndexOptions().MaxOrphans, index.DefaultMaxOrphans))
	if !s.shared.catalog.IsPast() {
		s.doctor.Weigh(h, now)
	}
	for _, specs := range s.holdings.specs {
		reportGroups(s.doctor, specs, s.Registration)
	}
}

// countUnasked returns how many blocks of the source are known by a hash alone, by which no query finds them.
func (s *holdings) countUnasked(held heldBlocks) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, ns := range s.namespaces {
		if s.reg.Type != registration.TypeStandard && !ns.Deployment.FindsWaiting() {
			in := held.in(ns.Deployment)
			n += in.UntoldOf(ns.Source)
		}
	}
	return n
}

// observeRefusals reports whether another connection has sent in the name of the source
// since the last call.
func observeRefusals(s *Source) {
	st := s.feed.Status()
	n := st.Dropped[events.ForeignConnection]
	if n == s.refused {
		s.doctor.Findings.Withdraw(doctor.FindingConnection)
		return
	}
	s.refused = n
	s.doctor.Findings.Report(doctor.FindingConnection,
		"%s sends under the topic and rank of the source, which another connection holds; its messages are refused until that one ends: "+
			"find out which of the two is the engine", st.RefusedBy)
}

// observeUsable reports whether most messages of the publisher cannot be used.
func observeUsable(s *Source, state stream.State, reason string) {
	switch {
	case reason == stream.ReasonUnusable:
		s.doctor.Findings.Report(doctor.FindingUnusable,
			"most of the publisher's messages cannot be used, and answers have nothing of them: %s; check that endpoint is where the "+
				"engine publishes KV events, and which version of the engine it is",
			s.feed.Status().Unusable)
		s.logFindings()
	case state == stream.Synced || state == stream.Partial:
		s.doctor.Findings.Withdraw(doctor.FindingUnusable)
	}
}

// observeStorm reports whether several publishers send over the connection.
func observeStorm(s *Source, state stream.State, reason string) {
	switch {
	case reason == stream.ReasonStorm:
		s.doctor.Findings.Report(doctor.FindingStorm,
			"several publishers send over the connection to %s, each with numbers of its own, and answers have nothing of them: behind a "+
				"forwarder, %s",
			s.Registration.Endpoint, "register each engine with an endpoint of its own, or let the forwarder connect to an endpoint "+
				"bind:tcp://... and give each engine a topic kv@INSTANCE@MODEL and a registration with that endpoint")
		s.logFindings()
	case state == stream.Synced || state == stream.Partial:
		s.doctor.Findings.Withdraw(doctor.FindingStorm)
	}
}

// observeReplay reports whether the replay service is another engine's.
func observeReplay(s *Source) {
	if !s.feed.Status().ForeignReplay {
		s.doctor.Findings.Withdraw(doctor.FindingForeignReplay)
		return
	}
	s.doctor.Findings.Report(doctor.FindingForeignReplay,
		"the replay service at %s has not the batches that come from %s, so it is another engine's or another rank's: what it told is "+
			"dropped, and blocks from before are not known; register the replay_endpoint that belongs to the endpoint",
		s.Registration.ReplayEndpoint, s.Registration.Endpoint)
	s.logFindings()
}

// observeSnapshots reports whether the engine gives no snapshot to a source that lacks history.
func observeSnapshots(s *Source) {
	st := s.feed.Status()
	if st.SnapshotReason == "" || st.History == "" {
		s.doctor.Findings.Withdraw(doctor.FindingEngineSnapshot)
		return
	}
	s.doctor.Findings.Report(doctor.FindingEngineSnapshot, "%s", SnapshotFinding(st.SnapshotReason))
}

// SnapshotFinding is the text of the finding of a request that failed for a reason.
func SnapshotFinding(reason string) string {
	return fmt.Sprintf("the engine gives no snapshot (%s), so what it held before is not known: %s", reason, adviceOfSnapshots[reason])
}

// adviceOfSnapshots says what to do about requests that fail, by reason.
var adviceOfSnapshots = map[string]string{
	stream.SnapshotUnavailable: "restart the engine or raise its snapshot_max_blocks if it stays",
	stream.SnapshotTimeout:     "check snapshot_endpoint and the load of the engine",
	stream.SnapshotFailed:      "check snapshot_endpoint and the network",
	stream.SnapshotPublisher:   "compare endpoint and snapshot_endpoint: they belong to different engines",
	stream.SnapshotMalformed:   "report the version of the engine",
	stream.SnapshotTooLarge:    "lower snapshot_max_blocks of the engine",
	stream.SnapshotBehind:      "wait: the engine's recorder lags",
	stream.SnapshotOverflow:    "the engine answers slower than it publishes",
}

// observeAliases reports an alias that does not mean the source's model.
func observeAliases(s *Source) {
	tenant := s.Registration.Tenant
	for _, alias := range s.Member.Aliases() {
		models := catalog.ModelsOf(s.shared.catalog.Models().FindByName(tenant, alias))
		switch {
		case len(models) < 2:
			continue
		case slices.Contains(models, alias):
			s.doctor.Findings.Report(doctor.FindingAlias,
				"the alias %q is the model of other sources, and queries for it are about those alone: register all engines of one model "+
					"with the same modelname", alias)
		default:
			s.doctor.Findings.Report(doctor.FindingAlias,
				"the models %s have the alias %q, so it means none of them, and queries for it find nothing: leave it to one of them",
				catalog.QuotedList(models), alias)
		}
		return
	}
	s.doctor.Findings.Withdraw(doctor.FindingAlias)
}
