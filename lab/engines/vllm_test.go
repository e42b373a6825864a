package engines_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"example.com/conductor/internal/freeport"
	"example.com/conductor/internal/must"
)

// What the engines are started with.
const (
	vllmModel  = "tiny"
	vllmBlock  = 32   // tokens; attention on the CPU takes multiples of 32
	vllmBlocks = 200  // blocks of the cache, few enough that it evicts
	vllmTokens = 4096 // of a prompt and its answer
	vocabulary = 32000
)

// A vllmEngine is `vllm serve` in a process group of its own.
type vllmEngine struct {
	t        *testing.T
	instance string
	address  string        // of the HTTP server, host:port
	live     string        // of the socket that publishes events
	replay   string        // of the socket that replays them
	log      string        // name of a file
	ended    chan struct{} // closed when the process has ended
	seen     int64         // number of the last batch that published has found
}

// writeModels writes the folders of all models, which lie in the one that it returns.
func writeModels(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	python := filepath.Join(filepath.Dir(os.Getenv("ENGINES_VLLM")), "python")
	if out, err := exec.Command(python, "-B", "testdata/models.py", dir).CombinedOutput(); err != nil {
		t.Fatalf("testdata/models.py: %v: %s", err, out)
	}
	return dir
}

// startVLLMEngine starts an engine of a model, which is a folder, without waiting until it serves.
func startVLLMEngine(t *testing.T, instance, model string, more ...string) *vllmEngine {
	t.Helper()
	dir := t.TempDir()
	e := &vllmEngine{t: t, instance: instance, log: filepath.Join(dir, "log"), ended: make(chan struct{})}
	for _, address := range []*string{&e.address, &e.live, &e.replay} {
		var err error
		*address, err = freeport.Address()
		must.Succeed(t, err)
	}
	host, port, err := net.SplitHostPort(e.address)
	must.Succeed(t, err)
	log, err := os.Create(e.log)
	must.Succeed(t, err)
	defer log.Close()
	// vLLM binds only endpoints with an asterisk, and connects to others.
	bind := func(address string) string { return "tcp://" + strings.Replace(address, host, "*", 1) }
	events, err := json.Marshal(map[string]any{
		"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": bind(e.live), "replay_endpoint": bind(e.replay), "topic": "kv",
	})
	must.Succeed(t, err)
	args := []string{
		"serve", model, "--host", host, "--port", port, "--served-model-name", vllmModel, "--load-format", "dummy",
		"--skip-tokenizer-init", "--enforce-eager", "--block-size", fmt.Sprint(vllmBlock), "--max-model-len", fmt.Sprint(vllmTokens),
		"--max-num-seqs", "4", "--max-num-batched-tokens", "512", "--num-gpu-blocks-override", fmt.Sprint(vllmBlocks),
		"--enable-prompt-tokens-details", "--kv-events-config", string(events),
	}
	cmd := exec.Command(os.Getenv("ENGINES_VLLM"), slices.Concat(args, more, strings.Fields(os.Getenv("ENGINES_VLLM_ARGS")))...)
	cmd.Env = append(os.Environ(),
		"VLLM_CPU_KVCACHE_SPACE=1", "VLLM_CPU_OMP_THREADS_BIND=nobind", "OMP_NUM_THREADS=1", // GiB; engines share few processors
		"HF_HUB_OFFLINE=1", "VLLM_NO_USAGE_STATS=1", "TMPDIR="+dir, "VLLM_CACHE_ROOT="+dir,
	)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // it starts further processes
	must.Succeed(t, cmd.Start())
	go func() { cmd.Wait(); close(e.ended) }()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("%s said last:\n%s", e.instance, e.lastLines(20))
		}
		syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		<-e.ended
	})
	return e
}

