package pick

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"example.com/conductor/client"
)

func TestCost(t *testing.T) {
	all := Weights{1, 1, 1}
	f := func(w Weights, row client.Rank, l Load, want float64) {
		t.Helper()
		if got := Cost(w, 1000, row, l); math.Abs(got-want) > 1e-6 {
			t.Errorf("%+v %+v costs %v, want %v", row, l, got, want)
		}
	}
	f(all, client.Rank{}, Load{}, 1000)
	f(all, client.Rank{GPU: 600, CPU: 600, Disk: 600, Expected: 600}, Load{}, 400)
	f(all, client.Rank{GPU: 200, CPU: 400, Disk: 600, Expected: 600}, Load{}, 400+50+150)
	f(all, client.Rank{Expected: 600}, Load{}, 400+600)            // waits for them
	f(all, client.Rank{Expected: 600}, Load{Queued: 800}, 400+800) // they are a part of the queue
	f(all, client.Rank{}, Load{Queued: 300, Waiting: 2, Running: 10, CacheUse: 0.95, Typical: 100}, 1000+300+200+100+50)
	f(Weights{2, 0.5, 0}, client.Rank{}, Load{Queued: 300, Waiting: 2, Typical: 100}, 2000+150)
}

// TestPrefix follows a request from its choice to its report.
func TestPrefix(t *testing.T) {
	g := newRig(t, Options{}, "a", "b", "c", "d", "e")
	prompt := tokensOf(1, 40)
	g.conductor.announce("c", 0, prompt[:32])
	g.conductor.announce("d", 0, prompt[:16])
	f := g.send("r", prompt, "c")
	want := "[10.0.0.3:8000 10.0.0.4:8000 10.0.0.1:8000 10.0.0.2:8000]"
	if fmt.Sprint(f.Choice().Endpoints) != want || len(f.Choice().Headers) != 0 {
		t.Errorf("the choice is %+v, want endpoints %s", f.Choice(), want)
	}
	want = "prefix: 40 tokens, to c/0 at 10.0.0.3:8000 (has 32, soon 32, cost 8); before d/0 at"
	if !strings.HasPrefix(f.Choice().Why, want) {
		t.Errorf("it says %q, want %q", f.Choice().Why, want)
	}
	if f.at.queued() != 8 || f.at.inFlight != 1 {
		t.Errorf("the engine has %f tokens and %d requests", f.at.queued(), f.at.inFlight)
	}
	g.said("r to c/0 by answer")
	f.Answered("10.0.0.3:8000", 200)
	f.FirstToken()
	if f.at.queued() != 0 || f.at.inFlight != 1 || f.at.started != 1 {
		t.Errorf("after the first token the engine has %f tokens, %d and %d requests", f.at.queued(), f.at.inFlight, f.at.started)
	}
	f.Usage(40, 32)
	f.End()
	g.idle()
	g.said()
	g.counted(g.metrics.choices, "prefix", 1)
	g.counted(g.metrics.picked, "prompt", 40)
	g.counted(g.metrics.picked, "predicted", 32)
	g.counted(g.metrics.served, "cached", 32)
	if got := <-g.reporter.feedback; got != (feedback{"c", 32, 32}) {
		t.Errorf("the feedback is %v", got)
	}
	g.send("alias", prompt, "c").End()
	none := newRig(t, Options{Fallbacks: -1}, "a", "b").send("r", prompt, "a")
	if len(none.choice.Endpoints) != 1 {
		t.Errorf("without fallbacks the endpoints are %q", none.choice.Endpoints)
	}
}

