package conductor

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"kvconductor/conductor/lmcache"
)

// queryMetrics count what routers ask.
type queryMetrics struct {
	seconds *prometheus.HistogramVec
	matched *prometheus.CounterVec
	asked   *prometheus.CounterVec
	unknown prometheus.Counter // fields
	by      [len(promptKinds)]promptMetrics
}

// promptKinds are the ways a prompt is given in, as metrics call them.
var promptKinds = [...]string{byTokens: "tokens", byHashes: "hashes", byClientHashes: "locals"}

const (
	byTokens = iota
	byHashes
	byClientHashes
)

// promptMetrics are the series of one kind.
type promptMetrics struct {
	seconds        prometheus.Observer
	matched, asked prometheus.Counter
}

func newQueryMetrics() queryMetrics {
	m := queryMetrics{
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "conductor_query_seconds",
			Help: "Time from a decoded query to its answer, without HTTP and JSON.",
			// A lookup costs microseconds: buckets from 1 µs to 0.26 s, by fours.
			Buckets: prometheus.ExponentialBuckets(1e-6, 4, 10),
		}, []string{"by"}),
		matched: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "conductor_query_matched_tokens_total",
			Help: "Prompt tokens that the best instance of an answer held.",
		}, []string{"by"}),
		asked: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "conductor_query_tokens_total",
			Help: "Prompt tokens asked for, in complete blocks.",
		}, []string{"by"}),
		unknown: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "conductor_unknown_fields_total",
			Help: "Fields of registrations and queries in the Conductor dialect that do not exist, such as mistyped ones.",
		}),
	}
	for i, by := range promptKinds {
		m.by[i] = promptMetrics{m.seconds.WithLabelValues(by), m.matched.WithLabelValues(by), m.asked.WithLabelValues(by)}
	}
	return m
}

// observe records one answered query. The best instance held best of its blocks.
func (m *queryMetrics) observe(q *Query, best int, took time.Duration) {
	by, blocks := byTokens, 0
	if q.BlockSize > 0 {
		blocks = len(q.Tokens) / q.BlockSize
	}
	switch {
	case q.ByHash:
		by, blocks = byHashes, len(q.Hashes)
	case q.ByClientHash:
		by, blocks = byClientHashes, len(q.ClientHashes)
	}
	series := &m.by[by]
	series.seconds.Observe(took.Seconds())
	series.asked.Add(float64(blocks) * float64(q.BlockSize))
	series.matched.Add(float64(best) * float64(q.BlockSize))
}

// sourceLabels identify a source in metrics, as in its key.
var sourceLabels = []string{"instance_id", "tenant_id", "dp_rank"}

// contextLabels identify an index in metrics. Salts may be secrets and are left
// out: contexts that differ only there are added up.
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
	descSources  = desc("sources", "Registered sources by state.", "state")
	descBlocks   = desc("source_blocks", "Block memberships a source has; a block on two tiers counts twice.", sourceLabels...)
	descOrphans  = desc("source_orphans", "Blocks of a source that wait for an event about their parent.", sourceLabels...)
	descObjects  = desc("source_objects", "Objects of a pool that are bound to a block, of which others may be missing.", sourceLabels...)
	descParts    = desc("source_incomplete_blocks", "Blocks of a pool that lack objects, so that they do not count; each medium for itself.", sourceLabels...)
	descSeq      = desc("source_last_seq", "Sequence number of the last applied batch in the current epoch.", sourceLabels...)
	descEpoch    = desc("source_epoch", "Lifetimes of the publisher seen so far.", sourceLabels...)
	descAge      = desc("source_last_batch_age_seconds", "Time since the last batch arrived.", sourceLabels...)
	descQueued   = desc("source_queued_batches", "Batches received and not applied; at stream.queue the source is not read.", sourceLabels...)
	descQueuedB  = desc("source_queued_bytes", "Bytes of those batches; at stream.queue_bytes the source is not read.", sourceLabels...)
	descGaps     = desc("source_gaps_total", "Holes found in the sequence of batches.", sourceLabels...)
	descReplayed = desc("source_replayed_batches_total", "Batches applied from a replay.", sourceLabels...)
	descRestarts = desc("source_restarts_total", "Restarts of the publisher noticed after first contact.", sourceLabels...)
	descOverruns = desc("source_replay_overruns_total", "Replays whose first batch came after the batch asked for: the publisher's ring no longer had that one.", sourceLabels...)
	descDups     = desc("source_duplicate_batches_total", "Batches that came twice.", sourceLabels...)
	descReconn   = desc("source_reconnects_total", "Connections after the first.", sourceLabels...)
	descDropped  = desc("source_dropped_total", "Messages, events and hashes skipped, by reason.", append(sourceLabels, "reason")...)

	descFinding = desc("source_finding", "1 for each finding of the doctor about a source.", append(sourceLabels, "code")...)

	descIndexBlocks      = desc("index_blocks", "Unique blocks indexed.", contextLabels...)
	descIndexMemberships = desc("index_memberships", "Pairs of block and owner indexed.", contextLabels...)
	descIndexAliases     = desc("index_aliases", "Engine hashes mapped to canonical hashes.", contextLabels...)
	descIndexOrphans     = desc("index_orphans", "Blocks that wait for an event about their parent; limits.max_orphans bounds them for each source.", contextLabels...)
	descIndexWaiting     = desc("index_waiting", "Block memberships without a place in a prompt: announced without tokens, or after an unknown parent. conductor_index_orphans counts the second kind alone.", contextLabels...)
	descIndexBytes       = desc("index_bytes", "Bytes the index accounts for, aliases included.", contextLabels...)
	descIndexAliasBytes  = desc("index_alias_bytes", "Bytes of the tables of engine hashes; those in pieces of chains are left out.", contextLabels...)

	descIndexLimit = desc("index_bytes_limit", "Bytes that all indexes may take (index.max_bytes_total); absent without a bound.")
	descIndexUsed  = desc("index_bytes_used", "Bytes that all indexes take of that.")

	descRecalled = desc("recalled_names_total", "Lookups of engine hashes among remembered blocks that no source holds any more, by result.", "result")

	descPushed    = desc("lmcache_batches_total", "Batches that instances of LMCache reported to POST /lmcache/events, by outcome.", "outcome")
	descUnclaimed = desc("lmcache_unclaimed_entries_total", "Entries of those batches that no source is registered for.")

	descMemoHits   = desc("hash_memo_hits_total", "Stretches of up to 16 blocks whose engine digests were kept.")
	descMemoMisses = desc("hash_memo_misses_total", "Stretches of up to 16 blocks whose engine digests were looked for and not kept.")
	descMemoBytes  = desc("hash_memo_bytes", "Bytes the kept engine digests take, with what they are kept in.")

	descJournalBytes   = desc("journal_bytes_total", "Bytes written to the journal.")
	descJournalDropped = desc("journal_dropped_total", "Records not written, for want of room in the queue or on the disk.")
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
	k.Conductor.queries.matched.Describe(ch)
	k.Conductor.queries.asked.Describe(ch)
	k.Conductor.queries.unknown.Describe(ch)
}

