package pick

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"example.com/conductor/client"
)

// gathered returns the gauges of a rig, by name and instance.
func gathered(t testing.TB, g *rig) map[string]float64 {
	t.Helper()
	r := prometheus.NewPedanticRegistry()
	r.MustRegister(g.metrics)
	families, err := r.Gather()
	if err != nil {
		t.Error(err)
	}
	out := make(map[string]float64)
	for _, family := range families {
		for _, m := range family.GetMetric() {
			name := strings.TrimPrefix(family.GetName(), "conductor_picker_")
			for _, l := range m.GetLabel() {
				name += " " + l.GetValue()
			}
			out[name] = m.GetGauge().GetValue()
		}
	}
	return out
}

func (g *rig) endpoints() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	var all []string
	for _, e := range g.fleet.all {
		all = append(all, e.Instance.Instance+" "+e.endpoint)
	}
	return strings.Join(all, ", ")
}

// TestAddresses holds which endpoint comes of which address.
func TestAddresses(t *testing.T) {
	hosts := map[string][]string{"one": {"10.1.0.1"}, "two": {"10.1.0.9", "10.1.0.2"}, "mapped": {"::ffff:10.1.0.3"}}
	resolved := 0
	var mu sync.Mutex
	g := newRig(t, Options{Resolve: func(_ context.Context, host string) (all []netip.Addr, err error) {
		mu.Lock()
		defer mu.Unlock()
		resolved++
		for _, text := range hosts[host] {
			all = append(all, netip.MustParseAddr(text))
		}
		if len(all) == 0 {
			err = errors.New("no such host")
		}
		return all, err
	}})
	set := func(addresses ...string) {
		var all []client.Instance
		for i, a := range addresses {
			all = append(all, client.Instance{Instance: fmt.Sprint(i), Model: "m", Address: a, BlockSize: block})
		}
		g.setInstances(t.Context(), all, false)
	}
	f := func(want string) {
		t.Helper()
		if got := g.endpoints(); got != want {
			t.Errorf("the fleet is %q, want %q", got, want)
		}
	}
	set("http://10.0.0.7:8000", "https://10.0.0.8/v1", "http://[::1]:8000", "http://one:80", "http://two", "http://mapped.:1",
		"http://none:80", "", "tcp://10.0.0.1:80", "10.0.0.1:80", "http://10.0.0.1:99999")
	f("0 10.0.0.7:8000, 1 10.0.0.8:443, 2 [::1]:8000, 3 10.1.0.1:80, 4 10.1.0.2:80, 5 10.1.0.3:1")
	if got := gathered(t, g)["engines_without_address"]; got != 5 {
		t.Errorf("%v instances have no address", got)
	}
	set("http://one", "http://two", "http://none")
	f("0 10.1.0.1:80, 1 10.1.0.2:80")
	if resolved != 5 { // the unknown one is tried again
		t.Errorf("%d hosts were looked up", resolved)
	}
	hosts["two"], hosts["none"] = []string{"10.1.0.1", "10.1.0.2"}, []string{"10.1.0.4"}
	delete(hosts, "one")
	g.resolveAgain(t.Context())
	f("0 10.1.0.1:80, 1 10.1.0.2:80, 2 10.1.0.4:80")
}

// TestFleetChanges holds that load and failures outlive changes of the list, and leave with an engine that has nothing in flight.
func TestFleetChanges(t *testing.T) {
	g := newRig(t, Options{}, "a", "b")
	all := g.conductor.instances
	prompt := tokensOf(1, 40)
	f := g.send("r", prompt, "a")
	g.setInstances(t.Context(), all[1:], false)
	g.setInstances(t.Context(), all, false)
	if e := g.fleet.all[0]; e.inFlight != 1 || e.queued() != 40 {
		t.Errorf("the engine that came back has %d requests", e.inFlight)
	}
	got := gathered(t, g)
	if got["in_flight_requests a"] != 1 || got["in_flight_prompt_tokens a"] != 40 || got["engine_available b"] != 1 ||
		got["conductor_breaker_state"] != 0 {
		t.Errorf("the gauges are %v", got)
	}
	g.setInstances(t.Context(), all[1:], false)
	f.Answered("10.0.0.1:8000", 503)
	f.End()
	g.setInstances(t.Context(), all[1:], false)
	if len(g.loads) != 1 {
		t.Errorf("the loads of %d endpoints are kept", len(g.loads))
	}
	all[0].Tenant = "other"
	g.setInstances(t.Context(), all, false)
	if got := g.endpoints(); got != "b 10.0.0.2:8000" {
		t.Errorf("with an engine of another tenant the fleet is %q", got)
	}
}

