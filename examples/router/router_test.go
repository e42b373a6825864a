package router

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"example.com/conductor/client"
	"example.com/conductor/internal/must"
)

// reach is what a worker has of a prompt: gpu, cpu, disk, expected.
type reach [4]int

// conductor answers every query with the ranks of instances: "a/0": {gpu, cpu, disk, expected}.
func conductor(t *testing.T, ranks map[string]reach) *client.Client {
	t.Helper()
	return asking(t, func(w http.ResponseWriter, _ *http.Request) {
		instances := map[string]any{}
		for name, n := range ranks {
			instance, rank, _ := strings.Cut(name, "/")
			row, ok := instances[instance].(map[string]any)
			if !ok {
				row = map[string]any{"longest_matched": 0, "rank_matches": map[string]any{}}
				if instance == "silent" {
					row["approximate"] = true
				}
				instances[instance] = row
			}
			row["rank_matches"].(map[string]any)[rank] = map[string]int{"gpu": n[0], "cpu": n[1], "disk": n[2], "expected": n[3]}
		}
		json.NewEncoder(w).Encode(map[string]any{"candidates": instances})
	})
}

func asking(t *testing.T, answer http.HandlerFunc) *client.Client {
	t.Helper()
	s := httptest.NewServer(answer)
	t.Cleanup(s.Close)
	c, err := client.New(s.URL, client.WithRetries(0))
	must.Succeed(t, err)
	return c
}

func workers(names ...string) (out []Worker) {
	for _, name := range names {
		var w Worker
		instance, rank, _ := strings.Cut(name, "/")
		w.Instance = instance
		fmt.Sscan(rank, &w.Rank)
		out = append(out, w)
	}
	return out
}

// TestChooseByCost holds that the worker with the least work gets a prompt of 1,000 tokens.
func TestChooseByCost(t *testing.T) {
	f := func(want string, queued [3]float64, a0, a1, b0 reach) {
		t.Helper()
		r := &Router{
			Conductor: conductor(t, map[string]reach{"a/0": a0, "a/1": a1, "b/0": b0}),
			Workers:   workers("a/0", "a/1", "b/0"),
			Patience:  time.Minute,
			queued:    queued[:],
		}
		got, end := r.Choose(t.Context(), make([]uint32, 1000))
		if w := r.Workers[got]; fmt.Sprintf("%s/%d", w.Instance, w.Rank) != want || r.Alone() != 0 {
			t.Errorf("worker %+v, want %s; %d choices alone", w, want, r.Alone())
		}
		charged := r.queued[got]
		end(true)
		end(true)
		r.Wait()
		if done := r.queued[got]; done >= charged {
			t.Errorf("%v was queued, and then %v", charged, done)
		}
	}
	none, half := reach{}, reach{512, 512, 512, 512}
	f("a/1", [3]float64{}, none, reach{16, 16, 16, 16}, none)
	f("b/0", [3]float64{}, half, half, reach{528, 528, 528, 528})
	// What lies on the device is worth more than more of it on the host or the disk.
	f("a/0", [3]float64{}, half, reach{0, 640, 640, 640}, reach{0, 0, 1000, 1000})
	f("a/1", [3]float64{}, half, reach{0, 704, 704, 704}, none)
	// A worker with the prompt is worth waiting for as long as others would compute.
	f("b/0", [3]float64{0, 0, 511}, none, none, half)
	f("a/0", [3]float64{0, 0, 513}, none, none, half)
	// So is one that is going to have it, whichever router sent it there, unless it has much else to do.
	f("b/0", [3]float64{0, 0, 900}, none, none, reach{0, 0, 0, 896})
	f("b/0", [3]float64{}, none, none, reach{0, 0, 0, 896})
	f("b/0", [3]float64{0, 0, 879}, none, none, reach{0, 0, 0, 800})
	f("a/0", [3]float64{0, 0, 881}, none, none, reach{0, 0, 0, 800})
	// What it has is better than what it is going to have.
	f("a/0", [3]float64{}, half, reach{0, 0, 0, 512}, reach{256, 256, 256, 512})
}

