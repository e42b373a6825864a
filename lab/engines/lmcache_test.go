package engines_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"example.com/conductor/internal/must"
)

const lmcacheChunk = 256

// lmcacheInstances are those of testdata/lmcache_feed.py, each the cache of one engine.
var lmcacheInstances = []string{"node:a", "node:b"}

// lmcacheQuestion is a prompt with what LMCache's directory says of its chunks, by instance.
type lmcacheQuestion struct {
	Tokens []uint32          `json:"tokens"`
	Salt   string            `json:"salt"`
	Held   map[string]string `json:"held"`
}

// lmcacheFleet is testdata/lmcache_feed.py in another process.
type lmcacheFleet struct {
	t              *testing.T
	server         *server
	in             *json.Encoder
	out            *json.Decoder
	answers, wrong int
}

func startLMCache(t *testing.T, r release, s *server) *lmcacheFleet {
	t.Helper()
	cache := os.Getenv("ENGINES_CACHE")
	text, err := json.Marshal(options{
		"unpacked": filepath.Join(cache, r.engine+"-"+r.version), "url": s.url + "/lmcache", "seed": 1, "instances": lmcacheInstances,
	})
	must.Succeed(t, err)
	cmd := exec.Command(filepath.Join(cache, "lmcache-venv", "bin", "python"), "-B", "-u", "testdata/lmcache_feed.py", string(text))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	must.Succeed(t, err)
	out, err := cmd.StdoutPipe()
	must.Succeed(t, err)
	must.Succeed(t, cmd.Start())
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	f := &lmcacheFleet{t: t, server: s, in: json.NewEncoder(in), out: json.NewDecoder(bufio.NewReaderSize(out, 1<<20))}
	f.answer()
	return f
}

// answer reads the answer that is due.
func (f *lmcacheFleet) answer() []lmcacheQuestion {
	f.t.Helper()
	var a struct{ Questions []lmcacheQuestion }
	if err := f.out.Decode(&a); err != nil {
		f.t.Fatalf("the instances are gone: %v", err)
	}
	return a.Questions
}

// do sends a command and returns its answer.
func (f *lmcacheFleet) do(what string, n int) []lmcacheQuestion {
	f.t.Helper()
	must.Succeed(f.t, f.in.Encode(command{Do: what, N: n}))
	return f.answer()
}

// compare asks the server and compares with the truth.
func (f *lmcacheFleet) compare(n int) {
	f.t.Helper()
	for _, q := range f.do("ask", n) {
		var answer map[string]map[string]struct {
			Longest   int `json:"longest_matched"`
			CPU, DISK int
		}
		f.server.call("/query", map[string]any{"model": model, "block_size": blockSize, "token_ids": q.Tokens, "cache_salt": q.Salt},
			&answer)
		for i, name := range lmcacheInstances {
			held, _, _ := strings.Cut(q.Held[name], "-")
			host, disk := len(held)-strings.Count(held, "d"), len(held)-strings.Count(held, "h")
			got := answer["default"][fmt.Sprintf("engine-%d", i)]
			if f.answers++; got.Longest != lmcacheChunk*len(held) || got.CPU != lmcacheChunk*host || got.DISK != lmcacheChunk*disk {
				if f.wrong++; f.wrong <= 1 {
					f.t.Errorf("engine-%d: %+v, the directory says %q of its chunks", i, got, q.Held[name])
				}
			}
		}
	}
}

// state returns state and reason of the source of an instance.
func (f *lmcacheFleet) state(instance string) string {
	f.t.Helper()
	s := f.server.service(&engine{t: f.t, instance: instance})
	return s.State + " " + s.Reason
}

// TestLMCache lets instances of released LMCache report to the server, and compares answers with
// LMCache's own directory of the same reports.
func TestLMCache(t *testing.T) {
	if os.Getenv("ENGINES_CACHE") == "" {
		t.Skip("ENGINES_CACHE is not set to releases that make conformance-engines fetches")
	}
	for _, name := range strings.Fields(os.Getenv("ENGINES_VERSIONS")) {
		version, is := strings.CutPrefix(name, "lmcache==")
		if !is {
			continue
		}
		t.Run(version, func(t *testing.T) {
			config := "sources:\n  - {endpoint: 'push:', type: LMCache, modelname: m, instance_id: 'pool:fs', block_size: 16}\n"
			for i, name := range lmcacheInstances {
				config += fmt.Sprintf("  - {endpoint: 'tcp://127.0.0.1:1', type: vLLM, modelname: m, instance_id: engine-%d, "+
					"block_size: 16}\n", i)
				config += fmt.Sprintf("  - {endpoint: 'push:', type: LMCache, modelname: m, instance_id: '%s', block_size: 16, serves: "+
					"[engine-%d]}\n", name, i)
			}
			f := startLMCache(t, release{"lmcache", version}, startServer(t, config))
			rounds := 10
			each := (setting(t, "ENGINES_ANSWERS") + 2*rounds*len(lmcacheInstances) - 1) / (2 * rounds * len(lmcacheInstances))
			for range rounds {
				f.do("work", 40)
				f.compare(each)
				if got := f.state("node:a"); got != "synced " {
					t.Errorf("node:a is %q, want synced", got)
				}
				f.do("restart", 0)
				f.do("work", 40)
				f.compare(each)
			}
			f.do("lose", 1)
			f.do("work", 20)
			if got := f.state("node:b"); got != "partial gap_unrecoverable" {
				t.Errorf("node:b is %q after a lost report, want it partial", got)
			}
			f.do("restart", 1)
			f.do("work", 20)
			if got := f.state("node:b"); got != "synced " {
				t.Errorf("node:b is %q after a restart, want synced", got)
			}
			f.compare(each)
			fmt.Printf("lmcache %s: %d answers, %d wrong\n", version, f.answers, f.wrong)
			if f.wrong > 0 {
				t.Errorf("%d of %d answers are wrong", f.wrong, f.answers)
			}
		})
	}
}
