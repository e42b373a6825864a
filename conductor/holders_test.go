package conductor_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/rs/zerolog"

	"kvconductor/conductor"
	"kvconductor/conductor/scope"
	"kvconductor/index/hash"
)

// TestHolders holds the answers for gateways of smg (SMG-1), against prefixes that are stored by script.
func TestHolders(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		ask := func(r conductor.Reader, blockSize int, path string) string {
			holders, err := b.conductor.For(r).Holders("m", blockSize, hash.Default().Locals(nil, promptOf(path, 16), 16))
			if err != nil {
				t.Error(err)
			}
			var out []string
			for _, h := range holders {
				out = append(out, fmt.Sprintf("%s=%d/%d", h.Address, h.Blocks, h.Held))
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
			if got := ask(conductor.Reader{}, 16, path); got != want {
				t.Errorf("%s: %q, want %q", path, got, want)
			}
		}
		expect("a", "")
		run("register 10.0.0.1:8000", "register 10.0.0.1:8000 rank=1", "register http://w2", "register named", "register http://v tenant=blue")
		// The rank that reaches furthest counts, held blocks are those of all ranks.
		run("store 10.0.0.1:8000 path=a/b/c", "store 10.0.0.1:8000 rank=1 path=a", "store named path=a/b/c/d")
		expect("a/b/c/d", "http://10.0.0.1:8000=3/4")
		// Tiers add up; held blocks are those of devices.
		run("store http://w2 path=a/b", "store http://w2 path=a/b/c from=2 medium=cpu", "store http://w2 path=a/b/c/d from=3 medium=disk")
		expect("a/b/c/d", "http://w2=4/2 http://10.0.0.1:8000=3/4")
		expect("a/b", "http://10.0.0.1:8000=2/4 http://w2=2/2")
		expect("b", "")
		// Blocks under an adapter are others, and held; block sizes and tenants are apart.
		run("store http://w2 path=x lora=sql")
		expect("x", "")
		if got := ask(conductor.Reader{}, 32, "a"); got != "" {
			t.Errorf("blocks of another size: %q", got)
		}
		run("store http://v tenant=blue path=a/b/c/d/e")
		for _, c := range []struct {
			tenants scope.Tenants
			want    string
		}{{nil, "http://v=5/5 http://w2=4/3 http://10.0.0.1:8000=3/4"}, {scope.Tenants{"blue"}, "http://v=5/5"}, {scope.Tenants{"red"}, ""}, {scope.Tenants{}, ""}} {
			if got := ask(conductor.Reader{Tenants: c.tenants}, 16, "a/b/c/d/e"); got != c.want {
				t.Errorf("tenants %v: %q, want %q", c.tenants, got, c.want)
			}
		}
		// One address in two tenants is one holder.
		run("register http://v", "store http://v path=a")
		expect("a/b/c/d/e", "http://v=5/5 http://w2=4/3 http://10.0.0.1:8000=3/4")
	})
}

// TestHoldersOfSaltedFleet holds that a server which answers salted queries alone tells no holder.
func TestHoldersOfSaltedFleet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBenchWith(nil, zerolog.Nop(), func(o *conductor.Options) { o.SaltedOnly = true })
		defer b.conductor.Close()
		b.run("register http://w")
		b.run("store http://w path=a")
		locals := hash.Default().Locals(nil, promptOf("a", 16), 16)
		if all, err := b.conductor.For(conductor.Reader{}).Holders("m", 16, locals); len(all) > 0 || err != nil {
			t.Error(all, err)
		}
	})
}
