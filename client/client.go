// Package client asks a Conductor over HTTP.
//
//	c, err := client.New("http://conductor:13333")
//	rows, err := c.Query(ctx, client.Query{Model: "deepseek", BlockSize: 16, Tokens: tokens})
//	best := rows.Longest()
//
// A Client keeps its connections open and is safe for concurrent use; make one for each server. It
// asks again after 503, no sooner than Retry-After says, and after broken connections, while the
// deadline of the context leaves time. WithMsgpack halves what a query costs the server.
// Errors of the server are of type *Error. It imports nothing of the server. examples/client has an example that runs.
package client

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
	"net/url"
	"strconv"
	"strings"
	"time"
)

// Client asks one server.
type Client struct {
	base    string
	http    *http.Client
	token   func() (string, error)
	retries int
	pause   time.Duration // before the first retry
	msgpack bool
}

// Option changes a Client that New makes.
type Option func(*Client)

// WithHTTPClient uses another HTTP client than one with 64 idle connections.
func WithHTTPClient(h *http.Client) Option { return func(c *Client) { c.http = h } }

// WithTransport wraps what sends the requests, such as in an instrumentation. The HTTP client that was given stays as it is.
func WithTransport(wrap func(http.RoundTripper) http.RoundTripper) Option {
	return func(c *Client) {
		h := *c.http
		if h.Transport == nil {
			h.Transport = http.DefaultTransport
		}
		h.Transport = wrap(h.Transport)
		c.http = &h
	}
}

// WithToken sends a bearer token with each request.
func WithToken(token string) Option {
	return WithTokens(func() (string, error) { return token, nil })
}

// WithTokens asks for the bearer token of each request, for tokens that change.
func WithTokens(token func() (string, error)) Option { return func(c *Client) { c.token = token } }

// WithRetries asks again at most n times, 2 unless set. Changes are asked for again too: each is
// the same done twice.
func WithRetries(n int) Option { return func(c *Client) { c.retries = n } }

// Bounds of a request.
const (
	// answerWait bounds the wait for an answer where the context has no deadline that is sooner.
	answerWait = 30 * time.Second
	// longestPause is the longest Retry-After that a client waits for.
	longestPause = time.Minute
	// maxAnswer bounds an answer in bytes.
	maxAnswer = 256 << 20
)

// New returns a client of the server at a base URL, such as http://conductor:13333.
func New(base string, options ...Option) (*Client, error) {
	u, err := url.Parse(base)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || strings.ContainsAny(base, "?#") {
		return nil, fmt.Errorf("%q is no base URL such as http://conductor:13333", base)
	}
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.MaxIdleConnsPerHost = 64
	t.DisableCompression = true
	t.WriteBufferSize = 64 << 10 // a query of 8,192 tokens in one write
	t.ResponseHeaderTimeout = answerWait
	c := &Client{base: strings.TrimRight(base, "/"), retries: 2, pause: 50 * time.Millisecond, http: &http.Client{
		Transport:     t,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
	for _, o := range options {
		o(c)
	}
	return c, nil
}

// Error is an answer of the server that is no success.
type Error struct {
	Status  int
	Message string `json:"error"`
	Reason  string `json:"reason"`
	// Field and Index name the field of the request that is wrong, and its element.
	Field string `json:"field"`
	Index *int   `json:"index"`
	// Known has names that are registered in place of one that is not, at most 32.
	Known      []string      `json:"known"`
	RetryAfter time.Duration `json:"-"`
}

// Error implements error.
func (e *Error) Error() string { return fmt.Sprintf("conductor: %d: %s", e.Status, e.Message) }

// Temporary reports whether the same request may succeed later.
func (e *Error) Temporary() bool {
	return e.Status == http.StatusServiceUnavailable || e.Status == http.StatusTooManyRequests
}

// statuses are the statuses of HTTP for the reasons that are not faults of the input.
var statuses = map[string]int{
	"forbidden":         http.StatusForbidden,
	"not_found":         http.StatusNotFound,
	"unknown_answer":    http.StatusNotFound,
	"too_many_requests": http.StatusTooManyRequests,
	"internal":          http.StatusInternalServerError,
	"busy":              http.StatusServiceUnavailable,
	"memory":            http.StatusServiceUnavailable,
	"replicas":          http.StatusServiceUnavailable,
	"shutting_down":     http.StatusServiceUnavailable,
	"unserved":          http.StatusServiceUnavailable,
}

// StatusOf returns the status of HTTP for the error of one query or report among several, which the
// server sends without one: 400 unless its reason says that the input was not at fault.
func StatusOf(reason string) int { return cmp.Or(statuses[reason], http.StatusBadRequest) }

// errAnswer says that an answer is not one of a Conductor.
var errAnswer = errors.New("conductor: the answer cannot be read")

// do sends in, if it is not nil, and decodes the answer into out, both in JSON.
func (c *Client) do(ctx context.Context, method, path string, in, out any) error {
	return c.doIn(ctx, jsonCodec, method, path, in, out)
}

// doIn sends in, if it is not nil, and decodes the answer into out, which stays as it is if the
// answer is 204. It repeats the request as
// WithRetries says.
func (c *Client) doIn(ctx context.Context, as codec, method, path string, in, out any) error {
	var body []byte
	if in != nil {
		var err error
		if body, err = as.marshal(in); err != nil {
			return err
		}
	}
	for try := 0; ; try++ {
		err := c.once(ctx, as, method, path, body, out)
		if err == nil || try >= c.retries || !again(err) {
			return err
		}
		pause := time.Duration(float64(c.pause<<try) * (0.5 + rand.Float64()))
		var refused *Error
		if errors.As(err, &refused) {
			pause = max(pause, refused.RetryAfter)
		}
		if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) < pause || pause > longestPause {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(pause):
		}
	}
}

// again reports whether a request is worth repeating.
func again(err error) bool {
	var refused *Error
	if errors.As(err, &refused) {
		return refused.Status == http.StatusServiceUnavailable
	}
	return !errors.Is(err, errAnswer) && !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded)
}

// once sends one request and decodes its answer into out.
func (c *Client) once(ctx context.Context, as codec, method, path string, body []byte, out any) error {
	req, err := c.newRequest(ctx, method, path, body)
	if err != nil {
		return err
	}
	if body != nil {
		req.Header.Set("Content-Type", as.mediaType)
	}
	req.Header.Set("Accept", as.mediaType)
	resp, err := c.http.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return err
	}
	if resp.StatusCode == http.StatusNoContent {
		return nil
	}
	if resp.StatusCode == http.StatusOK {
		if err := as.unmarshal(answer, out); err != nil {
			return fmt.Errorf("%w: %w", errAnswer, err)
		}
		return nil
	}
	return refusalOf(as, resp, answer)
}

// newRequest returns a request with the token.
func (c *Client) newRequest(ctx context.Context, method, path string, body []byte) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, bytes.NewReader(body))
	if err != nil || c.token == nil {
		return req, err
	}
	token, err := c.token()
	if err != nil {
		return nil, fmt.Errorf("no token: %w", err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	return req, nil
}

// refusalOf returns the error of an answer that is no success.
func refusalOf(as codec, resp *http.Response, answer []byte) *Error {
	refused := &Error{Status: resp.StatusCode}
	if as.unmarshal(answer, refused) != nil && json.Unmarshal(answer, refused) != nil || refused.Message == "" {
		refused.Message = http.StatusText(resp.StatusCode)
	}
	if seconds, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil {
		refused.RetryAfter = time.Duration(seconds) * time.Second
	}
	return refused
}
