package expect

import (
	"testing"
	"testing/synctest"
	"time"
)

// check holds the structure to what its parts say about each other, and its account to a recount.
func (t *Table) check(tb testing.TB) {
	tb.Helper()
	t.mu.RLock()
	defer t.mu.RUnlock()
	fail := func(format string, args ...any) {
		tb.Helper()
		tb.Fatalf(format, args...)
	}

	// Expectations: in the heap, in the list of their tenant, and by name.
	bytes, named, inAll := make(map[string]int64), 0, 0
	targets := make(map[*Target]bool)
	spaces := make(map[*Space]bool)
	uses, open := make(map[*node]int), make(map[*Target]int)
	for i, e := range t.ends {
		if e.position != i || i > 0 && t.ends[(i-1)/2].ends > e.ends {
			fail("the heap is out of order at %d", i)
		}
		if e.id != 0 {
			if named++; t.named[e.id] != e {
				fail("a report is not under its id")
			}
		}
		bytes[e.target.space.owner] += expectationBytes
		open[e.target]++
		targets[e.target], spaces[e.target.space] = true, true
		steps := 0
		for p := e.leaf; p != nil; p = p.parent {
			if steps++; steps > 1000 {
				fail("nodes are behind each other in a circle")
			}
			if !p.gone && p.born <= e.number {
				uses[p]++
			}
			if p.target != e.target {
				fail("a node is of another target")
			}
		}
	}
	if named != len(t.named) || t.named != nil && named == 0 {
		fail("%d reports have names, %d are known", named, len(t.named))
	}
	for name, x := range t.tenants {
		for e, before := x.oldest, (*expectation)(nil); e != nil; e, before = e.newer, e {
			if e.older != before || e.target.space.owner != name || before != nil && before.number >= e.number {
				fail("the reports of tenant %s are out of order", name)
			}
			inAll++
		}
		for of := range x.approximate {
			if of.oldest == nil {
				fail("a target without nodes is in the list of those that have some")
			}
			targets[of], spaces[of.space] = true, true
		}
	}
	if inAll != len(t.ends) {
		fail("%d reports are in lists of tenants, %d in the heap", inAll, len(t.ends))
	}

	// Nodes: in the list of their target, and under the first block.
	for s := range spaces {
		blocks, heads, twins := int64(0), 0, make(map[[2]any]int)
		if s.sieve.keys != len(s.heads) {
			fail("the sieve has %d keys, the map %d", s.sieve.keys, len(s.heads))
		}
		for key := range s.heads {
			if !s.sieve.has(key) {
				fail("the sieve lacks the key %x", key)
			}
		}
		for _, first := range s.heads {
			for p := first; p != nil; p = p.next {
				heads++
				targets[p.target] = true
				if p.target.space != s {
					fail("a node is in another space")
				}
			}
		}
		for of := range targets {
			if of.space != s {
				continue
			}
			mine, leaving := int64(0), 0
			place, n := make(map[*node]int), 0
			for p, before := of.oldest, (*node)(nil); p != nil; p, before = p.newer, p {
				if p.older != before || p.gone || p.target != of {
					fail("the nodes of a target are out of order")
				}
				place[p] = n
				n++
				heads--
				mine += int64(len(p.keys))
				bytes[s.owner] += nodeBytes + int64(p.room)*keyBytes
				if len(p.keys) == 0 || len(p.keys) > int(p.room) || cap(p.keys) > 0 && len(p.keys) < int(p.room)/2 {
					fail("a node of %d blocks has room for %d", len(p.keys), p.room)
				}
				q := s.heads[p.keys[0]]
				for q != nil && q != p {
					q = q.next
				}
				if q == nil {
					fail("a node is not under its first block")
				}
				switch {
				case of.Capacity == 0 && (p.uses != uses[p] || p.uses == 0):
					fail("a node has %d uses, should have %d", p.uses, uses[p])
				case of.Capacity > 0 && p.uses < uses[p]:
					fail("a node has %d uses, should have at least %d", p.uses, uses[p])
				case p.until < 0 || p.until > 0 && (of.Capacity == 0 || p.position >= len(of.ends) || of.ends[p.position] != p):
					fail("a node leaves at %d, and is not in the heap of its target", p.until)
				}
				if p.until > 0 {
					leaving++
				}
				if twins[[2]any{of, p.keys[0]}]++; twins[[2]any{of, p.keys[0]}] > mostTwins {
					fail("a target has too many nodes under the key %x", p.keys[0])
				}
			}
			for i, p := range of.ends {
				if i > 0 && of.ends[(i-1)/2].until > p.until {
					fail("the heap of a target is out of order at %d", i)
				}
			}
			if leaving != len(of.ends) {
				fail("%d nodes leave at some time, %d are in the heap", leaving, len(of.ends))
			}
			if of.open != open[of] {
				fail("a target has %d reports, says %d", open[of], of.open)
			}
			for p := range place {
				if above := p.parent; of.Capacity > 0 && above != nil && !above.gone && place[above] < place[p] {
					fail("a node was used after the one before it")
				}
			}
			if mine != of.blocks || of.Capacity > 0 && mine > int64(of.Capacity) {
				fail("a target has %d blocks, says %d, capacity %d", mine, of.blocks, of.Capacity)
			}
			if of.awaits.Load() != (of.Capacity == 0 && (mine > 0 || len(of.late) > 0 || len(of.doubted) > 0)) {
				fail("a target says wrongly whether it awaits anything")
			}
			blocks += mine
		}
		if heads != 0 || s.heads != nil && len(s.heads) == 0 {
			fail("%d more nodes are in the map than in lists", heads)
		}
		if n := s.awaiting(); n != s.awaits.Load() {
			fail("%d targets await something, the space says %d", n, s.awaits.Load())
		}
		if blocks != s.blocks.Load() {
			fail("a space has %d blocks, says %d", blocks, s.blocks.Load())
		}
	}

	all := int64(0)
	for name, x := range t.tenants {
		if x.bytes != bytes[name] || x.bytes == 0 {
			fail("tenant %s takes %d bytes, says %d", name, bytes[name], x.bytes)
		}
		all += x.bytes
	}
	if len(t.tenants) != len(bytes) || t.bytes != all || t.bytes > t.most {
		fail("%d tenants take %d bytes, the table says %d tenants, %d bytes, and at most %d", len(bytes), all, len(t.tenants), t.bytes,
			t.most)
	}
	if next := t.nextEnd.Load(); len(t.ends) == 0 && next != 0 || len(t.ends) > 0 && next != t.ends[0].ends {
		fail("the next report ends at %d by the table", next)
	}
}

