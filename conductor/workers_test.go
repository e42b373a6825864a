package conductor_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/scope"
)

// TestWorkers holds the answers for sgl-router (SGLANG-1), against prefixes that are stored by script.
func TestWorkers(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		ask := func(r conductor.Reader, model, path string) string {
			hashes, _, _, _ := blocksOf(args{keys: map[string]string{"path": path, "hashed": "sglang"}})
			keys := make([]uint64, len(hashes))
			for i := range hashes {
				keys[i] = hashes[i].(uint64)
			}
			var out []string
			for _, w := range b.conductor.For(r).Workers(model, keys) {
				out = append(out, fmt.Sprintf("%s=%d", w.Address, w.Blocks))
			}
			return strings.Join(out, " ")
		}
		run := func(lines ...string) {
			t.Helper()
			for _, line := range lines {
				if out := b.run(line); out != "" && !strings.Contains(out, "registered successfully") {
					t.Fatalf("%s: %s", line, out)
				}
			}
		}
		expect := func(path, want string) {
			t.Helper()
			if got := ask(conductor.Reader{}, "", path); got != want {
				t.Errorf("%s: %q, want %q", path, got, want)
			}
		}
		expect("a", "")
		run("register 10.0.0.1:30000 type=SGLang", "register 10.0.0.1:30000 type=SGLang rank=1", "register http://w2 type=SGLang",
			"register named type=SGLang",
			"register pool type=Mooncake replay=no", "register http://v type=vLLM model=other tenant=blue")
		// The best rank counts, not both together.
		run("store 10.0.0.1:30000 path=a/b hashed=sglang", "store 10.0.0.1:30000 rank=1 path=a/b/c hashed=sglang",
			"remove 10.0.0.1:30000 rank=1 path=a/b/c from=1 hashed=sglang")
		expect("a/b/c/d", "http://10.0.0.1:30000=2")
		// Devices and hosts count together, in any order; a disk and a pool do not.
		run("store http://w2 path=a/b/c/d hashed=sglang", "store http://w2 path=a/b/c/d/e hashed=sglang from=4 medium=cpu",
			"store http://w2 path=a/b/c/d/e/f hashed=sglang from=5",
			"store http://w2 path=a/b/c/d/e/f/g hashed=sglang from=6 medium=disk", "put pool path=a/b/c/d/e/f/g hashed=sglang part=k")
		expect("a/b/c/d/e/f/g/h", "http://w2=6 http://10.0.0.1:30000=2")
		// An instance without a URL is left out; equal matches go by address.
		run("store named path=a/b/c/d/e/f hashed=sglang", "store 10.0.0.1:30000 path=a/b/c/d/e/f hashed=sglang")
		expect("a/b/c/d/e/f", "http://10.0.0.1:30000=6 http://w2=6")
		// The address of a registration is not the name that the router knows.
		run("register http://w3 type=SGLang address=http://10.0.0.9:1", "store http://w3 path=a/b/c/d/e/f/g hashed=sglang")
		expect("a/b/c/d/e/f/g", "http://w3=7 http://10.0.0.1:30000=6 http://w2=6")
		b.run("unregister http://w3")
		// What a hole is in front of does not count.
		run("remove http://w2 path=a/b from=1 hashed=sglang")
		expect("a/b/c/d/e/f", "http://10.0.0.1:30000=6 http://w2=1")
		// Blocks under an adapter or a salt are others, though SGLang names those of adapters alike.
		run("store http://w2 path=x/y lora=sql hashed=sglang")
		expect("x/y", "")
		// Models and tenants.
		run("store http://v model=other tenant=blue path=q hashed=sglang")
		expect("q", "http://v=1")
		for _, c := range []struct {
			reader conductor.Reader
			model  string
			want   string
		}{
			{conductor.Reader{}, "m", ""}, {conductor.Reader{}, "other", "http://v=1"},
			{conductor.Reader{Tenants: scope.Tenants{"blue"}}, "", "http://v=1"},
			{conductor.Reader{Tenants: scope.Tenants{"red"}}, "", ""}, {conductor.Reader{Tenants: scope.Tenants{}}, "", ""},
		} {
			if got := ask(c.reader, c.model, "q"); got != c.want {
				t.Errorf("%+v of model %q: %q, want %q", c.reader, c.model, got, c.want)
			}
		}
		// Of blocks that are used together all or none count (CHUNK-1).
		run("store http://w2 path=1/2/3/4 hashed=sglang")
		pages, _, _, _ := blocksOf(args{keys: map[string]string{"path": "1/2/3/4", "hashed": "sglang"}})
		run(fmt.Sprintf(`event http://w2 json={"type":"BlockStored","block_hashes":[%d,%d],"token_ids":[],"block_size":32,"medium":"CPU"}`,
			pages[1], pages[3]), "remove http://w2 path=1/2/3/4 hashed=sglang")
		expect("1/2/3/4", "http://w2=4")
		expect("1/2/3", "http://w2=2")
		// One URL of two deployments is one worker.
		run("register http://v type=SGLang model=m", "store http://v path=q/r hashed=sglang")
		expect("q/r", "http://v=2")
	})
}

// TestWorkersOfSaltedFleet holds that a server which answers salted queries alone tells no worker.
func TestWorkersOfSaltedFleet(t *testing.T) {
	b := newBenchWith(nil, zerolog.Nop(), func(o *conductor.Options) { o.SaltedOnly = true })
	defer b.conductor.Close()
	if all := b.conductor.For(conductor.Reader{}).Workers("", []uint64{1}); len(all) > 0 {
		t.Error(all)
	}
}