// TestEngineWithoutEvents holds that what an engine without events is expected to have costs no wait.
func TestEngineWithoutEvents(t *testing.T) {
	f := func(want int, has reach) {
		t.Helper()
		r := &Router{Conductor: conductor(t, map[string]reach{"silent/0": {0, 0, 0, 800}, "b/0": has}), Workers: workers("silent/0", "b/0"),
			Patience: time.Minute}
		if got, _ := r.Choose(t.Context(), make([]uint32, 1000)); got != want || r.Alone() > 0 {
			t.Errorf("worker %d, want %d next to one that has %v; %d choices alone", got, want, has, r.Alone())
		}
		r.Wait()
	}
	f(0, reach{784, 784, 784, 784})
	f(1, reach{816, 816, 816, 816})
	// Registered with approximate: count its expected blocks count as held, so a router that asks for no others sees them.
	r := &Router{Conductor: conductor(t, map[string]reach{"silent/0": {800, 800, 800, 0}, "b/0": {16, 16, 16, 0}}),
		Workers: workers("silent/0", "b/0"), Patience: time.Minute, EventsOnly: true}
	if got, _ := r.Choose(t.Context(), make([]uint32, 1000)); got != 0 || r.Alone() > 0 {
		t.Errorf("worker %d was chosen, which holds less; %d choices alone", got, r.Alone())
	}
}

// TestChooseWithoutAnswer holds that the load alone decides if Conductor has no full answer in time.
func TestChooseWithoutAnswer(t *testing.T) {
	full := map[string]reach{"a/0": {900, 900, 900, 900}, "b/0": {}}
	for name, c := range map[string]Conductor{
		"no Conductor":      nil,
		"an error":          asking(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(503) }),
		"no answer":         asking(t, func(_ http.ResponseWriter, r *http.Request) { io.Copy(io.Discard, r.Body); <-r.Context().Done() }),
		"a rank missing":    conductor(t, map[string]reach{"a/0": full["a/0"]}),
		"a row too long":    conductor(t, map[string]reach{"a/0": {0, 0, 1001, 1001}, "b/0": {}}),
		"too much expected": conductor(t, map[string]reach{"a/0": {0, 0, 0, 1001}, "b/0": {}}),
		"tiers in no order": conductor(t, map[string]reach{"a/0": {900, 0, 900, 900}, "b/0": {}}),
	} {
		r := &Router{Conductor: c, Workers: workers("a/0", "b/0"), Patience: time.Minute, queued: []float64{10, 0}}
		if name == "no answer" {
			r.Patience = time.Millisecond
		}
		got, end := r.Choose(t.Context(), make([]uint32, 1000))
		if got != 1 || r.queued[1] != 1000 || (r.Alone() == 1) != (c != nil) {
			t.Errorf("%s: worker %d, queued %v, %d choices alone", name, got, r.queued, r.Alone())
		}
		end(true)
		r.Wait()
	}
}

// TestEqualWorkersTakeTurns holds that an idle fleet shares new prompts, also after a burst for one.
func TestEqualWorkersTakeTurns(t *testing.T) {
	r := &Router{Workers: workers("a/0", "b/0", "c/0")}
	var got []int
	for range 6 {
		worker, end := r.Choose(context.Background(), make([]uint32, 10))
		end(true)
		got = append(got, worker)
	}
	if fmt.Sprint(got) != "[0 1 2 0 1 2]" {
		t.Error(got)
	}
	r.Conductor = conductor(t, map[string]reach{"a/0": {}, "b/0": {10, 10, 10, 10}, "c/0": {}})
	r.Patience = time.Minute
	for range 3 {
		r.Choose(t.Context(), make([]uint32, 10))
	}
	r.Wait()
	r.Conductor = nil
	if worker, _ := r.Choose(t.Context(), make([]uint32, 10)); worker != 2 {
		t.Errorf("after three prompts for worker 1 the next goes to worker %d", worker)
	}
}

