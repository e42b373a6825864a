package query

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"example.com/conductor/lab/harness"
)

// asker is one connection.
type asker interface {
	sendRequest(*request) (status int, body []byte, err error)
	close()
}

// request is one prompt, ready to be sent.
type request struct {
	family int
	whole  []byte // with its header, of HTTP/1.1
	body   []byte // the end of whole
}

// sampled is how many answers lie between two that are checked. A check costs the client
// as much as dozens of requests.
const sampled = 128

// leastAnswers is how many answers a measurement waits for, however short it is to be: on a busy
// machine fewer would say nothing of allocations, which a scrape of the server makes too.
const leastAnswers = 100

// client asks one address in one codec.
type client struct {
	load     *Load
	codec    string
	path     string // answers to pathRead are not compared
	requests []request
	askers   []asker
	checked  atomic.Uint64
	answer   atomic.Int64 // bytes of the last one that was checked
	prepare  func() error // renders the requests again before a turn, nil if they stay the same
}

// newClient renders all requests, connects, and looks at some answers.
func newClient(c *Config, address, path, codec string, http2 bool) (*client, error) {
	k := &client{load: &c.Load, codec: codec, path: path}
	var tokens []uint32
	for f := range c.countPrompts() {
		tokens = c.appendPrompt(tokens[:0], f)
		body, err := c.bodyOf(codec, f, tokens)
		if err != nil {
			return nil, err
		}
		if isGRPC(codec) {
			k.requests = append(k.requests, request{f, body, body})
			continue
		}
		whole, err := renderRequest("http://"+address+path, codec, body)
		if err != nil {
			return nil, err
		}
		k.requests = append(k.requests, request{f, whole, whole[len(whole)-len(body):]})
	}
	for range c.Connections {
		if isGRPC(codec) {
			a, err := dialGRPC(address, codec)
			if err != nil {
				k.close()
				return nil, err
			}
			k.askers = append(k.askers, a)
			continue
		}
		if http2 {
			k.askers = append(k.askers, dialHTTP2(address, path, codec))
			continue
		}
		a, err := dialServer(address)
		if err != nil {
			k.close()
			return nil, err
		}
		k.askers = append(k.askers, a)
	}
	for i := range min(8, len(k.requests)) {
		if err := k.compareAnswer(k.askers[i%len(k.askers)], &k.requests[i]); err != nil {
			k.close()
			return nil, err
		}
	}
	return k, nil
}

func (k *client) close() {
	for _, a := range k.askers {
		a.close()
	}
}

// compareAnswer asks and checks the whole answer.
func (k *client) compareAnswer(a asker, r *request) error {
	status, body, err := a.sendRequest(r)
	if err == nil {
		err = checkStatus(status, body)
	}
	if err == nil {
		err = k.checkAnswer(r, body)
	}
	if err != nil {
		return fmt.Errorf("codec %s: %w", k.codec, err)
	}
	return nil
}

func (k *client) checkAnswer(r *request, body []byte) error {
	k.answer.Store(int64(len(body)))
	if k.path == pathRead || k.path == pathRouted {
		return nil
	}
	k.checked.Add(1)
	return k.load.checkAnswer(k.codec, r.family, body)
}

func checkStatus(status int, body []byte) error {
	if status == http.StatusOK || status == http.StatusNoContent {
		return nil
	}
	return fmt.Errorf("the server answers %d: %.300q", status, body)
}

// States of a run.
const (
	warming = iota
	measuring
	ended
)

// windowed is the measurement in the window of one run, or the sum over several.
type windowed struct {
	took      time.Duration
	latencies harness.Latencies
	server    usage // used in the window
	client    time.Duration
}

// askOnAll asks on all connections at once, each as soon as it has its answer: first to
// warm up, then for the measured time. m reads the use of the server.
func (k *client) askOnAll(warm, measured time.Duration, m meter) (*windowed, error) {
	var state atomic.Int32
	var answered atomic.Int64
	asking, ctx := errgroup.WithContext(context.Background())
	latencies := make([]harness.Latencies, len(k.askers))
	for i, a := range k.askers {
		asking.Go(func() error { return k.askRepeatedly(a, i, &state, &answered, &latencies[i]) })
	}
	w := &windowed{}
	err := func() error {
		if !harness.Wait(ctx, warm) {
			return nil // asking tells why
		}
		before, err := m.beginWindow()
		if err != nil {
			return err
		}
		own, begun := readUsage().CPU, time.Now()
		state.Store(measuring)
		for wait := measured; harness.Wait(ctx, wait) && answered.Load() < leastAnswers; {
			wait = 10 * time.Millisecond
		}
		state.Store(ended)
		w.took, w.client = time.Since(begun), readUsage().CPU-own
		after, err := m.endWindow()
		w.server = usage{CPU: after.CPU - before.CPU, Objects: after.Objects - before.Objects, Bytes: after.Bytes - before.Bytes,
			RSS: after.RSS}
		return err
	}()
	state.Store(ended)
	if err = errors.Join(err, asking.Wait()); err != nil {
		return nil, err
	}
	for i := range latencies {
		w.latencies.Merge(&latencies[i])
	}
	return w, nil
}

// askRepeatedly asks on one connection. Connections begin at different prompts, so no connection
// asks for a prompt that another has just warmed.
func (k *client) askRepeatedly(a asker, connection int, state *atomic.Int32, answered *atomic.Int64, l *harness.Latencies) error {
	at := connection * len(k.requests) / len(k.askers)
	for n := 1; ; n++ {
		r := &k.requests[at]
		at = (at + 1) % len(k.requests)
		from := time.Now()
		status, body, err := a.sendRequest(r)
		took := time.Since(from)
		if err == nil {
			err = checkStatus(status, body)
		}
		if err == nil && n%sampled == 1 { // the first one too
			err = k.checkAnswer(r, body)
		}
		if err != nil {
			return fmt.Errorf("codec %s: %w", k.codec, err)
		}
		switch state.Load() {
		case measuring:
			l.Add(took)
			answered.Add(1)
		case ended:
			return nil
		}
	}
}
