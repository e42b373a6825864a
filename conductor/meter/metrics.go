package meter

import (
	"github.com/prometheus/client_golang/prometheus"

	"example.com/conductor/conductor/lmcache"
	"example.com/conductor/conductor/status"
)

// descs are the descriptions of what one collector collects.
type descs []*prometheus.Desc

// add adds a description and returns it.
func (all *descs) add(name, help string, labels ...string) *prometheus.Desc {
	d := prometheus.NewDesc("conductor_"+name, help, labels, nil)
	*all = append(*all, d)
	return d
}

func (all descs) send(ch chan<- *prometheus.Desc) {
	for _, d := range all {
		ch <- d
	}
}

// serverDescs are those of Meter.Collect, without what it collects of other packages.
var serverDescs descs

var (
	descIndexBlocks      = serverDescs.add("index_blocks", "Unique blocks indexed, by adapter.", contextLabels...)
	descIndexMemberships = serverDescs.add("index_memberships", "Pairs of block and owner indexed.", contextLabels...)
	descIndexAliases     = serverDescs.add("index_aliases", "Engine hashes mapped to canonical hashes.", contextLabels...)
	descIndexOrphans     = serverDescs.add("index_orphans",
		"Blocks that wait for an event about their parent, at most 65,536 of each source.", contextLabels...)
	descIndexWaiting = serverDescs.add("index_waiting",
		"Pairs of block and holder whose place in a prompt is not known, because they came without tokens or after an unknown parent. "+
			"conductor_index_orphans counts only the second kind.", contextLabels...)
	descIndexBytes = serverDescs.add("index_bytes",
		"Bytes that an index takes, its tables of engine hashes included.", contextLabels...)
	descIndexAliasBytes = serverDescs.add("index_alias_bytes",
		"Bytes of the tables of engine hashes; those in pieces of chains are left out.", contextLabels...)

	descReady = serverDescs.add("ready", "1 if /ready is 200, or would be if the server were not about to stop; else 0.")

	descIndexLimit = serverDescs.add("index_bytes_limit",
		"Bytes that all indexes may take (index.max_bytes_total); absent without a bound.")
	descIndexUsed = serverDescs.add("index_bytes_used", "Bytes that all indexes take together.")

	descGhosts = serverDescs.add("ghost_bytes",
		"Bytes of blocks that no source holds any more, and whose names events may still mention.")
	descGhostLimit = serverDescs.add("ghost_bytes_limit",
		"Bytes that blocks without a source may take (index.ghost_bytes); absent without a bound.")

	descPushed = serverDescs.add("lmcache_batches_total", "Batches that instances of LMCache reported to POST /lmcache/events, by outcome.",
		"outcome")
	descUnclaimed = serverDescs.add("lmcache_unclaimed_entries_total", "Entries of batches of LMCache that no source is registered for.")
	descNotPushed = serverDescs.add("lmcache_refused_total",
		"Requests, batches and entries of POST /lmcache/events that had no effect, by reason. Entries without a source and repeated "+
			"batches are not among them.", "part", "reason")

	descMemoHits   = serverDescs.add("hash_memo_hits_total", "Stretches of up to 16 blocks whose digests a hash profile found kept.")
	descMemoMisses = serverDescs.add("hash_memo_misses_total", "Stretches of up to 16 blocks whose digests a hash profile had to compute.")
	descMemoBytes  = serverDescs.add("hash_memo_bytes", "Bytes that kept digests of hash profiles take.")

	descJournalBytes   = serverDescs.add("journal_bytes_total", "Bytes written to the journal.")
	descJournalDropped = serverDescs.add("journal_dropped_total",
		"Journal records that were not written because the queue or the disk had no room.")
	descJournalErrors = serverDescs.add("journal_errors_total", "Failed attempts to write to the journal.")
)

// Describe implements prometheus.Collector.
func (m *Meter) Describe(ch chan<- *prometheus.Desc) {
	serverDescs.send(ch)
	status.DescribeFleet(ch)
	m.opts.Matcher.Describe(ch)
}

// Collect implements prometheus.Collector.
func (m *Meter) Collect(ch chan<- prometheus.Metric) {
	m.opts.Sources.Fleet().Send(ch, m.limits.Load().Series, m.opts.Now())
	ready := 0.0
	if m.Ready().Ready {
		ready = 1
	}
	ch <- prometheus.MustNewConstMetric(descReady, prometheus.GaugeValue, ready)
	for labels, st := range sizes(m.opts.Catalog) {
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
	if used, limit := m.opts.Catalog.IndexOptions().Budget.Used(); limit > 0 {
		ch <- prometheus.MustNewConstMetric(descIndexLimit, prometheus.GaugeValue, float64(limit))
		ch <- prometheus.MustNewConstMetric(descIndexUsed, prometheus.GaugeValue, float64(used))
	}
	if used, limit := m.opts.Catalog.IndexOptions().Ghosts.Used(); limit > 0 {
		ch <- prometheus.MustNewConstMetric(descGhosts, prometheus.GaugeValue, float64(used))
		ch <- prometheus.MustNewConstMetric(descGhostLimit, prometheus.GaugeValue, float64(limit))
	}
	pushes := m.opts.Sources.Pushes().Counts()
	for i, n := range pushes.Batches {
		ch <- prometheus.MustNewConstMetric(descPushed, prometheus.CounterValue, float64(n), lmcache.Outcome(i).String())
	}
	ch <- prometheus.MustNewConstMetric(descUnclaimed, prometheus.CounterValue, float64(pushes.Unclaimed))
	for r, n := range pushes.Refused {
		ch <- prometheus.MustNewConstMetric(descNotPushed, prometheus.CounterValue, float64(n), r.Part, r.Reason)
	}
	if m.opts.Memo != nil {
		st := m.opts.Memo.Stats()
		ch <- prometheus.MustNewConstMetric(descMemoHits, prometheus.CounterValue, float64(st.Hits))
		ch <- prometheus.MustNewConstMetric(descMemoMisses, prometheus.CounterValue, float64(st.Misses))
		ch <- prometheus.MustNewConstMetric(descMemoBytes, prometheus.GaugeValue, float64(st.Bytes))
	}
	if m.opts.Tape != nil {
		st := m.opts.Tape.Stats()
		for d, n := range map[*prometheus.Desc]uint64{descJournalBytes: st.Bytes, descJournalDropped: st.Dropped,
			descJournalErrors: st.Errors} {
			ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n))
		}
	}
	m.opts.Matcher.Collect(ch)
}
