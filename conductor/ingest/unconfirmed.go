package ingest

import (
	"fmt"
	"time"

	"example.com/conductor/conductor/catalog"
	"example.com/conductor/conductor/doctor"
	"example.com/conductor/conductor/expect"
	"example.com/conductor/conductor/steady"
	"example.com/conductor/events/stream"
)

// A router that reports another rank, salt or prompt than the engine gets, and an engine that announces nothing, look
// alike: blocks are expected and never come. What else the engine has announced meanwhile tells them apart.

// doubtsAbout returns the doubts about reports, by deployment. It ends those that no report of late supports.
func doubtsAbout(c *shared, now time.Time) map[*catalog.Deployment][]expect.Doubt {
	all := make(map[*catalog.Deployment][]expect.Doubt)
	if c.catalog.IsPast() {
		return nil
	}
	for d := range c.catalog.InstanceNames() {
		if found := d.Expected.Doubts(now.Add(-c.opts.SilentAfter)); len(found) > 0 {
			all[d] = found
		}
	}
	return all
}

// observeExpected reports or withdraws the finding that reports for the source are never confirmed.
func observeExpected(s *Source, now time.Time, doubts map[*catalog.Deployment][]expect.Doubt) {
	for i := range doubts[s.Member.Home] {
		d := &doubts[s.Member.Home][i]
		if d.Instance == s.Member.InstanceID &&
			(d.Rank == int32(s.Registration.Rank) || !s.Member.Home.HasRank(d.Instance, d.Rank)) {
			if st := s.feed.Status().State; st == stream.Synced || st == stream.Partial {
				s.doctor.Findings.Update(doctor.FindingUnconfirmed,
					"none of the last %d prompts that routers reported for %s was announced in time: %s", d.Reports, placeOf(s, d),
					causeOf(s, d))
				return
			}
		}
	}
	s.doctor.Findings.Withdraw(doctor.FindingUnconfirmed)
}

// placeOf names the target of a doubt.
func placeOf(s *Source, d *expect.Doubt) string {
	if d.Rank == expect.AnyRank {
		return "the instance without a rank"
	}
	return fmt.Sprintf("rank %d", d.Rank)
}

// causeOf says why expected blocks never come, and what to do.
func causeOf(s *Source, d *expect.Doubt) string {
	switch {
	case d.Elsewhere > 0:
		return fmt.Sprintf("rank %d announces their blocks; report the rank on which the engine runs the request, or leave dp_rank out",
			d.ByRank)
	case d.Late > 0:
		return "their blocks come after the ttl of the reports; leave ttl out, so that Conductor learns how long the engine takes, or " +
			"give a longer one"
	case !heardSince(s, d):
		return "the engine has announced nothing since; check that prefix caching and KV events are on, and that the requests reach " +
			"this engine"
	case storesUnder(s, d):
		return "the engine announces other blocks under the same adapter and salt; compare the tokens of the reports, and block_size, " +
			"with those of its requests, and check that these reach this engine"
	default:
		return "the engine announces blocks, none of late under the adapter and salt of the reports; compare lora_name and cache_salt of " +
			"the reports with those of its requests"
	}
}

// heardSince reports whether a source of the target has announced something since the first report in doubt.
func heardSince(s *Source, d *expect.Doubt) bool {
	for _, other := range s.shared.catalog.MembersOf(s.Registration.Instance, s.Registration.Tenant) {
		if (d.Rank == expect.AnyRank || other == s.Member) && other.Heard.Load() > steady.Nanos(d.Since) {
			return true
		}
	}
	return false
}

// storesUnder reports whether the source stored blocks lately under the adapter and salt of the reports in doubt.
func storesUnder(s *Source, d *expect.Doubt) bool {
	s.turn.Lock()
	defer s.turn.Unlock()
	for _, ns := range s.holdings.namespaces {
		if ns.Deployment != s.Member.Home {
			continue
		}
		for _, id := range ns.Names.Recent() {
			if id.Constant == d.Context {
				return true
			}
		}
	}
	return false
}
