// Package tokens makes token ids of texts and chats, by asking someone who has the tokenizer and the chat template: the engines
// themselves, or one service that is named.
//
// Engines are asked at POST /tokenize, which vLLM and SGLang have. A vLLM render service (vllm launch render, or vllm serve
// --enable-scale-out) can be asked instead: it makes of a request exactly the tokens that the engine makes, also for all of the
// Responses API. It is asked for embeddings at /tokenize, which it has too.
//
// Results are cached by a hash of what decides them, and equal texts that come at once are asked for once. An engine that keeps
// failing is left alone for a while.
package tokens

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dgraph-io/ristretto/v2"
	"golang.org/x/sync/singleflight"

	"example.com/conductor/integrations/envoy/breaker"
	"example.com/conductor/integrations/envoy/guard"
	"example.com/conductor/integrations/envoy/prompt"
)

// Options say whom to ask. The zero value asks engines.
type Options struct {
	// URL is the base URL of a service that is asked in place of the engines.
	URL string
	// Render asks vLLM's render service in place of /tokenize.
	Render bool
	// Key is sent as a bearer token, "" for none.
	Key string
	// Timeout is how long an answer may take for each started 64 KiB of a text, 10 s at most; 250 ms if it is 0. Raise it if engines are so
	// busy that they answer late: requests then wait longer, and fewer go without their prefix.
	Timeout time.Duration
	// CacheBytes bounds the results that are kept, 4 bytes a token; 256 MiB if it is 0, none if it is negative.
	CacheBytes int64
	// Client sends the requests; nil is one that follows no redirect, so that prompts go to no other host.
	Client *http.Client
	// Now is the clock of the breakers; nil is time.Now.
	Now func() time.Time
}

// Bounds.
const (
	maxAnswer = 32 << 20 // bytes of an answer; a million tokens have about 8 MB
	perPiece  = 64 << 10 // bytes of a text for which Options.Timeout is meant
	// longest bounds the time-out of a long text: a million tokens take an engine some seconds.
	longest = 10 * time.Second
	// maxAsked bounds the bytes of all texts that are asked for at once: their clients may have left. Beyond it there are no tokens.
	maxAsked = 128 << 20
	// tries is how many engines are asked for one text.
	tries = 2
	// maxBreakers bounds the engines whose failures are remembered, at the price that all are forgotten.
	maxBreakers = 4096
)

// Why a text has no tokens.
const (
	Timeout     = "timeout"     // no answer in time
	Unreachable = "unreachable" // no connection, or it broke
	Failed      = "failed"      // a status of 500 or more, or 429
	Missing     = "missing"     // the server does not have the path, or has switched it off
	Refused     = "refused"     // the server says that the request is wrong, and the engine will too
	Nonsense    = "nonsense"    // an answer without token ids
	Nobody      = "nobody"      // no engine, or none that may be asked now
	Busy        = "busy"        // too many texts are asked for already
	Unsupported = "unsupported" // /tokenize cannot express the request
	Defect      = "defect"      // a panic
)

// Error is why a text has no tokens.
type Error struct {
	Reason string // one of the constants
	Err    error  // nil if the reason says all
}

func (e *Error) Error() string {
	if e.Err == nil {
		return "no tokens: " + e.Reason
	}
	return "no tokens: " + e.Reason + ": " + e.Err.Error()
}

func (e *Error) Unwrap() error { return e.Err }

// Tokenizer asks for tokens. It is safe for concurrent use.
type Tokenizer struct {
	options Options
	now     func() time.Time
	cache   *ristretto.Cache[string, []uint32]
	calls   singleflight.Group
	turn    atomic.Uint64
	asked   atomic.Int64 // bytes of the texts that are asked for now

	mu       sync.Mutex
	breakers map[string]*breaker.Breaker // by base URL
}

