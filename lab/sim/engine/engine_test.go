package engine

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"

	"example.com/conductor/lab/sim/digest"
	"example.com/conductor/lab/sim/truth"
)

func chain(seed int) *digest.Chain { return digest.New(digest.CBOR, strconv.Itoa(seed)) }

// reader follows the events of one engine and knows nothing else about it.
type reader struct {
	t     *testing.T
	known map[digest.Digest]string // hash to the window it names, and all before it
	path  map[digest.Digest]string // hash to the same without the look-ahead
	held  map[truth.Tier]map[digest.Digest]int
}

func newReader(t *testing.T) *reader {
	r := &reader{t: t, known: map[digest.Digest]string{}, path: map[digest.Digest]string{}}
	r.clear()
	return r
}

func (r *reader) clear() {
	r.held = map[truth.Tier]map[digest.Digest]int{truth.Device: {}, truth.Host: {}, truth.Disk: {}}
}

func (r *reader) anywhere(h digest.Digest) bool {
	return r.held[truth.Device][h]+r.held[truth.Host][h]+r.held[truth.Disk][h] > 0
}

func (r *reader) apply(ev Event, blockSize int) {
	r.t.Helper()
	switch ev.Kind {
	case Cleared:
		r.clear()
	case Removed:
		for _, h := range ev.Hashes {
			if r.held[ev.Tier][h]--; r.held[ev.Tier][h] < 0 {
				r.t.Fatalf("block %x removed from %v more often than stored", h, ev.Tier)
			}
		}
	case Stored:
		if len(ev.Tokens) == 0 {
			for _, h := range ev.Hashes {
				if !r.anywhere(h) {
					r.t.Fatalf("placeholder for block %x on %v, which nobody holds any more", h, ev.Tier)
				}
			}
		} else {
			r.describe(ev, blockSize)
		}
		for _, h := range ev.Hashes {
			if ev.Session && r.held[ev.Tier][h] > 0 {
				continue
			}
			if r.held[ev.Tier][h]++; r.held[ev.Tier][h] > 1 && ev.Tier != truth.Device {
				r.t.Fatalf("block %x stored twice on %v", h, ev.Tier)
			}
		}
	}
}

func (r *reader) describe(ev Event, blockSize int) {
	r.t.Helper()
	if len(ev.Tokens) != len(ev.Hashes)*blockSize {
		r.t.Fatalf("%d tokens for %d blocks", len(ev.Tokens), len(ev.Hashes))
	}
	prefix := ""
	if ev.HasParent {
		var ok bool
		if prefix, ok = r.path[ev.Parent]; !ok {
			r.t.Fatalf("parent %x was never stored", ev.Parent)
		}
		// A reader that forgets blocks without a holder can still place the block.
		if !r.anywhere(ev.Parent) && !r.anywhere(ev.Hashes[0]) {
			r.t.Fatalf("block %x is stored on %v when it and its parent are gone", ev.Hashes[0], ev.Tier)
		}
	}
	ahead := len(ev.Ahead) / len(ev.Hashes)
	rest := slices.Concat(ev.Tokens, ev.Ahead[len(ev.Ahead)-ahead:])
	for i, h := range ev.Hashes {
		prefix += fmt.Sprint(ev.Tokens[i*blockSize : (i+1)*blockSize])
		behind := ev.Ahead[i*ahead : (i+1)*ahead]
		if !slices.Equal(behind, rest[(i+1)*blockSize:][:ahead]) {
			r.t.Fatalf("block %d of %d has %d behind it", i, rest, behind)
		}
		window := prefix + fmt.Sprint(behind)
		if old, ok := r.known[h]; ok && old != window {
			r.t.Fatalf("hash %x names two prefixes", h)
		}
		r.known[h], r.path[h] = window, prefix
	}
}

// compare checks that the reader knows exactly what the engine holds.
func (r *reader) compare(e *Engine) {
	r.t.Helper()
	got := map[string]truth.Tier{}
	copies := 0
	for tier, blocks := range r.held {
		for h, n := range blocks {
			if n > 0 {
				got[r.known[h]] |= tier
			}
			if tier == truth.Device {
				copies += n
			}
		}
	}
	want := 0
	e.Tree.Each(e.Index, func(id truth.ID, held truth.Tier) {
		want++
		prefix := ""
		tokens := e.Tree.Path(id)
		for ; len(tokens) > e.Tree.Ahead(); tokens = tokens[e.Tree.BlockSize():] {
			prefix += fmt.Sprint(tokens[:e.Tree.BlockSize()])
		}
		prefix += fmt.Sprint(tokens)
		if got[prefix] != held {
			r.t.Fatalf("the reader has %v for a block the engine holds on %v", got[prefix], held)
		}
	})
	if len(got) != want {
		r.t.Fatalf("the reader knows %d blocks, the engine holds %d", len(got), want)
	}
	if device, _, _ := e.Blocks(); device != copies {
		r.t.Fatalf("the reader counts %d copies on the device, the engine %d", copies, device)
	}
}

