package conductor

import (
	"cmp"
	"slices"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"example.com/conductor/conductor/registration"
	"example.com/conductor/conductor/scope"
)

// Metrics of sources come at two resolutions. Those of the fleet add up tenants, models, codes and
// reasons, and are there always. Those of single sources are some 20 series each:
//
//	SeriesAlways                 every source
//	SeriesAuto                   every source of up to maxSourceSeries
//	SeriesNever, beyond that     state and findings of those that are not ready or have a finding,
//	                             at most maxSourceSeries, the worst first

// SourceSeries says which sources have series of their own.
type SourceSeries uint8

// Values of Tunables.SourceSeries.
const (
	SeriesAuto SourceSeries = iota
	SeriesAlways
	SeriesNever
)

// maxSourceSeries is how many sources have series of their own: 10,000 series, 1 MB of text.
const maxSourceSeries = 500

// sourceLabels identify a source in metrics, as in its key; groupLabels a fleetGroup.
var (
	sourceLabels = []string{"instance_id", "tenant_id", "dp_rank"}
	groupLabels  = []string{"tenant_id", "model_name"}
)

var (
	descSources = desc("sources", "Registered sources by state.", "state")
	descListed  = desc("sources_listed", "Sources with series of their own.")
	descState   = desc("source_state", "1 for the state of a source, and the reason of that state.",
		append(sourceLabels, "state", "reason")...)
	descFinding = desc("source_finding", "1 for each finding of the doctor about a source.", append(sourceLabels, "code")...)
	descBlocks  = desc("source_blocks", "Blocks that a source holds; a block on two tiers counts twice.", sourceLabels...)
	descOrphans = desc("source_orphans", "Blocks of a source that wait for an event about their parent.", sourceLabels...)
	descObjects = desc("source_objects", "Objects of a pool that are bound to a block, of which others may be missing.",
		sourceLabels...)
	descParts = desc("source_incomplete_blocks",
		"Blocks of a pool that lack objects, or shards of their chunk, so that they do not count; each medium for itself.", sourceLabels...)
	descSeq    = desc("source_last_seq", "Sequence number of the last applied batch in the current epoch.", sourceLabels...)
	descEpoch  = desc("source_epoch", "Lifetimes of the publisher seen so far.", sourceLabels...)
	descAge    = desc("source_last_batch_age_seconds", "Time since the last batch arrived.", sourceLabels...)
	descQueued = desc("source_queued_batches",
		"Batches received and not applied; at 16384 of them, or 64 MiB, the socket of the source is not read.", sourceLabels...)
	descQueuedB = desc("source_queued_bytes",
		"Bytes of batches received and not applied; at 64 MiB, or limits.max_payload if that is more, the socket of the source is "+
			"not read.", sourceLabels...)
	descGaps     = desc("source_gaps_total", "Holes found in the sequence of batches.", sourceLabels...)
	descReplayed = desc("source_replayed_batches_total", "Batches applied from a replay.", sourceLabels...)
	descRestarts = desc("source_restarts_total", "Restarts of the publisher noticed after first contact.", sourceLabels...)
	descOverruns = desc("source_replay_overruns_total",
		"Replays whose first batch came after the batch asked for: the publisher's ring no longer had that one.", sourceLabels...)
	descDups        = desc("source_duplicate_batches_total", "Batches that came twice.", sourceLabels...)
	descEngineSnaps = desc("source_engine_snapshots_total", "Requests for a snapshot of the engine by result: applied, or why not.",
		append(sourceLabels, "result")...)
	descReconn  = desc("source_reconnects_total", "Connections after the first.", sourceLabels...)
	descDropped = desc("source_dropped_total", "Messages, events and hashes skipped, by reason.", append(sourceLabels, "reason")...)

	descFleetSources  = desc("fleet_sources", "Registered sources by tenant, model and state.", append(groupLabels, "state")...)
	descFleetFindings = desc("fleet_findings", "Sources that have a finding of the doctor, by its code.", "code")
	descFleetBlocks   = desc("fleet_blocks", "Pairs of block and holder of all sources of a tenant and model.", groupLabels...)
	descFleetOrphans  = desc("fleet_orphans", "Blocks of all sources of a tenant and model that wait for an event about their parent.",
		groupLabels...)
	descFleetQueued = desc("fleet_queued_batches", "Batches of all sources of a tenant and model that are received and not applied.",
		groupLabels...)
	descFleetQueuedB = desc("fleet_queued_bytes", "Bytes of the queued batches of a tenant and model.", groupLabels...)
	descFleetGaps    = desc("fleet_gaps_total",
		"Holes found in sequences of batches, by tenant and model, of sources that have left too.", groupLabels...)
	descFleetReplayed = desc("fleet_replayed_batches_total", "Batches applied from replays, by tenant and model.", groupLabels...)
	descFleetRestarts = desc("fleet_restarts_total", "Restarts of publishers, by tenant and model.", groupLabels...)
	descFleetOverruns = desc("fleet_replay_overruns_total", "Replays that began after the batch asked for, by tenant and model.",
		groupLabels...)
	descFleetDups   = desc("fleet_duplicate_batches_total", "Batches that came twice, by tenant and model.", groupLabels...)
	descFleetReconn = desc("fleet_reconnects_total", "Connections after the first of each source, by tenant and model.",
		groupLabels...)
	descFleetEngineSnaps = desc("fleet_engine_snapshots_total",
		"Requests of all sources for snapshots of their engines by result: applied, or why not.", "result")
	descFleetDropped = desc("fleet_dropped_total", "Messages, events and hashes of all sources that were skipped, by reason.", "reason")
)

