package tiers

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"example.com/conductor/internal/alloctest"
)

// heldGroup is what a group holds, block by block: whole blocks of the engine, and single registered blocks inside one.
type heldGroup struct{ whole, single []bool }

// takes computes what an engine takes from the definition: the longest prefix that every group accepts. start is what it has from
// tiers above, chunk how many of a group's blocks a chunk has, 1 on the device.
func takes(c *Cache, held []heldGroup, start, blocks, chunk int) int {
	if !c.hasKnown() { // as far as all groups have a block
		for _, h := range held {
			blocks = min(blocks, 1+lastIndex(h.whole))
		}
	}
	begin := start - start%c.Block
	last := func(asked func(*Group) bool) int {
		for n := blocks - blocks%c.Step; n > begin; n -= c.Step {
			accepted := true
			for i := range c.Groups {
				accepted = accepted && (!asked(&c.Groups[i]) || accepts(c, &c.Groups[i], held, i, begin, n, chunk))
			}
			if accepted {
				return n
			}
		}
		return begin
	}
	n := last(func(*Group) bool { return true })
	for _, g := range c.Groups {
		end := n
		if g.Need == NeedAll {
			end = last(func(g *Group) bool { return g.Need == NeedAll })
		}
		if c.Tier > Device && (chunk > 1 || !c.Fine) && g.Need != NeedUnknown && end-begin < g.Block*chunk { // less than a chunk
			return start
		}
	}
	return max(n, start)
}

func lastIndex(all []bool) int {
	at := len(all) - 1
	for at >= 0 && !all[at] {
		at--
	}
	return at
}

// accepts reports whether an engine could go on behind n blocks as far as one group is concerned.
func accepts(c *Cache, g *Group, held []heldGroup, i, start, n, chunk int) bool {
	size := g.Block * chunk
	has := func(from, to int) bool {
		for b := max(from, 0); b < to; b++ {
			if b >= len(held[i].whole) || !held[i].whole[b] {
				return false
			}
		}
		return true
	}
	switch g.Need {
	case NeedAll:
		more := 0
		if g.Drops {
			if more = c.DroppedBlock(); chunk > 1 {
				more = size
			}
		}
		if has(start, n+more) {
			return true
		}
		// The end may be in a block that the engine has begun, if all groups with full attention say so.
		for end := n + more; c.Fine && end < n+more+g.Block; end++ {
			run := end - end%g.Block
			if end%g.Block == 0 && end > n+more {
				return false
			}
			ok := end%c.Step == 0 && end <= len(held[i].single)
			for j := range c.Groups {
				ok = ok && (c.Groups[j].Need != NeedAll || held[j].single[end-1])
			}
			if ok && has(start, run) {
				return true
			}
		}
		return false
	case NeedWindow:
		more := 0
		if g.Drops {
			if more = g.Block; !c.Fine {
				more = size
			}
		}
		whole := n
		if c.Tier > Device && !c.Fine { // the beginning of a chunk is loaded, too
			whole += (size - n%size) % size
		}
		least := whole - g.Window
		if c.Tier > Device {
			least = min(least, n-g.Least)
		}
		return has(max(start, least), whole+more)
	case NeedState:
		most := n
		if c.Tier > Device && !c.Fine {
			most += size - 1
		}
		for end := n; end <= min(most, len(held[i].single)); end++ {
			if has(end-1, end) && end%size == 0 || held[i].single[end-1] {
				return true
			}
		}
		return false
	}
	return true
}