var allTraits = []Traits{
	{},
	{OffloadFirst: true},
	{OffloadFirst: true, Placeholder: true},
	{Dedupe: true, OffloadFirst: true},
	{Dedupe: true, OffloadFirst: true, WriteThrough: true},
	{Dedupe: true, WriteThrough: true},
	{OffloadFirst: true, Placeholder: true, WriteThrough: true},
	{Report: true},
	{Report: true, OffloadFirst: true, Placeholder: true},
}

// TestEngineAgainstEvents runs random prompts through small engines and follows every event.
func TestEngineAgainstEvents(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	for _, traits := range allTraits {
		for _, capacity := range [][3]int{{8, 0, 0}, {8, 6, 0}, {8, 4, 5}, {24, 6, 30}, {40, 40, 40}} {
			for _, ahead := range []int{0, 1, 4} {
				live(t, rng, traits, capacity, ahead)
			}
		}
	}
}

func live(t *testing.T, rng *rand.Rand, traits Traits, capacity [3]int, ahead int) {
	t.Helper()
	const blockSize = 2
	tree := truth.New(blockSize, ahead, 2, 0)
	e := New(Config{
		Tree: tree, Index: 1, Chain: chain(rng.IntN(3)), Traits: traits,
		Device: capacity[0], Host: capacity[1], Disk: capacity[2],
		Chunk: 1 + rng.IntN(4), Running: 1 + rng.IntN(3),
	})
	r := newReader(t)
	step := func(events []Event) {
		t.Helper()
		for _, ev := range events {
			r.apply(ev, blockSize)
		}
		if err := e.Check(); err != nil {
			t.Fatalf("%+v %v, look-ahead %d: %v", traits, capacity, ahead, err)
		}
		if rng.IntN(8) == 0 {
			r.compare(e)
		}
	}
	for range 60 {
		tokens := make([]uint32, 1+rng.IntN(24))
		for i := range tokens {
			tokens[i] = uint32(rng.IntN(1 + i/6*3/2))
		}
		prompt := 1 + rng.IntN(len(tokens))
		e.Submit(Request{Path: tree.Intern(tokens, nil), Prompt: max(prompt-ahead, 0) / blockSize, PromptTokens: prompt})
		for e.Busy() > rng.IntN(4) {
			step(e.Step())
		}
		if rng.IntN(60) == 0 {
			for e.Busy() > 0 {
				step(e.Step())
			}
			step(e.Clear())
			if device, host, disk := e.Blocks(); device+host+disk != 0 {
				t.Fatalf("%d blocks survived a clear", device+host+disk)
			}
		}
	}
	for e.Busy() > 0 {
		step(e.Step())
	}
	s := e.Stats()
	device, host, disk := e.Blocks()
	for i, holds := range []int{device, host, disk} {
		if got := s.Stored[i] - s.Removed[i] - s.Cleared[i]; got != holds {
			t.Errorf("%+v %v: tier %d: stored %d, removed %d, cleared %d, and holds %d",
				traits, capacity, i, s.Stored[i], s.Removed[i], s.Cleared[i], holds)
		}
	}
	if reports := s.Reported > 0; reports != traits.Report {
		t.Errorf("%+v reported %d blocks again", traits, s.Reported)
	}
	if traits.Dedupe && s.Copies > 0 {
		t.Errorf("%+v stored %d blocks twice", traits, s.Copies)
	}
	r.compare(e)
	step(e.Clear())
	if tree.Len() != 0 {
		t.Errorf("%d blocks live after the last clear", tree.Len())
	}
}

// script runs one prompt of n blocks, named by its first token, to its end.
func script(t *testing.T, e *Engine, name uint32, n, prompt int) []Event {
	t.Helper()
	tokens := make([]uint32, n*e.Tree.BlockSize())
	for i := range tokens {
		tokens[i] = name*1000 + uint32(i)
	}
	e.Submit(Request{Path: e.Tree.Intern(tokens, nil), Prompt: prompt, PromptTokens: prompt * e.Tree.BlockSize()})
	return run(e)
}