// lastLines returns the end of the engine's log.
func (e *vllmEngine) lastLines(n int) string {
	text, _ := os.ReadFile(e.log)
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// await waits until the engine serves, which takes a minute or more.
func (e *vllmEngine) await() {
	e.t.Helper()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for deadline := time.Now().Add(20 * patience); ; <-tick.C {
		if resp, err := http.Get("http://" + e.address + "/health"); err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return
			}
		}
		select {
		case <-e.ended:
			e.t.Fatalf("%s ended", e.instance)
		default:
		}
		if time.Now().After(deadline) {
			e.t.Fatalf("%s does not serve after %s", e.instance, 20*patience)
		}
	}
}

// complete lets the engine compute a prompt, and returns how many of its tokens were in the cache.
func (e *vllmEngine) complete(prompt []uint32) (cached int, err error) {
	cached, _, err = e.answer(prompt, 1)
	return cached, err
}

// answer lets the engine compute a prompt and up to most tokens behind it. It returns how many tokens of the prompt were in the
// cache, and the new ones.
func (e *vllmEngine) answer(prompt []uint32, most int) (cached int, tokens []uint32, err error) {
	body, err := json.Marshal(map[string]any{
		"model": vllmModel, "prompt": prompt, "max_tokens": most, "temperature": 0, "detokenize": false, "return_token_ids": true,
	})
	if err != nil {
		return 0, nil, err
	}
	resp, err := http.Post("http://"+e.address+"/v1/completions", "application/json", bytes.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, nil, err
	}
	var answer struct {
		Choices []struct {
			Tokens []uint32 `json:"token_ids"`
		}
		Usage struct {
			PromptTokens        int `json:"prompt_tokens"`
			PromptTokensDetails *struct {
				CachedTokens int `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
		} `json:"usage"`
	}
	if err := json.Unmarshal(text, &answer); err != nil || resp.StatusCode != http.StatusOK || answer.Usage.PromptTokensDetails == nil ||
		answer.Usage.PromptTokens != len(prompt) || len(answer.Choices) != 1 {
		return 0, nil, fmt.Errorf("%s: status %d: %.400s", e.instance, resp.StatusCode, text)
	}
	return answer.Usage.PromptTokensDetails.CachedTokens, answer.Choices[0].Tokens, nil
}

// A vllmFleet is two engines and the server that follows them.
type vllmFleet struct {
	t       *testing.T
	server  *server
	engines []*vllmEngine
	random  *rand.Rand
	past    [][]uint32 // prompts that were sent, the latest last
}

// clip returns what vLLM takes from its cache of a prompt of n tokens if it holds the first held of them: whole
// blocks, and never the last token, because it has to compute one.
func clip(held, n int) int { return min(held, (n-1)/vllmBlock*vllmBlock) }

// fresh returns n random tokens.
func (f *vllmFleet) fresh(n int) []uint32 { return fresh(f.random, n) }

// prompt returns a prompt of up to most tokens: a new one, one that was sent before, or the beginning
// of one with up to tail new tokens.
func (f *vllmFleet) prompt(tail, most int) []uint32 {
	var p []uint32
	switch kind := f.random.IntN(8); {
	case len(f.past) == 0 || kind == 0:
		p = f.fresh(vllmBlock + f.random.IntN(tail))
	case kind == 1:
		p = f.past[f.random.IntN(len(f.past))]
	default:
		old := f.past[f.random.IntN(len(f.past))]
		p = slices.Concat(old[:1+f.random.IntN(len(old))], f.fresh(1+f.random.IntN(tail)))
		p = p[:min(len(p), most)]
	}
	if f.past = append(f.past, p); len(f.past) > 12 {
		f.past = f.past[1:]
	}
	return p
}

// vllmRow is what the server says of an engine.
type vllmRow struct {
	Longest  int `json:"longest_matched"`
	Expected *int
	Ranks    map[string]struct{ Expected *int } `json:"rank_matches"`
}

// row asks the server what an engine has of a prompt.
func (f *vllmFleet) row(e *vllmEngine, prompt []uint32, parameters string) vllmRow {
	f.t.Helper()
	var all map[string]map[string]vllmRow
	f.server.call("/query"+parameters, map[string]any{"model": vllmModel, "block_size": vllmBlock, "token_ids": prompt}, &all)
	return all["default"][e.instance]
}

// settle waits until the server has applied everything that the engine has done: it sends a new prompt
// of one block behind it, and waits until the server knows that block.
func (f *vllmFleet) settle(e *vllmEngine) {
	f.t.Helper()
	last := f.fresh(vllmBlock + 1)
	_, err := e.complete(last)
	must.Succeed(f.t, err)
	eventually(f.t, e.instance+" announces the block of a prompt that it has computed", func() (string, bool) {
		got := f.row(e, last, "").Longest
		return fmt.Sprintf("longest_matched is %d", got), got == vllmBlock
	})
}

// choose returns the engine with the longest match, mostly.
func (f *vllmFleet) choose(prompt []uint32) *vllmEngine {
	f.t.Helper()
	chosen := f.engines[f.random.IntN(len(f.engines))]
	if f.random.IntN(4) > 0 {
		for _, e := range f.engines {
			if f.row(e, prompt, "").Longest > f.row(chosen, prompt, "").Longest {
				chosen = e
			}
		}
	}
	return chosen
}

// TestWholeVLLM runs whole vLLM on the CPU, with models of random weights, and compares answers with what vLLM says that it took
// from its cache.
func TestWholeVLLM(t *testing.T) {
	if os.Getenv("ENGINES_VLLM") == "" {
		t.Skip("ENGINES_VLLM is not set to the program of an installed vLLM, see docs/contributing/engines.md")
	}
	models := writeModels(t)
	t.Run("llama", func(t *testing.T) {
		f := &vllmFleet{t: t, server: startServer(t, ""), random: rand.New(rand.NewPCG(1, 2))}
		for i := range 2 {
			f.engines = append(f.engines, startVLLMEngine(t, fmt.Sprintf("engine-%d", i), filepath.Join(models, "llama")))
		}
		for _, e := range f.engines {
			e.await()
			f.server.call("/register", e.registration(nil), new(any))
		}
		f.plain(200)
		f.bursts(100)
	})
	for _, m := range wholeModels {
		t.Run(m.name, func(t *testing.T) { m.compare(t, filepath.Join(models, m.folder)) })
	}
}

// registration is the body of /register for an engine. A nil profile is left out.
func (e *vllmEngine) registration(profile map[string]any) map[string]any {
	body := map[string]any{
		"endpoint": "tcp://" + e.live, "replay_endpoint": "tcp://" + e.replay,
		"type": "vLLM", "modelname": vllmModel, "instance_id": e.instance, "block_size": vllmBlock, "dp_rank": 0,
	}
	if profile != nil {
		body["hash_profile"] = profile
	}
	return body
}

// plain sends prompts one after another, and compares each answer with what the engine then finds.
func (f *vllmFleet) plain(n int) {
	f.t.Helper()
	wrong, prompts, cached := 0, 0, 0
	for i := range n {
		p := f.prompt(250, 1500)
		e := f.choose(p)
		f.settle(e)
		said := f.row(e, p, "").Longest
		found, err := e.complete(p)
		must.Succeed(f.t, err)
		if prompts, cached = prompts+len(p), cached+found; clip(said, len(p)) != found {
			if wrong++; wrong <= 5 {
				f.t.Errorf("request %d of %d tokens to %s: longest_matched is %d, the engine found %d", i, len(p), e.instance, said, found)
			}
		}
	}
	if cached == 0 {
		f.t.Error("the engines found nothing in their caches")
	}
	fmt.Printf("%d requests one after another: %d wrong, %.0f %% of %d prompt tokens from the cache\n", n, wrong,
		100*float64(cached)/float64(prompts), prompts)
}