// TestBursts holds that equal prompts that come at once go to one engine, whatever Conductor knows of the first at the time, and
// that other prompts are spread.
func TestBursts(t *testing.T) {
	prompt := tokensOf(1, 400)
	for name, prepare := range map[string]func(*rig){
		"no report is sent":        func(*rig) {},
		"reports overtake answers": func(g *rig) { g.conductor.before = func() { g.reporter.flush(context.Background()) } },
		"the answers are forgotten": func(g *rig) {
			g.conductor.forgets = true
			g.conductor.before = func() { g.reporter.flush(context.Background()) }
		},
	} {
		g := newRig(t, Options{}, "a", "b", "c")
		prepare(g)
		var flights []*flight
		for i := range 16 {
			f := g.pick(request(fmt.Sprint(i), prompt))
			flights = append(flights, f)
			if f.at.endpoint != flights[0].at.endpoint {
				t.Errorf("%s: request %d goes to %s", name, i, f.at)
			}
		}
		if other := g.pick(request("other", tokensOf(2, 400))); other.at.endpoint == flights[0].at.endpoint {
			t.Errorf("%s: another prompt goes to the same engine", name)
		}
		for _, f := range flights[1:] {
			if f.charged != 0 {
				t.Errorf("%s: an equal prompt counts as %f tokens", name, f.charged)
			}
		}
	}
	// A salt, and an engine that has refused the first one.
	g := newRig(t, Options{}, "a", "b")
	first := g.send("1", prompt, "a")
	salted := request("2", prompt)
	salted.Body = append([]byte(`{"cache_salt":"s",`), salted.Body[1:]...)
	if f := g.pick(salted); f.at.Instance.Instance != "b" {
		t.Errorf("a prompt with another salt goes to %s", f.at)
	}
	first.Answered("", 400)
	first.End()
	if f := g.send("3", prompt, "a"); f.charged != 400 { // nothing is expected there any more
		t.Errorf("after a refusal the prompt counts as %f tokens", f.charged)
	}
}

// TestComputedBeforeItIsAnnounced holds that nobody waits for a prompt whose first token has come, although its engine has not announced
// it: another one may then have less to wait for, but would compute all of it again.
func TestComputedBeforeItIsAnnounced(t *testing.T) {
	prompt := tokensOf(1, 400)
	for name, between := range map[string]func(*rig){
		"Conductor knows of the first": func(g *rig) { g.reporter.flush(t.Context()) },
		"it does not":                  func(*rig) {},
	} {
		g := newRig(t, Options{}, "a", "b")
		for i := range 5 {
			f := g.send(fmt.Sprint(i), prompt, "a")
			if row := f.at.row; i > 0 && (row.Disk != 400 || row.Expected != 400) {
				t.Errorf("%s: request %d finds %+v", name, i, row)
			}
			between(g)
			g.clock = g.clock.Add(100 * time.Millisecond)
			f.Answered("", 200)
			f.FirstToken() // and more tokens follow
			if i > 0 {
				f.Usage(400, 396)
			}
			if len(g.reporter.feedback) > 0 {
				t.Errorf("%s: Conductor gets feedback on what it has not said: %v", name, <-g.reporter.feedback)
			}
		}
		// What Conductor does not expect any more has been announced, and may have been evicted.
		g.reporter.flush(t.Context())
		g.clock = g.clock.Add(10 * time.Millisecond)
		clear(g.conductor.expected)
		if f := g.pick(request("last", prompt)); f.at.row.Expected != 0 {
			t.Errorf("%s: after all was evicted there is %+v", name, f.at.row)
		}
		g.clock = g.clock.Add(g.patience(maxAsked) + 2*keptComputed)
		if g.pick(request("other", tokensOf(2, 8))); len(g.recent) != 2 { // the last two wait still
			t.Errorf("%s: %d reports are kept", name, len(g.recent))
		}
	}
}

// TestOldReports holds that what Conductor was told before it is asked counts only if it says so.
func TestOldReports(t *testing.T) {
	g := newRig(t, Options{Patience: time.Hour}, "a", "b")
	prompt := tokensOf(1, 400)
	g.send("1", prompt, "a")
	g.reporter.flush(t.Context())
	g.clock = g.clock.Add(time.Millisecond)
	clear(g.conductor.expected) // such as after its time is over
	g.send("2", prompt, "b")
	g.clock = g.clock.Add(2 * g.patience(maxAsked))
	if g.send("3", tokensOf(2, 8), "a"); len(g.recent) != 2 { // the second one waits still
		t.Errorf("%d reports are kept", len(g.recent))
	}
}

