package tokens

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"example.com/conductor/integrations/envoy/prompt"
)

// text returns the prompt of a completion.
func text(body string) *prompt.Text {
	return prompt.Read("POST", "/v1/completions", []byte(body)).Prompts[0].Text
}

func newTokenizer(t *testing.T, o Options) *Tokenizer {
	t.Helper()
	if o.Timeout == 0 {
		o.Timeout = time.Minute
	}
	k, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.Close)
	return k
}

// serve returns the base URL of a server.
func serve(t *testing.T, h http.HandlerFunc) string {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s.URL
}

// bytesOf is an engine that makes a token of each byte of a prompt.
func bytesOf(w http.ResponseWriter, r *http.Request) {
	var ask struct{ Prompt string }
	if err := json.NewDecoder(r.Body).Decode(&ask); err != nil || r.URL.Path != "/tokenize" {
		http.Error(w, "not found", http.StatusNotFound)
		return
	}
	ids := make([]int, 0)
	for _, b := range []byte(ask.Prompt) {
		ids = append(ids, int(b))
	}
	json.NewEncoder(w).Encode(map[string]any{"count": len(ids), "max_model_len": 4096, "tokens": ids})
}

func reasonOf(err error) string {
	var failure *Error
	if errors.As(err, &failure) {
		return failure.Reason
	}
	return fmt.Sprint(err)
}

// TestBusy holds that texts whose clients have left cannot take all memory.
func TestBusy(t *testing.T) {
	k := newTokenizer(t, Options{})
	engines := []string{serve(t, bytesOf)}
	k.asked.Store(maxAsked)
	if _, _, err := k.Tokens(t.Context(), text(`{"prompt":"abc"}`), engines); reasonOf(err) != Busy {
		t.Errorf("while others take all memory: %v", err)
	}
	k.asked.Store(0)
	if ids, _, err := k.Tokens(t.Context(), text(`{"prompt":"abc"}`), engines); err != nil || len(ids) != 3 || k.asked.Load() != 0 {
		t.Errorf("%v, %v; %d bytes are asked for", ids, err, k.asked.Load())
	}
}

func TestTokens(t *testing.T) {
	var asked atomic.Int32
	engine := serve(t, func(w http.ResponseWriter, r *http.Request) { asked.Add(1); bytesOf(w, r) })
	k := newTokenizer(t, Options{})
	for i := range 3 {
		ids, cached, err := k.Tokens(t.Context(), text(`{"prompt":"abc"}`), []string{engine + "/"})
		if err != nil || fmt.Sprint(ids) != "[97 98 99]" || cached != (i > 0) {
			t.Fatalf("%v, cached %t, %v", ids, cached, err)
		}
		k.cache.Wait()
	}
	if asked.Load() != 1 {
		t.Errorf("the engine was asked %d times", asked.Load())
	}
	k = newTokenizer(t, Options{CacheBytes: -1})
	for range 2 {
		if _, cached, err := k.Tokens(t.Context(), text(`{"prompt":"abc"}`), []string{engine}); err != nil || cached {
			t.Fatalf("without a cache: %t, %v", cached, err)
		}
	}
}

// TestAnswers holds what comes of each answer of an engine.
func TestAnswers(t *testing.T) {
	f := func(status int, answer, want string) {
		t.Helper()
		engine := serve(t, func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(status); io.WriteString(w, answer) })
		ids, _, err := newTokenizer(t, Options{}).Tokens(t.Context(), text(`{"prompt":"a"}`), []string{engine})
		got := fmt.Sprint(ids)
		if err != nil {
			got = reasonOf(err)
		}
		if got != want {
			t.Errorf("%d %.40s: %s, want %s", status, answer, got, want)
		}
	}
	f(200, `{"tokens":[1,2]}`, "[1 2]")
	f(200, ` [{"token_ids":[3],"sampling_params":{}}] `, "[3]")
	f(200, `{"token_ids":[4]}`, "[4]")
	f(200, `{"tokens":[],"count":0}`, Refused)
	for _, nonsense := range []string{``, `{}`, `[]`, `null`, `7`, `<html>`, `{"tokens":null}`, `{"tokens":"a"}`, `{"tokens":[-1]}`,
		`{"tokens":[1],"count":2}`,
		`{"tokens":[[1]]}`, `{"tokens":[1.5]}`, `[{"token_ids":[1]},{"token_ids":[2]}]`, strings.Repeat(" ", maxAnswer+1)} {
		f(200, nonsense, Nonsense)
	}
	f(400, `{"error":"no template"}`, Refused)
	f(404, `{"detail":"Not Found"}`, Missing)
	f(403, ``, Missing)
	f(307, ``, Missing)
	f(500, ``, Failed)
	f(503, ``, Failed)
	f(429, ``, Failed)
}

