package engines_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"testing"

	"example.com/conductor/events/zmq"
	"example.com/conductor/internal/must"
)

// A wholeModel is a model with other layers than full attention, and what its engines keep of them.
type wholeModel struct {
	name   string
	folder string // of testdata/models.py
	// bare is what answers may be where nobody registered how the engine hashes, for each engine of wholeRetentions.
	bare []slack
}

// wholeRetentions is prefix_cache_retention_interval of each engine: vLLM's default, which keeps the ends of prompts, and all.
var wholeRetentions = []string{"0", "None"}

var wholeModels = []wholeModel{
	{"full attention and windows", "gemma", []slack{exact, exact}},
	{"windows alone", "mistral", []slack{shorter, exact}},
	{"full attention and states", "qwen", []slack{exact, exact}},
}

// wholeProfile is how an engine hashes whose PYTHONHASHSEED is 0.
var wholeProfile = map[string]any{
	"strategy": "vllm_v1", "algorithm": "sha256", "python_hash_seed": "0", "index_projection": "low64_be",
}

// A follower is a server that follows all engines, with a count of its answers about each.
type follower struct {
	*server
	name    string
	profile map[string]any
	tallies []tally
}

// A tally counts answers about one engine, those that are not exact, those that must not be so, and how many tokens all say.
type tally struct{ answers, long, short, wrong, said int }

// add counts an answer, and reports whether it may be so.
func (c *tally) add(said, found int, may slack) bool {
	c.answers, c.said = c.answers+1, c.said+said
	switch {
	case said > found:
		c.long++
		return may == longer
	case said < found:
		c.short++
		return may == shorter
	}
	return true
}

// A conversation makes prompts for one engine that share beginnings with earlier ones.
type conversation struct {
	random *rand.Rand
	past   [][]uint32 // prompts with the answers to them, the latest last
}

// next returns a prompt: a new one, one that was sent before, one that goes on behind an earlier one or leaves it somewhere.
func (c *conversation) next() []uint32 {
	tail := fresh(c.random, 1+c.random.IntN(250))
	if len(c.past) == 0 {
		return tail
	}
	old := c.past[c.random.IntN(len(c.past))]
	switch kind := c.random.IntN(10); {
	case kind == 0:
		return slices.Concat(tail, fresh(c.random, c.random.IntN(1200)))
	case kind == 1:
		return old
	case kind == 2:
		return old[:1+c.random.IntN(len(old))]
	case kind < 6 && len(old) < 1500:
		return slices.Concat(old, tail)
	default:
		return slices.Concat(old[:1+c.random.IntN(len(old))], tail)
	}
}

// keep remembers a prompt with the answer to it.
func (c *conversation) keep(prompt, answer []uint32) {
	if c.past = append(c.past, slices.Concat(prompt, answer)); len(c.past) > 12 {
		c.past = c.past[1:]
	}
}

// fresh returns n random tokens.
func fresh(random *rand.Rand, n int) []uint32 {
	tokens := make([]uint32, n)
	for i := range tokens {
		tokens[i] = 3 + random.Uint32N(vocabulary-3)
	}
	return tokens
}

// compare runs an engine for each retention, and asks two servers before each request what it will take: one that was told how the
// engines hash, and one that was not.
func (m wholeModel) compare(t *testing.T, folder string) {
	const requests = 250 // to each engine
	t.Setenv("PYTHONHASHSEED", "0")
	t.Setenv("VLLM_SERVER_DEV_MODE", "1") // has /reset_prefix_cache
	var engines []*vllmEngine
	for _, retention := range wholeRetentions {
		engines = append(engines, startVLLMEngine(t, "retention-"+retention, folder, "--prefix-cache-retention-interval", retention,
			"--num-gpu-blocks-override", "150"))
	}
	followers := []*follower{
		{server: startServer(t, ""), name: "without a hash profile"},
		{server: startServer(t, ""), name: "with a hash profile", profile: wholeProfile},
	}
	for _, e := range engines {
		e.await()
		for _, s := range followers {
			s.tallies = make([]tally, len(engines))
			s.call("/register", e.registration(s.profile), new(any))
		}
	}
	for i, e := range engines {
		c := &conversation{random: rand.New(rand.NewPCG(3, uint64(i)))}
		prompts, cached, some := 0, 0, 0
		for n := range requests {
			reset := n == requests/2
			switch {
			case reset:
				e.reset()
			case c.random.IntN(5) == 0:
				e.crowd(c)
			}
			p := c.next()
			found := m.request(i, e, c, p, followers, reset)
			if prompts, cached = prompts+len(p), cached+found; found > 0 {
				some++
			}
		}
		if some < requests/10 {
			t.Errorf("%s found something in its cache for %d of %d requests only", e.instance, some, requests)
		}
		fmt.Printf("%s, %s: %d of %d requests found something, %.0f %% of %d prompt tokens\n", m.name, e.instance, some, requests,
			100*float64(cached)/float64(prompts), prompts)
		for _, s := range followers {
			got := s.tallies[i]
			fmt.Printf("  %s: %d answers, %d wrong, %d too long, %d too short, %d of %d tokens\n", s.name, got.answers, got.wrong, got.long,
				got.short, got.said, cached)
		}
	}
}