// Collect implements prometheus.Collector.
func (k Collector) Collect(ch chan<- prometheus.Metric) {
	c := k.Conductor
	states := make(map[string]int)
	now := c.now()
	for _, s := range c.Services() {
		states[string(s.State)]++
		labels := []string{s.Instance, s.Tenant, strconv.Itoa(s.Rank)}
		gauge := func(d *prometheus.Desc, v float64) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
		}
		counter := func(d *prometheus.Desc, v uint64, more ...string) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), append(labels[:3:3], more...)...)
		}
		gauge(descBlocks, float64(s.Blocks))
		gauge(descOrphans, float64(s.Orphans))
		if s.Type == TypeMooncake {
			gauge(descObjects, float64(s.Objects))
			gauge(descParts, float64(s.Incomplete))
		}
		gauge(descEpoch, float64(s.Epoch))
		if s.LastSeq != nil {
			gauge(descSeq, float64(*s.LastSeq))
		}
		if !s.LastBatch.IsZero() {
			gauge(descAge, now.Sub(s.LastBatch).Seconds())
		}
		gauge(descQueued, float64(s.Queued))
		gauge(descQueuedB, float64(s.QueuedBytes))
		counter(descGaps, s.Gaps)
		counter(descReplayed, s.Replayed)
		counter(descRestarts, s.Restarts)
		counter(descOverruns, s.Overruns)
		counter(descDups, s.Duplicates)
		counter(descReconn, s.Reconnects)
		for _, f := range s.Findings {
			ch <- prometheus.MustNewConstMetric(descFinding, prometheus.GaugeValue, 1, append(labels[:3:3], f.Code)...)
		}
		for reason, n := range s.Dropped {
			counter(descDropped, n, string(reason))
		}
	}
	for state, n := range states {
		ch <- prometheus.MustNewConstMetric(descSources, prometheus.GaugeValue, float64(n), state)
	}
	for labels, st := range c.indexStats() {
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
	if used, limit := c.options.Budget.Used(); limit > 0 {
		ch <- prometheus.MustNewConstMetric(descIndexLimit, prometheus.GaugeValue, float64(limit))
		ch <- prometheus.MustNewConstMetric(descIndexUsed, prometheus.GaugeValue, float64(used))
	}
	if c.recall != nil {
		ch <- prometheus.MustNewConstMetric(descRecalled, prometheus.CounterValue, float64(c.recall.found.Load()), "found")
		ch <- prometheus.MustNewConstMetric(descRecalled, prometheus.CounterValue, float64(c.recall.missed.Load()), "missed")
	}
	for i := range c.pushes.batches {
		ch <- prometheus.MustNewConstMetric(descPushed, prometheus.CounterValue, float64(c.pushes.batches[i].Load()), lmcache.Outcome(i).String())
	}
	ch <- prometheus.MustNewConstMetric(descUnclaimed, prometheus.CounterValue, float64(c.pushes.unclaimed.Load()))
	if c.memo != nil {
		st := c.memo.Stats()
		ch <- prometheus.MustNewConstMetric(descMemoHits, prometheus.CounterValue, float64(st.Hits))
		ch <- prometheus.MustNewConstMetric(descMemoMisses, prometheus.CounterValue, float64(st.Misses))
		ch <- prometheus.MustNewConstMetric(descMemoBytes, prometheus.GaugeValue, float64(st.Bytes))
	}
	if c.opts.Journal != nil {
		st := c.opts.Journal.Stats()
		for d, n := range map[*prometheus.Desc]uint64{descJournalBytes: st.Bytes, descJournalDropped: st.Dropped, descJournalErrors: st.Errors} {
			ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n))
		}
	}
	c.queries.seconds.Collect(ch)
	c.queries.matched.Collect(ch)
	c.queries.asked.Collect(ch)
	c.queries.unknown.Collect(ch)
}
