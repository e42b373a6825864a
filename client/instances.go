package client

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"time"
)

// Instance is one instance that answers about a model may have a row of.
type Instance struct {
	Tenant    string `json:"tenant_id"`
	Model     string `json:"model"`
	BlockSize int    `json:"block_size"` // tokens
	Instance  string `json:"instance_id"`
	// Address is the base URL at which the engine takes requests, "" if that is not known.
	Address string `json:"address"`
	// State is that of the source of the instance that is furthest from synced, as of a Candidate.
	State string `json:"state"`
	// Approximate says that the engine publishes no events.
	Approximate bool `json:"approximate"`
	// Role is what the engine does where one computes a prompt and another one generates: prefill or decode; "" for both.
	Role string `json:"role"`
	// Ranks are the registered data-parallel ranks, ascending.
	Ranks []int `json:"ranks"`
	// Aliases and Adapters are further names that queries may have as their model.
	Aliases  []string `json:"aliases"`
	Adapters []string `json:"adapters"`
}

// instanceKey tells instances apart.
type instanceKey struct {
	Tenant    string `json:"tenant_id"`
	Model     string `json:"model"`
	BlockSize int    `json:"block_size"`
	Instance  string `json:"instance_id"`
}

func (i *Instance) key() instanceKey { return instanceKey{i.Tenant, i.Model, i.BlockSize, i.Instance} }

// Instances returns the instances of the tenants that the credentials may name, sorted by tenant, model, block size and instance. A
// server that serves some shards of a fleet has the instances of these alone.
func (c *Client) Instances(ctx context.Context) ([]Instance, error) {
	var answer struct {
		Instances []Instance `json:"instances"`
	}
	err := c.do(ctx, http.MethodGet, "/conductor/v1/instances", nil, &answer)
	return answer.Instances, err
}

// Bounds of a watch.
const (
	// watchSilence is how long a server may send nothing: it shows that it is there every 15 s.
	watchSilence = 45 * time.Second
	// watchPause is between two attempts at most.
	watchPause = 5 * time.Second
)

// WatchInstances calls use with all instances, as Instances returns them, and again whenever one of them has changed, which the server
// notices within a second. use must not change what it is given. If the connection breaks or the server refuses for a while,
// WatchInstances connects again, and calls failed with the reason; failed may be nil. It returns when ctx ends, with the error of ctx,
// or with an *Error that the server will always give, such as one about credentials.
func (c *Client) WatchInstances(ctx context.Context, use func([]Instance), failed func(error)) error {
	for pause := c.pause; ; pause = min(2*pause, watchPause) {
		err := c.watchOnce(ctx, func(all []Instance) {
			pause = c.pause
			use(all)
		})
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if refused, is := err.(*Error); is && refused.Status < http.StatusInternalServerError && !refused.Temporary() {
			return err
		}
		if failed != nil {
			failed(err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Duration(float64(pause) * (0.5 + rand.Float64()/2))): // clients of one server come back apart
		}
	}
}

// watchOnce watches over one connection until that ends.
func (c *Client) watchOnce(ctx context.Context, use func([]Instance)) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silent := time.AfterFunc(watchSilence, func() { cancel(fmt.Errorf("conductor: the watch was silent for %s", watchSilence)) })
	defer silent.Stop()
	req, err := c.newRequest(ctx, http.MethodGet, "/conductor/v1/instances", nil)
	if err != nil {
		return err
	}
	req.Header.Set("Accept", "text/event-stream")
	resp, err := c.http.Do(req)
	if err != nil {
		return cmp.Or(context.Cause(ctx), err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		answer, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
		return cmp.Or(err, error(refusalOf(jsonCodec, resp, answer)))
	}
	instances := make(map[instanceKey]Instance)
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, maxAnswer)
	name := ""
	for lines.Scan() {
		silent.Reset(watchSilence)
		line := lines.Bytes()
		if text, is := bytes.CutPrefix(line, []byte("event: ")); is {
			name = string(text)
		}
		text, is := bytes.CutPrefix(line, []byte("data: "))
		if !is || name != "instances" && name != "changes" {
			continue // a comment, the end of an event, or an event of a later server
		}
		if err := applyEvent(instances, name, text); err != nil {
			return fmt.Errorf("%w: %w", errAnswer, err)
		}
		silent.Stop() // use may take its time
		use(sortedInstances(instances))
		silent.Reset(watchSilence)
	}
	return cmp.Or(context.Cause(ctx), lines.Err(), io.ErrUnexpectedEOF)
}

// applyEvent applies an event of a watch to the instances.
func applyEvent(to map[instanceKey]Instance, name string, data []byte) error {
	var event struct {
		Instances []Instance    `json:"instances"`
		Changed   []Instance    `json:"changed"`
		Gone      []instanceKey `json:"gone"`
	}
	if err := json.Unmarshal(data, &event); err != nil {
		return err
	}
	if name == "instances" {
		if event.Instances == nil { // a server without instances has an empty list
			return errors.New("an event with all instances has no list of them")
		}
		clear(to)
	}
	for _, all := range [][]Instance{event.Instances, event.Changed} {
		for _, i := range all {
			to[i.key()] = i
		}
	}
	for _, key := range event.Gone {
		delete(to, key)
	}
	return nil
}

func sortedInstances(of map[instanceKey]Instance) []Instance {
	all := make([]Instance, 0, len(of))
	for _, i := range of {
		all = append(all, i)
	}
	slices.SortFunc(all, func(a, b Instance) int {
		return cmp.Or(cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.Model, b.Model), a.BlockSize-b.BlockSize,
			cmp.Compare(a.Instance, b.Instance))
	})
	return all
}