// groupSum adds up the sources of a fleetGroup.
type groupSum struct {
	sourceCounts
	states                               stateCounts
	blocks, orphans, queued, queuedBytes int
}

// collectSources sends the metrics of sources, and of the fleet.
func (c *Conductor) collectSources(ch chan<- prometheus.Metric) {
	all := c.sources.fleetSources()
	services := servicesOf(all.registered)
	sums := make(map[scope.Shard]*groupSum, len(all.gone))
	for p, gone := range all.gone {
		sums[p] = &groupSum{sourceCounts: gone}
	}
	groupOf := func(s *source) *groupSum {
		if sums[s.group.Shard] == nil { // it has its group since
			sums[s.group.Shard] = new(groupSum)
		}
		return sums[s.group.Shard]
	}
	fleet, findings := all.named, make(map[string]int)
	count := func(s *source, v *Service) *groupSum {
		n, sum := v.counts(), groupOf(s)
		fleet.add(n.splitNamed())
		sum.add(&n)
		return sum
	}
	for i, s := range all.registered {
		v := &services[i]
		sum := count(s, v)
		sum.states[slices.Index(states, v.State)]++
		sum.blocks += v.Blocks
		sum.orphans += v.Orphans
		sum.queued += v.Queued
		sum.queuedBytes += v.QueuedBytes
		for _, f := range v.Findings {
			findings[f.Code]++
		}
	}
	for i, v := range servicesOf(all.leaving) {
		count(all.leaving[i], &v)
	}
	sendFleet(ch, sums, findings, &fleet)
	c.sendSources(ch, services)
}

// sendFleet sends the metrics of the fleet.
func sendFleet(ch chan<- prometheus.Metric, sums map[scope.Shard]*groupSum, findings map[string]int, named *sourceCounts) {
	total := make([]int, len(states))
	for p, sum := range sums {
		gauge := func(d *prometheus.Desc, v int, more ...string) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(v), append([]string{p.Tenant, p.Model}, more...)...)
		}
		counter := func(d *prometheus.Desc, v uint64) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), p.Tenant, p.Model)
		}
		for i, n := range sum.states {
			if total[i] += n; n > 0 {
				gauge(descFleetSources, n, string(states[i]))
			}
		}
		gauge(descFleetBlocks, sum.blocks)
		gauge(descFleetOrphans, sum.orphans)
		gauge(descFleetQueued, sum.queued)
		gauge(descFleetQueuedB, sum.queuedBytes)
		counter(descFleetGaps, sum.gaps)
		counter(descFleetReplayed, sum.replayed)
		counter(descFleetRestarts, sum.restarts)
		counter(descFleetOverruns, sum.overruns)
		counter(descFleetDups, sum.duplicates)
		counter(descFleetReconn, sum.reconnects)
	}
	for i, n := range total {
		ch <- prometheus.MustNewConstMetric(descSources, prometheus.GaugeValue, float64(n), string(states[i]))
	}
	for code, n := range findings {
		ch <- prometheus.MustNewConstMetric(descFleetFindings, prometheus.GaugeValue, float64(n), code)
	}
	for reason, n := range named.dropped {
		ch <- prometheus.MustNewConstMetric(descFleetDropped, prometheus.CounterValue, float64(n), string(reason))
	}
	for result, n := range named.snapshots {
		ch <- prometheus.MustNewConstMetric(descFleetEngineSnaps, prometheus.CounterValue, float64(n), result)
	}
}