// New returns a Tokenizer. The caller calls Close.
func New(o Options) (*Tokenizer, error) {
	o.Timeout, o.CacheBytes = cmp.Or(o.Timeout, 250*time.Millisecond), cmp.Or(o.CacheBytes, 256<<20)
	if o.URL != "" {
		if u, err := url.Parse(o.URL); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			return nil, fmt.Errorf("tokenizer %q is no base URL such as http://tokenizer:8000", o.URL)
		}
	}
	if o.Client == nil {
		transport := http.DefaultTransport.(*http.Transport).Clone()
		transport.Proxy, transport.MaxIdleConnsPerHost = nil, 64
		o.Client = &http.Client{Transport: transport,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	}
	t := &Tokenizer{options: o, now: o.Now, breakers: make(map[string]*breaker.Breaker)}
	if t.now == nil {
		t.now = time.Now
	}
	if o.CacheBytes < 0 {
		return t, nil
	}
	var err error
	t.cache, err = ristretto.NewCache(&ristretto.Config[string, []uint32]{
		NumCounters:        max(10*o.CacheBytes/(16<<10), 1000), // ten for each result of 4,000 tokens
		MaxCost:            o.CacheBytes,
		BufferItems:        64, // what the library advises
		IgnoreInternalCost: true,
	})
	return t, err
}

// Close ends the cache. No other method may be called after it.
func (t *Tokenizer) Close() {
	if t.cache != nil {
		t.cache.Close()
	}
}

// Tokens returns the tokens of a text, which the caller must not change, and whether they were cached. Engines are the base
// URLs of those that serve the model, from which one is asked, and another one if that one fails. An error is an *Error, a
// *guard.Panic, or that of ctx.
func (t *Tokenizer) Tokens(ctx context.Context, text *prompt.Text, engines []string) (ids []uint32, cached bool, err error) {
	sum := text.Key()
	key := string(sum[:])
	if t.cache != nil {
		if ids, ok := t.cache.Get(key); ok {
			return ids, true, nil
		}
	}
	// The call is for all who want the same tokens, so it goes on if the first of them leaves.
	shared := context.WithoutCancel(ctx)
	done := t.calls.DoChan(key, func() (_ any, err error) {
		defer guard.Recover(&err)
		ids, err := t.ask(shared, text, engines)
		if err == nil && t.cache != nil {
			t.cache.Set(key, ids, int64(4*len(ids)+256)) // with its key and the entries of the library
		}
		return ids, err
	})
	select {
	case <-ctx.Done():
		return nil, false, ctx.Err()
	case r := <-done:
		if r.Err != nil {
			return nil, false, r.Err
		}
		return r.Val.([]uint32), false, nil
	}
}

// ask asks one server after another, within one time-out.
func (t *Tokenizer) ask(ctx context.Context, text *prompt.Text, engines []string) ([]uint32, error) {
	size := int64(text.Bytes())
	defer t.asked.Add(-size)
	if t.asked.Add(size) > maxAsked {
		return nil, &Error{Reason: Busy}
	}
	path, body := text.RenderPath(), []byte(nil)
	if t.options.Render && path != "" {
		body = text.Render()
	} else {
		var ok bool
		path = "/tokenize"
		if body, ok = text.Tokenize(); !ok {
			return nil, &Error{Reason: Unsupported}
		}
	}
	if t.options.URL != "" {
		engines = []string{t.options.URL}
	}
	timeout := max(t.options.Timeout, min(t.options.Timeout*time.Duration(1+text.Bytes()/perPiece), longest))
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	last, asked := &Error{Reason: Nobody}, 0
	start := t.turn.Add(1)
	for i := range engines {
		base := engines[(start+uint64(i))%uint64(len(engines))]
		b := t.breaker(base)
		ticket, ok := b.Allow(t.now())
		if !ok {
			continue
		}
		var ids []uint32
		if ids, last = t.post(ctx, base, path, body); last == nil {
			b.Done(ticket, t.now(), true)
			return ids, nil
		}
		if last.Reason == Refused {
			b.Done(ticket, t.now(), true)
			return nil, last
		}
		b.Done(ticket, t.now(), false)
		if asked++; asked == tries || ctx.Err() != nil {
			break
		}
	}
	return nil, last
}