// TestTakeTurns holds that equal engines and ranks are chosen in turn, for prompts and for everything else.
func TestTakeTurns(t *testing.T) {
	g := newRig(t, Options{}, "a", "b", "c@2")
	for i, want := range []string{"a/0", "b/0", "c/0", "c/1", "a/0", "b/0", "c/0"} {
		g.send("r", tokensOf(uint32(i), 8), want).End()
	}
	for _, want := range []string{"c", "a", "b", "c"} {
		f := g.pick(&Request{Method: http.MethodGet, Path: "/v1/models"})
		if f.at.Instance.Instance != want {
			t.Errorf("a request without a prompt goes to %s, want %s", f.at, want)
		}
		f.End()
	}
	g.counted(g.metrics.choices, "no_prompt", 4)
	g.idle()
}

// TestLoadAlone holds that requests that Conductor cannot help with go to the engine with the least to do.
func TestLoadAlone(t *testing.T) {
	post := func(path, body string) *Request {
		return &Request{Method: http.MethodPost, Path: path, Body: []byte(body)}
	}
	for reason, r := range map[string]*Request{
		"no_prompt":         {Method: http.MethodPost, Path: "/v1/rerank"},
		"body":              {Method: http.MethodPost, Path: "/v1/completions"},
		"media":             post("/v1/chat/completions", `{"model":"m","messages":[{"content":[{"type":"image_url"}]}]}`),
		"unsupported":       post("/v1/responses", `{"model":"m","input":"a","previous_response_id":"r"}`),
		"unknown_model":     post("/v1/completions", `{"model":"x","prompt":[1,2,3,4]}`),
		"tokenizer_failed":  post("/v1/completions", `{"model":"m","prompt":"abcdefgh"}`),
		"conductor_refused": request("", []uint32{7}),
	} {
		o := Options{}
		o.Tokenizer.Client = &http.Client{Transport: noNetwork{}}
		g := newRig(t, o, "a", "b")
		g.conductor.failing = func(context.Context) (*client.Candidates, error) {
			return nil, &client.Error{Status: 400, Reason: "unknown_block_size"}
		}
		g.fleet.byEndpoint["10.0.0.1:8000"].load.rank(0).queued = 5000
		f := g.pick(r)
		if f.at.Instance.Instance != "b" {
			t.Errorf("%s goes to %s", reason, f.at)
		}
		g.counted(g.metrics.choices, reason, 1)
		if charged := f.charged > 0; charged != (reason != "no_prompt") {
			t.Errorf("%s counts as %f tokens", reason, f.charged)
		}
		f.End()
	}
}

// noNetwork is a transport that reaches nobody.
type noNetwork struct{}

func (noNetwork) RoundTrip(*http.Request) (*http.Response, error) {
	return nil, errors.New("no network")
}

// TestModels holds that names of a model are those that engines serve, that a request without one is for the only one, and that
// a request for one of several models stays with its engines.
func TestModels(t *testing.T) {
	g := newRig(t, Options{}, "a", "b")
	g.conductor.instances[1].Model, g.conductor.instances[1].Adapters = "n", nil
	g.setInstances(t.Context(), g.conductor.instances, false)
	f := func(body, want string) {
		t.Helper()
		one := g.pick(&Request{Method: http.MethodPost, Path: "/v1/completions", Body: []byte(body)})
		if one.at.Instance.Instance != want {
			t.Errorf("%s goes to %s", body, one.at)
		}
		one.End()
	}
	for _, path := range []string{"/v1/messages", "/v1/completions"} { // one that is not read, and one whose body is too large
		for range 2 {
			r := &Request{Method: http.MethodPost, Path: path, Body: []byte(`{"model":"n","messages":[{"content":"x`)}
			one := g.pick(r)
			if one.at.Instance.Instance != "b" || len(one.choice.Endpoints) != 1 {
				t.Errorf("a request to %s for a model of another engine goes to %s, then %v", path, one.at, one.choice.Endpoints)
			}
			one.End()
		}
	}
	for range 2 {
		f(`{"model":"m","prompt":[1,2,3,4]}`, "a")
		f(`{"model":"lora","prompt":[1,2,3,4]}`, "a")
		f(`{"model":"n","prompt":[1,2,3,4]}`, "b")
	}
	g.setInstances(t.Context(), g.conductor.instances[1:], false)
	f(`{"prompt":[1,2,3,4]}`, "b")
	g.counted(g.metrics.choices, "no_prefix", 7)
}