// An engine answers with what it got, and makes tokens of texts: one of each byte.
func engine(t *testing.T, name string, watch func()) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, _ := io.ReadAll(req.Body)
		if req.URL.Path != "/tokenize" {
			watch()
			fmt.Fprintf(w, "%s %s %s rank %s: %s", name, req.Method, req.URL.Path, req.Header.Get("X-Data-Parallel-Rank"), body)
			return
		}
		var text struct {
			Model, Prompt string
			Messages      []struct{ Content string }
		}
		must.Succeed(t, json.Unmarshal(body, &text))
		if text.Model != "m" {
			http.Error(w, "no such model", http.StatusNotFound)
			return
		}
		for _, m := range text.Messages {
			text.Prompt += m.Content
		}
		tokens := []int{}
		for _, b := range []byte(text.Prompt) {
			tokens = append(tokens, int(b))
		}
		json.NewEncoder(w).Encode(map[string]any{"tokens": tokens})
	}))
	t.Cleanup(s.Close)
	return s
}

// TestPromptsFollowNoRedirect lets an engine send requests for tokens elsewhere: no prompt goes there.
func TestPromptsFollowNoRedirect(t *testing.T) {
	elsewhere := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
		body, _ := io.ReadAll(req.Body)
		t.Errorf("another server is asked for %s: %s", req.URL, body)
	}))
	defer elsewhere.Close()
	s := httptest.NewServer(http.RedirectHandler(elsewhere.URL, http.StatusTemporaryRedirect))
	defer s.Close()
	r := &Router{Workers: []Worker{workerAt(t, "a", 0, s)}}
	if tokens, refused, err := r.tokenize(t.Context(), []byte(`{"model":"m","prompt":"text"}`)); refused == nil && err == nil {
		t.Errorf("the answer is %v", tokens)
	}
	if err := r.checkWorker(t.Context(), r.Workers[0]); err == nil {
		t.Error("a worker that redirects is healthy")
	}
}

func workerAt(t *testing.T, instance string, rank int, s *httptest.Server) Worker {
	t.Helper()
	u, err := url.Parse(s.URL)
	must.Succeed(t, err)
	return Worker{instance, rank, u}
}

// call sends a request to a front, and returns the status, the worker that answered, and the answer.
func call(t *testing.T, method, url, body string) (status int, routed, text string) {
	t.Helper()
	req, err := http.NewRequest(method, url, strings.NewReader(body))
	must.Succeed(t, err)
	resp, err := http.DefaultClient.Do(req)
	must.Succeed(t, err)
	defer resp.Body.Close()
	all, err := io.ReadAll(resp.Body)
	must.Succeed(t, err)
	return resp.StatusCode, resp.Header.Get(RoutedTo), string(all)
}

// TestServeHTTP holds that a completion reaches the chosen engine unchanged, that its tokens count as
// load until the engine answers, and that texts and messages are asked for by their tokens.
func TestServeHTTP(t *testing.T) {
	var r *Router
	var during float64
	watch := func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		during = r.queued[1]
	}
	r = &Router{Workers: []Worker{workerAt(t, "a", 0, engine(t, "a", watch)), workerAt(t, "b", 3, engine(t, "b", watch))},
		Patience: time.Minute}
	r.Conductor = conductor(t, map[string]reach{"a/0": {}, "b/3": {2, 2, 2, 2}})
	front := httptest.NewServer(r)
	defer front.Close()
	for body, path := range map[string]string{
		`{"model":"m","prompt":[1,2,3],"stream":true}`:                "/v1/completions",
		`{"model":"m","prompt":"abc","max_tokens":1}`:                 "/v1/completions",
		`{"model":"m","messages":[{"content":"ab"},{"content":"c"}]}`: "/v1/chat/completions",
	} {
		status, routed, text := call(t, http.MethodPost, front.URL+path, body)
		if status != 200 || routed != "b/3" || text != "b POST "+path+" rank 3: "+body || during != 1 || r.queued[1] != 0 {
			t.Errorf("%d from %s: %s; queued %v, and then %v", status, routed, text, during, r.queued[1])
		}
	}
	for wrong, want := range map[string]int{"": 400, "{": 400, `{"prompt":[-1]}`: 400, `{"prompt":["a","b"]}`: 400,
		`{"model":"other","prompt":"a"}`: 404} {
		if status, _, text := call(t, http.MethodPost, front.URL+"/v1/completions", wrong); status != want {
			t.Errorf("%q: %d %s, want %d", wrong, status, text, want)
		}
	}
	asked := r.Alone()
	if status, _, text := call(t, http.MethodGet, front.URL+"/v1/models", ""); status != 200 ||
		!strings.Contains(text, " GET /v1/models ") || r.Alone() != asked {
		t.Errorf("a request without a prompt: %d %s", status, text)
	}
}

