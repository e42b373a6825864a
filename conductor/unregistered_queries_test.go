package conductor

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"example.com/conductor/conductor/ingest"
	"example.com/conductor/conductor/match"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/events/stream"
	"example.com/conductor/events/stream/streamtest"
	"example.com/conductor/internal/must"
)

// TestUnregisteredQueries requires that clients of a tenant learn of its queries that nothing can answer, and what is registered
// instead, until an engine is registered or ten minutes are over.
func TestUnregisteredQueries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(Options{HashSeed: 1337, Log: zerolog.Nop(), Stream: stream.Config{Transport: new(streamtest.Network)}})
		defer c.Close()
		register := func(tenant, model string, size int) {
			t.Helper()
			must.Succeed(t, c.Register(registration.Registration{Instance: "i" + model + tenant, Tenant: tenant, Model: model,
				BlockSize: size, Type: registration.TypeVLLM, Endpoint: "ipc:///" + tenant + model}, ingest.RegisterOptions{}))
		}
		ask := func(tenant, model string, size int) {
			t.Helper()
			for range 3 { // once is a typing mistake
				must.Succeed(t, c.For(Reader{}).Answer(&match.Query{Tenant: tenant, Model: model, BlockSize: size,
					Tokens: make([]uint32, 64)}, func(*match.Answer) {}))
			}
		}
		candidates := func(tenant, model string) {
			t.Helper()
			for range 3 {
				q := match.Query{Tenant: tenant, Model: model, Tokens: make([]uint32, 64)}
				if Candidates(c.For(Reader{}), &q, func(*match.Answer, registration.Meaning) {}) == nil {
					t.Errorf("there are candidates for %s", model)
				}
			}
		}
		told := func(tenants scope.Tenants) string {
			var all []string
			for _, u := range c.For(Reader{Tenants: tenants}).UnregisteredQueries() {
				all = append(all, fmt.Sprintf("%s/%s/%d %d: %s", u.Tenant, u.Model, u.BlockSize, u.Queries, u.Advice))
			}
			return strings.Join(all, "\n")
		}
		f := func(tenants scope.Tenants, want ...string) {
			t.Helper()
			if got := told(tenants); got != strings.Join(want, "\n") {
				t.Errorf("%v are told\n%s\nwant\n%s", tenants, got, strings.Join(want, "\n"))
			}
		}
		register("ann", "llama", 16)
		register("bob", "qwen", 16)
		ask("ann", "llama", 16)
		f(nil)
		ask("ann", "lama", 16)
		ask("ann", "lama", 16)
		ask("ann", "llama", 32)
		candidates("ann", "qwen")
		lama := `ann/lama/16 6: model "lama" is not registered for tenant "ann"; these models are: "llama"`
		size := `ann/llama/32 3: model "llama" of tenant "ann" is registered with block size 16, not 32`
		other := `ann/qwen/0 3: model "qwen" is not registered for tenant "ann"; these models are: "llama"`
		f(scope.Tenants{"ann"}, lama, size, other)
		f(scope.Tenants{"bob"})
		f(nil, lama, size, other+`; tenant "bob" has it: ask with that tenant_id, or register its engines for tenant "ann"`)
		register("ann", "lama", 16)
		if got := told(nil); strings.Contains(got, "ann/lama/16") {
			t.Errorf("it is registered now: %s", got)
		}
		time.Sleep(11 * time.Minute)
		f(nil)
		must.Succeed(t, c.For(Reader{}).Answer(&match.Query{Tenant: "ann", Model: "qwen", BlockSize: 16, Tokens: make([]uint32, 64)},
			func(*match.Answer) {}))
		f(nil) // those of long ago do not add up with it
		for i := range 100 {
			ask("ann", fmt.Sprint("m", i), 16)
			time.Sleep(time.Millisecond)
		}
		if got := told(nil); strings.Count(got, "\n") != 15 || !strings.Contains(got, "ann/m99/") || strings.Contains(got, "ann/m0/") {
			t.Errorf("of a hundred: %s", got)
		}
	})
}
