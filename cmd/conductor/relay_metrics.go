package main

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"example.com/conductor/events/relay"
	"example.com/conductor/events/stream"
)

// relayRow is one series of a relay, by rank.
type relayRow struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(*relay.Stats) float64
}

var relaySeries = []relayRow{
	relayGauge("connected", "1 if there is a connection to the engine.", func(s *relay.Stats) float64 {
		return boolValue(s.Stream.Connected)
	}),
	relayGauge("synced", "1 if the relay has all batches of the engine's lifetime, or all that matter.", func(s *relay.Stats) float64 {
		return boolValue(s.Stream.State == stream.Synced)
	}),
	relayGauge("last_seq", "Number of the newest batch.", func(s *relay.Stats) float64 { return float64(s.Tape.Last) }),
	relayGauge("first_seq", "Number of the oldest batch in the log.", func(s *relay.Stats) float64 { return float64(s.Tape.First) }),
	relayGauge("log_memory_bytes", "Bytes of batches in memory.", func(s *relay.Stats) float64 { return float64(s.Tape.Memory) }),
	relayGauge("log_disk_bytes", "Bytes of batches on the disk.", func(s *relay.Stats) float64 { return float64(s.Tape.Disk) }),
	relayGauge("tree_blocks", "Blocks that the engine held when the oldest batch of the log came.", func(s *relay.Stats) float64 {
		return float64(s.Past.Blocks)
	}),
	relayGauge("tree_kept_blocks", "Blocks that the engine held no more, kept because others hang from them.",
		func(s *relay.Stats) float64 {
			return float64(s.Past.Kept)
		}),
	relayGauge("tree_bytes", "Memory of these blocks, estimated.", func(s *relay.Stats) float64 { return float64(s.Past.Bytes) }),
	relayGauge("tree_doubtful", "1 if what the engine held then is not known for certain.", func(s *relay.Stats) float64 {
		return boolValue(s.Past.Doubt != "")
	}),
	relayGauge("followers", "Live connections of followers.", func(s *relay.Stats) float64 { return float64(s.Live) }),
	relayGauge("replay_followers", "Connections of followers that ask for replays.", func(s *relay.Stats) float64 {
		return float64(s.Replays)
	}),
	relayCounter("batches", "Batches of the engine.", func(s *relay.Stats) uint64 { return s.Tape.Batches }),
	relayCounter("lifetimes", "Lifetimes of the engine that ended.", func(s *relay.Stats) uint64 { return s.Resets }),
	relayCounter("gaps", "Holes in the engine's numbers.", func(s *relay.Stats) uint64 { return s.Stream.Gaps }),
	relayCounter("published", "Batches sent live, over all followers.", func(s *relay.Stats) uint64 { return s.Published }),
	relayCounter("skips", "Times that a live connection missed batches that had left the log.",
		func(s *relay.Stats) uint64 { return s.Skipped }),
	relayCounter("requests", "Requests for replays.", func(s *relay.Stats) uint64 { return s.Requests }),
	relayCounter("bad_requests", "Requests of another form, which are not answered.", func(s *relay.Stats) uint64 { return s.BadRequests }),
	relayCounter("replayed", "Batches of the log sent in replies.", func(s *relay.Stats) uint64 { return s.Replayed }),
	relayCounter("dumps", "Replies that began with all blocks that the engine held.", func(s *relay.Stats) uint64 { return s.Dumps }),
	relayCounter("dumps_left_out", "Replies that began too late, as too few numbers were left for the blocks.",
		func(s *relay.Stats) uint64 { return s.DumpsLeftOut }),
	relayCounter("unfinished_replies", "Replies that ended without their end marker.", func(s *relay.Stats) uint64 { return s.Unfinished }),
	relayCounter("refused_connections", "Connections refused: a handshake failed, the engine was away, or there were too many.",
		func(s *relay.Stats) uint64 { return s.Refused }),
}

func relayGauge(name, help string, value func(*relay.Stats) float64) relayRow {
	return relayRow{prometheus.NewDesc("conductor_relay_"+name, help, []string{"rank"}, nil), prometheus.GaugeValue, value}
}

func relayCounter(name, help string, value func(*relay.Stats) uint64) relayRow {
	return relayRow{
		prometheus.NewDesc("conductor_relay_"+name+"_total", help, []string{"rank"}, nil), prometheus.CounterValue,
		func(s *relay.Stats) float64 { return float64(value(s)) },
	}
}

// boolValue returns 1 for true and 0 for false.
func boolValue(on bool) float64 {
	if on {
		return 1
	}
	return 0
}

// Describe implements prometheus.Collector.
func (r *relays) Describe(ch chan<- *prometheus.Desc) {
	for _, s := range relaySeries {
		ch <- s.desc
	}
}

// Collect implements prometheus.Collector.
func (r *relays) Collect(ch chan<- prometheus.Metric) {
	for rank, one := range r.all {
		stats := one.Stats()
		for _, s := range relaySeries {
			ch <- prometheus.MustNewConstMetric(s.desc, s.kind, s.value(&stats), strconv.Itoa(rank))
		}
	}
}