// run steps an engine to the end of its requests.
func run(e *Engine) (events []Event) {
	for e.Busy() > 0 {
		for _, ev := range e.Step() {
			ev.Hashes = slices.Clone(ev.Hashes)
			ev.Tokens = slices.Clone(ev.Tokens)
			ev.Ahead = slices.Clone(ev.Ahead)
			events = append(events, ev)
		}
	}
	return events
}

func summary(events []Event) string {
	text := ""
	for _, ev := range events {
		what := fmt.Sprint(ev.Tier)
		if ev.Kind == Stored && len(ev.Tokens) == 0 {
			what += " by hash"
		}
		text += fmt.Sprintf("%v %s %d; ", ev.Kind, what, len(ev.Hashes))
	}
	return text
}

// TestEvictionOrderOfFamilies shows in which order the families announce an eviction.
func TestEvictionOrderOfFamilies(t *testing.T) {
	f := func(traits Traits, want string) {
		t.Helper()
		e := New(Config{
			Tree: truth.New(4, 0, 1, 0), Chain: chain(1), Traits: traits,
			Device: 4, Host: 2, Disk: 1, Chunk: 8, Running: 1,
		})
		script(t, e, 1, 4, 3)
		if got := summary(script(t, e, 2, 2, 2)); got != want {
			t.Errorf("%+v:\ngot  %s\nwant %s", traits, got, want)
		}
	}
	f(Traits{}, "removed device 2; stored host 2; stored device 2; ")
	f(Traits{OffloadFirst: true}, "stored host 2; removed device 2; stored device 2; ")
	f(Traits{RemoveSingly: true}, "removed device 1; removed device 1; stored host 2; stored device 2; ")
	f(Traits{OffloadFirst: true, Placeholder: true}, "stored host by hash 1; stored host by hash 1; removed device 2; stored device 2; ")
}

// TestTotalHit: the last token of a prompt is always computed, so vLLM stores
// the last block of a cached prompt again and SGLang does not.
func TestTotalHit(t *testing.T) {
	f := func(traits Traits, want string, copies int) {
		t.Helper()
		e := New(Config{Tree: truth.New(4, 0, 1, 0), Chain: chain(1), Traits: traits, Device: 9, Chunk: 8, Running: 1})
		script(t, e, 1, 3, 3)
		if got := summary(script(t, e, 1, 3, 3)); got != want || e.Stats().Copies != copies {
			t.Errorf("%+v: %s %d copies, want %s %d", traits, got, e.Stats().Copies, want, copies)
		}
	}
	f(Traits{}, "stored device 1; ", 1)
	f(Traits{Dedupe: true}, "", 0)
}

// TestLookAhead: a block exists once the tokens of its look-ahead do, which may be those
// of the answer, and a prompt finds it if it has those tokens too.
func TestLookAhead(t *testing.T) {
	f := func(a digest.Algorithm, ahead, prompt, answer int, want string, reused int) {
		t.Helper()
		e := New(Config{
			Tree: truth.New(4, ahead, 1, 0), Chain: digest.New(a, "0"),
			Device: 9, Chunk: 2, Running: 1,
		})
		// request runs the first tokens of one long text, as prompt and answer.
		request := func(prompt, answer int) []Event {
			tokens := make([]uint32, prompt+answer)
			for i := range tokens {
				tokens[i] = uint32(i)
			}
			e.Submit(Request{Path: e.Tree.Intern(tokens, nil), Prompt: max(prompt-ahead, 0) / 4, PromptTokens: prompt})
			return run(e)
		}
		events := request(prompt, answer)
		if got := summary(events); got != want {
			t.Errorf("look-ahead %d, %d and %d tokens: %s, want %s", ahead, prompt, answer, got, want)
		}
		parent := digest.Digest{}
		for _, ev := range events {
			for i, h := range ev.Hashes {
				tokens, behind := ev.Tokens[4*i:4*i+4], ev.Ahead[ahead*i:ahead*(i+1)]
				want := e.Chain.Next(parent, tokens, behind...)
				if !ev.HasParent && i == 0 {
					want = e.Chain.First(tokens, behind...)
				}
				if parent = h; h != want {
					t.Errorf("look-ahead %d: tokens %d with %d behind them are called %x, want %x", ahead, tokens, behind, h, want)
				}
			}
		}
		if request(prompt, 0); e.Stats().Reused[0] != reused {
			t.Errorf("look-ahead %d: %d blocks of a prompt of %d tokens reused, want %d", ahead, e.Stats().Reused[0], prompt, reused)
		}
	}
	f(digest.Pickle, 0, 12, 0, "stored device 2; stored device 1; ", 2)
	f(digest.Pickle, 1, 12, 0, "stored device 2; ", 2)
	f(digest.Page, 1, 12, 1, "stored device 2; stored device 1; ", 2)
	f(digest.CBOR, 1, 13, 0, "stored device 2; stored device 1; ", 3)
	f(digest.CBOR, 4, 12, 3, "stored device 2; ", 2)
	f(digest.CBOR, 4, 11, 5, "stored device 1; stored device 1; stored device 1; ", 1)
	f(digest.Pickle, 8, 11, 0, "", 0)
}