// TestEligible holds that only endpoints that the data plane allows are chosen.
func TestEligible(t *testing.T) {
	g := newRig(t, Options{}, "a", "b", "c")
	g.conductor.instances[2].Address = "http://[2001:db8::7]"
	g.conductor.instances = append(g.conductor.instances, client.Instance{Instance: "d", Model: "m"}) // nobody knows its address
	g.setInstances(t.Context(), g.conductor.instances, false)
	prompt := tokensOf(1, 16)
	g.conductor.announce("a", 0, prompt)
	f := func(want string, eligible ...string) {
		t.Helper()
		r := request("r", prompt)
		r.Eligible = eligible
		flight := g.pick(r)
		if got := fmt.Sprint(flight.choice.Endpoints); got != want {
			t.Errorf("of %q the endpoints are %s", eligible, got)
		}
		flight.Answered("", 400)
		flight.End()
	}
	f("[10.0.0.2:8000]", "10.0.0.2:8000", "10.0.0.9:8000")
	f("[10.0.0.1:8000 10.0.0.2:8000]", "10.0.0.2:8000", "10.0.0.1:8000")
	f("[[2001:db8::7]:80]", "[2001:0db8::0007]:80")
	f("[10.0.0.1:8000]", "[::ffff:10.0.0.1]:8000")
	r := request("r", prompt)
	for _, r.Eligible = range [][]string{{}, {"10.0.0.9:8000"}, {"nonsense"}} {
		g.refused(r, 503)
	}
	g.setInstances(t.Context(), nil, false)
	r.Eligible = nil
	if g.refused(r, 503); g.Ready() {
		t.Error("a picker without engines is ready")
	}
	g.counted(g.metrics.refusals, "503", 4)
}

// TestOverload holds that engines beyond the bound get nothing, and that 429 comes if all are.
func TestOverload(t *testing.T) {
	g := newRig(t, Options{MaxTokensInFlight: 100}, "a", "b")
	prompt := tokensOf(1, 400)
	g.conductor.announce("a", 0, prompt[:200])
	first := g.send("1", prompt, "a") // longer than the bound, but the engine is idle
	g.send("2", prompt, "b")          // although a has the prefix
	g.refused(request("3", prompt), 429)
	first.FirstToken()
	g.send("4", prompt, "a")

	g = newRig(t, Options{MaxWaiting: 3, ScrapeEvery: time.Second}, "a")
	l := g.fleet.all[0].load
	l.waiting, l.scraped = 3, g.clock
	g.refused(request("1", prompt), 429)
	g.clock = g.clock.Add(4 * time.Second) // too old to count
	g.send("2", prompt, "a")
	if _, err := New(Options{Conductor: g.conductor, MaxWaiting: 3}); err == nil {
		t.Error("MaxWaiting is taken without ScrapeEvery")
	}
}

// TestRanks holds that a rank is named to the engine if it has several, and that no fallback lacks it.
func TestRanks(t *testing.T) {
	g := newRig(t, Options{}, "a@4", "b@4", "c@2", "d")
	prompt := tokensOf(1, 16)
	g.conductor.announce("b", 3, prompt)
	f := g.send("r", prompt, "b/3")
	if f.choice.Headers["x-data-parallel-rank"] != "3" || fmt.Sprint(f.choice.Endpoints) != "[10.0.0.2:8000 10.0.0.1:8000]" {
		t.Errorf("the choice is %+v", f.choice)
	}
	g.said("r to b/3 by answer")
	g.conductor.announce("d", 0, tokensOf(2, 16))
	if f := g.send("s", tokensOf(2, 16), "d"); len(f.choice.Headers) != 0 || len(f.choice.Endpoints) != 4 {
		t.Errorf("the choice is %+v", f.choice)
	}
}

