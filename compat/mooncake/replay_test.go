package mooncake

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gin-gonic/gin"

	"example.com/conductor/conductor/body"
	"example.com/conductor/internal/must"
)

// fleet is what a proxy reaches by HTTP: a Conductor under that name, and engines under
// any other, whose tokens count the words of a prompt from 1.
type fleet struct {
	s         *testServer
	on        *gin.Engine
	mute      bool // the Conductor does not answer queries
	noTokens  bool // the engines do not tokenize
	registers int
	queries   []*http.Request
}

func (f *fleet) RoundTrip(req *http.Request) (*http.Response, error) {
	rec := httptest.NewRecorder()
	switch {
	case req.URL.Host != "conductor":
		f.tokenize(rec, req)
	case req.URL.Path == "/query" && f.mute:
		<-req.Context().Done()
		return nil, req.Context().Err()
	default:
		if req.URL.Path == "/query" {
			f.queries = append(f.queries, req)
		} else {
			f.registers++
		}
		f.on.ServeHTTP(rec, req)
	}
	return rec.Result(), nil
}

func (f *fleet) tokenize(w http.ResponseWriter, req *http.Request) {
	var ask map[string]any
	if err := json.NewDecoder(req.Body).Decode(&ask); err != nil || ask["stream"] != false || ask["max_tokens"] != 1.0 ||
		ask["stream_options"] != nil {
		f.s.t.Errorf("an engine is asked for tokens with %v: %v", ask, err)
	}
	if f.noTokens {
		http.Error(w, "busy", http.StatusServiceUnavailable)
		return
	}
	tokens := []int{}
	for i := range strings.Fields(ask["prompt"].(string)) {
		tokens = append(tokens, i+1)
	}
	json.NewEncoder(w).Encode(map[string]any{"tokens": tokens})
}

// words returns a prompt of n tokens.
func words(n int) string { return strings.Repeat("word ", n) }

// withProxies runs a test with each form, on each listener that speaks it.
func withProxies(t *testing.T, test func(*testing.T, *fleet, func() *proxy)) {
	for _, c := range []struct {
		name string
		form body.Codec
		on   func(*testServer) *gin.Engine
	}{
		{"msgpack", body.Msgpack, func(s *testServer) *gin.Engine { return s.alone }},
		{"msgpack, beside the published", body.Msgpack, func(s *testServer) *gin.Engine { return s.mixed }},
		{"JSON", body.JSON, func(s *testServer) *gin.Engine { return s.plain }},
	} {
		t.Run(c.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, s *testServer) {
				f := &fleet{s: s, on: c.on(s)}
				test(t, f, func() *proxy {
					return &proxy{
						form: c.form, client: http.Client{Transport: f}, conductor: "http://conductor", blockSize: blockSize, model: "m",
						tenant: "default",
						engines: []routable{
							{"a", "http://a", []string{"tcp://a:1", "tcp://a:2"}},
							{"b", "http://b", []string{"tcp://b:1"}},
						},
					}
				})
			})
		})
	}
}

// goes routes a prompt several times.
func (p *proxy) goes(t *testing.T, request map[string]any, want ...string) {
	t.Helper()
	request["model"], request["stream"], request["stream_options"] = "m", true, map[string]any{"include_usage": true}
	for i, want := range want {
		instance, reason := p.route(request, "request-7")
		if got := strings.TrimSpace(instance + " " + reason); got != want {
			t.Errorf("%.20v, time %d: to %q, want %q", request["prompt"], i, got, want)
		}
	}
	if request["stream"] != true || request["max_tokens"] != nil {
		t.Errorf("the request was changed: %v", request)
	}
}