// randomCache returns a cache and what its groups hold of a prompt, in chunks of a number of blocks if it is below the device.
func randomCache(rng *rand.Rand, slot int) (c *Cache, held []heldGroup, blocks, chunk int) {
	chunk = 1 + rng.IntN(4)/3
	c = &Cache{Slot: slot, Rank: slot}
	drops := map[Need]bool{NeedAll: rng.IntN(4) == 0, NeedWindow: rng.IntN(4) == 0} // a drafter has no state-space layers
	size := 1 + rng.IntN(3)
	var groups []Group
	for range 1 + rng.IntN(4) {
		g := Group{Need: Need(rng.IntN(3)), Block: 1}
		if rng.IntN(12) == 0 {
			g.Need = NeedUnknown
		}
		if rng.IntN(3) == 0 || g.Need == NeedAll {
			g.Block = size
		}
		if g.Need == NeedWindow {
			g.Window = g.Block * (1 + rng.IntN(4))
			g.Least = g.Window - rng.IntN(g.Block)
		}
		g.Drops = drops[g.Need]
		groups = append(groups, g)
	}
	unit := 0
	if size > 1 && rng.IntN(3) == 0 && !slices.ContainsFunc(groups, func(g Group) bool { return g.Need == NeedWindow && g.Block > 1 }) {
		unit = 1
	}
	c.SetGroups(groups, unit)
	blocks = rng.IntN(30)
	for _, g := range groups {
		h := heldGroup{make([]bool, blocks), make([]bool, blocks)}
		full := rng.IntN(blocks + 1)
		for b := 0; b+g.Block*chunk <= blocks; b += g.Block * chunk {
			if g.Need == NeedAll && b < full || rng.IntN(3) > 0 {
				for j := range g.Block * chunk {
					h.whole[b+j] = true
				}
			}
		}
		for b := range blocks {
			h.single[b] = g.Block > 1 && !h.whole[b] && rng.IntN(5) == 0
		}
		if g.Block*chunk == 1 {
			copy(h.single, h.whole)
		}
		held = append(held, h)
	}
	return c, held, blocks, chunk
}

// ownersOf returns owners that hold what the groups of a cache do, and appends what they hold to lists.
func ownersOf(rng *rand.Rand, c *Cache, held []heldGroup, chunk int, owners []Owner, prefixes []Prefix, later []Span) (
	[]Owner, []Prefix, []Span,
) {
	medium := Medium{c.Tier, []string{NameDevice, NameHost, NameDisk}[c.Tier]}
	add := func(group int, chunk uint32, blocks []bool) {
		// Some blocks are held by another generation of owners, some by both.
		parts := [2][]bool{slices.Clone(blocks), make([]bool, len(blocks))}
		if rng.IntN(4) == 0 {
			step := int(max(chunk, 1))
			for b := 0; b+step <= len(blocks); b += step {
				which := rng.IntN(3)
				for j := range step {
					parts[0][b+j], parts[1][b+j] = blocks[b+j] && which != 1, blocks[b+j] && which != 0
				}
			}
		}
		for _, p := range parts {
			id := uint32(len(owners))
			owners = append(owners, Owner{Medium: medium, Chunk: chunk, Cache: c, Group: uint32(group)})
			for from := 0; from < len(p); from++ {
				to := from
				for to < len(p) && p[to] {
					to++
				}
				switch {
				case to == from:
				case from == 0:
					prefixes = append(prefixes, Prefix{id, uint32(to)})
				default:
					later = append(later, Span{id, uint32(from), uint32(to)})
				}
				from = max(from, to)
			}
		}
	}
	for i, g := range c.Groups {
		if g.Block*chunk > 1 {
			add(i, uint32(g.Block*chunk), held[i].whole)
			add(i, 0, held[i].single)
		} else {
			add(i, 0, held[i].whole)
		}
	}
	return owners, prefixes, later
}