// TestRankOfFallback holds that a fallback computes with the rank that the header names, although another one of it has more.
func TestRankOfFallback(t *testing.T) {
	g := newRig(t, Options{}, "a@4", "b@4")
	prompt := tokensOf(1, 16)
	g.conductor.announce("b", 3, prompt)
	g.conductor.announce("a", 1, prompt[:8])
	f := g.send("r", prompt, "b/3")
	f.Answered("10.0.0.1:8000", 200)
	g.said("r to a/3 by answer")
	if f.at.row.GPU != 0 || f.charged != 16 {
		t.Errorf("the rank has %+v and computes %v", f.at.row, f.charged)
	}
}

// TestPrefillAndDecode holds that an engine that decodes is chosen, and that a header names the one that computes the prompt.
func TestPrefillAndDecode(t *testing.T) {
	g := newRig(t, Options{}, "p:prefill", "q:prefill", "d:decode", "e:decode")
	prompt := tokensOf(1, 400)
	g.conductor.announce("q", 0, prompt[:200])
	r := request("r", prompt)
	r.Eligible = []string{"10.0.0.3:8000", "10.0.0.4:8000"}
	f := g.pick(r)
	want := "[10.0.0.3:8000 10.0.0.4:8000] map[x-prefiller-host-port:10.0.0.2:8000]"
	if got := fmt.Sprint(f.choice.Endpoints, f.choice.Headers); got != want {
		t.Errorf("the choice is %s, want %s", got, want)
	}
	if f.computing.queued() != 200 || f.at.queued() != 0 || f.at.inFlight != 1 || f.computing.inFlight != 1 {
		t.Errorf("%s has %f tokens, %s %f", f.computing, f.computing.queued(), f.at, f.at.queued())
	}
	f.Answered("10.0.0.4:8000", 200)
	f.FirstToken()
	f.Usage(400, 400)
	f.End()
	g.idle()
	g.said("r to q/0 by answer")
	if len(g.reporter.feedback) != 0 {
		t.Error("what the decoding engine had cached is feedback about the other one")
	}
	// One that is busy leaves prompts to engines that do both.
	g.conductor.instances = append(g.conductor.instances, client.Instance{Instance: "u", Model: "m", BlockSize: block,
		Address: "http://10.0.0.5:8000", Ranks: []int{0}})
	g.setInstances(t.Context(), g.conductor.instances[1:], false)
	r.Eligible, g.MaxTokensInFlight = nil, 100
	busy := g.loads["10.0.0.2:8000"].rank(0)
	busy.queued = 100
	for range 3 { // one that decodes would be as cheap
		f = g.send("busy", prompt, "u")
		f.Answered("", 200)
		f.FirstToken()
		f.End()
	}
	g.loads["10.0.0.5:8000"].rank(0).queued = 100
	g.refused(r, 429)
	g.MaxTokensInFlight, busy.queued = 0, 0
	g.conductor.instances = g.conductor.instances[:4]
	// Without an engine that computes prompts, the one that decodes does it.
	g.setInstances(t.Context(), g.conductor.instances[2:], false)
	if f := g.pick(r); len(f.choice.Headers) != 0 || f.computing != f.at {
		t.Errorf("the choice is %+v", f.choice)
	}
	g.setInstances(t.Context(), g.conductor.instances[:2], false)
	g.refused(request("r", prompt), 503)
}

// TestBatches holds that all prompts of a batch count, and that each is reported.
func TestBatches(t *testing.T) {
	g := newRig(t, Options{}, "a", "b")
	one, two := tokensOf(1, 16), tokensOf(2, 16)
	g.conductor.announce("a", 0, one)
	g.conductor.announce("b", 0, one[:12])
	g.conductor.announce("b", 0, two[:12])
	body := strings.ReplaceAll(fmt.Sprintf(`{"model":"m","prompt":[%v,%v]}`, one, two), " ", ",")
	f := g.pick(&Request{Method: http.MethodPost, Path: "/v1/completions", ID: "r", Body: []byte(body)})
	if f.at.Instance.Instance != "b" || f.at.row.Disk != 24 || f.reusable != 24 || f.charged != 8 {
		t.Errorf("the batch goes to %s, which has %d of %d and computes %f", f.at, f.at.row.Disk, f.reusable, f.charged)
	}
	g.said("r to b/0 by answer", "r to b/0 by answer")
	if len(g.conductor.expected) != 2 {
		t.Errorf("%d prompts are expected", len(g.conductor.expected))
	}
	f.Answered("", 400)
	f.End()
	g.said("r back", "r back")
	g.idle()

	// The first prompts of a long batch stand for the others.
	many := slices.Repeat([]string{"[1,2,3,4]"}, 100)
	f = g.pick(&Request{Method: http.MethodPost, Path: "/v1/completions", ID: "s",
		Body: []byte(`{"model":"m","prompt":[` + strings.Join(many, ",") + `]}`)})
	if f.size < 400 || f.size > 450 {
		t.Errorf("100 prompts of 4 tokens count as %d", f.size)
	}
}

