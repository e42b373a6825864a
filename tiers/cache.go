package tiers

import (
	"cmp"
	"math"
	"slices"
)

// A model may have several kinds of layers. Its engine then keeps a group of blocks for each kind, evicts the
// groups one by one, and takes a prefix of a prompt only if every group has what it needs to go on behind it:
//
//	full attention   |##########......|   all blocks before the boundary
//	sliding window   |......####......|   the blocks of the window before it
//	state space      |.........#......|   the block that ends there
//	                            ^ the hit
//
// A Cache says which groups a rank has on a medium. HitFinder turns what their owners hold into what the engine takes of
// it, and FoldHits goes on from there: it knows no groups.
//
// From a tier below the device an engine loads what goes on behind the hit on the device, so a group needs nothing there
// that lies before it:
//
//	device   full attention   |####......|   hit of 4 blocks
//	host     full attention   |..######..|
//	         sliding window   |....##....|   loads up to block 6, and not up to 8
//
// It loads the beginning of a chunk, if another group ends inside that. But it loads nothing rather than less than a chunk of each
// group, as if the hit on the device ends inside the last chunk on the host.

// Need is what a group needs of its own blocks before a boundary, so that an engine can go on from there.
type Need uint8

const (
	NeedAll     Need = iota // every block: full attention
	NeedWindow              // the last Group.Window blocks, or all where the prompt has fewer: sliding windows
	NeedState               // the block that ends at the boundary: state-space layers
	NeedUnknown             // not known, so nothing is asked for, and a hit is an upper bound
)

// Group is one group of layers. Sizes are in registered blocks.
type Group struct {
	Number int // as the engine numbers its groups
	Need   Need
	Window int // of NeedWindow, a multiple of Block
	// Least is how many blocks before the boundary a window looks at, not rounded to blocks of the group. It matters only below the
	// device, where a hit may end inside a block of the group.
	Least int
	Block int // size of a block of the group, at least 1
	// Drops says that a drafter needs the last block that the group has of a hit computed again: full attention loses a block, and a
	// window needs the block behind the boundary too. All groups with full attention have the same. Not for other groups.
	Drops bool
	// Unannounced says that the rank has announced the group on other media only. Then its Need is not known.
	Unannounced bool
}

// Cache is the groups that a rank of an engine has on a medium. Once an Owner has it, it does not change.
type Cache struct {
	// Slot tells the caches in a table of owners apart: dense from 0, and the same when a Cache takes the place of
	// another one because its rank has announced a further group.
	Slot int
	// Rank is the same for all caches of one rank, and Tier the tier of its medium. An engine looks at the tiers in turn.
	Rank   int
	Tier   Tier
	Groups []Group
	// Block is the least common multiple of the groups' blocks. Connectors begin to load at a multiple of it.
	Block int
	// Step is what hits are multiples of: Block on the device, 1 below it, and less than Block if Fine.
	Step int
	// Fine says that the engine takes hits which end inside a block. Then full attention goes on behind its last whole
	// block up to a single registered block that it has announced.
	Fine bool
}

// SetGroups sets the groups and what follows from them and from the Tier, which is set before. unit is what hits may be multiples of
// inside a block, 0 if they never end there.
func (c *Cache) SetGroups(groups []Group, unit int) {
	c.Groups, c.Block, c.Fine = groups, 1, unit > 0
	for _, g := range groups {
		c.Block = c.Block / Divisor(c.Block, g.Block) * g.Block
	}
	switch c.Step = c.Block; {
	case c.Fine:
		c.Step = unit
	case c.Tier > Device:
		c.Step = 1
	}
}