// Hits equal those of the definition, whatever the groups need and however owners hold their blocks.
func TestHitsModel(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	var f HitFinder
	for i := range 20_000 {
		var owners []Owner
		var prefixes []Prefix
		var later []Span
		var caches []*Cache
		var want []int
		var all [][]heldGroup
		for n := range 1 + rng.IntN(3) {
			c, held, blocks, chunk := randomCache(rng, n)
			start := 0
			if n > 0 && caches[n-1].Tier == Device && rng.IntN(2) == 0 { // the host of the rank before
				c.Tier, c.Rank, start = Host, caches[n-1].Rank, want[n-1]
				unit := 0
				if c.Fine && chunk == 1 && !slices.ContainsFunc(c.Groups, func(g Group) bool { return g.Block != c.Groups[0].Block }) {
					unit = c.Step
				}
				c.SetGroups(c.Groups, unit)
			}
			if c.Tier == Device {
				chunk = 1
			}
			for i := range held {
				if chunk > 1 {
					clear(held[i].single)
				}
			}
			caches, all = append(caches, c), append(all, held)
			want = append(want, takes(c, held, start, blocks, chunk))
			owners, prefixes, later = ownersOf(rng, c, held, chunk, owners, prefixes, later)
		}
		owners = append(owners, Owner{Medium: Medium{Device, NameDevice}}) // of an engine without groups
		ordinary := uint32(len(owners) - 1)
		prefixes, later = append(prefixes, Prefix{ordinary, 2}), append(later, Span{ordinary, 4, 6})
		slices.SortStableFunc(later, func(a, b Span) int { return cmp.Compare(a.From, b.From) })
		gotPrefixes, gotLater, hits := f.FindHits(slices.Clone(prefixes), slices.Clone(later), owners)
		got := make([]int, len(caches))
		for _, h := range hits {
			got[owners[h.Owner].Cache.Slot] = h.Blocks
		}
		for n, c := range caches {
			seen := slices.ContainsFunc(hits, func(h CacheHit) bool { return owners[h.Owner].Cache == c })
			if !seen && want[n] > 0 && c.Tier > Device {
				continue // nothing is held there, so the tier above has it all
			}
			if got[n] != want[n] {
				t.Fatalf("seed %d scene %d: %+v holds %+v: hit of %d blocks, want %d", seed, i, *c, all[n], got[n], want[n])
			}
		}
		if !slices.Contains(gotPrefixes, Prefix{ordinary, 2}) || !slices.Contains(gotLater, Span{ordinary, 4, 6}) {
			t.Fatalf("seed %d scene %d: an owner without groups is not as before: %v %v", seed, i, gotPrefixes, gotLater)
		}
		for _, p := range gotPrefixes {
			if c := owners[p.Owner].Cache; c != nil && int(p.Blocks) > want[c.Slot] {
				t.Fatalf("seed %d scene %d: %+v shows %d blocks of %d", seed, i, *c, p.Blocks, want[c.Slot])
			}
		}
		if !slices.IsSortedFunc(gotLater, func(a, b Span) int { return cmp.Compare(a.From, b.From) }) {
			t.Fatalf("seed %d scene %d: %v does not ascend", seed, i, gotLater)
		}
	}
}

// TestAlternatingGroups holds that a hit costs no more than the ranges of its groups, where each group refuses what the other accepts,
// and where one group below the device has every other block.
func TestAlternatingGroups(t *testing.T) {
	const blocks = 5000
	f := func(tier Tier, windows, every, end int) {
		t.Helper()
		c := &Cache{Tier: tier}
		groups, held := make([]Group, windows), make([]heldGroup, windows)
		for i := range windows {
			groups[i] = Group{Number: i, Need: NeedWindow, Window: 1, Block: 1}
			held[i] = heldGroup{make([]bool, blocks), make([]bool, blocks)}
			for b := range blocks {
				held[i].whole[b] = b < end || b%every == i
			}
		}
		c.SetGroups(groups, 0)
		owners, prefixes, later := ownersOf(rand.New(rand.NewPCG(1, 1)), c, held, 1, nil, nil, nil)
		slices.SortStableFunc(later, func(a, b Span) int { return cmp.Compare(a.From, b.From) })
		spans := len(prefixes) + len(later)
		var finder HitFinder
		_, _, hits := finder.FindHits(prefixes, later, owners)
		if want := takes(c, held, 0, blocks, 1); hits[0].Blocks != want {
			t.Errorf("%d groups on tier %v: hit of %d blocks, want %d", windows, tier, hits[0].Blocks, want)
		}
		if most := 4 * windows * spans; finder.looked > most {
			t.Errorf("%d groups on tier %v: looked %d times at %d ranges", windows, tier, finder.looked, spans)
		}
	}
	for _, tier := range []Tier{Device, Host} {
		f(tier, 2, 2, 0)
		f(tier, 2, 2, 7)
		f(tier, 5, 5, 7)
		f(tier, 1, 2, 0)
	}
}

func TestFindHitsAllocates(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	var owners []Owner
	var prefixes []Prefix
	var later []Span
	for n := range 20 {
		c, held, _, _ := randomCache(rng, n)
		owners, prefixes, later = ownersOf(rng, c, held, 1, owners, prefixes, later)
	}
	slices.SortStableFunc(later, func(a, b Span) int { return cmp.Compare(a.From, b.From) })
	var f HitFinder
	p, l := make([]Prefix, 0, 2*len(prefixes)), make([]Span, 0, 2*len(later))
	run := func() { f.FindHits(append(p[:0], prefixes...), append(l[:0], later...), owners) }
	run()
	if n := alloctest.PerRun(20, run); n != 0 {
		t.Errorf("a warm HitFinder allocates %v times", n)
	}
}