// TestProxyStarts registers all ranks, again after a restart of the proxy, and then
// with another configuration, which ends it at once.
func TestProxyStarts(t *testing.T) {
	withProxies(t, func(t *testing.T, f *fleet, proxyOf func() *proxy) {
		for range 2 {
			must.Succeed(t, proxyOf().start())
			var keys []string
			for _, r := range f.s.conductor.Registrations() {
				keys = append(keys, fmt.Sprint(r.Key(), r.Endpoint, r.ReplayEndpoint, r.Type, r.Model, r.Lora, r.BlockSize))
			}
			slices.Sort(keys)
			if got := strings.Join(
				keys, " "); got != "a|default|0tcp://a:1vLLMm16 a|default|1tcp://a:2vLLMm16 b|default|0tcp://b:1vLLMm16" {
				t.Errorf("registered: %s", got)
			}
		}
		moved := proxyOf()
		moved.engines[0].ranks[1] = "tcp://elsewhere:1"
		f.registers = 0
		if err := moved.start(); err == nil || !strings.Contains(err.Error(), "conflicting registration for service key: a|default|1") ||
			f.registers != 2 {
			t.Errorf("after %d registrations: %v", f.registers, err)
		}
		wider := proxyOf()
		wider.blockSize *= 2
		if err := wider.start(); err == nil || !strings.Contains(err.Error(), "conflicting registration") {
			t.Errorf("another block size: %v", err)
		}
	})
}

// TestProxyRoutes lets the proxy choose from real answers.
func TestProxyRoutes(t *testing.T) {
	withProxies(t, func(t *testing.T, f *fleet, proxyOf func() *proxy) {
		p := proxyOf()
		prompt := func(tokens int) map[string]any { return map[string]any{"prompt": words(tokens)} }
		p.goes(t, prompt(48), "a "+nothingRoutable, "b "+nothingRoutable) // no instance is registered
		must.Succeed(t, p.start())
		p.goes(t, prompt(48), "a "+allZero, "b "+allZero, "a "+allZero)
		if q := f.queries[0]; q.Header.Get("X-Request-Id") != "request-7" || q.Method != "POST" {
			t.Errorf("%s %v", q.Method, q.Header)
		}

		// One holds more than the other, on its second rank, on whatever tier.
		f.s.publish("tcp://a:2", (&blocks{Medium: "GPU", First: 0, Count: 2}).stored())
		f.s.publish("tcp://b:1", (&blocks{Medium: "GPU", First: 0, Count: 1}).stored())
		p.goes(t, prompt(48), "a", "a")
		f.s.publish("tcp://b:1", (&blocks{Medium: "CPU", First: 0, Count: 3}).stored())
		p.goes(t, prompt(48), "b", "b")
		p.goes(t, prompt(15), "b "+allZero) // no whole block; the turn after the last one above

		// Where both are as long they take turns, of their own for each such pair,
		// though one has it all on its device.
		p.goes(t, prompt(16), "a", "b", "a")
		p.goes(t, prompt(20), "b")

		// An instance that holds more does not count for others. Blocks of a pool serve both.
		foreign := source("foreign", 0)
		other := source("a", 0)
		other["tenant_id"], other["endpoint"] = "other", "tcp://other:1"
		pool := source("pool", 0)
		pool["type"] = "Mooncake"
		for _, r := range []map[string]any{foreign, other, pool} {
			if rec := send(f.s.alone, "POST", "/register", packed(t, r), "Content-Type", msgpackType); rec.Code != 200 {
				t.Fatal(rec.Code, unpacked(rec.Body.Bytes()))
			}
		}
		for _, endpoint := range []string{"tcp://foreign:1", "tcp://other:1"} {
			f.s.publish(endpoint, (&blocks{Medium: "GPU", First: 0, Count: 4}).stored())
		}
		p.goes(t, prompt(64), "b")
		f.s.publish("tcp://pool:1", (&blocks{Medium: "DISK", First: 0, Count: 4}).stored())
		p.goes(t, prompt(64), "a", "b", "a") // the pair's turn goes on

		// A salt is passed on only where there is one.
		f.s.publish("tcp://a:1", (&blocks{Medium: "GPU", First: 0, Count: 1, Salt: "pepper"}).stored())
		salted := prompt(16)
		salted["cache_salt"] = "pepper"
		p.goes(t, salted, "a", "a")
		salted["cache_salt"] = nil
		p.goes(t, salted, "b", "a")

		// What the model of the user's request is decides, not the configured one.
		if instance, reason := p.route(map[string]any{"prompt": words(16), "model": "unheard"},
			""); instance+reason != "a"+nothingRoutable {
			t.Errorf("another model: %s %s", instance, reason)
		}
	})
}

