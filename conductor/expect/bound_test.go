package expect

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"time"
)

// distinct returns the keys of a prompt that shares nothing with others.
func distinct(number, blocks int) keys {
	all := make(keys, blocks)
	for i := range all {
		all[i] = uint64(number)<<20 | uint64(i)
	}
	return all
}

// TestBound compares what leaves a full table with an oracle: the oldest report of the tenant with most bytes.
func TestBound(t *testing.T) {
	dice := rand.New(rand.NewPCG(1, 41))
	table := New(0, newClock().now)
	type report struct{ number, bytes int }
	type share struct {
		space *Space
		live  []report
		bytes int
	}
	tenants := map[string]*share{"a": {}, "b": {}, "c": {}}
	for name, x := range tenants {
		x.space = table.NewSpace(name, 16)
	}
	shrink := func(most int) {
		for tenants["a"].bytes+tenants["b"].bytes+tenants["c"].bytes > most {
			x := tenants["a"]
			for _, name := range []string{"b", "c"} { // of equal ones the first by name
				if y := tenants[name]; y.bytes > x.bytes {
					x = y
				}
			}
			x.bytes -= x.live[0].bytes
			x.live = x.live[1:]
		}
	}
	const most, less = 40_000, 30_000
	table.SetLimit(most)
	for n := range 2000 {
		name := string(rune('a' + dice.IntN(3)))
		if n > 1000 && dice.IntN(10) > 0 {
			name = "c" // a flood
		}
		x, blocks := tenants[name], 1+dice.IntN(100)
		x.space.Target(0, int32(n%2)-1, Options{}).Add(Report{Keys: distinct(n, blocks), TTL: time.Hour})
		r := report{n, nodeBytes + expectationBytes + blocks*keyBytes}
		x.live = append(x.live, r)
		x.bytes += r.bytes
		shrink(most)
		if n%100 == 99 {
			table.SetLimit(less)
			table.check(t)
			table.SetLimit(most)
			shrink(less)
		}
		table.check(t)
		same := true
		for _, x := range tenants {
			live := 0
			for i := len(x.live) - 1; i >= 0 && len(x.space.Match(nil, distinct(x.live[i].number, 1), 0, 0)) > 0; i-- {
				live++
			}
			same = same && live == len(x.live)
		}
		a, b, c := tenants["a"].bytes, tenants["b"].bytes, tenants["c"].bytes
		if !same || table.Bytes() != int64(a+b+c) {
			t.Fatalf("report %d: tenants should take %d, %d and %d bytes", n, a, b, c)
		}
	}
}

// TestFlood has one tenant report without end next to two that have little.
func TestFlood(t *testing.T) {
	table := New(1<<20, newClock().now)
	few := []*Space{table.NewSpace("a", 16), table.NewSpace("b", 16)}
	for i := range 200 {
		few[0].Target(0, 0, Options{}).Add(Report{Keys: distinct(i, 16)})
		few[1].Target(0, 0, Options{Capacity: 5000}).Add(Report{Keys: distinct(i, 16)})
	}
	before := [2]int64{table.tenants["a"].bytes, table.tenants["b"].bytes}
	flood := table.NewSpace("c", 16)
	for i := range 20_000 {
		flood.Target(0, 0, Options{Capacity: i % 2 * 1_000_000}).Add(Report{Keys: distinct(i, 100), ID: fmt.Sprint(i)})
		flood.Target(0, 1, Options{Capacity: 1_000_000}).Add(Report{Keys: distinct(i, 100)})
	}
	table.check(t)
	if now := [2]int64{table.tenants["a"].bytes, table.tenants["b"].bytes}; now != before {
		t.Errorf("the others have %d bytes, had %d", now, before)
	}
}

