package router

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httputil"
	"os"
	"strconv"
	"sync/atomic"
	"time"
)

const (
	// maxBody bounds a request in bytes, and the answer of /tokenize.
	maxBody = 16 << 20
	// maxBodies bounds the bodies of all requests that are read or under way, in bytes.
	maxBodies = 1 << 30
)

// DefaultBodyTimeout is how long a client may take to send its body.
const DefaultBodyTimeout = 30 * time.Second

// RoutedTo is the header of an answer that says which worker it came from, such as engine-1/0.
const RoutedTo = "X-Routed-To"

// ServeHTTP forwards a request to the worker that Choose returns for its prompt, and to another one if
// that worker cannot be reached. A prompt is one list of token ids, one text, or the messages of a chat.
// Text and messages become tokens at /tokenize of an engine, which vLLM has; a router with its own
// tokenizer saves that call. Requests without a prompt, such as GET /v1/models, go to any worker.
func (r *Router) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	in := &countedReader{Reader: http.MaxBytesReader(w, req.Body, maxBody), all: &r.bodies}
	defer in.release()
	body, refused := r.readBody(w, in)
	if req.Method == http.MethodConnect {
		refused = &refusal{http.StatusMethodNotAllowed, "the router is no tunnel"}
	}
	if refused != nil {
		http.Error(w, refused.text, refused.status)
		return
	}
	// These are between the client and the router alone. Worker and router have a connection of their own.
	req.Header.Del("Upgrade")
	req.Header.Del("Expect")
	req.Trailer = nil
	tokens, refused, err := r.tokens(req, body)
	switch {
	case refused != nil:
		http.Error(w, refused.text, refused.status)
		return
	case err != nil:
		http.Error(w, "no engine made tokens of the prompt: "+err.Error(), http.StatusBadGateway)
		return
	}
	choose := func(tried []int) (int, func(bool)) { return r.chooseNext(req.Context(), tokens, tried) }
	if tokens == nil {
		choose = r.any
	}
	err = r.try(req.Context(), choose, func(worker int, end func(bool)) error { return r.forward(w, req, body, worker, end) })
	if err != nil {
		http.Error(w, "no engine answered: "+err.Error(), http.StatusBadGateway)
	}
}

// refusal is an answer to a request that goes to no worker.
type refusal struct {
	status int
	text   string
}

// readBody returns the body of a request, or why there is none.
func (r *Router) readBody(w http.ResponseWriter, in io.Reader) ([]byte, *refusal) {
	connection := http.NewResponseController(w)
	_ = connection.SetReadDeadline(time.Now().Add(cmp.Or(r.BodyTimeout, DefaultBodyTimeout)))
	body, err := io.ReadAll(in)
	var tooLarge *http.MaxBytesError
	switch {
	case err == nil:
		_ = connection.SetReadDeadline(time.Time{}) // else it is for what the server reads of the rest
		return body, nil
	case errors.As(err, &tooLarge):
		return nil, &refusal{http.StatusRequestEntityTooLarge, err.Error()}
	case errors.Is(err, errTooManyBodies):
		return nil, &refusal{http.StatusServiceUnavailable, err.Error()}
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, &refusal{http.StatusRequestTimeout, "the body took too long"}
	}
	return nil, &refusal{http.StatusBadRequest, "the body cannot be read: " + err.Error()}
}

var errTooManyBodies = errors.New("the router has too many requests in memory, try again")

// countedReader counts what it has read among the bodies of all requests.
type countedReader struct {
	io.Reader
	all  *atomic.Int64
	read int64
}

func (c *countedReader) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.read += int64(n)
	if c.all.Add(int64(n)) > maxBodies {
		return n, errTooManyBodies
	}
	return n, err
}

func (c *countedReader) release() { c.all.Add(-c.read) }