// TestBlockSizes holds that engines with different block sizes are compared.
func TestBlockSizes(t *testing.T) {
	g := newRig(t, Options{}, "a", "b")
	g.conductor.instances[1].BlockSize = 8
	g.setInstances(t.Context(), g.conductor.instances, false)
	prompt := tokensOf(1, 32)
	g.conductor.announce("a", 0, prompt[:12])
	g.conductor.announce("b", 0, prompt[:24])
	g.send("r", prompt, "b").End()
	g.conductor.announce("a", 0, prompt)
	g.send("s", prompt, "a")
	g.said("s to a/0 by answer")
}

// TestLongPrompts holds that Conductor is asked about the first tokens of a very long prompt, and the rest counts as not cached.
func TestLongPrompts(t *testing.T) {
	g := newRig(t, Options{}, "a", "b")
	g.conductor.announce("b", 0, slices.Repeat([]uint32{128000}, maxAsked))
	long := request("r", nil)
	long.Body = []byte(`{"model":"m","prompt":[128000` + strings.Repeat(",128000", maxAsked+23) + `]}`)
	f := g.pick(long)
	if f.at.row.Disk != maxAsked || f.charged != 24 {
		t.Errorf("of %d tokens and 24 more the engine has %d, and %v are to be computed", maxAsked, f.at.row.Disk, f.charged)
	}
	if kept := f.reported[0].Tokens; cap(kept) > maxAsked {
		t.Errorf("the report keeps the memory of %d tokens", cap(kept))
	}
	g.said("r to b/0 by answer")
}

// TestConductorFails holds that a Conductor that fails in any way leaves the choice to the load, and is asked again only once in
// a while.
func TestConductorFails(t *testing.T) {
	rows := func(row client.Rank) *client.Candidates {
		return &client.Candidates{ID: "x", BlockSize: block, Rows: []client.Candidate{
			{Row: client.Row{Instance: "a", Ranks: []client.Rank{row}}},
			{Row: client.Row{Instance: "b"}}}}
	}
	for name, fails := range map[string]func(context.Context) (*client.Candidates, error){
		"hangs":                  func(ctx context.Context) (*client.Candidates, error) { <-ctx.Done(); return nil, ctx.Err() },
		"hangs for ever":         func(ctx context.Context) (*client.Candidates, error) { <-t.Context().Done(); return nil, nil },
		"is not there":           func(context.Context) (*client.Candidates, error) { return nil, errors.New("connection refused") },
		"makes the client panic": func(context.Context) (*client.Candidates, error) { panic("no such row") },
		"is busy": func(context.Context) (*client.Candidates, error) {
			return nil, &client.Error{Status: 503, Reason: "busy"}
		},
		"knows no such token": func(context.Context) (*client.Candidates, error) { return nil, &client.Error{Status: 401} },
		"says nothing":        func(context.Context) (*client.Candidates, error) { return new(client.Candidates), nil },
		"has too much": func(context.Context) (*client.Candidates, error) {
			return rows(client.Rank{GPU: 99, CPU: 99, Disk: 99}), nil
		},
		"has less than none": func(context.Context) (*client.Candidates, error) { return rows(client.Rank{GPU: -4}), nil },
		"has no order": func(context.Context) (*client.Candidates, error) {
			return rows(client.Rank{GPU: 8, CPU: 4, Disk: 8}), nil
		},
		"has odd blocks": func(context.Context) (*client.Candidates, error) { return &client.Candidates{BlockSize: -1}, nil },
	} {
		o := Options{}
		if strings.HasPrefix(name, "hangs") {
			o.Patience = time.Millisecond
		}
		g := newRig(t, o, "a", "b")
		if name == "says nothing" { // the fleet knows the block size, so only an empty fleet makes this wrong
			g.conductor.instances[0].BlockSize, g.conductor.instances[1].BlockSize = 0, 0
			g.setInstances(t.Context(), g.conductor.instances, false)
		}
		g.conductor.failing = fails
		for i := range 10 {
			g.send("r", tokensOf(uint32(i), 16), []string{"a", "b"}[i%2]).End()
		}
		asked := func(want int) {
			t.Helper()
			g.conductor.mu.Lock()
			defer g.conductor.mu.Unlock()
			if g.conductor.asked != want {
				t.Errorf("a Conductor that %s is asked %d times, want %d", name, g.conductor.asked, want)
			}
		}
		asked(conductorFailures)
		g.counted(g.metrics.choices, "conductor_down", 10)
		g.clock = g.clock.Add(conductorWait)
		for i := range 4 {
			g.send("r", tokensOf(uint32(i), 16), []string{"a", "b"}[i%2]).End()
		}
		asked(conductorFailures + 1)
		g.conductor.mu.Lock()
		g.conductor.failing = nil
		if name == "says nothing" {
			g.conductor.instances[0].BlockSize, g.conductor.instances[1].BlockSize = block, block
		}
		g.conductor.mu.Unlock()
		g.Patience = time.Minute // it answers at once, but the machine may be busy
		g.clock = g.clock.Add(2 * conductorWait)
		g.conductor.announce("b", 0, tokensOf(7, 16))
		for range 2 {
			g.send("r", tokensOf(7, 16), "b").End()
		}
		g.counted(g.metrics.choices, "prefix", 2)
	}
}