// Divisor returns the greatest common divisor of two numbers. That of 0 and a number is the number.
func Divisor(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// HasFull reports whether a group has full attention. If none has, an engine may take a prefix of which it has evicted
// the beginning.
func (c *Cache) HasFull() bool { return c.firstFull() != nil }

// HasUnknown reports whether it is not known of some group what it needs: hits are upper bounds then.
func (c *Cache) HasUnknown() bool {
	return slices.ContainsFunc(c.Groups, func(g Group) bool { return g.Need == NeedUnknown })
}

// firstFull returns a group with full attention, nil if there is none.
func (c *Cache) firstFull() *Group {
	for i := range c.Groups {
		if g := &c.Groups[i]; g.Need == NeedAll {
			return g
		}
	}
	return nil
}

// DroppedBlock returns how many blocks full attention, which the cache has, loses of a hit if it drops some.
func (c *Cache) DroppedBlock() int {
	block := c.firstFull().Block
	if c.Fine {
		block = min(block, c.Step)
	}
	return block
}

// FullDrops reports whether full attention drops the last block of a hit.
func (c *Cache) FullDrops() bool {
	g := c.firstFull()
	return g != nil && g.Drops
}

// hasKnown reports whether it is known of some group what it needs.
func (c *Cache) hasKnown() bool {
	return slices.ContainsFunc(c.Groups, func(g Group) bool { return g.Need != NeedUnknown })
}

// CacheHit says where the blocks that a rank takes from a medium end.
type CacheHit struct {
	Owner uint32 // one of those of the cache
	// Blocks is the end of the hit, Start where it begins: 0 on the device, the hit of the tiers above elsewhere.
	Blocks, Start int
	// Most is where the groups with full attention end, or the last block of any group without those. Group is the one that
	// made the hit shorter than that, and Refused the boundary that it refused last; Group is -1 if none did. Then Refused is where
	// less than a chunk ends that the engine does not load, 0 if that is not so.
	Most, Group, Refused int
}

// HitFinder finds hits. Its zero value is ready; keeping one saves allocations.
type HitFinder struct {
	at    []int32 // by slot, position in found plus one; zeros between calls
	reach []int   // by Cache.Rank, the hit of the tiers before; zeros between calls
	found []foundCache
	lists []spanList // of the groups of all found caches
	spans []linkedSpan
	hits  []CacheHit

	merged []blockRange // of the groups of the cache at hand
	ends   []int        // of each group, its end in merged
	// cursors are where reachOf or appendBelow stand in the ranges of each group. They go one way, so that an engine which holds every
	// other block costs no more than its ranges.
	cursors []int
	looked  int // how many ranges these two have looked at, for tests
}

// foundCache is a cache that holds blocks of the prompt.
type foundCache struct {
	cache *Cache
	owner uint32
	lists int // the first of its groups: one of whole blocks, and one of single blocks for each group
	chunk int // how many of a group's blocks a chunk has, the same number for all groups
}

// spanList is the spans of a group, by ascending beginning.
type spanList struct{ first, last int32 } // in HitFinder.spans, plus one

type linkedSpan struct {
	blockRange
	next int32 // plus one
}

// blockRange is blocks [from, to).
type blockRange struct{ from, to int }

// FindHits takes the prefixes and spans of owners with a Cache out of two lists, and puts in what engines take of them. later
// ascends by From, before and after. The lists that it returns have the memory of those that it gets; the hits are valid until the
// next call.
func (f *HitFinder) FindHits(prefixes []Prefix, later []Span, owners []Owner) ([]Prefix, []Span, []CacheHit) {
	f.found, f.lists, f.spans, f.hits = f.found[:0], f.lists[:0], f.spans[:0], f.hits[:0]
	ordinary, below := prefixes[:0], false
	for _, p := range prefixes {
		if !f.add(owners, p.Owner, 0, p.Blocks) {
			ordinary = append(ordinary, p)
		}
	}
	rest := later[:0]
	for _, s := range later {
		if !f.add(owners, s.Owner, s.From, s.To) {
			rest = append(rest, s)
		}
	}
	for i := range f.found {
		f.at[f.found[i].cache.Slot] = 0
		below = below || f.found[i].cache.Tier > Device
	}
	if below {
		slices.SortStableFunc(f.found, func(a, b foundCache) int { return int(a.cache.Tier) - int(b.cache.Tier) })
	}
	for i := range f.found {
		c := &f.found[i]
		hit := f.hitOf(c)
		f.hits = append(f.hits, hit)
		if below {
			f.reach[c.cache.Rank] = max(f.reach[c.cache.Rank], hit.Blocks)
		}
		switch {
		case c.cache.Tier > Device:
			ordinary, rest = f.appendBelow(ordinary, rest, c, hit.Blocks)
		case hit.Blocks > 0:
			ordinary = append(ordinary, Prefix{Owner: c.owner, Blocks: uint32(hit.Blocks)})
		}
	}
	if below {
		for i := range f.found {
			f.reach[f.found[i].cache.Rank] = 0
		}
		slices.SortStableFunc(rest, func(a, b Span) int { return cmp.Compare(a.From, b.From) })
	}
	return ordinary, rest, f.hits
}

// appendBelow appends the blocks before end that all groups with full attention, or all groups if none has it, have below the
// device: answers count them on their medium, also where the device has them.
func (f *HitFinder) appendBelow(prefixes []Prefix, later []Span, c *foundCache, end int) ([]Prefix, []Span) {
	full := c.cache.HasFull()
	f.cursors = append(f.cursors[:0], make([]int, len(c.cache.Groups))...)
	for from := 0; from < end; {
		to := end
		begins := from
		for i := range c.cache.Groups {
			if full && c.cache.Groups[i].Need != NeedAll || c.cache.Groups[i].Unannounced {
				continue
			}
			r := f.nextBehind(i, from)
			begins, to = max(begins, r.from), min(to, r.to)
		}
		switch {
		case begins >= end:
			return prefixes, later
		case begins > from: // a group lacks the blocks before
			from = begins
		case from == 0:
			prefixes = append(prefixes, Prefix{Owner: c.owner, Blocks: uint32(to)})
			from = to
		default:
			later = append(later, Span{Owner: c.owner, From: uint32(from), To: uint32(to)})
			from = to
		}
	}
	return prefixes, later
}

// nextBehind returns the first range of a group that ends behind a block, an empty one at the end of all if there is none. Blocks
// ascend from call to call.
func (f *HitFinder) nextBehind(group, block int) blockRange {
	ranges := f.rangesOf(group)
	for at := &f.cursors[group]; *at < len(ranges); *at++ {
		f.looked++
		if ranges[*at].to > block {
			return ranges[*at]
		}
	}
	return blockRange{math.MaxInt, math.MaxInt}
}

// rangeBehind returns the first of ascending ranges that ends behind a block, an empty one at the end of all if there is none.
func rangeBehind(ranges []blockRange, block int) blockRange {
	for _, r := range ranges {
		if r.to > block {
			return r
		}
	}
	return blockRange{math.MaxInt, math.MaxInt}
}

// add notes blocks [from, to) of an owner if it has a cache. Calls ascend by from.
func (f *HitFinder) add(owners []Owner, id, from, to uint32) bool {
	if int(id) >= len(owners) || owners[id].Cache == nil {
		return false
	}
	o := &owners[id]
	if o.Instance == Retired {
		return true
	}
	for len(f.at) <= o.Cache.Slot {
		f.at = append(f.at, 0)
	}
	for len(f.reach) <= o.Cache.Rank {
		f.reach = append(f.reach, 0)
	}
	at := f.at[o.Cache.Slot]
	if at == 0 {
		f.found = append(f.found, foundCache{cache: o.Cache, owner: id, lists: len(f.lists), chunk: 1})
		at = int32(len(f.found))
		f.at[o.Cache.Slot] = at
		for range 2 * len(o.Cache.Groups) {
			f.lists = append(f.lists, spanList{})
		}
	}
	c := &f.found[at-1]
	list := c.lists + 2*int(o.Group)
	g := &c.cache.Groups[o.Group]
	if g.Need != NeedUnknown {
		c.chunk = max(c.chunk, int(o.Chunk)/g.Block)
	}
	if o.Chunk > 1 {
		to = o.endOfChunks(from, to)
	}
	switch {
	case from == to:
	case g.Need == NeedState: // the state is that behind the last block
		for end := from + max(o.Chunk, 1); end <= to; end += max(o.Chunk, 1) {
			f.link(list, int(end)-1, int(end))
		}
	case o.Chunk <= 1 && g.Block > 1:
		f.link(list+1, int(from), int(to)) // announced singly, inside a block
	default:
		f.link(list, int(from), int(to))
	}
	return true
}

// link adds blocks [from, to) to a list.
func (f *HitFinder) link(list, from, to int) {
	f.spans = append(f.spans, linkedSpan{blockRange: blockRange{from, to}})
	n := int32(len(f.spans))
	if l := &f.lists[list]; l.last == 0 {
		*l = spanList{n, n}
	} else {
		f.spans[l.last-1].next = n
		l.last = n
	}
}

// hitOf returns the hit of a cache: the last boundary that every group accepts. It asks the groups in turn, each from where the one
// before ended, until none shortens the hit any more.
func (f *HitFinder) hitOf(c *foundCache) CacheHit {
	cache := c.cache
	f.mergeSpans(c)
	above := f.reach[cache.Rank]
	h := CacheHit{Owner: c.owner, Start: above - above%cache.Block, Group: -1}
	h.Most = f.mostOf(c, h.Start)
	h.Blocks = h.Most - h.Most%cache.Step
	f.cursors = f.cursors[:0]
	for i := range cache.Groups {
		f.cursors = append(f.cursors, len(f.rangesOf(i))-1)
	}
	whole := h.Blocks
	for again := true; again && h.Blocks > h.Start; {
		again = false
		for i := range cache.Groups {
			if reach := f.reachOf(c, i, h.Start, h.Blocks); reach < h.Blocks {
				h.Group, h.Refused, h.Blocks, again = i, h.Blocks, reach, true
			}
		}
	}
	for i := 0; i < len(cache.Groups) && cache.Tier > Device && h.Blocks > h.Start; i++ {
		end := h.Blocks
		if cache.Groups[i].Need == NeedAll { // its chunk may end behind the hit
			end = whole
		}
		if c.isPart(i, h.Start, end) {
			h.Group, h.Refused, h.Blocks = -1, h.Blocks, h.Start
		}
	}
	h.Start, h.Blocks = above, max(h.Blocks, above)
	return h
}

// isPart reports whether blocks [start, end) are less than a chunk of a group. An engine that takes hits which end inside a block also
// loads such a part, if its chunks are single blocks.
func (c *foundCache) isPart(group, start, end int) bool {
	g := &c.cache.Groups[group]
	return g.Need != NeedUnknown && end-start < c.chunk*g.Block && (c.chunk > 1 || !c.cache.Fine)
}

// mergeSpans makes ascending ranges that do not touch each other of the spans of each group.
func (f *HitFinder) mergeSpans(c *foundCache) {
	f.merged, f.ends = f.merged[:0], f.ends[:0]
	for i := range c.cache.Groups {
		first := len(f.merged)
		for n := f.lists[c.lists+2*i].first; n != 0; n = f.spans[n-1].next {
			f.merged = append(f.merged, f.spans[n-1].blockRange)
		}
		if own := f.merged[first:]; len(own) > 1 {
			if c.cache.Groups[i].Need == NeedState { // those of several chunks of one owner are before the next owner's
				slices.SortFunc(own, func(a, b blockRange) int { return a.from - b.from })
			}
			f.merged = f.merged[:first+mergeRanges(own)]
		}
		f.ends = append(f.ends, len(f.merged))
	}
}

// mergeRanges joins ascending ranges that touch, in place, and returns how many are left.
func mergeRanges(all []blockRange) int {
	last := 0
	for _, r := range all[1:] {
		if r.from <= all[last].to {
			all[last].to = max(all[last].to, r.to)
			continue
		}
		last++
		all[last] = r
	}
	return last + 1
}

// rangesOf returns the merged ranges of a group.
func (f *HitFinder) rangesOf(group int) []blockRange {
	from := 0
	if group > 0 {
		from = f.ends[group-1]
	}
	return f.merged[from:f.ends[group]]
}

// mostOf returns the end of the blocks from start on that all groups with full attention have, or of the last block of the group
// with the shortest chain if none has full attention.
func (f *HitFinder) mostOf(c *foundCache, start int) int {
	cache, most := c.cache, -1
	full, known := cache.HasFull(), cache.hasKnown()
	for i := range cache.Groups {
		g, ranges, end := &cache.Groups[i], f.rangesOf(i), 0
		switch {
		case g.Need == NeedUnknown && known || full && g.Need != NeedAll:
			continue
		case len(ranges) > 0 && g.Need != NeedAll:
			end = ranges[len(ranges)-1].to
		case g.Need == NeedAll:
			end = start
			if r := rangeBehind(ranges, start); r.from <= start {
				end = r.to
			}
		}
		if most < 0 || end < most {
			most = end
		}
	}
	switch most = max(most, 0); {
	case !full:
		return most
	case cache.Fine:
		most = f.tailBehind(c, most)
	}
	if cache.FullDrops() && most > 0 {
		dropped := cache.DroppedBlock()
		if cache.Tier > Device && c.chunk > 1 { // connectors load whole chunks
			dropped = c.chunk * cache.firstFull().Block
		}
		most = max(most-dropped, 0)
	}
	return most
}

// tailBehind returns the end of the last single block that all groups with full attention have announced less than a block behind
// run, or run if there is none.
func (f *HitFinder) tailBehind(c *foundCache, run int) int {
	cache := c.cache
	size := cache.firstFull().Block
	for end := run - run%size + size - 1; end > run; end-- {
		held := end%cache.Step == 0
		for i := range cache.Groups {
			held = held && (cache.Groups[i].Need != NeedAll || f.isSingle(c, i, end-1))
		}
		if held {
			return end
		}
	}
	return run
}

// isSingle reports whether a group has announced a block singly.
func (f *HitFinder) isSingle(c *foundCache, group, block int) bool {
	for n := f.lists[c.lists+2*group+1].first; n != 0; n = f.spans[n-1].next {
		if s := f.spans[n-1].blockRange; s.from <= block && block < s.to {
			return true
		}
	}
	return false
}

// reachOf returns the last boundary up to limit that a group accepts, 0 if there is none. limit is a multiple of Cache.Step. What
// lies before start is there. Below the device limit may be inside a chunk of the group: then the boundary is there, and the group has to
// have the whole chunk. Limits descend from call to call, and so does the group's cursor: a range that has no such boundary has none
// up to a lower limit either.
func (f *HitFinder) reachOf(c *foundCache, group, start, limit int) int {
	cache := c.cache
	g, ranges := &cache.Groups[group], f.rangesOf(group)
	if g.Need == NeedAll || g.Need == NeedUnknown {
		return limit // mostOf has seen to it
	}
	drop, chunk := 0, 1
	if cache.Tier > Device && !cache.Fine {
		chunk = c.chunk * g.Block
	}
	if g.Drops {
		drop = max(g.Block, chunk)
	}
	for at := &f.cursors[group]; *at >= 0; *at-- {
		f.looked++
		r := ranges[*at]
		end := min(r.to-drop, limit)
		end -= end % cache.Step
		whole, from := end+(chunk-end%chunk)%chunk, r.from
		if g.Need == NeedState {
			from -= chunk - 1
		}
		switch {
		case end <= from:
		case g.Need == NeedState, r.from <= start, whole-r.from >= g.Window && end-r.from >= g.Least:
			return end
		}
	}
	return 0
}
