// Package forward measures what it costs that a query arrives at a replica which does not serve it.
//
// A store, three replicas and one engine a model run in processes of their own, on one machine with
// the clients that ask them.
package forward

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os/exec"
	"sync"
	"text/tabwriter"
	"time"

	"kvconductor/cmd/internal/harness"
	"kvconductor/cmd/internal/sim/digest"
	"kvconductor/cmd/internal/sim/engine"
	"kvconductor/cmd/internal/sim/publisher"
	"kvconductor/cmd/internal/sim/truth"
)

// Config says what to measure.
type Config struct {
	Models   int
	Tokens   int // of a prompt
	Clients  int // at once, for rates
	Duration time.Duration
	// Serve starts a server with flags.
	Serve    func(flags ...string) *exec.Cmd
	Progress harness.Progress
}

// Report is the result. Times are in microseconds.
type Report struct {
	Machine   harness.Machine `json:"machine"`
	Models    int             `json:"models"`
	Tokens    int             `json:"tokens"`
	Direct    Times           `json:"direct"`    // one client, asking the replica that serves
	Forwarded Times           `json:"forwarded"` // asking another
	Added     Times           `json:"added"`     // difference of the two
	Rates     []Rate          `json:"rates"`
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

// Table writes it for people.
func (r *Report) Table(w io.Writer) {
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

const (
	replicas  = 3
	blockSize = 16
	patience  = 30 * time.Second
)

// bench is a run.
type bench struct {
	Config
	client *http.Client
	urls   []string // of the replicas
	bodies [][]byte // queries, by model
	owner  []int    // replica that serves a model
}

// Run measures.
func Run(c Config) (*Report, error) {
	b := &bench{Config: c, client: &http.Client{Timeout: patience, Transport: &http.Transport{MaxIdleConnsPerHost: c.Clients, DisableCompression: true}}}
	store, port, err := startStore()
	if err != nil {
		return nil, err
	}
	defer func() { store.Process.Kill(); store.Wait() }()
	for range replicas {
		address, err := freeAddress()
		if err != nil {
			return nil, err
		}
		cmd := c.Serve("--listen", address+"=conductor", "--store", "redis://127.0.0.1:"+port, "--cluster-mode", "shards", "--cluster-owners", "1", "--log-level", "error")
		if err := cmd.Start(); err != nil {
			return nil, err
		}
		defer func() { cmd.Process.Kill(); cmd.Wait() }()
		b.urls = append(b.urls, "http://"+address)
	}
	for i := range c.Models {
		e, err := b.engine(i)
		if err != nil {
			return nil, err
		}
		defer e.Close()
	}
	if err := b.settle(); err != nil {
		return nil, err
	}
	return b.measure()
}

// engine starts the engine of a model, which holds the whole prompt, and registers it.
func (b *bench) engine(i int) (*publisher.Publisher, error) {
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
	model := fmt.Sprintf("m%d", i)
	body, err := json.Marshal(map[string]any{"model": model, "block_size": blockSize, "token_ids": tokens})
	if err != nil {
		return nil, err
	}
	b.bodies = append(b.bodies, body)
	registration := fmt.Sprintf(`{"endpoint": %q, "replay_endpoint": %q, "type": "vLLM", "modelname": %q, "instance_id": "e", "block_size": %d, "dp_rank": %d}`,
		e.Endpoint(), e.ReplayEndpoint(), model, blockSize, i)
	return e, b.wait(func() error { return b.ask(b.urls[0]+"/register", []byte(registration)) })
}

// ask makes a request. It returns an error unless the status is 200.
func (b *bench) ask(url string, body []byte) error {
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

// wait tries until it succeeds.
func (b *bench) wait(try func() error) (err error) {
	for end := time.Now().Add(patience); time.Now().Before(end); harness.Wait(context.Background(), 50*time.Millisecond) {
		if err = try(); err == nil {
			return nil
		}
	}
	return err
}

// settle waits until every model has its owner, in the eyes of every replica.
func (b *bench) settle() error {
	b.Progress.Say("waiting for %d models", b.Models)
	for _, url := range b.urls {
		if err := b.wait(func() error { return b.look(url) }); err != nil {
			return err
		}
	}
	return nil
}

// look reads the owners that a replica knows.
func (b *bench) look(url string) error {
	resp, err := b.client.Get(url + "/admin/cluster")
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	var answer struct {
		Shards []struct {
			Moving   bool
			Replicas []struct{ URL string }
		}
	}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		return err
	}
	if len(answer.Shards) != b.Models {
		return fmt.Errorf("%s knows %d of %d models", url, len(answer.Shards), b.Models)
	}
	b.owner = make([]int, b.Models)
	for i, s := range answer.Shards { // sorted by model; there are fewer than ten
		if s.Moving || len(s.Replicas) != 1 {
			return errors.New("models move")
		}
		for n, own := range b.urls {
			if s.Replicas[0].URL == own {
				b.owner[i] = n
			}
		}
	}
	return nil
}

// measure asks in turns, then as fast as the clients can.
func (b *bench) measure() (*Report, error) {
	r := &Report{Machine: harness.ThisMachine(), Models: b.Models, Tokens: b.Tokens}
	var direct, forwarded harness.Latencies
	b.Progress.Say("one client, each model at the replica that serves it and at another")
	for i, end := 0, time.Now().Add(b.Duration); time.Now().Before(end); i++ {
		m := i % b.Models
		for hop, to := range []*harness.Latencies{&direct, &forwarded} {
			start := time.Now()
			if err := b.ask(b.urls[(b.owner[m]+hop)%replicas]+"/query", b.bodies[m]); err != nil {
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
		rate, err := b.rate(n)
		if err != nil {
			return nil, err
		}
		r.Rates = append(r.Rates, rate)
	}
	return r, nil
}

// rate asks the first n replicas with all clients.
func (b *bench) rate(n int) (Rate, error) {
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
				err = b.ask(b.urls[rng.IntN(n)]+"/query", b.bodies[rng.IntN(b.Models)])
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

func timesOf(l *harness.Latencies) Times {
	us := func(p float64) float64 { return float64(l.At(p)) / float64(time.Microsecond) }
	return Times{us(50), us(99)}
}

// freeAddress returns an address that is free now.
func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return l.Addr().String(), nil
}

// startStore starts a store in memory alone.
func startStore() (cmd *exec.Cmd, port string, err error) {
	address, err := freeAddress()
	if err != nil {
		return nil, "", err
	}
	_, port, _ = net.SplitHostPort(address)
	for _, name := range []string{"valkey-server", "redis-server"} {
		cmd = exec.Command(name, "--bind", "127.0.0.1", "--port", port, "--save", "", "--appendonly", "no") // #nosec G204 -- a name of ours
		if err = cmd.Start(); !errors.Is(err, exec.ErrNotFound) {
			return cmd, port, err
		}
	}
	return nil, "", errors.New("neither valkey-server nor redis-server is installed")
}