// awaiting counts the targets that await something.
func (s *Space) awaiting() (n int64) {
	for _, of := range *s.targets.Load() {
		if of.awaits.Load() {
			n++
		}
	}
	return n
}

// checkEmpty holds that nothing is left, maps included.
func (t *Table) checkEmpty(tb testing.TB, spaces ...*Space) {
	tb.Helper()
	t.check(tb)
	if t.Bytes() != 0 || t.named != nil || t.tenants != nil || t.ends != nil {
		tb.Errorf("left: %d bytes, %v, %v, %v", t.bytes, t.named, t.tenants, t.ends)
	}
	for _, s := range spaces {
		if n := s.awaiting(); s.heads != nil || !s.Empty() || s.Named() || s.awaits.Load() != n {
			tb.Errorf("left in a space: %v, %d targets that await something, %d by its count", s.heads, n, s.awaits.Load())
		}
		for _, of := range *s.targets.Load() {
			if of.oldest != nil || of.newest != nil || of.blocks != 0 {
				tb.Errorf("left at a target: %d blocks", of.blocks)
			}
		}
	}
}

// TestNothingIsLeft lets time pass, without anybody who asks.
func TestNothingIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := New(1<<30, time.Now)
		space := table.NewSpace("a", 16)
		for i := range 50 {
			p := promptOf(string(rune('a'+i%7)) + "bcdefgh"[:1+i%6] + string(rune('p'+i)))
			ttl := time.Duration(1+i) * time.Second
			id := ""
			if i%2 == 0 {
				id = string(rune('A' + i))
			}
			space.Target(int32(i%3), int32(i%2)-1, Options{}).Add(Report{Keys: p, TTL: ttl, ID: id, Named: true})
			space.Target(9, 0, Options{Capacity: 200, TTL: 20 * time.Second}).Add(Report{Keys: p, TTL: time.Duration(i%3) * ttl})
			table.check(t)
		}
		for table.Bytes() > 0 {
			time.Sleep(time.Second)
			synctest.Wait()
			table.check(t)
			if time.Now().After(time.Date(2000, 1, 1, 0, 2, 0, 0, time.UTC)) {
				t.Fatalf("%d bytes are left", table.Bytes())
			}
		}
		table.checkEmpty(t, space)
	})
}