// TestAccount compares the account of many expectations with the heap that they take.
func TestAccount(t *testing.T) {
	heap := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	for _, blocks := range []int{1, 30, 130} {
		for _, shared := range []int{0, 2} {
			for _, named := range []bool{false, true} {
				dice := rand.New(rand.NewPCG(uint64(blocks), uint64(shared)))
				clock := newClock()
				table := New(1<<40, clock.now)
				to := table.NewSpace("a", 16).Target(0, 0, Options{})
				before := heap()
				n := 100_000 / (1 + blocks/8)
				for i := range n {
					p := distinct(i, blocks)
					if shared > 0 && i > 0 { // the beginning of an earlier one, up to anywhere or to the middle
						common := blocks / 2
						if shared == 2 {
							common = dice.IntN(blocks)
						}
						copy(p, distinct(dice.IntN(i), common))
					}
					r := Report{Keys: p, TTL: time.Duration(1+dice.IntN(600)) * time.Second}
					if named {
						r.ID = fmt.Sprint(i)
					}
					to.Add(r)
				}
				table.check(t)
				if got, account := heap()-before, table.Bytes(); float64(got) > 1.3*float64(account) {
					t.Errorf("%d prompts of %d blocks, shared %d, named %v: %d bytes, by the account %d", n, blocks, shared, named, got,
						account)
				} else {
					t.Logf("%d prompts of %d blocks, shared %d, named %v: %d bytes, by the account %d, %.2f", n, blocks, shared, named, got,
						account, float64(got)/float64(account))
				}
				runtime.KeepAlive(table)
			}
		}
	}
}

// TestContradictions reports hashes that a client has invented: one key behind many others, or many times. No list of
// nodes becomes long, since each report, and each end of one, walks those under its keys.
func TestContradictions(t *testing.T) {
	const k, many = 42, 300
	reports := map[string]func(n uint64) []keys{
		"behind others":  func(n uint64) []keys { return []keys{{n}, {n, k}} },
		"behind a split": func(n uint64) []keys { return []keys{{n, k}, {n, n + 1<<30}} },
		"behind itself": func(n uint64) []keys {
			return []keys{slices.Repeat(keys{k}, many), append(slices.Repeat(keys{k}, int(n%many)), n)}
		},
		"in turns":          func(n uint64) []keys { return []keys{{k, n, k, n + 1}, {n, k, n + 1, k}, {n, k}, {k}} },
		"announced halfway": func(n uint64) []keys { return []keys{{n, k, n + 1<<30}} },
	}
	for name, of := range reports {
		for _, o := range []Options{{}, {Capacity: many}} {
			clock := newClock()
			table := New(1<<30, clock.now)
			space := table.NewSpace("a", 16)
			to := space.Target(0, 0, o)
			for n := range uint64(many) {
				for _, p := range of(1000 + n) {
					to.Add(Report{Keys: p, TTL: time.Minute})
				}
				if name == "announced halfway" {
					space.Announced(0, 0, []uint64{1000 + n}, 1)
				}
				clock.at = clock.at.Add(time.Millisecond)
			}
			table.check(t)
			clock.at = clock.at.Add(time.Hour)
			space.Match(nil, keys{k}, 0, 0)
			table.check(t)
			space.Drop(0, 0)
			table.checkEmpty(t, space)
		}
	}
}

// TestMemoryComesBack leaves one report of a flood. The maps of the others are gone, although they are not empty.
func TestMemoryComesBack(t *testing.T) {
	clock := newClock()
	table := New(1<<30, clock.now)
	space := table.NewSpace("a", 16)
	to := space.Target(0, 0, Options{})
	to.Add(Report{Keys: distinct(0, 3), ID: "stays", TTL: time.Hour})
	for n := range 5000 {
		to.Add(Report{Keys: distinct(1+n, 1), ID: fmt.Sprint(n), TTL: time.Second})
	}
	if space.mostHeads > 0 || len(space.sieve.counts) < 5000 || to.open != 5001 {
		t.Fatalf("%d, %d, %d", space.mostHeads, len(space.sieve.counts), to.open)
	}
	clock.at = clock.at.Add(time.Minute)
	table.Cancel("a", "none")
	table.check(t)
	if space.mostHeads > 1024 || table.mostNamed > 1024 || len(space.sieve.counts) > 20*1024 {
		t.Errorf("room for %d heads, %d names, %d counts", space.mostHeads, table.mostNamed, len(space.sieve.counts))
	}
	if got := space.Match(nil, distinct(0, 3), 0, 0); len(got) != 1 || got[0].To != 3 {
		t.Error(got)
	}
}
