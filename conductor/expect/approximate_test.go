package expect

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// lru is an oracle of an approximate target: all its blocks, by their prompts.
type lru struct {
	Options
	blocks map[string]*lruBlock
	ids    map[string]*lruReport
	number int
}

type lruBlock struct {
	used  int          // number of the report that used it last
	until time.Time    // zero for never
	of    map[int]bool // reports since it came
}

type lruReport struct {
	prompt string
	number int
	ends   time.Time
}

func (o *lru) expire(now time.Time) {
	for p, b := range o.blocks {
		if !b.until.IsZero() && !b.until.After(now) {
			delete(o.blocks, p)
		}
	}
	for id, r := range o.ids {
		if !r.ends.After(now) {
			delete(o.ids, id)
		}
	}
}

func (o *lru) report(prompt, id string, ttl time.Duration, now time.Time) {
	o.expire(now)
	if r := o.ids[id]; r != nil && r.prompt == prompt {
		return
	}
	o.takeBack(id)
	if ttl == 0 {
		ttl = o.TTL
	}
	o.number++
	for i := range prompt {
		b := o.blocks[prompt[:i+1]]
		switch {
		case b == nil:
			b = &lruBlock{of: make(map[int]bool)}
			if o.blocks[prompt[:i+1]] = b; ttl != 0 {
				b.until = now.Add(ttl)
			}
		case ttl == 0:
			b.until = time.Time{}
		case !b.until.IsZero() && b.until.Before(now.Add(ttl)):
			b.until = now.Add(ttl)
		}
		b.used, b.of[o.number] = o.number, true
	}
	if ttl == 0 {
		ttl = LongestTTL
	}
	if id != "" {
		o.ids[id] = &lruReport{prompt, o.number, now.Add(min(ttl, LongestTTL))}
	}
	for len(o.blocks) > o.Capacity {
		o.evict()
	}
}

// evict takes out the last block of the prompt that was reported longest ago.
func (o *lru) evict() {
	var first string
	for p, b := range o.blocks {
		if f := o.blocks[first]; f == nil || cmp.Or(b.used-f.used, len(first)-len(p)) < 0 {
			first = p
		}
	}
	delete(o.blocks, first)
}

func (o *lru) takeBack(id string) bool {
	r := o.ids[id]
	if r == nil {
		return false
	}
	delete(o.ids, id)
	for i := range r.prompt {
		p := r.prompt[:i+1]
		if b := o.blocks[p]; b != nil {
			if delete(b.of, r.number); len(b.of) == 0 {
				delete(o.blocks, p)
			}
		}
	}
	return true
}

// TestApproximateModel compares an approximate target with an oracle that evicts block by block.
func TestApproximateModel(t *testing.T) {
	for seed := range uint64(80) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { testApproximate(t, seed) })
	}
}