// breaker returns that of a server. It opens after three failures in a row.
func (t *Tokenizer) breaker(base string) *breaker.Breaker {
	t.mu.Lock()
	defer t.mu.Unlock()
	b := t.breakers[base]
	if b == nil {
		if len(t.breakers) >= maxBreakers {
			clear(t.breakers)
		}
		b = &breaker.Breaker{Threshold: 3, Wait: time.Second, Longest: time.Minute}
		t.breakers[base] = b
	}
	return b
}

// post asks one server.
func (t *Tokenizer) post(ctx context.Context, base, path string, body []byte) (_ []uint32, failure *Error) {
	var broken error
	defer func() {
		if broken != nil {
			failure = &Error{Defect, broken}
		}
	}()
	defer guard.Recover(&broken)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, strings.TrimRight(base, "/")+path, bytes.NewReader(body))
	if err != nil {
		return nil, &Error{Unreachable, err}
	}
	req.Header.Set("Content-Type", "application/json")
	if t.options.Key != "" {
		req.Header.Set("Authorization", "Bearer "+t.options.Key)
	}
	resp, err := t.options.Client.Do(req)
	var answer []byte
	if err == nil {
		defer resp.Body.Close()
		answer, err = io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	}
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, &Error{Timeout, ctx.Err()}
	case err != nil:
		return nil, &Error{Unreachable, err}
	case len(answer) > maxAnswer:
		return nil, &Error{Nonsense, fmt.Errorf("%s answers with more than %d bytes", base, maxAnswer)}
	case resp.StatusCode == http.StatusOK:
		ids, err := read(answer)
		if err != nil {
			return nil, &Error{Nonsense, fmt.Errorf("%s: %w", base, err)}
		}
		if len(ids) == 0 {
			return nil, &Error{Refused, errors.New("the text is empty")} // which is not the engine's fault
		}
		return ids, nil
	}
	err = fmt.Errorf("%s answers %s: %.200s", base, resp.Status, answer)
	switch status := resp.StatusCode; {
	case status == http.StatusNotFound || status == http.StatusMethodNotAllowed || status == http.StatusNotImplemented ||
		status == http.StatusForbidden || status == http.StatusUnauthorized || status < 400:
		return nil, &Error{Missing, err}
	case status >= 500 || status == http.StatusTooManyRequests:
		return nil, &Error{Failed, err}
	}
	return nil, &Error{Refused, err}
}

// read reads {"count": 3, "tokens": [1, 2, 3]} of /tokenize, {"token_ids": [1, 2, 3]} of a rendered chat, or a list with one such
// for a rendered completion.
func read(answer []byte) ([]uint32, error) {
	type rendered struct {
		Count    *int            `json:"count"`
		Tokens   json.RawMessage `json:"tokens"`
		TokenIDs json.RawMessage `json:"token_ids"`
	}
	var one rendered
	if answer = bytes.TrimSpace(answer); len(answer) > 0 && answer[0] == '[' {
		var list []rendered
		if err := json.Unmarshal(answer, &list); err != nil {
			return nil, err
		}
		if len(list) != 1 {
			return nil, fmt.Errorf("%d prompts were rendered of one", len(list))
		}
		one = list[0]
	} else if err := json.Unmarshal(answer, &one); err != nil {
		return nil, err
	}
	if one.Tokens == nil {
		one.Tokens = one.TokenIDs
	}
	ids, ok := prompt.IDs(one.Tokens)
	if !ok {
		return nil, errors.New("the answer has no token ids")
	}
	if one.Count != nil && *one.Count != len(ids) {
		return nil, fmt.Errorf("the answer has %d token ids and says %d", len(ids), *one.Count)
	}
	return ids, nil
}
