package dynamo

import (
	"strconv"

	"kvconductor/conductor/body"
)

// Answers are written without reflection: they are most of what a query costs
// besides its body.

// appendAnswer writes the answer of /query and /query_by_hash. scores, frequencies
// and tree_sizes are what clients of version 1.0 read, scores, frequencies and
// instances what today's do. A worker without a match is in none of them.
//
// frequencies is always empty: it counted queries by depth, in a structure that is
// long gone. tree_sizes says how many blocks those in scores hold.
func appendAnswer(dst []byte, found []match, held func(worker string, rank int32) int) []byte {
	dst = append(dst, `{"scores":{`...)
	dst = appendRanks(dst, found, func(dst []byte, m *match) []byte { return appendUint(dst, m.device) })
	dst = append(dst, `},"frequencies":[],"tree_sizes":{`...)
	dst = appendRanks(dst, found, func(dst []byte, m *match) []byte {
		return strconv.AppendInt(dst, int64(held(m.worker, m.rank)), 10)
	})
	dst = append(dst, `},"instances":{`...)
	for first, at := true, 0; at < len(found); first = false {
		if !first {
			dst = append(dst, ',')
		}
		ranks := found[at:end(found, at)]
		dst = appendInstance(dst, ranks)
		at += len(ranks)
	}
	return append(dst, '}', '}')
}

// end returns where the ranks of the worker at i end.
func end(found []match, i int) int {
	j := i + 1
	for j < len(found) && found[j].worker == found[i].worker {
		j++
	}
	return j
}

// appendRanks writes worker:{rank:value} for the blocks on devices.
func appendRanks(dst []byte, found []match, value func([]byte, *match) []byte) []byte {
	var open *match // of the object being written
	for i := range found {
		m := &found[i]
		if m.device == 0 {
			continue
		}
		switch {
		case open == nil:
			dst = append(body.AppendString(dst, m.worker, false), ':', '{')
		case open.worker != m.worker:
			dst = append(dst, '}', ',')
			dst = append(body.AppendString(dst, m.worker, false), ':', '{')
		default:
			dst = append(dst, ',')
		}
		open = m
		dst = append(appendRank(dst, m.rank), ':')
		dst = value(dst, m)
	}
	if open != nil {
		dst = append(dst, '}')
	}
	return dst
}

// appendInstance writes how much of a prompt one worker has, by tier: the best of
// its ranks, each number cumulative. Disk is everything below the host, external
// storage too.
func appendInstance(dst []byte, ranks []match) []byte {
	var gpu, cpu, disk uint32
	for i := range ranks {
		gpu, cpu, disk = max(gpu, ranks[i].device), max(cpu, ranks[i].host), max(disk, ranks[i].external)
	}
	dst = append(body.AppendString(dst, ranks[0].worker, false), `:{"longest_matched":`...)
	dst = appendUint(dst, disk)
	dst = append(dst, `,"gpu":`...)
	dst = appendUint(dst, gpu)
	dst = append(dst, `,"dp":{`...)
	for i := range ranks {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(appendRank(dst, ranks[i].rank), ':')
		dst = appendUint(dst, ranks[i].device)
	}
	dst = append(dst, `},"cpu":`...)
	dst = appendUint(dst, cpu)
	dst = append(dst, `,"disk":`...)
	dst = appendUint(dst, disk)
	return append(dst, '}')
}

// appendTiered writes the answer of /query_tiered_by_hash. Hits below the device
// are what a tier adds to those above it; a tier without a hit is left out.
func appendTiered(dst []byte, found []match, blockSize int) []byte {
	dst = append(dst, `{"block_size":`...)
	dst = strconv.AppendInt(dst, int64(blockSize), 10)
	dst = append(dst, `,"tiered":{"device":{"scores":[`...)
	dst, _ = appendHits(dst, found, func(m *match) uint32 { return m.device })
	dst = append(dst, `],"frequencies":[]},"lower_tier":[`...)
	from := len(dst)
	for _, tier := range []struct {
		name string
		hits func(*match) uint32
	}{
		{"host_pinned", func(m *match) uint32 { return m.host - m.device }},
		{"disk", func(m *match) uint32 { return m.disk - m.host }},
		{"external", func(m *match) uint32 { return m.external - m.disk }},
	} {
		start := len(dst)
		if start > from {
			dst = append(dst, ',')
		}
		dst = append(body.AppendString(append(dst, '['), tier.name, false), `,{"hits":[`...)
		var hits bool
		if dst, hits = appendHits(dst, found, tier.hits); !hits {
			dst = dst[:start]
			continue
		}
		dst = append(dst, `]}]`...)
	}
	return append(dst, `]}}`...)
}

// appendHits writes [[worker, blocks], ...] for those that are not zero, and tells
// whether there is one.
func appendHits(dst []byte, found []match, blocks func(*match) uint32) ([]byte, bool) {
	some := false
	for i := range found {
		n := blocks(&found[i])
		if n == 0 {
			continue
		}
		if some {
			dst = append(dst, ',')
		}
		some = true
		dst = append(dst, `[{"worker_id":`...)
		dst = appendID(dst, found[i].worker)
		dst = append(dst, `,"dp_rank":`...)
		dst = strconv.AppendInt(dst, int64(found[i].rank), 10)
		dst = append(dst, '}', ',')
		dst = append(appendUint(dst, n), ']')
	}
	return dst, some
}

func appendUint(dst []byte, n uint32) []byte { return strconv.AppendUint(dst, uint64(n), 10) }

// appendRank writes a rank as the key of an object.
func appendRank(dst []byte, rank int32) []byte {
	return append(strconv.AppendInt(append(dst, '"'), int64(rank), 10), '"')
}