// TestEnginesLeaveThoughWatchesAreCut holds that an engine which Conductor does not name any more leaves after a minute, and that nothing
// piles up, although the watch is cut more often than that.
func TestEnginesLeaveThoughWatchesAreCut(t *testing.T) {
	g := newRig(t, Options{}, "a", "b")
	left := g.conductor.instances[:1]
	for range 3 {
		g.setInstances(t.Context(), left, true)
		if got := g.endpoints(); got != "a 10.0.0.1:8000, b 10.0.0.2:8000" {
			t.Errorf("within a minute the fleet is %q", got)
		}
		g.clock = g.clock.Add(keepMissing / 3)
	}
	g.setInstances(t.Context(), left, true)
	if got := g.endpoints(); got != "a 10.0.0.1:8000" {
		t.Errorf("after a minute the fleet is %q", got)
	}
	if len(g.keeper.missing) != 0 {
		t.Errorf("%d instances are kept still", len(g.keeper.missing))
	}
}

// TestWatch holds that the list of Conductor is followed again after it was away, and stays in the meantime.
func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, Options{}, "a", "b")
		g.Now = time.Now // of the bubble
		g.setInstances(t.Context(), nil, false)
		ctx, end := context.WithCancel(t.Context())
		ended := make(chan bool)
		go func() { g.Run(ctx); close(ended) }()
		synctest.Wait()
		if got := g.endpoints(); got != "a 10.0.0.1:8000, b 10.0.0.2:8000" || !g.Ready() {
			t.Errorf("the fleet is %q", got)
		}
		g.conductor.mu.Lock()
		g.conductor.instances = g.conductor.instances[:1]
		g.conductor.mu.Unlock()
		g.conductor.watches <- errors.New("gone")
		synctest.Wait()
		if got := g.endpoints(); got != "a 10.0.0.1:8000, b 10.0.0.2:8000" {
			t.Errorf("without Conductor the fleet is %q", got)
		}
		time.Sleep(time.Second) // of the bubble
		synctest.Wait()
		if got := g.endpoints(); got != "a 10.0.0.1:8000, b 10.0.0.2:8000" {
			t.Errorf("after Conductor came back, and may have forgotten an engine, the fleet is %q", got)
		}
		forget := func() {
			time.Sleep(keepMissing + resolveEvery)
			synctest.Wait()
		}
		if forget(); g.endpoints() != "a 10.0.0.1:8000" {
			t.Errorf("a minute later the fleet is %q", g.endpoints())
		}
		g.conductor.mu.Lock()
		g.conductor.instances = nil
		g.conductor.mu.Unlock()
		g.conductor.watches <- &client.Error{Status: 401}
		time.Sleep(watchAgain)
		synctest.Wait()
		if forget(); g.endpoints() != "" || g.Ready() {
			t.Errorf("after other credentials the fleet is %q", g.endpoints())
		}
		end()
		<-ended
	})
}

// TestScrape holds what is read of engines' metrics.
func TestScrape(t *testing.T) {
	answers := map[string]string{
		"vllm": "# TYPE vllm:num_requests_waiting gauge\nvllm:num_requests_waiting{engine=\"0\",model_name=\"m\"} 3\n" +
			"vllm:num_requests_waiting{engine=\"1\",model_name=\"m\"} 4\n# TYPE vllm:num_requests_running gauge\n" +
			"vllm:num_requests_running{engine=\"0\"} 20\n" +
			"# TYPE vllm:kv_cache_usage_perc gauge\nvllm:kv_cache_usage_perc{engine=\"0\"} 0.5\n" +
			"vllm:kv_cache_usage_perc{engine=\"1\"} 0.7\n",
		"sglang":  "sglang:num_queue_reqs{tp_rank=\"0\"} 2\nsglang:num_running_reqs 1\nsglang:token_usage 0.25\n",
		"odd":     "vllm:num_requests_waiting NaN\nvllm:num_requests_waiting{a=\"b\"} -3\n",
		"garbage": "<html>",
	}
	var list []client.Instance
	for _, name := range []string{"garbage", "gone", "odd", "sglang", "vllm"} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/metrics" {
				io.WriteString(w, answers[name])
			}
		}))
		defer s.Close()
		if name == "gone" {
			s.Close()
		}
		list = append(list, client.Instance{Instance: name, Model: "m", Address: s.URL, BlockSize: block})
	}
	g := newRig(t, Options{ScrapeEvery: time.Hour})
	g.setInstances(t.Context(), list, false)
	g.scrape(t.Context())
	f := func(i int, want string) {
		t.Helper()
		e := g.fleet.all[i]
		if got := fmt.Sprint(e.waiting, e.running, e.cacheUse, g.stale(e.load, g.clock)); got != want {
			t.Errorf("%s has %s, want %s", e.Instance.Instance, got, want)
		}
	}
	f(0, "0 0 0 true")
	f(1, "0 0 0 true")
	f(2, "0 0 0 true")
	f(3, "2 1 0.25 false")
	f(4, "7 20 0.7 false")
	for i, e := range g.fleet.all {
		if left := e.until.After(g.clock); left != (i == 1) {
			t.Errorf("%s has left: %t", e.Instance.Instance, left)
		}
	}
	// One that takes connections again may be chosen again.
	dead := g.fleet.all[1]
	dead.base = g.fleet.all[4].base
	g.clock = g.clock.Add(time.Second)
	if g.scrape(t.Context()); dead.until.After(g.clock) || dead.failures != 0 {
		t.Errorf("%s has left until %s", dead.Instance.Instance, dead.until)
	}
	l := g.loadOf(g.fleet.all[4], 0, g.clock)
	if l.Waiting != 7 || l.Running != 20 || l.CacheUse != 0.7 {
		t.Errorf("the load is %+v", l)
	}
	g.fleet.all[4].load.inFlight = 2 // of those that wait
	if l := g.loadOf(g.fleet.all[4], 0, g.clock); l.Waiting != 5 {
		t.Errorf("the load is %+v", l)
	}
}

