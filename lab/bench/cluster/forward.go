package cluster

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"text/tabwriter"
	"time"

	"example.com/conductor/lab/harness"
	"example.com/conductor/lab/sim/digest"
	"example.com/conductor/lab/sim/engine"
	"example.com/conductor/lab/sim/publisher"
	"example.com/conductor/lab/sim/truth"
)

// ForwardReport tells what it costs that a query arrives at a replica which does not serve it.
// Times are in microseconds.
type ForwardReport struct {
	Models    int    `json:"models"`
	Tokens    int    `json:"tokens"`
	Direct    Times  `json:"direct"`    // one client, asking the replica that serves
	Forwarded Times  `json:"forwarded"` // asking another
	Added     Times  `json:"added"`     // difference of the two
	Rates     []Rate `json:"rates"`
}

// Times are quantiles.
type Times struct {
	P50 float64 `json:"p50_us"`
	P99 float64 `json:"p99_us"`
}

// Rate is how many queries a second some replicas answer, asked by chance.
type Rate struct {
	Replicas int     `json:"replicas"`
	Queries  float64 `json:"queries_per_s"`
	P50      float64 `json:"p50_us"`
}

func (r *ForwardReport) writeTable(w io.Writer) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "query of %d tokens\tp50 µs\tp99 µs\n", r.Tokens)
	for _, row := range []struct {
		name string
		Times
	}{{"at the replica that serves", r.Direct}, {"at another", r.Forwarded}, {"added", r.Added}} {
		fmt.Fprintf(t, "%s\t%.0f\t%.0f\n", row.name, row.P50, row.P99)
	}
	for _, rate := range r.Rates {
		fmt.Fprintf(t, "through %d replicas\t%.0f\t%.0f queries/s\n", rate.Replicas, rate.P50, rate.Queries)
	}
	t.Flush()
}

// forward is a run of the part.
type forward struct {
	*Config
	client *http.Client
	urls   []string // of the replicas
	bodies [][]byte // queries, by model
	owner  []int    // replica that serves a model
}

// measureForwarding measures queries that are sent on.
func (c *Config) measureForwarding() (*ForwardReport, error) {
	g, err := c.startServers(replicas, "--cluster-mode", "shards", "--cluster-owners", "1")
	defer g.close()
	if err != nil {
		return nil, err
	}
	b := &forward{Config: c, client: &http.Client{Timeout: patience,
		Transport: &http.Transport{MaxIdleConnsPerHost: c.Clients, DisableCompression: true}}}
	for _, s := range g.servers {
		b.urls = append(b.urls, s.URL)
	}
	for i := range c.Models {
		e, err := b.startEngine(g, i)
		if err != nil {
			return nil, err
		}
		defer e.Close()
	}
	c.Progress.Say("waiting for %d models", c.Models)
	if err := b.awaitOwners(g); err != nil {
		return nil, err
	}
	return b.measureRates()
}

// startEngine starts the engine of a model, which holds the whole prompt, and registers it.
func (b *forward) startEngine(g *group, i int) (*publisher.Publisher, error) {
	e, err := publisher.Listen(publisher.Options{Host: "127.0.0.1", BlockSize: blockSize, Wire: publisher.VLLMMap{}, Ring: 16})
	if err != nil {
		return nil, err
	}
	tokens := make([]uint32, b.Tokens)
	event := engine.Event{Kind: engine.Stored, Tier: truth.Device, Tokens: tokens}
	for n := range tokens {
		tokens[n] = uint32(n + 1)
		if n%blockSize == blockSize-1 {
			event.Hashes = append(event.Hashes, digest.Digest{30: byte(n / blockSize >> 8), 31: byte(n / blockSize)})
		}
	}
	if _, err := e.Publish([]engine.Event{event}); err != nil {
		return nil, err
	}
	name := modelName(i)
	body, err := json.Marshal(map[string]any{"model": name, "block_size": blockSize, "token_ids": tokens})
	if err != nil {
		return nil, err
	}
	b.bodies = append(b.bodies, body)
	return e, g.registerSource(e.Endpoint(), e.ReplayEndpoint(), name, "e", i)
}

// sendQuery makes a request. It returns an error unless the status is 200.
func (b *forward) sendQuery(url string, body []byte) error {
	resp, err := b.client.Post(url, "application/json", bytes.NewReader(body))
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s %s", url, resp.Status, text)
	}
	return err
}

// awaitOwners waits until every model has its owner, in the eyes of every replica.
func (b *forward) awaitOwners(g *group) error {
	for _, s := range g.servers {
		served, err := g.awaitPlacement(s, b.Models, 1)
		if err != nil {
			return err
		}
		b.owner = b.owner[:0]
		for i := range b.Models {
			b.owner = append(b.owner, slices.Index(b.urls, served[modelName(i)][0]))
		}
	}
	return nil
}

// measureRates asks in turns, then as fast as the clients can.
func (b *forward) measureRates() (*ForwardReport, error) {
	r := &ForwardReport{Models: b.Models, Tokens: b.Tokens}
	var direct, forwarded harness.Latencies
	b.Progress.Say("one client, each model at the replica that serves it and at another")
	for i, end := 0, time.Now().Add(b.Duration); i <= 2*b.Models || time.Now().Before(end); i++ {
		m := i % b.Models
		for hop, to := range []*harness.Latencies{&direct, &forwarded} {
			start := time.Now()
			if err := b.sendQuery(b.urls[(b.owner[m]+hop)%replicas]+"/query", b.bodies[m]); err != nil {
				return nil, err
			}
			if i > b.Models { // connections are open
				to.Add(time.Since(start))
			}
		}
	}
	r.Direct, r.Forwarded = timesOf(&direct), timesOf(&forwarded)
	r.Added = Times{r.Forwarded.P50 - r.Direct.P50, r.Forwarded.P99 - r.Direct.P99}
	for n := 1; n <= replicas; n++ {
		b.Progress.Say("%d clients through %d replicas", b.Clients, n)
		rate, err := b.measureRate(n)
		if err != nil {
			return nil, err
		}
		r.Rates = append(r.Rates, rate)
	}
	return r, nil
}

// measureRate asks the first n replicas with all clients.
func (b *forward) measureRate(n int) (Rate, error) {
	var mu sync.Mutex
	var all harness.Latencies
	var failed error
	var work sync.WaitGroup
	start := time.Now()
	for c := range b.Clients {
		work.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(c), 1)) // #nosec G404 -- a load
			var own harness.Latencies
			var err error
			for err == nil && time.Since(start) < b.Duration {
				began := time.Now()
				err = b.sendQuery(b.urls[rng.IntN(n)]+"/query", b.bodies[rng.IntN(b.Models)])
				own.Add(time.Since(began))
			}
			mu.Lock()
			defer mu.Unlock()
			all.Merge(&own)
			failed = errors.Join(failed, err)
		})
	}
	work.Wait()
	return Rate{n, float64(all.Count()) / time.Since(start).Seconds(), timesOf(&all).P50}, failed
}

func modelName(i int) string { return fmt.Sprintf("m%d", i) }

func timesOf(l *harness.Latencies) Times {
	us := func(p float64) float64 { return float64(l.At(p)) / float64(time.Microsecond) }
	return Times{us(50), us(99)}
}
