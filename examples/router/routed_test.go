package router

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"example.com/conductor/client"
	"example.com/conductor/internal/must"
)

// books is a Conductor of two workers, a/0 and b/0, that knows prompts by what it was told of them.
// Each call takes a time.
type books struct {
	takes     time.Duration
	answers   bool // answers have ids
	forgetful bool // and are forgotten at once

	mu     sync.Mutex
	routed map[string]client.Routed // by request id
	said   []string
}

func (b *books) call(ctx context.Context, do func()) error {
	select {
	case <-time.After(b.takes):
	case <-ctx.Done():
		return ctx.Err()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	do()
	return nil
}

func (b *books) Candidates(ctx context.Context, q client.Query) (answer client.Candidates, err error) {
	err = b.call(ctx, func() {
		if b.answers {
			answer.ID = fmt.Sprint(q.Tokens[0])
		}
		for _, name := range []string{"a", "b"} {
			rank := client.Rank{}
			for _, r := range b.routed {
				if r.Target == name && slices.Equal(r.Tokens, q.Tokens) {
					rank.Expected = len(q.Tokens)
				}
			}
			answer.Rows = append(answer.Rows, client.Candidate{Row: client.Row{Instance: name, Ranks: []client.Rank{rank}}})
		}
		b.said = append(b.said, fmt.Sprintf("query %d", q.Tokens[0]))
	})
	return answer, err
}

func (b *books) Routed(ctx context.Context, r client.Routed) (err error) {
	return errors.Join(b.call(ctx, func() {
		if r.AnswerID != "" && b.forgetful {
			err = &client.Error{Status: http.StatusNotFound, Reason: "unknown_answer"}
			return
		}
		if b.routed == nil {
			b.routed = make(map[string]client.Routed)
		}
		b.routed[r.RequestID] = r
		by := ""
		if r.AnswerID != "" {
			by = " by id"
		}
		b.said = append(b.said, fmt.Sprintf("%d to %s/%d%s", r.Tokens[0], r.Target, r.Rank, by))
	}), err)
}

func (b *books) TakeBack(ctx context.Context, tenant, id string) error {
	return b.call(ctx, func() {
		r, known := b.routed[id]
		b.said = append(b.said, fmt.Sprintf("%d back in %q, known: %v", r.Tokens[0], tenant, known))
		delete(b.routed, id)
	})
}

func prompt(of uint32) []uint32 { return slices.Repeat([]uint32{of}, 1000) }

// TestBurstGoesToOneWorker holds that equal prompts that come at once go to one worker, through one
// router or two, and others to another.
func TestBurstGoesToOneWorker(t *testing.T) {
	f := func(want string, routers, together int, eventsOnly bool, prompts ...uint32) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			b := &books{takes: time.Millisecond}
			var all []*Router
			for range routers {
				all = append(all, &Router{Conductor: b, Workers: workers("a/0", "b/0"), EventsOnly: eventsOnly})
			}
			got := make([]string, len(prompts))
			var choices sync.WaitGroup
			for i, p := range prompts {
				r := all[i%routers]
				choices.Go(func() {
					tokens := prompt(p)
					worker, _ := r.Choose(t.Context(), tokens)
					clear(tokens) // the caller may
					got[i] = r.Workers[worker].Instance
				})
				synctest.Wait() // they come in this order, at one time
				if i%together == together-1 {
					choices.Wait()
					for _, r := range all {
						r.Wait()
					}
				}
			}
			choices.Wait()
			if text := strings.Join(got, " "); text != want {
				t.Errorf("%v through %d routers: %s, want %s", prompts, routers, text, want)
			}
			for _, r := range all {
				r.Wait()
				if r.Alone() > 0 {
					t.Errorf("%d choices alone", r.Alone())
				}
			}
			if (len(b.routed) == 0) != eventsOnly {
				t.Errorf("%d reports", len(b.routed))
			}
		})
	}
	f("a a a a", 1, 4, false, 1, 1, 1, 1)
	f("a b a b", 1, 1, true, 1, 1, 1, 1)
	f("a b b a", 1, 4, false, 1, 2, 2, 1)
	f("a a a a", 2, 1, false, 1, 1, 1, 1)
	f("a a b b", 2, 1, true, 1, 1, 1, 1)
}

// TestReportsCostNoTime holds that a choice takes as long as its question, that it waits for the one
// before at most a tenth of its patience, and that a Conductor that does not answer holds up nothing.
func TestReportsCostNoTime(t *testing.T) {
	f := func(takes time.Duration, want string, alone int) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			r := &Router{Conductor: &books{takes: takes}, Workers: workers("a/0", "b/0"), Patience: 50 * time.Millisecond}
			began := time.Now()
			took := make([]time.Duration, 3)
			var choices sync.WaitGroup
			for i := range took {
				choices.Go(func() {
					r.Choose(t.Context(), prompt(1))
					took[i] = time.Since(began)
				})
				synctest.Wait()
			}
			choices.Wait()
			r.Wait()
			if fmt.Sprint(took) != want || r.Alone() != alone {
				t.Errorf("calls of %s: %v, want %s; %d alone, want %d", takes, took, want, r.Alone(), alone)
			}
		})
	}
	f(time.Millisecond, "[1ms 3ms 5ms]", 0)
	f(20*time.Millisecond, "[20ms 25ms 25ms]", 0)
	f(48*time.Millisecond, "[48ms 50ms 50ms]", 2)
	f(time.Hour, "[50ms 50ms 50ms]", 3)
}