// request asks the servers about a prompt, lets engine i compute it, and compares. It returns how many tokens the engine found.
func (m wholeModel) request(i int, e *vllmEngine, c *conversation, prompt []uint32, followers []*follower, reset bool) (found int) {
	e.t.Helper()
	e.settle(followers)
	said := make([]int, len(followers))
	for j, s := range followers {
		said[j] = s.matched(e, prompt)
	}
	found, answer, err := e.answer(prompt, []int{1, 1, 10, 50}[c.random.IntN(4)])
	must.Succeed(e.t, err)
	c.keep(prompt, answer)
	for j, s := range followers {
		may, counts := exact, &s.tallies[i]
		if s.profile == nil {
			may = m.bare[i]
		}
		if reset {
			may = longer // vLLM publishes the clear with the events of the next request
		}
		if counts.add(said[j], found, may) {
			continue
		}
		if counts.wrong++; counts.wrong <= 5 {
			e.t.Errorf("%s, answer %d, %d tokens to %s: longest_matched is %d, the engine found %d", s.name, counts.answers, len(prompt),
				e.instance, said[j], found)
		}
	}
	return found
}

// matched asks the server what an engine takes of a prompt. The engine computes its last token in any case, so the question is about
// those before.
func (s *follower) matched(e *vllmEngine, prompt []uint32) int {
	s.t.Helper()
	if len(prompt) < 2 {
		return 0
	}
	var all map[string]map[string]vllmRow
	s.call("/query", map[string]any{"model": vllmModel, "block_size": vllmBlock, "token_ids": prompt[:len(prompt)-1]}, &all)
	return all["default"][e.instance].Longest
}

// reset empties the engine's cache.
func (e *vllmEngine) reset() {
	e.t.Helper()
	resp, err := http.Post("http://"+e.address+"/reset_prefix_cache", "", nil)
	must.Succeed(e.t, err)
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		e.t.Fatalf("%s: /reset_prefix_cache: %s", e.instance, resp.Status)
	}
}

// crowd lets the engine compute several prompts side by side.
func (e *vllmEngine) crowd(c *conversation) {
	e.t.Helper()
	prompts := [][]uint32{c.next(), c.next(), c.next()}
	answers, errs := make([][]uint32, len(prompts)), make([]error, len(prompts))
	var all sync.WaitGroup
	for i, p := range prompts {
		all.Go(func() { _, answers[i], errs[i] = e.answer(p, 20) })
	}
	all.Wait()
	for i, p := range prompts {
		must.Succeed(e.t, errs[i])
		c.keep(p, answers[i])
	}
}

// settle waits until the servers have applied everything that the engine has done. It makes the engine do nothing, because a request
// would publish what was left over, and hide it.
func (e *vllmEngine) settle(followers []*follower) {
	e.t.Helper()
	last := e.published()
	for _, s := range followers {
		eventually(e.t, "the server "+s.name+" applies what "+e.instance+" has published", func() (string, bool) {
			var all struct{ Services []service }
			s.call("/services", nil, &all)
			i := slices.IndexFunc(all.Services, func(row service) bool { return row.InstanceID == e.instance })
			if i < 0 {
				return "it is not registered", false
			}
			row := all.Services[i]
			return fmt.Sprintf("%s, LastSeq %v, want %d", row.State, row.LastSeq, last), last < 0 ||
				row.State == "synced" && row.LastSeq != nil && *row.LastSeq >= last
		})
	}
}

// published returns the number of the last batch that the engine has published, -1 before the first, when none is left in its queue.
// Between two replays vLLM's publisher looks into its queue and sends a batch if there is one. So if the second replay ends like the
// first, the queue was empty in between. An engine queues the batch of a step before it answers a request.
func (e *vllmEngine) published() int64 {
	e.t.Helper()
	last := e.replayed(e.seen)
	for {
		next := e.replayed(e.seen)
		if next == last {
			e.seen = max(0, last)
			return last
		}
		last = next
	}
}

// replayed returns the last number of a replay that begins with from, -1 if it is empty.
func (e *vllmEngine) replayed(from int64) (last int64) {
	e.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	replay, err := zmq.Transport{}.Replay(ctx, "tcp://"+e.replay, uint64(from))
	must.Succeed(e.t, err)
	defer replay.Close()
	for last = -1; ; {
		m, err := replay.Recv()
		must.Succeed(e.t, err)
		seq := int64(binary.BigEndian.Uint64(m.Frames[len(m.Frames)-2])) // the end has -1
		if m.Block != nil {
			m.Block.Release()
		}
		if seq < 0 {
			return last
		}
		last = seq
	}
}