// TestProxyLora serves an adapter, in a tenant of its own.
func TestProxyLora(t *testing.T) {
	withProxies(t, func(t *testing.T, f *fleet, proxyOf func() *proxy) {
		base, p := proxyOf(), proxyOf()
		p.tenant, p.lora = "t", "adapter"
		for i, e := range p.engines {
			for rank := range e.ranks {
				p.engines[i].ranks[rank] = "tcp://lora-" + strings.TrimPrefix(e.ranks[rank], "tcp://")
			}
		}
		for _, x := range []*proxy{base, p} {
			must.Succeed(t, x.start())
		}
		f.s.publish("tcp://lora-b:1", (&blocks{Medium: "GPU", First: 0, Count: 2}).stored())
		p.goes(t, map[string]any{"prompt": words(40)}, "b", "b")
		base.goes(t, map[string]any{"prompt": words(40)}, "a "+allZero)
		p.lora = "unheard"
		p.goes(t, map[string]any{"prompt": words(40)}, "a "+nothingRoutable)
	})
}

// TestProxyFallsBack takes away what the proxy asks.
func TestProxyFallsBack(t *testing.T) {
	withProxies(t, func(t *testing.T, f *fleet, proxyOf func() *proxy) {
		p := proxyOf()
		must.Succeed(t, p.start())
		f.s.publish("tcp://b:1", (&blocks{Medium: "GPU", First: 0, Count: 1}).stored())
		request := map[string]any{"prompt": words(16)}
		p.goes(t, request, "b")

		f.noTokens = true
		asked := len(f.queries)
		p.goes(t, request, "a "+tokenizationFailed, "b "+tokenizationFailed)
		if len(f.queries) != asked {
			t.Error("it asks without tokens")
		}
		f.noTokens = false

		f.mute = true
		start := time.Now()
		p.goes(t, request, "a "+queryFailed)
		if waited := time.Since(start); waited != time.Second {
			t.Errorf("it waits %v", waited)
		}
		f.mute = false

		p.blockSize = 0 // refused
		p.goes(t, request, "b "+queryFailed)
		p.blockSize = blockSize
		if p.form == body.Msgpack {
			f.on = f.s.plain // another server than it thinks
			p.goes(t, request, "a "+queryFailed)
		}
	})
}

// TestProxyChooses gives the proxy answers that no Conductor gives.
func TestProxyChooses(t *testing.T) {
	f := func(answer, want string) {
		t.Helper()
		d := json.NewDecoder(strings.NewReader(answer))
		d.UseNumber()
		var v map[string]any
		must.Succeed(t, d.Decode(&v))
		p := &proxy{engines: []routable{{id: "b"}, {id: "a"}}}
		got := ""
		for range 3 {
			instance, reason := p.choose(v)
			got += instance + " "
			if reason != "" {
				got += reason + " "
			}
		}
		if got = strings.TrimSpace(got); got != want {
			t.Errorf("%s: %s, want %s", answer, got, want)
		}
	}
	thrice := func(reason string) string { return "b " + reason + " a " + reason + " b " + reason }
	f(`{}`, thrice(invalidInstances))
	f(`{"instances":[]}`, thrice(invalidInstances))
	f(`{"instances":{}}`, thrice(nothingRoutable))
	f(`{"instances":{"c":{"longest_matched":64}}}`, thrice(nothingRoutable))
	for _, odd := range []string{"true", "-1", `"16"`, "16.0", "null", "[]"} {
		f(`{"instances":{"a":{"longest_matched":`+odd+`}}}`, thrice(nothingRoutable))
	}
	f(`{"instances":{"a":{"longest_matched":0},"b":{"longest_matched":0}}}`, thrice(allZero))
	f(`{"instances":{"a":{"longest_matched":16},"c":{"longest_matched":64}}}`, "a a a")
	f(`{"instances":{"b":{"longest_matched":16},"a":{"longest_matched":16}}}`, "a b a")
	f(`{"instances":{"a":{"longest_matched":16,"rank_matches":{"0":{"gpu":16}}},"b":{"longest_matched":32,`+
		`"rank_matches":{"0":{"gpu":0}}}}}`, "b b b")
}
