package truth

// Row is the true answer for one instance, in tokens.
type Row struct {
	Longest int // contiguous prefix, each block on any tier of any rank or in a pool
	GPU     int // of those, on the device of any rank
	CPU     int // of those, in the host memory of any rank or a pool
	Disk    int // of those, on the disk of any rank or a pool
	Ranks   []Rank

	Pool Share // no answer has it
}

// Share is the part of a row that pools add, in tokens.
type Share struct {
	Longest   int // the prefix is so much longer
	CPU, Disk int // of the row's, no rank holds them there
}

// Rank is the true answer for one rank of an instance, in tokens.
type Rank struct {
	Held int // blocks of the matched prefix the rank holds on any tier
	// Cascade: device blocks from the start, then its own or a pool's host blocks
	// from there, then disk blocks likewise; GPU <= CPU <= Disk.
	GPU, CPU, Disk int
}

// Row computes the answer for the instance whose ranks are the engines
// first, first+1, ... first+ranks-1. Path is what Walk found for the prompt;
// ranks is reused.
func (t *Tree) Row(path []ID, first int, ranks []Rank) Row {
	row := Row{Ranks: ranks}
	clear(ranks)

	for _, id := range path {
		at := int(id)*t.columns + first
		held := t.held[at : at+len(ranks)]
		var any Tier
		for _, h := range held {
			any |= h
		}
		pooled := t.Pooled(id)
		if any == 0 && pooled == 0 {
			break
		}
		if any == 0 || row.Pool.Longest > 0 {
			row.Pool.Longest += t.block
		}
		row.Pool.CPU += t.count(pooled&^any, Host)
		row.Pool.Disk += t.count(pooled&^any, Disk)
		any |= pooled
		row.Longest += t.block
		row.GPU += t.count(any, Device)
		row.CPU += t.count(any, Host)
		row.Disk += t.count(any, Disk)
		for r, h := range held {
			row.Ranks[r].Held += t.count(h, Device|Host|Disk)
		}
	}
	for r := range ranks {
		at := 0
		at = t.run(path, at, first+r, Device)
		ranks[r].GPU = at * t.block
		at = t.run(path, at, first+r, Host)
		ranks[r].CPU = at * t.block
		at = t.run(path, at, first+r, Disk)
		ranks[r].Disk = at * t.block
	}
	return row
}

func (t *Tree) count(held, tier Tier) int {
	if held&tier == 0 {
		return 0
	}
	return t.block
}

// run returns the end of the run of blocks from position at that the engine, or
// a pool, holds on the tier. No pool has a device.
func (t *Tree) run(path []ID, at, engine int, tier Tier) int {
	for at < len(path) && (t.Held(path[at], engine)|t.Pooled(path[at]))&tier != 0 {
		at++
	}
	return at
}