// TestLeavingTarget reports for targets that have left their space, as a caller does that looked them up before.
func TestLeavingTarget(t *testing.T) {
	table := New(1<<30, newClock().now)
	space := table.NewSpace("a", 16)
	for _, leave := range []func(){
		func() { space.Forget(1) },
		func() { space.Target(1, 0, Options{Capacity: 7}) },
		space.Close,
	} {
		old := space.Target(1, 0, Options{Capacity: 5})
		old.Add(Report{Keys: promptOf("abc"), ID: "one"})
		if space.Empty() {
			t.Fatal("nothing is expected")
		}
		leave()
		old.Add(Report{Keys: promptOf("abc"), ID: "one"})
		table.checkEmpty(t, space)
	}
	space.Target(1, 0, Options{}).Add(Report{Keys: promptOf("abc")})
	table.checkEmpty(t, space)
	if n := len(*space.targets.Load()); n > 1 {
		t.Errorf("%d targets after the end", n)
	}
}

// TestDoubtOutlivesTarget replaces the target without a rank while one of its ranks is in doubt: announcements of other ranks are
// still looked at, until the instance leaves.
func TestDoubtOutlivesTarget(t *testing.T) {
	c := newCounter(t)
	for range EnoughDoubt {
		c.space.Target(1, 0, Options{}).Add(Report{Keys: c.prompt(1), TTL: time.Minute})
		c.pass(time.Minute)
	}
	for _, o := range []Options{{Capacity: 5}, {}} {
		c.space.Target(1, AnyRank, o)
		c.table.checkEmpty(t, c.space)
		if got := c.space.Awaits(1, 7); got != (o == Options{}) {
			t.Errorf("%+v: awaits %v", o, got)
		}
	}
	c.space.Forget(1)
	c.table.checkEmpty(t, c.space)
	if c.space.awaits.Load() != 0 {
		t.Errorf("%d targets await something", c.space.awaits.Load())
	}
}

// TestRepeatedHashes reports hashes of a client that name several blocks alike.
func TestRepeatedHashes(t *testing.T) {
	clock := newClock()
	table := New(1<<30, clock.now)
	space := table.NewSpace("a", 16)
	to := space.Target(1, 0, Options{})
	for _, p := range [][]uint64{{1, 2}, {1, 2, 1, 2}, {1, 1, 1}, {1, 2, 1, 2, 1, 2}, {1}, {2, 1, 2}, {1, 1}} {
		to.Add(Report{Keys: p, TTL: time.Second})
		table.check(t)
		if got := space.Match(nil, keys(p), 0, 0); len(got) != 1 || got[0].From != 0 || got[0].To == 0 {
			t.Errorf("%v: %v", p, got)
		}
	}
	space.Announced(1, 0, []uint64{1, 2, 1}, 1)
	table.check(t)
	clock.at = clock.at.Add(time.Second)
	table.Cancel("a", "")
	table.checkEmpty(t, space)
}