// TestClientsCostNoConductor holds that clients that leave, and queries that Conductor refuses, do not open its breaker.
func TestClientsCostNoConductor(t *testing.T) {
	g := newRig(t, Options{}, "a")
	arrived := make(chan bool)
	g.conductor.failing = func(ctx context.Context) (*client.Candidates, error) {
		arrived <- true
		<-ctx.Done()
		return nil, ctx.Err()
	}
	for range 2 * conductorFailures {
		ctx, leave := context.WithCancel(t.Context())
		go func() { <-arrived; leave() }()
		if _, err := g.Pick(ctx, request("r", tokensOf(1, 8))); !errors.Is(err, context.Canceled) {
			t.Fatalf("a client that leaves gets %v", err)
		}
	}
	g.conductor.failing = func(context.Context) (*client.Candidates, error) {
		return nil, &client.Error{Status: 404, Reason: "unknown_model"}
	}
	for range 2 * conductorFailures {
		g.send("r", tokensOf(1, 8), "a").End()
	}
	g.counted(g.metrics.choices, "unknown_model", 2*conductorFailures)
	g.idle()
}

// TestUncertainRows holds how rows count that are not all that an engine has, or more than it has.
func TestUncertainRows(t *testing.T) {
	g := newRig(t, Options{}, "a", "b@2")
	g.conductor.failing = func(context.Context) (*client.Candidates, error) {
		return &client.Candidates{BlockSize: block, Rows: []client.Candidate{
			{Row: client.Row{Instance: "a", Approximate: true, Expected: 12, Ranks: []client.Rank{{Expected: 12}}}},
			{Row: client.Row{Instance: "b", Longest: 8, Expected: 8}}, // counts for both ranks
		}}, nil
	}
	prompt := tokensOf(1, 17)
	f := g.send("r", prompt, "a")
	if f.at.row.Disk != 12 || !f.at.uncertain || f.charged != 5 {
		t.Errorf("the row is %+v, %t, %f", f.at.row, f.at.uncertain, f.charged)
	}
	f.Usage(17, 0)
	if len(g.reporter.feedback) != 0 {
		t.Error("a guess of Conductor is judged")
	}
	g.said("r to a/0 by prompt") // the answer has no id
	if next := f.targets[1]; next.row.Disk != 8 {
		t.Errorf("the other row is %+v", next.row)
	}
}