func testApproximate(t *testing.T, seed uint64) {
	dice := rand.New(rand.NewPCG(seed, 40))
	clock := newClock()
	table := New(1<<30, clock.now)
	space := table.NewSpace("a", 16)
	options := Options{Capacity: 1 + dice.IntN(40), TTL: []time.Duration{0, 3 * time.Second}[seed%2], Counts: seed%3 == 0}
	to := space.Target(3, 1, options)
	o := &lru{Options: options, blocks: make(map[string]*lruBlock), ids: make(map[string]*lruReport)}
	prompts := []string{"abcab"}
	for range 400 {
		p := prompts[dice.IntN(len(prompts))]
		p = p[:dice.IntN(len(p)+1)]
		for range dice.IntN(8) {
			p += string(rune('a' + dice.IntN(3)))
		}
		if prompts = append(prompts, p); len(prompts) > 30 {
			prompts = slices.Delete(prompts, 0, 1)
		}
		switch n := dice.IntN(10); {
		case n < 6:
			id := ""
			if dice.IntN(2) == 0 {
				id = fmt.Sprint("id", dice.IntN(8))
			}
			var ttl time.Duration
			if seed%4 > 1 && dice.IntN(3) == 0 {
				ttl = time.Duration(1+dice.IntN(5000)) * time.Millisecond
			}
			to.Add(Report{Keys: promptOf(p), TTL: ttl, ID: id, Print: promptOf("x" + p)[len(p)]})
			o.report(p, id, ttl, clock.at)
		case n < 7:
			id := fmt.Sprint("id", dice.IntN(8))
			o.expire(clock.at)
			if got, want := table.Cancel("a", id), o.takeBack(id); got != want {
				t.Fatalf("cancel %s: %v, want %v", id, got, want)
			}
		case n < 9:
			clock.at = clock.at.Add(time.Duration(dice.IntN(900)) * time.Millisecond)
		case dice.IntN(30) == 0:
			space.Drop(3, 1)
			clear(o.blocks)
			clear(o.ids)
		}
		table.check(t)
		o.expire(clock.at)
		for _, p := range prompts {
			want := 0
			for want < len(p) && o.blocks[p[:want+1]] != nil {
				want++
			}
			got := 0
			for _, f := range space.Match(nil, promptOf(p), 0, 0) {
				got = int(f.To)
			}
			if got != want {
				t.Fatalf("%q: %d blocks, want %d", p, got, want)
			}
		}
	}
	if n := to.ended[Expired] + to.ended[Confirmed]; n > 0 {
		t.Errorf("%d tokens are said to have come or not, and nobody can know", n)
	}
	if options.TTL > 0 && seed%4 == 1 {
		clock.at = clock.at.Add(time.Hour)
		table.mu.Lock()
		table.expireReports(clock.at.UnixNano())
		to.expireBlocks(clock.at.UnixNano())
		table.mu.Unlock()
		table.checkEmpty(t, space)
	}
}

// TestApproximateTakeBack takes reports back from a target that announces nothing, as late as they may be: the requests of
// slow engines are cancelled after minutes.
func TestApproximateTakeBack(t *testing.T) {
	clock := newClock()
	table := New(1<<30, clock.now)
	space := table.NewSpace("a", 16)
	to := space.Target(1, 0, Options{Capacity: 4, TTL: time.Hour})
	to.Add(Report{Keys: promptOf("ab"), ID: "first", TTL: 5 * time.Minute})
	to.Add(Report{Keys: promptOf("cd"), ID: "second"})
	clock.at = clock.at.Add(5*time.Minute - 1)
	if !table.Cancel("a", "first") || len(space.Match(nil, promptOf("ab"), 0, 0)) > 0 {
		t.Error("the first report is not taken back")
	}
	clock.at = clock.at.Add(5 * time.Minute)
	if !table.Cancel("a", "second") || len(space.Match(nil, promptOf("cd"), 0, 0)) > 0 {
		t.Error("the second report is not taken back")
	}
	to.Add(Report{Keys: promptOf("ef"), ID: "third"})
	clock.at = clock.at.Add(LongestTTL)
	if table.Cancel("a", "third") || len(space.Match(nil, promptOf("ef"), 0, 0)) != 1 {
		t.Error("a report is taken back too late, or its blocks have left with it")
	}
	table.check(t)
}

// TestApproximateRoom fills an approximate target where some reports had a ttl of their own: blocks whose time is over
// make room before others do.
func TestApproximateRoom(t *testing.T) {
	clock := newClock()
	table := New(1<<30, clock.now)
	space := table.NewSpace("a", 16)
	to := space.Target(1, 0, Options{Capacity: 4})
	to.Add(Report{Keys: promptOf("ab")})
	clock.at = clock.at.Add(time.Second)
	to.Add(Report{Keys: promptOf("cd"), TTL: time.Second})
	clock.at = clock.at.Add(time.Second)
	to.Add(Report{Keys: promptOf("ef")})
	table.check(t)
	for p, want := range map[string]int{"ab": 1, "cd": 0, "ef": 1} {
		if got := space.Match(nil, promptOf(p), 0, 0); len(got) != want {
			t.Errorf("%s: %v", p, got)
		}
	}
}
