package dynamo

import "example.com/conductor/conductor/body"

// Answers are written without reflection: they are most of what a query costs
// besides its body. They are in JSON, which needs no lengths of maps and lists.

// writeAnswer writes the answer of /query and /query_by_hash. scores, frequencies
// and tree_sizes are what clients of version 1.0 read, scores, frequencies and
// instances what today's do. A worker without a match is in none of them.
//
// frequencies is always empty: it counted queries by depth, in a structure that is
// long gone. tree_sizes says how many blocks those in scores hold.
func writeAnswer(e *body.Encoder, found []rankMatch, held func(worker string, rank int32) int) {
	e.Map(0)
	e.Name("scores")
	writeRanks(e, found, func(m *rankMatch) int { return int(m.device) })
	e.Name("frequencies")
	e.List(0)
	e.EndList()
	e.Name("tree_sizes")
	writeRanks(e, found, func(m *rankMatch) int { return held(m.worker, m.rank) })
	e.Name("instances")
	e.Map(0)
	for len(found) > 0 {
		var ranks []rankMatch
		ranks, found = worker(found)
		writeInstance(e, ranks)
	}
	e.EndMap()
	e.EndMap()
}

// worker returns the ranks of the first worker, and the others.
func worker(found []rankMatch) (ranks, others []rankMatch) {
	n := 1
	for n < len(found) && found[n].worker == found[0].worker {
		n++
	}
	return found[:n], found[n:]
}

// writeRanks writes {worker: {rank: value}} for the blocks on devices.
func writeRanks(e *body.Encoder, found []rankMatch, value func(*rankMatch) int) {
	e.Map(0)
	for len(found) > 0 {
		var ranks []rankMatch
		ranks, found = worker(found)
		open := false
		for i := range ranks {
			m := &ranks[i]
			if m.device == 0 {
				continue
			}
			if !open {
				open = true
				e.Key(m.worker)
				e.Map(0)
			}
			e.NumberName(int(m.rank))
			e.Int(value(m))
		}
		if open {
			e.EndMap()
		}
	}
	e.EndMap()
}

// writeInstance writes how much of a prompt one worker has, by tier: the best of
// its ranks, each number cumulative. Disk is everything below the host, external
// storage too.
func writeInstance(e *body.Encoder, ranks []rankMatch) {
	var gpu, cpu, disk uint32
	for i := range ranks {
		gpu, cpu, disk = max(gpu, ranks[i].device), max(cpu, ranks[i].host), max(disk, ranks[i].external)
	}
	e.Key(ranks[0].worker)
	e.Map(0)
	e.IntField("longest_matched", int(disk))
	e.IntField("gpu", int(gpu))
	e.Name("dp")
	e.Map(0)
	for i := range ranks {
		e.NumberName(int(ranks[i].rank))
		e.Int(int(ranks[i].device))
	}
	e.EndMap()
	e.IntField("cpu", int(cpu))
	e.IntField("disk", int(disk))
	e.EndMap()
}

// writeTiered writes the answer of /query_tiered_by_hash. Hits below the device
// are what a tier adds to those above it; a tier without a hit is left out.
func writeTiered(e *body.Encoder, found []rankMatch, blockSize int) {
	e.Map(0)
	e.IntField("block_size", blockSize)
	e.Name("tiered")
	e.Map(0)
	e.Name("device")
	e.Map(0)
	e.Name("scores")
	writeHits(e, found, func(m *rankMatch) uint32 { return m.device })
	e.Name("frequencies")
	e.List(0)
	e.EndList()
	e.EndMap()
	e.Name("lower_tier")
	e.List(0)
	for _, tier := range []struct {
		name string
		hits func(*rankMatch) uint32
	}{
		{"host_pinned", func(m *rankMatch) uint32 { return m.host - m.device }},
		{"disk", func(m *rankMatch) uint32 { return m.disk - m.host }},
		{"external", func(m *rankMatch) uint32 { return m.external - m.disk }},
	} {
		start := len(e.Out)
		e.List(0)
		e.Text(tier.name)
		e.Map(0)
		e.Name("hits")
		hits := writeHits(e, found, tier.hits)
		e.EndMap()
		e.EndList()
		if !hits {
			e.Out = e.Out[:start]
		}
	}
	e.EndList()
	e.EndMap()
	e.EndMap()
}

// writeHits writes [[worker, blocks], ...] for those that are not zero, and reports
// whether there is one.
func writeHits(e *body.Encoder, found []rankMatch, blocks func(*rankMatch) uint32) (some bool) {
	e.List(0)
	for i := range found {
		n := blocks(&found[i])
		if n == 0 {
			continue
		}
		some = true
		e.List(0)
		e.Map(0)
		e.Name("worker_id")
		e.Out = appendID(e.Out, found[i].worker)
		e.IntField("dp_rank", int(found[i].rank))
		e.EndMap()
		e.Int(int(n))
		e.EndList()
	}
	e.EndList()
	return some
}
