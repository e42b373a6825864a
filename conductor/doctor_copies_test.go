package conductor_test

import (
	"container/list"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"example.com/conductor/events/stream/streamtest"
)

// cache is the block pool of an engine as vLLM keeps one: blocks that no request uses
// wait in a queue, keep what they hold, and are given away oldest first.
type cache struct {
	free   *list.List                  // of *cached, the oldest in front
	known  map[string]map[*cached]bool // by the path that names a block
	full   bool                        // hits are announced again
	naming bool                        // stores name a session
	out    []any                       // events of the request
}

// cached is one block of the device.
type cached struct {
	path string // "" holds nothing
	at   *list.Element
	uses int
}

func newCache(blocks int) *cache {
	c := &cache{free: list.New(), known: make(map[string]map[*cached]bool)}
	for range blocks {
		b := &cached{}
		b.at = c.free.PushBack(b)
	}
	return c
}

// hits returns the blocks of the longest prefix of a path that are cached, without the
// last block of the path, which is computed in any case.
func (c *cache) hits(path []string) (found []*cached) {
	for i := range path[:len(path)-1] {
		var one *cached
		for b := range c.known[strings.Join(path[:i+1], "/")] {
			if one == nil || b.uses > one.uses {
				one = b
			}
		}
		if one == nil {
			break
		}
		found = append(found, one)
	}
	return found
}

// serve lets several requests for one path run at the same time: each looks for hits
// before any of them has computed a block.
func (c *cache) serve(path []string, requests int) {
	hits := c.hits(path)
	var used []*cached
	for range requests {
		for _, b := range hits {
			c.use(b)
		}
		used = append(used, hits...)
	}
	for range requests {
		if c.full && len(hits) > 0 {
			c.announce(path[:len(hits)], 0)
		}
		for i := len(hits); i < len(path); i++ {
			b := c.allocate()
			b.path = strings.Join(path[:i+1], "/")
			if c.known[b.path] == nil {
				c.known[b.path] = make(map[*cached]bool)
			}
			c.known[b.path][b] = true
			used = append(used, b)
		}
		c.announce(path, len(hits))
	}
	for i := len(used) - 1; i >= 0; i-- { // the end of a prompt goes first
		if b := used[i]; b.uses == 1 {
			b.at = c.free.PushBack(b)
			b.uses = 0
		} else {
			b.uses--
		}
	}
}

func (c *cache) use(b *cached) {
	if b.uses == 0 {
		c.free.Remove(b.at)
	}
	b.uses++
}

// allocate takes the oldest block that no request uses.
func (c *cache) allocate() *cached {
	b := c.free.Front().Value.(*cached)
	c.use(b)
	if b.path != "" {
		c.out = append(c.out, map[string]any{"type": "BlockRemoved", "block_hashes": []uint64{engineHash("e", b.path)}, "medium": "GPU"})
		if delete(c.known[b.path], b); len(c.known[b.path]) == 0 {
			delete(c.known, b.path)
		}
	}
	return b
}

// announce adds the store of a path's blocks from one on.
func (c *cache) announce(path []string, from int) {
	var hashes []uint64
	var tokens []uint32
	for i := from; i < len(path); i++ {
		hashes = append(hashes, engineHash("e", strings.Join(path[:i+1], "/")))
		tokens = append(tokens, tokensOf(path[i], 16)...)
	}
	e := map[string]any{"type": "BlockStored", "block_hashes": hashes, "parent_block_hash": nil, "token_ids": tokens, "block_size": 16,
		"medium": "GPU"}
	if from > 0 {
		e["parent_block_hash"] = engineHash("e", strings.Join(path[:from], "/"))
	}
	if c.naming {
		e["session_id"] = "s"
	}
	c.out = append(c.out, e)
}

// traffic is what an engine is asked for, and how it tells.
type traffic struct {
	full, naming bool
	register     string // more of the registration
	blocks       int    // of the engine
	prompts      int    // conversations
	turns        int    // blocks a conversation grows to
	races        int    // requests of ten that come several at a time
	late         int    // requests before the registration, without replay
	hot          int    // conversations that are asked for by turns, each other request, during the first half of the requests
	moved        int    // requests before the server is replaced by one that recovers from it
}

// outcome is what became of it.
type outcome struct {
	codes   string // of the findings at the end
	never   int    // answers that were too long
	after   int    // those of them from the first finding on
	short   int    // answers that were too short
	surplus int    // blocks that the index has at the end less those of the engine
}

// depthOf returns how many blocks of a path are matched.
func depthOf(b *bench, path []string) (n int) {
	answer := b.run("query path=" + strings.Join(path, "/"))
	if _, err := fmt.Sscanf(answer, `default E {"longest_matched":%d,`, &n); err != nil {
		panic(answer)
	}
	return n / 16
}

