package conductor

import (
	"github.com/prometheus/client_golang/prometheus"

	"example.com/conductor/conductor/lmcache"
)

// queryMetrics count what routers ask.
type queryMetrics struct {
	seconds *prometheus.HistogramVec
	unknown prometheus.Counter // fields
	by      [len(promptKinds)]prometheus.Observer
}

// promptKinds are the ways a prompt is given in, as metrics call them.
var promptKinds = [...]string{byTokens: "tokens", byHashes: "hashes", byClientHashes: "locals"}

const (
	byTokens = iota
	byHashes
	byClientHashes
)

// queryBuckets are in seconds. Prompts of 1,024 to 65,536 tokens take 10 to 500 µs
// (docs/benchmarks/query.md): there a bucket is 1.3 to 1.7 times the one before.
var queryBuckets = []float64{
	2e-6, 5e-6, 10e-6, 15e-6, 20e-6, 30e-6, 40e-6, 50e-6, 75e-6, 100e-6, 150e-6, 200e-6, 300e-6, 500e-6,
	1e-3, 2e-3, 5e-3, 10e-3, 50e-3, 250e-3,
}

func newQueryMetrics() queryMetrics {
	m := queryMetrics{
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "conductor_query_seconds",
			Help:    "Time from a decoded query to its answer, without HTTP and JSON.",
			Buckets: queryBuckets,
		}, []string{"by"}),
		unknown: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "conductor_unknown_fields_total",
			Help: "Fields of registrations and queries in the Conductor dialect that do not exist, such as mistyped ones.",
		}),
	}
	for i, by := range promptKinds {
		m.by[i] = m.seconds.WithLabelValues(by)
	}
	return m
}

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
	descMatched = desc("query_matched_tokens_total", "Prompt tokens that the best instance of an answer held.", "by")
	descAsked   = desc("query_tokens_total", "Prompt tokens asked for, in complete blocks.", "by")

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
	k.Conductor.queries.seconds.Describe(ch)
	k.Conductor.queries.unknown.Describe(ch)
}

// Collect implements prometheus.Collector.
func (k Collector) Collect(ch chan<- prometheus.Metric) {
	c := k.Conductor
	c.collectSources(ch)
	ready := 0.0
	if c.Ready().Ready {
		ready = 1
	}
	ch <- prometheus.MustNewConstMetric(descReady, prometheus.GaugeValue, ready)
	for labels, st := range c.registry.indexStats() {
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
	if used, limit := c.registry.options.Budget.Used(); limit > 0 {
		ch <- prometheus.MustNewConstMetric(descIndexLimit, prometheus.GaugeValue, float64(limit))
		ch <- prometheus.MustNewConstMetric(descIndexUsed, prometheus.GaugeValue, float64(used))
	}
	if used, limit := c.registry.options.Ghosts.Used(); limit > 0 {
		ch <- prometheus.MustNewConstMetric(descGhosts, prometheus.GaugeValue, float64(used))
		ch <- prometheus.MustNewConstMetric(descGhostLimit, prometheus.GaugeValue, float64(limit))
	}
	for i := range c.pushes.batches {
		ch <- prometheus.MustNewConstMetric(descPushed, prometheus.CounterValue, float64(c.pushes.batches[i].Load()),
			lmcache.Outcome(i).String())
	}
	ch <- prometheus.MustNewConstMetric(descUnclaimed, prometheus.CounterValue, float64(c.pushes.unclaimed.Load()))
	for r, n := range c.pushes.refusals() {
		ch <- prometheus.MustNewConstMetric(descNotPushed, prometheus.CounterValue, float64(n), r.part, r.reason)
	}
	if c.memo != nil {
		st := c.memo.Stats()
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
	c.queries.seconds.Collect(ch)
	for i, n := range c.registry.queryCounts() {
		ch <- prometheus.MustNewConstMetric(descMatched, prometheus.CounterValue, float64(n.Matched), promptKinds[i])
		ch <- prometheus.MustNewConstMetric(descAsked, prometheus.CounterValue, float64(n.Asked), promptKinds[i])
	}
	c.queries.unknown.Collect(ch)
}