// listsSources reports whether every one of n sources has series of its own.
func (c *Conductor) listsSources(n int) bool {
	mode := c.tuned.Load().SourceSeries
	return mode == SeriesAlways || mode == SeriesAuto && n <= maxSourceSeries
}

// sendSources sends the metrics of single sources.
func (c *Conductor) sendSources(ch chan<- prometheus.Metric, services []Service) {
	every := c.listsSources(len(services))
	if !every {
		services = worst(services)
	}
	ch <- prometheus.MustNewConstMetric(descListed, prometheus.GaugeValue, float64(len(services)))
	for i := range services {
		s := &services[i]
		labels := []string{s.Instance, s.Tenant, strconv.Itoa(s.Rank)}
		ch <- prometheus.MustNewConstMetric(descState, prometheus.GaugeValue, 1, append(labels[:3:3], string(s.State), s.Reason)...)
		for _, f := range s.Findings {
			ch <- prometheus.MustNewConstMetric(descFinding, prometheus.GaugeValue, 1, append(labels[:3:3], f.Code)...)
		}
		if every {
			c.sendSource(ch, s, labels)
		}
	}
}

// worst returns the sources that are not ready or have a finding, the worst first, at most
// maxSourceSeries.
func worst(services []Service) []Service {
	troubled := slices.DeleteFunc(services, func(s Service) bool { return s.State.Ready() && s.Faults() == 0 })
	slices.SortFunc(troubled, func(a, b Service) int {
		return cmp.Or(cmp.Compare(slices.Index(states, a.State), slices.Index(states, b.State)), a.Key().Compare(b.Key()))
	})
	return troubled[:min(len(troubled), maxSourceSeries)]
}

// sendSource sends the series that a source has next to its state.
func (c *Conductor) sendSource(ch chan<- prometheus.Metric, s *Service, labels []string) {
	gauge := func(d *prometheus.Desc, v float64) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	counter := func(d *prometheus.Desc, v uint64, more ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), append(labels[:3:3], more...)...)
	}
	gauge(descBlocks, float64(s.Blocks))
	gauge(descOrphans, float64(s.Orphans))
	if s.Type == registration.TypeMooncake {
		gauge(descObjects, float64(s.Objects))
	}
	if s.Type == registration.TypeMooncake || s.Endpoint == registration.EndpointPush {
		gauge(descParts, float64(s.Incomplete))
	}
	gauge(descEpoch, float64(s.Epoch))
	if s.LastSeq != nil {
		gauge(descSeq, float64(*s.LastSeq))
	}
	if !s.LastBatchAt.IsZero() {
		gauge(descAge, c.now().Sub(s.LastBatchAt).Seconds())
	}
	gauge(descQueued, float64(s.Queued))
	gauge(descQueuedB, float64(s.QueuedBytes))
	counter(descGaps, s.Gaps)
	counter(descReplayed, s.Replayed)
	counter(descRestarts, s.Restarts)
	counter(descOverruns, s.Overruns)
	counter(descDups, s.Duplicates)
	counter(descReconn, s.Reconnects)
	for result, n := range s.snapshotResults() {
		counter(descEngineSnaps, n, result)
	}
	for reason, n := range s.Dropped {
		counter(descDropped, n, string(reason))
	}
}