// tokens returns those of the prompt of a request, nil if it has no prompt.
func (r *Router) tokens(req *http.Request, body []byte) (tokens []uint32, refused *refusal, err error) {
	if req.Method != http.MethodPost {
		return nil, nil, nil
	}
	var request struct {
		Prompt   json.RawMessage `json:"prompt"`
		Messages json.RawMessage `json:"messages"`
	}
	if err := json.Unmarshal(body, &request); err != nil {
		return nil, &refusal{http.StatusBadRequest, "the body must be JSON with a prompt or messages: " + err.Error()}, nil
	}
	switch prompt := request.Prompt; {
	case len(prompt) > 0 && prompt[0] == '"' || len(request.Messages) > 0:
		return r.tokenize(req.Context(), body)
	case len(prompt) > 0:
		if err := json.Unmarshal(prompt, &tokens); err != nil {
			return nil, &refusal{http.StatusBadRequest, "the prompt must be a text or one list of token ids: " + err.Error()}, nil
		}
	}
	return tokens, nil, nil
}

// direct asks workers. It follows no redirect, so that prompts go to no other host.
var direct = &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}

// tokenize sends the body of a completion to /tokenize of an engine, which ignores the fields that are
// about the answer. If the engine refuses it, so does the router.
func (r *Router) tokenize(ctx context.Context, body []byte) (tokens []uint32, refused *refusal, err error) {
	err = r.try(ctx, r.any, func(worker int, _ func(bool)) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.Workers[worker].URL.JoinPath("/tokenize").String(),
			bytes.NewReader(body))
		if err != nil {
			return err
		}
		req.Header.Set("Content-Type", "application/json")
		resp, err := direct.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(io.LimitReader(resp.Body, maxBody))
		if err != nil {
			return err
		}
		var answer struct {
			Tokens []uint32 `json:"tokens"`
		}
		switch err := json.Unmarshal(text, &answer); {
		case resp.StatusCode != http.StatusOK:
			refused = &refusal{resp.StatusCode, string(text)}
		case err != nil || answer.Tokens == nil:
			refused = &refusal{http.StatusBadGateway, fmt.Sprintf("/tokenize of %s answered without tokens: %.200s", r.Workers[worker],
				text)}
		}
		tokens = answer.Tokens
		return nil
	})
	return tokens, refused, err
}

// any returns a worker for a request that costs it next to nothing, and leaves the turns of Choose alone.
func (r *Router) any(tried []int) (worker int, end func(bool)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := r.candidates(tried)
	return all[rand.IntN(len(all))], func(bool) {}
}

// chooser returns a worker for a request that others have failed.
type chooser func(tried []int) (worker int, end func(computed bool))

// try calls send with one chosen worker after another until send reached one, the client has gone, or every
// worker had its turn. It returns the last error. A request that fails does not count against its worker, because it may be
// the request's own fault: what counts is that the worker does not say that it is healthy, which is found out aside.
func (r *Router) try(ctx context.Context, choose chooser, send func(int, func(bool)) error) (err error) {
	for tried := []int(nil); len(tried) < len(r.Workers); {
		worker, end := choose(tried)
		tried = append(tried, worker)
		err = func() error {
			defer end(false) // without effect after end(true)
			return send(worker, end)
		}()
		if err == nil || ctx.Err() != nil {
			return err
		}
		r.checkInBackground(worker)
	}
	return err
}

// firstRead is a body that calls begun with its first bytes, or at its end if it is empty.
type firstRead struct {
	io.ReadCloser
	begun func()
}

func (b *firstRead) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if n > 0 || err == io.EOF {
		b.begun()
	}
	return n, err
}

// forward sends a request to a worker, and its answer to the client. It returns an error if there was no answer.
func (r *Router) forward(w http.ResponseWriter, req *http.Request, body []byte, worker int, end func(bool)) (err error) {
	to := r.Workers[worker]
	req.Body, req.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	(&httputil.ReverseProxy{
		Rewrite: func(p *httputil.ProxyRequest) {
			p.SetURL(to.URL)
			p.Out.URL.Opaque = "" // of a request line such as GET http:x
			p.SetXForwarded()
			p.Out.Header.Set("X-Data-Parallel-Rank", strconv.Itoa(to.Rank)) // vLLM's
		},
		// An engine sends the headers of a stream before it has computed the prompt, and the body from the first token on.
		ModifyResponse: func(answer *http.Response) error {
			answer.Header.Set(RoutedTo, to.String())
			if answer.StatusCode >= 300 {
				end(false)
			}
			answer.Body = &firstRead{answer.Body, func() { end(true) }}
			return nil
		},
		ErrorHandler:  func(_ http.ResponseWriter, _ *http.Request, e error) { err = e },
		FlushInterval: -1,
	}).ServeHTTP(w, req)
	return err
}
