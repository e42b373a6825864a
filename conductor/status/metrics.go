package status

import (
	"cmp"
	"slices"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"example.com/conductor/conductor/registration"
	"example.com/conductor/conductor/scope"
)

// Metrics of sources come at two resolutions. Those of the fleet add up tenants, models, codes and
// reasons, and are there always. Those of single sources are some 20 series each:
//
//	SeriesAlways                 every source
//	SeriesAuto                   every source of up to MaxSeries
//	SeriesNever, beyond that     state and findings of those that are not ready or have a finding,
//	                             at most MaxSeries, the worst first

// SourceSeries says which sources have series of their own.
type SourceSeries uint8

// Values of SourceSeries.
const (
	SeriesAuto SourceSeries = iota
	SeriesAlways
	SeriesNever
)

// MaxSeries is how many sources have series of their own: 10,000 series, 1 MB of text.
const MaxSeries = 500

// sourceLabels identify a source in metrics, as in its key; groupLabels a tenant and model.
var (
	sourceLabels = []string{"instance_id", "tenant_id", "dp_rank"}
	groupLabels  = []string{"tenant_id", "model_name"}
)

var (
	descSources = sourceDesc("sources", "Registered sources by state.", "state")
	descListed  = sourceDesc("sources_listed", "Sources with series of their own.")
	descState   = sourceDesc("source_state", "1 for the state of a source, and the reason of that state.",
		append(sourceLabels, "state", "reason")...)
	descFinding = sourceDesc("source_finding", "1 for each finding of the doctor about a source.", append(sourceLabels, "code")...)
	descBlocks  = sourceDesc("source_blocks", "Blocks that a source holds; a block on two tiers counts twice.", sourceLabels...)
	descOrphans = sourceDesc("source_orphans", "Blocks of a source that wait for an event about their parent.", sourceLabels...)
	descObjects = sourceDesc("source_objects", "Objects of a pool that are bound to a block, of which others may be missing.",
		sourceLabels...)
	descParts = sourceDesc("source_incomplete_blocks",
		"Blocks of a pool that lack objects, or shards of their chunk, so that they do not count; each medium for itself.", sourceLabels...)
	descSeq    = sourceDesc("source_last_seq", "Sequence number of the last applied batch in the current epoch.", sourceLabels...)
	descEpoch  = sourceDesc("source_epoch", "Lifetimes of the publisher seen so far.", sourceLabels...)
	descAge    = sourceDesc("source_last_batch_age_seconds", "Time since the last batch arrived.", sourceLabels...)
	descQueued = sourceDesc("source_queued_batches",
		"Batches received and not applied; at 16384 of them, or 64 MiB, the socket of the source is not read.", sourceLabels...)
	descQueuedB = sourceDesc("source_queued_bytes",
		"Bytes of batches received and not applied; at 64 MiB, or limits.max_payload if that is more, the socket of the source is "+
			"not read.", sourceLabels...)
	descGaps     = sourceDesc("source_gaps_total", "Holes found in the sequence of batches.", sourceLabels...)
	descReplayed = sourceDesc("source_replayed_batches_total", "Batches applied from a replay.", sourceLabels...)
	descRestarts = sourceDesc("source_restarts_total", "Restarts of the publisher noticed after first contact.", sourceLabels...)
	descOverruns = sourceDesc("source_replay_overruns_total",
		"Replays whose first batch came after the batch asked for: the publisher's ring no longer had that one.", sourceLabels...)
	descDups        = sourceDesc("source_duplicate_batches_total", "Batches that came twice.", sourceLabels...)
	descEngineSnaps = sourceDesc("source_engine_snapshots_total", "Requests for a snapshot of the engine by result: applied, or why not.",
		append(sourceLabels, "result")...)
	descReconn  = sourceDesc("source_reconnects_total", "Connections after the first.", sourceLabels...)
	descDropped = sourceDesc("source_dropped_total", "Messages, events and hashes skipped, by reason.", append(sourceLabels, "reason")...)

	descFleetSources  = sourceDesc("fleet_sources", "Registered sources by tenant, model and state.", append(groupLabels, "state")...)
	descFleetFindings = sourceDesc("fleet_findings", "Sources that have a finding of the doctor, by its code.", "code")
	descFleetBlocks   = sourceDesc("fleet_blocks", "Pairs of block and holder of all sources of a tenant and model.", groupLabels...)
	descFleetOrphans  = sourceDesc("fleet_orphans",
		"Blocks of all sources of a tenant and model that wait for an event about their parent.",
		groupLabels...)
	descFleetQueued = sourceDesc("fleet_queued_batches", "Batches of all sources of a tenant and model that are received and not applied.",
		groupLabels...)
	descFleetQueuedB = sourceDesc("fleet_queued_bytes", "Bytes of the queued batches of a tenant and model.", groupLabels...)
	descFleetGaps    = sourceDesc("fleet_gaps_total",
		"Holes found in sequences of batches, by tenant and model, of sources that have left too.", groupLabels...)
	descFleetReplayed = sourceDesc("fleet_replayed_batches_total", "Batches applied from replays, by tenant and model.", groupLabels...)
	descFleetRestarts = sourceDesc("fleet_restarts_total", "Restarts of publishers, by tenant and model.", groupLabels...)
	descFleetOverruns = sourceDesc("fleet_replay_overruns_total", "Replays that began after the batch asked for, by tenant and model.",
		groupLabels...)
	descFleetDups   = sourceDesc("fleet_duplicate_batches_total", "Batches that came twice, by tenant and model.", groupLabels...)
	descFleetReconn = sourceDesc("fleet_reconnects_total", "Connections after the first of each source, by tenant and model.",
		groupLabels...)
	descFleetEngineSnaps = sourceDesc("fleet_engine_snapshots_total",
		"Requests of all sources for snapshots of their engines by result: applied, or why not.", "result")
	descFleetDropped = sourceDesc("fleet_dropped_total",
		"Messages, events and hashes of all sources that were skipped, by reason.", "reason")
)