// TestTextsTakeTurns holds that new texts are shared like new lists of tokens, although an engine is asked for
// their tokens too.
func TestTextsTakeTurns(t *testing.T) {
	r := &Router{Workers: []Worker{workerAt(t, "a", 0, engine(t, "a", func() {})), workerAt(t, "b", 0, engine(t, "b", func() {}))}}
	front := httptest.NewServer(r)
	defer front.Close()
	got := ""
	for range 6 {
		_, routed, _ := call(t, http.MethodPost, front.URL+"/v1/completions", `{"model":"m","prompt":"abc"}`)
		got += routed + " "
	}
	if got != "a/0 b/0 a/0 b/0 a/0 b/0 " {
		t.Error(got)
	}
}

// TestEngineDies holds that requests go to another engine when theirs cannot be reached, also to make tokens,
// that Conductor need not know the dead one any longer, and that the dead one is chosen again once it is back.
func TestEngineDies(t *testing.T) {
	a, b := engine(t, "a", func() {}), engine(t, "b", func() {})
	r := &Router{Workers: []Worker{workerAt(t, "a", 0, a), workerAt(t, "b", 0, b)}, Patience: time.Minute}
	full := reach{3, 3, 3, 3}
	r.Conductor = conductor(t, map[string]reach{"a/0": {}, "b/0": full})
	front := httptest.NewServer(r)
	defer front.Close()
	f := func(prompt, want string, wantStatus int) {
		t.Helper()
		status, routed, text := call(t, http.MethodPost, front.URL+"/v1/completions", `{"model":"m","prompt":`+prompt+`}`)
		if r.Wait(); status != wantStatus || routed != want || r.Alone() != 0 || r.queued[0] != 0 || r.queued[1] != 0 {
			t.Errorf("%s: %d from %q, want %d from %q: %s; queued %v, %d choices alone", prompt, status, routed, wantStatus, want, text,
				r.queued, r.Alone())
		}
	}
	f("[1,2,3]", "b/0", 200)
	b.Close()
	f("[1,2,3]", "a/0", 200)
	for range 4 {
		f(`"abc"`, "a/0", 200)
	}
	r.Conductor = conductor(t, map[string]reach{"a/0": {}})
	f("[1,2,3]", "a/0", 200)
	again := engine(t, "b", func() {})
	r.Workers[1] = workerAt(t, "b", 0, again)
	r.SetHealthy(1, true)
	r.Conductor = conductor(t, map[string]reach{"a/0": {}, "b/0": full})
	f("[1,2,3]", "b/0", 200)
	a.Close()
	again.Close()
	f("[1,2,3]", "", 502)
	f(`"abc"`, "", 502)
}

// TestCheckHealth holds that a worker whose /health fails is left out until it answers again.
func TestCheckHealth(t *testing.T) {
	ill, asked := make(chan bool, 1), make(chan bool)
	status := http.StatusOK
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		select {
		case now := <-ill:
			if status = http.StatusOK; now {
				status = http.StatusServiceUnavailable
			}
		default:
		}
		w.WriteHeader(status)
		select {
		case asked <- true:
		case <-req.Context().Done():
		}
	}))
	defer s.Close()
	r := &Router{Workers: []Worker{workerAt(t, "a", 0, s)}}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan bool)
	go func() { r.CheckHealth(ctx, time.Microsecond); close(ended) }()
	for _, now := range []bool{false, true, false} {
		ill <- now
		for range 3 { // the second answer comes after the first is evaluated
			<-asked
		}
		r.mu.Lock()
		if got := r.down != nil && r.down[0]; got != now {
			t.Errorf("the worker is down: %t, want %t", got, now)
		}
		r.mu.Unlock()
	}
	cancel()
	<-ended
}