// TestScrapeEnds holds that an engine that does not answer holds up the others no longer than an interval.
func TestScrapeEnds(t *testing.T) {
	arrived := make(chan bool)
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		arrived <- true
		<-r.Context().Done()
	}))
	defer s.Close()
	g := newRig(t, Options{ScrapeEvery: time.Hour})
	g.setInstances(t.Context(), []client.Instance{{Instance: "never", Model: "m", Address: s.URL}}, false)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-arrived; cancel() }()
	g.scrape(ctx)
	g.counted(g.metrics.scrapes, "failed", 1)

	g.ScrapeEvery = time.Millisecond
	go func() { // the request may be cut off before the server has it
		select {
		case <-arrived:
		case <-t.Context().Done():
		}
	}()
	g.scrape(t.Context())
	g.counted(g.metrics.scrapes, "failed", 2)
}

// TestTextsThroughEngines plays chats through engines that make their tokens: nonsense, none, or slowly, and sensibly.
func TestTextsThroughEngines(t *testing.T) {
	var asked atomic.Int32
	sensible := func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		var ask struct {
			Model    string
			Messages []struct{ Content string }
		}
		if err := json.NewDecoder(r.Body).Decode(&ask); err != nil || ask.Model != "alias" {
			t.Errorf("the engine is asked for %+v: %v", ask, err)
		}
		json.NewEncoder(w).Encode(map[string]any{"tokens": tokensOf(uint32(ask.Messages[0].Content[0]), 16)})
	}
	for name, c := range map[string]struct {
		answer http.HandlerFunc
		reason string
	}{
		"sensible": {sensible, "prefix"},
		"nonsense": {func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, `{"tokens":["a"]}`) }, "tokenizer_failed"},
		"absent":   {http.NotFound, "tokenizer_failed"},
		"slow": {func(_ http.ResponseWriter, r *http.Request) {
			io.Copy(io.Discard, r.Body) // so that the server notices that the client leaves
			<-r.Context().Done()
		}, "tokenizer_failed"},
	} {
		s := httptest.NewServer(c.answer)
		defer s.Close()
		o := Options{}
		if name == "slow" {
			o.Tokenizer.Timeout = time.Millisecond
		} else {
			o.Tokenizer.Timeout = time.Hour
		}
		g := newRig(t, o, "a", "b")
		for i := range g.conductor.instances {
			g.conductor.instances[i].Address = s.URL // one server plays both
		}
		g.setInstances(t.Context(), g.conductor.instances[1:], false)
		g.conductor.announce("b", 0, tokensOf('x', 16))
		f := g.pick(&Request{Method: http.MethodPost, Path: "/v1/chat/completions", Explain: true,
			Body: []byte(`{"model":"alias","messages":[{"role":"user","content":"xyz"}],"stream":true}`)})
		if !strings.HasPrefix(f.choice.Why, c.reason+":") {
			t.Errorf("with an engine that is %s: %s", name, f.choice.Why)
		}
		f.End()
	}
	if asked.Load() != 1 {
		t.Errorf("the engine was asked %d times", asked.Load())
	}
}