// TestUsage holds what is fed back: what Conductor was certain of, about prompts whose tokens are those of the engine.
func TestUsage(t *testing.T) {
	f := func(size, cached int, prepare func(*rig), want ...feedback) {
		t.Helper()
		g := newRig(t, Options{}, "a")
		g.conductor.announce("a", 0, tokensOf(1, 16))
		if prepare != nil {
			prepare(g)
		}
		flight := g.send("r", tokensOf(1, 16), "a")
		flight.Answered("", 200)
		flight.FirstToken()
		flight.Usage(size, cached)
		flight.End()
		var got []feedback
		for range len(g.reporter.feedback) {
			got = append(got, <-g.reporter.feedback)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%d of %d: %v, want %v", cached, size, got, want)
		}
	}
	f(16, 12, nil, feedback{"a", 12, 12}) // an engine computes the last block itself
	f(16, 0, nil, feedback{"a", 12, 0})
	f(16, -1, nil) // it does not say
	f(17, 12, nil) // it has other tokens
	f(16, 99, nil)
	f(16, 12, func(g *rig) { g.NoFeedback = true })
	f(16, 12, func(g *rig) { g.conductor.announced = nil; g.send("s", tokensOf(1, 16), "a") })
}

// TestTwoPickers holds that pickers that share a Conductor send equal prompts to one engine, once each has told its choice.
func TestTwoPickers(t *testing.T) {
	one, two := newRig(t, Options{}, "a", "b", "c"), newRig(t, Options{}, "a", "b", "c")
	two.Conductor = one.conductor
	two.send("other", tokensOf(9, 400), "a") // so that the second picker would not choose the same one by load
	for i := range 4 {
		for _, g := range []*rig{one, two} {
			g.send(fmt.Sprint(i), tokensOf(1, 400), "a")
			g.reporter.flush(t.Context())
		}
	}
}

// TestLog holds that states are logged when they change, and not for each request.
func TestLog(t *testing.T) {
	var lines bytes.Buffer
	log := zerolog.New(&lines).Level(zerolog.InfoLevel)
	g := newRig(t, Options{Log: &log}, "a", "b")
	g.setInstances(t.Context(), g.conductor.instances, false) // the same
	g.conductor.failing = func(context.Context) (*client.Candidates, error) { return nil, errors.New("no") }
	for range 3 * conductorFailures {
		f := g.pick(request("r", tokensOf(1, 8)))
		f.Answered("", 503)
		f.End()
		g.clock = g.clock.Add(time.Millisecond) // so that each one counts
	}
	g.conductor.mu.Lock()
	g.conductor.failing = nil
	g.conductor.mu.Unlock()
	g.clock = g.clock.Add(time.Minute)
	for i := range 4 {
		f := g.pick(request("r", tokensOf(uint32(i), 8)))
		f.Answered("", 200)
		f.FirstToken()
		f.End()
	}
	var got []string
	for line := range strings.Lines(lines.String()) {
		var entry struct{ Message string }
		if err := json.Unmarshal([]byte(line), &entry); err != nil {
			t.Fatal(err)
		}
		got = append(got, entry.Message)
	}
	want := []string{"the fleet has changed", "the engine gets no requests for a while", "the engine gets no requests for a while",
		"Conductor does not answer; the load alone decides until it does", "Conductor answers again", "the engine answers again",
		"the engine answers again"}
	if !slices.Equal(got, want) {
		t.Errorf("the log is %q, want %q", got, want)
	}
}

// TestMetrics holds that metrics are registered once, with names of their own, and not at all if one name is taken.
func TestMetrics(t *testing.T) {
	r := prometheus.NewPedanticRegistry()
	g := newRig(t, Options{Metrics: r}, "a")
	f := g.send("r", tokensOf(1, 8), "a")
	f.FirstToken()
	f.End()
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if !strings.HasPrefix(family.GetName(), "conductor_picker_") || family.GetHelp() == "" {
			t.Errorf("a metric is called %q: %s", family.GetName(), family.GetHelp())
		}
	}
	if _, err := New(Options{Conductor: g.conductor, Metrics: r}); err == nil {
		t.Error("the same metrics are registered twice")
	}
	if again, err := r.Gather(); err != nil || len(again) != len(families) {
		t.Errorf("%d families are left: %v", len(again), err)
	}
}