// TestPromptsFasterThanTurns holds that a router goes on to ask when prompts come faster than its
// choices take turns: each has an answer, and has waited for the one before at most a tenth of its
// patience.
func TestPromptsFasterThanTurns(t *testing.T) {
	const takes, longest = 500 * time.Microsecond, DefaultPatience/10 + 500*time.Microsecond
	f := func(every time.Duration) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			r := &Router{Conductor: &books{takes: takes}, Workers: workers("a/0", "b/0")}
			took := make([]time.Duration, 600)
			var choices sync.WaitGroup
			for i := range took {
				began := time.Now()
				choices.Go(func() {
					r.Choose(t.Context(), prompt(uint32(i%2)))
					took[i] = time.Since(began)
				})
				time.Sleep(every)
			}
			choices.Wait()
			r.Wait()
			if most := slices.Max(took); r.Alone() > 0 || most > longest {
				t.Errorf("a prompt every %s: %d of %d choices alone, the longest took %s, want at most %s", every, r.Alone(), len(took),
					most, longest)
			}
		})
	}
	f(0)
	f(300 * time.Microsecond)
	f(700 * time.Microsecond)
	f(1500 * time.Microsecond)
}

// TestTakeBack holds that Conductor expects nothing of a prompt that its engine does not compute,
// and goes on to expect those of others.
func TestTakeBack(t *testing.T) {
	b := &books{}
	arrived := make(chan bool)
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, _ := io.ReadAll(req.Body)
		switch {
		case bytes.Contains(body, []byte("[2]")):
			w.WriteHeader(http.StatusTooManyRequests)
		case bytes.Contains(body, []byte("[4]")):
			arrived <- true
			<-req.Context().Done()
		}
	}))
	defer engine.Close()
	u, err := url.Parse(engine.URL)
	must.Succeed(t, err)
	r := &Router{Conductor: b, Query: client.Query{Tenant: "t"}, Workers: []Worker{{"a", 0, u}}, Patience: time.Minute}
	front := httptest.NewServer(r)
	f := func(prompt, want string) {
		t.Helper()
		b.said = nil
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			select {
			case <-arrived:
				cancel()
			case <-ctx.Done():
			}
		}()
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, front.URL, strings.NewReader(`{"prompt":`+prompt+`}`))
		must.Succeed(t, err)
		resp, err := http.DefaultClient.Do(req)
		if err == nil {
			resp.Body.Close()
		} else if !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		front.Close() // waits for the handler
		r.Wait()
		if got := strings.Join(b.said, "; "); got != want || r.queued[0] != 0 {
			t.Errorf("%s: %s; want %s; %v queued", prompt, got, want, r.queued[0])
		}
		cancel()
		front = httptest.NewServer(r)
	}
	f("[1]", "query 1; 1 to a/0")
	f("[2]", `query 2; 2 to a/0; 2 back in "t", known: true`)
	f("[4]", `query 4; 4 to a/0; 4 back in "t", known: true`)
	r.Workers[0].URL = &url.URL{Scheme: "http", Host: "127.0.0.1:1"}
	f("[3]", `query 3; 3 to a/0; 3 back in "t", known: true`)
	front.Close()
	if len(b.routed) != 1 {
		t.Errorf("%d prompts are expected, want the first alone", len(b.routed))
	}
}

// TestReportsNameAnswers holds that a report names the answer it rests on, and has the prompt if that is forgotten.
func TestReportsNameAnswers(t *testing.T) {
	for forgetful, want := range map[bool]string{false: "[query 7 7 to a/0 by id]", true: "[query 7 7 to a/0]"} {
		b := &books{answers: true, forgetful: forgetful}
		r := &Router{Conductor: b, Workers: workers("a/0", "b/0"), Patience: time.Minute}
		_, end := r.Choose(t.Context(), prompt(7))
		end(true)
		r.Wait()
		if got := fmt.Sprint(b.said); got != want {
			t.Errorf("forgetful %v: %s, want %s", forgetful, got, want)
		}
	}
}

// TestLoadEndsWithTheFirstToken holds that a prompt counts as load until the engine sends the first part of the body: it sends the
// headers of a stream before it has computed the prompt.
func TestLoadEndsWithTheFirstToken(t *testing.T) {
	compute := make(chan bool)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusOK)
		http.NewResponseController(w).Flush()
		<-compute
		io.WriteString(w, "data: token")
		http.NewResponseController(w).Flush()
		<-compute
	}))
	defer s.Close()
	r := &Router{Workers: []Worker{workerAt(t, "a", 0, s)}, Patience: time.Minute}
	front := httptest.NewServer(r)
	defer front.Close()
	defer close(compute)
	load := func() float64 {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.queued[0]
	}
	resp, err := http.Post(front.URL+"/v1/completions", "application/json", strings.NewReader(`{"prompt":[1,2,3]}`))
	must.Succeed(t, err)
	defer resp.Body.Close()
	if got := load(); got != 3 {
		t.Errorf("with the headers there are %v tokens to compute", got)
	}
	compute <- true
	_, err = io.ReadFull(resp.Body, make([]byte, len("data: token")))
	must.Succeed(t, err)
	if got := load(); got != 0 {
		t.Errorf("with the first token there are %v tokens to compute", got)
	}
}