// sourceDescs are the descriptions that sourceDesc has returned.
var sourceDescs []*prometheus.Desc

// sourceDesc returns the description of a metric that Fleet.Send sends. DescribeFleet sends it.
func sourceDesc(name, help string, labels ...string) *prometheus.Desc {
	d := prometheus.NewDesc("conductor_"+name, help, labels, nil)
	sourceDescs = append(sourceDescs, d)
	return d
}

// DescribeFleet describes what Fleet.Send sends.
func DescribeFleet(ch chan<- *prometheus.Desc) {
	for _, d := range sourceDescs {
		ch <- d
	}
}

// groupSum adds up the sources of a tenant and model.
type groupSum struct {
	Counts
	states                               stateCounts
	blocks, orphans, queued, queuedBytes int
}

// Fleet is all sources at one moment.
type Fleet struct {
	Registered, Leaving []Grouped
	Gone                map[scope.Shard]Counts // of sources that have left, by group
	Named               Counts                 // by reason and result, of sources that have left
}

// Grouped is a source and the group that it counts in.
type Grouped struct {
	Source
	Group scope.Shard
}

// Send sends the metrics of the sources, and of the fleet. series says which sources have some of their own. The counts of
// f are spent then.
func (f *Fleet) Send(ch chan<- prometheus.Metric, series SourceSeries, now time.Time) {
	sums := make(map[scope.Shard]*groupSum, len(f.Gone))
	for p, gone := range f.Gone {
		sums[p] = &groupSum{Counts: gone}
	}
	fleet, findings := f.Named, make(map[string]int)
	count := func(v *Grouped) *groupSum {
		sum := sums[v.Group]
		if sum == nil { // it has its group since
			sum = new(groupSum)
			sums[v.Group] = sum
		}
		n := v.Counts()
		fleet.Add(n.SplitNamed())
		sum.Add(&n)
		return sum
	}
	services := make([]Source, 0, len(f.Registered))
	for i := range f.Registered {
		v := &f.Registered[i]
		services = append(services, v.Source)
		sum := count(v)
		sum.states[slices.Index(states, v.State)]++
		sum.blocks += v.Blocks
		sum.orphans += v.Orphans
		sum.queued += v.Queued
		sum.queuedBytes += v.QueuedBytes
		for _, f := range v.Findings {
			findings[f.Code]++
		}
	}
	for i := range f.Leaving {
		count(&f.Leaving[i])
	}
	sendFleet(ch, sums, findings, &fleet)
	sendSources(ch, services, series, now)
}

// sendFleet sends the metrics of the fleet.
func sendFleet(ch chan<- prometheus.Metric, sums map[scope.Shard]*groupSum, findings map[string]int, named *Counts) {
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
	for reason, n := range named.Dropped {
		ch <- prometheus.MustNewConstMetric(descFleetDropped, prometheus.CounterValue, float64(n), string(reason))
	}
	for result, n := range named.Snapshots {
		ch <- prometheus.MustNewConstMetric(descFleetEngineSnaps, prometheus.CounterValue, float64(n), result)
	}
}

// Lists reports whether every one of n sources has series of its own.
func (mode SourceSeries) Lists(n int) bool {
	return mode == SeriesAlways || mode == SeriesAuto && n <= MaxSeries
}

// sendSources sends the metrics of single sources.
func sendSources(ch chan<- prometheus.Metric, services []Source, series SourceSeries, now time.Time) {
	every := series.Lists(len(services))
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
			sendSource(ch, s, labels, now)
		}
	}
}

// worst returns the sources that are not ready or have a finding, the worst first, at most
// MaxSeries.
func worst(services []Source) []Source {
	troubled := slices.DeleteFunc(services, func(s Source) bool { return s.State.Ready() && s.Faults() == 0 })
	slices.SortFunc(troubled, func(a, b Source) int {
		return cmp.Or(cmp.Compare(slices.Index(states, a.State), slices.Index(states, b.State)), a.Key().Compare(b.Key()))
	})
	return troubled[:min(len(troubled), MaxSeries)]
}

// sendSource sends the series that a source has next to its state.
func sendSource(ch chan<- prometheus.Metric, s *Source, labels []string, now time.Time) {
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
		gauge(descAge, now.Sub(s.LastBatchAt).Seconds())
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