// shelf is a pool that takes everything.
type shelf map[digest.Digest]truth.ID

func (s shelf) Get(d digest.Digest) bool         { _, ok := s[d]; return ok }
func (s shelf) Put(id truth.ID, d digest.Digest) { s[d] = id }

// TestEnginesSharePool: what one engine computed and saved another loads, unless it names
// blocks differently.
func TestEnginesSharePool(t *testing.T) {
	pool := shelf{}
	tree := truth.New(4, 0, 1, 0)
	f := func(seed int, save bool, blocks int, reused [4]int, saved int) {
		t.Helper()
		e := New(Config{Tree: tree, Chain: chain(seed), Device: 9, Chunk: 3, Running: 1, Pool: pool})
		tokens := make([]uint32, blocks*4)
		path := tree.Intern(tokens, nil)
		e.Submit(Request{Path: path, Prompt: blocks - 1, PromptTokens: 4*blocks - 4, Save: save})
		for e.Busy() > 0 {
			e.Step()
		}
		if got := e.Stats(); got.Reused != reused || got.Stored[0] != blocks || len(pool) != saved {
			t.Errorf("seed %d, %d blocks: %+v, and %d blocks in the pool, want %v and %d", seed, blocks, got, len(pool), reused, saved)
		}
		for i, d := range e.Names(path) {
			if id, ok := pool[d]; ok && id != path[i] {
				t.Errorf("seed %d: block %d is saved as %d", seed, path[i], id)
			}
		}
		e.Clear()
	}
	f(1, false, 4, [4]int{}, 0)
	f(1, true, 4, [4]int{}, 4)
	f(1, true, 4, [4]int{0, 0, 0, 2}, 4) // the last block of a prompt is computed again
	f(1, true, 6, [4]int{0, 0, 0, 4}, 6)
	f(2, false, 6, [4]int{}, 6)
	f(2, true, 6, [4]int{}, 12)
}

// TestLongPath: what does not fit the device is computed and not cached.
func TestLongPath(t *testing.T) {
	tree := truth.New(4, 0, 1, 0)
	e := New(Config{Tree: tree, Chain: chain(1), Device: 3, Host: 8, Chunk: 2, Running: 2})
	if got := summary(script(t, e, 1, 9, 7)); got != "stored device 2; stored device 1; " {
		t.Errorf("a path of nine blocks on a device of three: %s", got)
	}
	if tree.Len() != 3 {
		t.Errorf("%d blocks live, want 3", tree.Len())
	}
}

// TestOwnHashes: engines name a block alike if they have one seed, and then only.
func TestOwnHashes(t *testing.T) {
	tree := truth.New(4, 0, 2, 0)
	hashes := func(index, seed int) []digest.Digest {
		e := New(Config{Tree: tree, Index: index, Chain: chain(seed), Device: 9, Chunk: 8, Running: 1})
		return script(t, e, 1, 2, 2)[0].Hashes
	}
	a, b, again := hashes(0, 1), hashes(1, 2), hashes(1, 1)
	if a[0] == b[0] || a[1] == b[1] {
		t.Errorf("two engines name a block %x", a)
	}
	if a[0] != again[0] || a[1] != again[1] {
		t.Errorf("one seed gives %x and %x", a, again)
	}
	tokens := []uint32{1000, 1001, 1002, 1003, 1004, 1005, 1006, 1007}
	path := tree.Intern(tokens, nil)
	e := New(Config{Tree: tree, Chain: chain(1), Device: 1, Chunk: 1, Running: 1})
	if names := e.Names(path); names[0] != a[0] || names[1] != a[1] {
		t.Errorf("published as %x and named %x", a, names)
	}
}