// TestRender asks a named service, with a key.
func TestRender(t *testing.T) {
	service := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1/responses/render" || r.Header.Get("Authorization") != "Bearer k" {
			http.Error(w, "no", http.StatusUnauthorized)
			return
		}
		io.WriteString(w, `{"token_ids":[1,2]}`)
	})
	body := []byte(`{"input":"a","tools":[{}]}`) // which /tokenize cannot express
	response := prompt.Read("POST", "/v1/responses", body).Prompts[0].Text
	ids, _, err := newTokenizer(t, Options{URL: service, Render: true, Key: "k"}).Tokens(t.Context(), response, nil)
	if err != nil || len(ids) != 2 {
		t.Errorf("%v, %v", ids, err)
	}
	_, _, err = newTokenizer(t, Options{URL: service}).Tokens(t.Context(), response, nil)
	if reasonOf(err) != Unsupported {
		t.Errorf("without render: %v", err)
	}
	if _, err := New(Options{URL: "tokenizer:8000"}); err == nil {
		t.Error("a URL without a scheme is taken")
	}
}

// TestFailures holds that another engine is asked if one fails, that requests are spread, and that an engine that keeps failing
// is left alone until a probe succeeds.
func TestFailures(t *testing.T) {
	var asked [2]atomic.Int32
	var broken atomic.Bool
	broken.Store(true)
	bad := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if asked[0].Add(1); broken.Load() {
			panic(http.ErrAbortHandler)
		}
		bytesOf(w, r)
	})
	good := serve(t, func(w http.ResponseWriter, r *http.Request) { asked[1].Add(1); bytesOf(w, r) })
	now := time.Unix(1000, 0)
	k := newTokenizer(t, Options{CacheBytes: -1, Now: func() time.Time { return now }})
	send := func(n int) {
		t.Helper()
		asked[0].Store(0)
		asked[1].Store(0)
		for i := range n {
			if _, _, err := k.Tokens(t.Context(), text(fmt.Sprintf(`{"prompt":"a%d"}`, i)), []string{bad, good}); err != nil {
				t.Fatal(err)
			}
		}
	}
	if send(20); asked[0].Load() != 3 || asked[1].Load() != 20 {
		t.Errorf("the broken engine is asked %d times, the other one %d times", asked[0].Load(), asked[1].Load())
	}
	if send(20); asked[0].Load() != 0 {
		t.Errorf("the broken engine is still asked %d times", asked[0].Load())
	}
	broken.Store(false)
	now = now.Add(time.Second)
	if send(20); asked[0].Load() < 9 || asked[1].Load() < 9 {
		t.Errorf("the requests are spread %d to %d", asked[0].Load(), asked[1].Load())
	}
	if _, _, err := k.Tokens(t.Context(), text(`{"prompt":"a"}`), nil); reasonOf(err) != Nobody {
		t.Errorf("without an engine: %v", err)
	}
}

// TestSlowEngine holds that an engine that does not answer costs the time-out, and that a request that leaves does not wait.
func TestSlowEngine(t *testing.T) {
	slow := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body) // so that the server notices that the client leaves
		<-r.Context().Done()
	})
	k := newTokenizer(t, Options{Timeout: time.Millisecond})
	if _, _, err := k.Tokens(t.Context(), text(`{"prompt":"a"}`), []string{slow, slow}); reasonOf(err) != Timeout {
		t.Error(err)
	}
	leaves, leave := context.WithCancel(t.Context())
	leave()
	k = newTokenizer(t, Options{Timeout: 10 * time.Millisecond}) // that of the call, which goes on
	if _, _, err := k.Tokens(leaves, text(`{"prompt":"a"}`), []string{slow}); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// roundTrip is a transport without a network.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// TestEqualTexts holds that equal texts that come at once are asked for once, also if the first client leaves.
func TestEqualTexts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked, answer := 0, make(chan bool)
		engine := roundTrip(func(r *http.Request) (*http.Response, error) {
			asked++
			<-answer
			w := httptest.NewRecorder()
			bytesOf(w, r)
			return w.Result(), nil
		})
		k := newTokenizer(t, Options{CacheBytes: -1, Client: &http.Client{Transport: engine}})
		first, leave := context.WithCancel(t.Context())
		var all sync.WaitGroup
		all.Go(func() {
			if _, _, err := k.Tokens(first, text(`{"prompt":"a"}`), []string{"http://a"}); !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		})
		synctest.Wait()
		leave()
		for range 8 {
			all.Go(func() {
				if ids, _, err := k.Tokens(t.Context(), text(`{"prompt":"a"}`), []string{"http://a"}); err != nil || len(ids) != 1 {
					t.Errorf("%v, %v", ids, err)
				}
			})
		}
		synctest.Wait()
		close(answer)
		if all.Wait(); asked != 1 {
			t.Errorf("the engine was asked %d times", asked)
		}
	})
}

type panics struct{}

func (panics) RoundTrip(*http.Request) (*http.Response, error) { panic("no such header") }

// TestPanics holds that a panic in a call for many ends none of them, and counts against the server that was asked.
func TestPanics(t *testing.T) {
	k := newTokenizer(t, Options{Client: &http.Client{Transport: panics{}}})
	for _, want := range []string{Defect, Defect, Defect, Nobody} {
		_, _, err := k.Tokens(t.Context(), text(`{"prompt":"a"}`), []string{"http://engine:8000"})
		if failure := (*Error)(nil); !errors.As(err, &failure) || failure.Reason != want {
			t.Errorf("the text has the error %v, want %s", err, want)
		}
	}
}