// runTraffic serves requests, and compares an answer with the cache after each.
func runTraffic(t *testing.T, tr traffic, seed uint64) (got outcome) {
	synctest.Test(t, func(t *testing.T) {
		network := new(streamtest.Network)
		b := openReplica(t, network)
		rng := rand.New(rand.NewPCG(seed, 7))
		c := newCache(tr.blocks)
		c.full, c.naming = tr.full, tr.naming
		var asked [][]string
		const requests = 2500
		for n := range requests {
			if n == tr.late {
				line := "register E " + tr.register
				if tr.late > 0 {
					line += " replay=no"
				}
				if out := b.run(line); strings.HasPrefix(out, "4") {
					t.Fatal(out)
				}
			}
			if n == tr.moved && n > 0 {
				synctest.Wait()
				next, open := newReplica(t, network)
				recoverImage(t, b.conductor, next.conductor, 1)
				next.run("register E " + tr.register)
				open()
				<-time.After(time.Minute)
				b = next
			}
			talk, turns, races := rng.IntN(tr.prompts), 1+rng.IntN(tr.turns), tr.races
			if tr.hot > 0 && n%2 == 0 && n < requests/2 {
				talk, turns, races = tr.prompts+n/2%tr.hot, 60, 0
			}
			path := []string{"system", fmt.Sprint("talk", talk)}
			if tr.hot > 0 {
				path[0] = fmt.Sprint("system", talk)
			}
			for i := range turns {
				path = append(path, fmt.Sprintf("turn%d.%d", talk, i))
			}
			parallel := 1
			if rng.IntN(10) < races {
				parallel = 2 + rng.IntN(6)
			}
			c.out = nil
			c.serve(path, parallel)
			publish(network.PublisherAt("ipc://E/0"), 0, c.out, true, true)
			if asked = append(asked, path); n < tr.late {
				continue
			}
			synctest.Wait()
			path = asked[rng.IntN(len(asked))]
			want := 0
			for want < len(path) && c.known[strings.Join(path[:want+1], "/")] != nil {
				want++
			}
			switch have := depthOf(b, path); {
			case have > want && len(b.conductor.Services()[0].Findings) > 0:
				got.after++
				fallthrough
			case have > want:
				got.never++
			case have < want:
				got.short++
			}
		}
		s := b.conductor.Services()[0]
		for _, f := range s.Findings {
			got.codes += f.Code + " "
		}
		got.surplus = s.Blocks - len(c.known)
		for _, err := range b.conductor.Check() {
			t.Fatal(err)
		}
	})
	return got
}

// TestCopiesOfOrdinaryTraffic holds that copies of an engine in its default mode are balanced, whether
// or not its requests name sessions: nothing is found, and every answer is what the engine has.
func TestCopiesOfOrdinaryTraffic(t *testing.T) {
	for seed, tr := range some(3, []traffic{
		{blocks: 400, prompts: 40, turns: 12},
		{blocks: 400, prompts: 40, turns: 12, races: 3},
		{blocks: 400, prompts: 200, turns: 6, races: 10},  // every request several times
		{blocks: 5000, prompts: 10, turns: 10, races: 5},  // copies fill an engine that has room
		{blocks: 800, prompts: 1, turns: 1, races: 2},     // one prompt, whose end is computed again and again
		{blocks: 2000, prompts: 300, turns: 12, races: 9}, // full of copies
		{blocks: 900, prompts: 100, turns: 12, races: 4, late: 1000},
		{blocks: 384, prompts: 183, turns: 4, races: 5, late: 24, hot: 4}, // most blocks are not known, for long
		{blocks: 400, prompts: 40, turns: 12, races: 6, moved: 700},
	}...) {
		tr.naming = true
		got := runTraffic(t, tr, uint64(seed))
		if got.codes != "" || got.never > 0 || tr.late == 0 && (got.surplus != 0 || got.short > 0) {
			t.Errorf("%+v: %+v", tr, got)
		}
	}
}

// TestCopiesOfFullReports holds that full reports are found by their balance, with sessions or
// without. From then on no answer is too long. Registered as such, none ever is.
func TestCopiesOfFullReports(t *testing.T) {
	for seed, tr := range some(1, []traffic{
		{blocks: 400, prompts: 60, turns: 12},
		{blocks: 400, prompts: 200, turns: 6, naming: true}, // few hits
		{blocks: 900, prompts: 200, turns: 20, races: 1},
		{blocks: 900, prompts: 120, turns: 12, late: 500, naming: true},
		{blocks: 384, prompts: 183, turns: 4, races: 5, late: 24, hot: 4},
		{blocks: 400, prompts: 60, turns: 12, moved: 300},  // before the balance shows it
		{blocks: 400, prompts: 60, turns: 12, moved: 1500}, // afterwards
	}...) {
		tr.full = true
		got := runTraffic(t, tr, uint64(seed))
		const most = 25 // answers of 2500 that are too long until then
		if got.codes != "copies_grow " || got.after > 0 || got.never > most || got.surplus > 0 {
			t.Errorf("%+v: %+v", tr, got)
		}
		tr.register = "reports=incremental"
		if got = runTraffic(t, tr, uint64(seed)); tr.moved == 0 && got.codes != "copies_grow " || got.surplus <= 0 {
			t.Errorf("%+v: %+v", tr, got)
		}
		tr.register = "reports=full"
		if got = runTraffic(t, tr, uint64(seed)); got.codes != "" || got.never > 0 || got.surplus > 0 {
			t.Errorf("%+v: %+v", tr, got)
		}
	}
}

// TestCopiesOfSGLang holds that what an SGLang stores again is never a full report: it has none.
func TestCopiesOfSGLang(t *testing.T) {
	tr := traffic{blocks: 400, prompts: 60, turns: 12, full: true, register: "type=SGLang"}
	if got := runTraffic(t, tr, 0); got.codes != "unnamed_extra_key " {
		t.Errorf("%+v", got)
	}
}

// TestCopiesWithTTL holds that the time to live of the device decides whether copies are
// looked at: with one, they go without removals.
func TestCopiesWithTTL(t *testing.T) {
	for ttl, want := range map[string]string{"1h": "", "GPU:1h": "", "STORAGE:1h": "copies_grow ", "GPU:0s": "copies_grow "} {
		tr := traffic{blocks: 400, prompts: 60, turns: 12, full: true, register: "ttl=" + ttl}
		if got := runTraffic(t, tr, 0); got.codes != want {
			t.Errorf("ttl %s: findings %q, want %q", ttl, got.codes, want)
		}
	}
}
