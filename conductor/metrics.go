package conductor

import (
	"github.com/prometheus/client_golang/prometheus"

	"example.com/conductor/conductor/lmcache"
	"example.com/conductor/conductor/status"
)

// contextLabels identify a part of an index in metrics. Salts may be secrets and are left
// out.
var contextLabels = []string{"tenant_id", "model_name", "lora_name", "block_size"}

// descs are the descriptions that desc has returned.
var descs []*prometheus.Desc

// desc returns the description of a metric that Collect reads. Describe sends it.
func desc(name, help string, labels ...string) *prometheus.Desc {
	d := prometheus.NewDesc("conductor_"+name, help, labels, nil)
	descs = append(descs, d)
	return d
}

var (
	descIndexBlocks      = desc("index_blocks", "Unique blocks indexed, by adapter.", contextLabels...)
	descIndexMemberships = desc("index_memberships", "Pairs of block and owner indexed.", contextLabels...)
	descIndexAliases     = desc("index_aliases", "Engine hashes mapped to canonical hashes.", contextLabels...)
	descIndexOrphans     = desc("index_orphans", "Blocks that wait for an event about their parent, at most 65,536 of each source.",
		contextLabels...)
	descIndexWaiting = desc("index_waiting",
		"Pairs of block and holder whose place in a prompt is not known, because they came without tokens or after an unknown parent. "+
			"conductor_index_orphans counts only the second kind.", contextLabels...)
	descIndexBytes      = desc("index_bytes", "Bytes that an index takes, its tables of engine hashes included.", contextLabels...)
	descIndexAliasBytes = desc("index_alias_bytes", "Bytes of the tables of engine hashes; those in pieces of chains are left out.",
		contextLabels...)

	descReady = desc("ready", "1 if /ready is 200, or would be if the server were not about to stop; else 0.")

	descIndexLimit = desc("index_bytes_limit", "Bytes that all indexes may take (index.max_bytes_total); absent without a bound.")
	descIndexUsed  = desc("index_bytes_used", "Bytes that all indexes take together.")

	descGhosts     = desc("ghost_bytes", "Bytes of blocks that no source holds any more, and whose names events may still mention.")
	descGhostLimit = desc("ghost_bytes_limit", "Bytes that blocks without a source may take (index.ghost_bytes); absent without a bound.")

	descPushed = desc("lmcache_batches_total", "Batches that instances of LMCache reported to POST /lmcache/events, by outcome.",
		"outcome")
	descUnclaimed = desc("lmcache_unclaimed_entries_total", "Entries of batches of LMCache that no source is registered for.")
	descNotPushed = desc("lmcache_refused_total",
		"Requests, batches and entries of POST /lmcache/events that had no effect, by reason. Entries without a source and repeated "+
			"batches are not among them.", "part", "reason")

	descMemoHits   = desc("hash_memo_hits_total", "Stretches of up to 16 blocks whose digests a hash profile found kept.")
	descMemoMisses = desc("hash_memo_misses_total", "Stretches of up to 16 blocks whose digests a hash profile had to compute.")
	descMemoBytes  = desc("hash_memo_bytes", "Bytes that kept digests of hash profiles take.")

	descJournalBytes   = desc("journal_bytes_total", "Bytes written to the journal.")
	descJournalDropped = desc("journal_dropped_total", "Journal records that were not written because the queue or the disk had no room.")
	descJournalErrors  = desc("journal_errors_total", "Failed attempts to write to the journal.")
)

// Collector exposes the Conductor's state to Prometheus. Source and index series
// are read at scrape time, so a source that is gone leaves no series behind.
type Collector struct{ Conductor *Conductor }

// Describe implements prometheus.Collector.
func (k Collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range descs {
		ch <- d
	}
	status.DescribeFleet(ch)
	k.Conductor.matcher.Describe(ch)
}

// Collect implements prometheus.Collector.
func (k Collector) Collect(ch chan<- prometheus.Metric) {
	c := k.Conductor
	c.sources.Fleet().Send(ch, c.tuned.Load().SourceSeries, c.now())
	ready := 0.0
	if c.Ready().Ready {
		ready = 1
	}
	ch <- prometheus.MustNewConstMetric(descReady, prometheus.GaugeValue, ready)
	for labels, st := range indexStats(c.catalog) {
		gauge := func(d *prometheus.Desc, v int) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(v), labels[:]...)
		}
		gauge(descIndexBlocks, st.Blocks)
		gauge(descIndexMemberships, st.Memberships)
		gauge(descIndexAliases, st.Aliases)
		gauge(descIndexOrphans, st.Orphans)
		gauge(descIndexWaiting, st.Raw)
		gauge(descIndexBytes, st.Bytes)
		gauge(descIndexAliasBytes, st.AliasBytes)
	}
	if used, limit := c.catalog.Options.Budget.Used(); limit > 0 {
		ch <- prometheus.MustNewConstMetric(descIndexLimit, prometheus.GaugeValue, float64(limit))
		ch <- prometheus.MustNewConstMetric(descIndexUsed, prometheus.GaugeValue, float64(used))
	}
	if used, limit := c.catalog.Options.Ghosts.Used(); limit > 0 {
		ch <- prometheus.MustNewConstMetric(descGhosts, prometheus.GaugeValue, float64(used))
		ch <- prometheus.MustNewConstMetric(descGhostLimit, prometheus.GaugeValue, float64(limit))
	}
	pushes := c.sources.Pushes().Counts()
	for i, n := range pushes.Batches {
		ch <- prometheus.MustNewConstMetric(descPushed, prometheus.CounterValue, float64(n), lmcache.Outcome(i).String())
	}
	ch <- prometheus.MustNewConstMetric(descUnclaimed, prometheus.CounterValue, float64(pushes.Unclaimed))
	for r, n := range pushes.Refused {
		ch <- prometheus.MustNewConstMetric(descNotPushed, prometheus.CounterValue, float64(n), r.Part, r.Reason)
	}
	if c.opts.Memo != nil {
		st := c.opts.Memo.Stats()
		ch <- prometheus.MustNewConstMetric(descMemoHits, prometheus.CounterValue, float64(st.Hits))
		ch <- prometheus.MustNewConstMetric(descMemoMisses, prometheus.CounterValue, float64(st.Misses))
		ch <- prometheus.MustNewConstMetric(descMemoBytes, prometheus.GaugeValue, float64(st.Bytes))
	}
	if c.opts.Tape != nil {
		st := c.opts.Tape.Stats()
		for d, n := range map[*prometheus.Desc]uint64{descJournalBytes: st.Bytes, descJournalDropped: st.Dropped,
			descJournalErrors: st.Errors} {
			ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n))
		}
	}
	c.matcher.Collect(ch)
}
