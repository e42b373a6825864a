package demo

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"time"

	"example.com/conductor/internal/freeport"
	"example.com/conductor/internal/request"
	"example.com/conductor/lab/harness"
	"example.com/conductor/lab/sim"
	"example.com/conductor/lab/sim/workload"
)

// Shards is the demo of servers that share a store and spread the models of a fleet.
type Shards struct {
	Server  Program
	Servers int
	Owners  int    // servers that follow each model
	Store   string // URL; "" starts one
	Seed    uint64
	Within  time.Duration // how long the fleet works
}

// Models is how many models the fleet of Shards has: each is a shard.
const Models = 6

// Run runs the demo. It writes what happens to about, and the warnings of the servers to errs.
func (o *Shards) Run(ctx context.Context, about, errs io.Writer) (*ShardsReport, error) {
	url := o.Store
	if url == "" {
		store, err := startStore(ctx)
		if err != nil {
			return nil, err
		}
		defer store.stop()
		url = store.url()
	}
	fmt.Fprintf(about, "store:  %s\n", url)
	g := &serverGroup{program: o.Server, errs: errs, settings: fmt.Sprintf(
		"store: {url: %q, name: 'demo-%x'}\ncluster: {mode: shards, owners: %d}\n", url, rand.Uint64(), o.Owners)}
	defer g.stop()
	for range o.Servers {
		s, err := g.add(ctx)
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(about, "server: %s (process %d)\n", s.URL, s.PID())
	}
	return o.play(ctx, g, about)
}

// play lets the fleet work, kills a server after a third of the time, and adds one after another.
func (o *Shards) play(ctx context.Context, g *serverGroup, about io.Writer) (*ShardsReport, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r := &ShardsReport{Seed: o.Seed, Began: time.Now(), Servers: o.Servers, Owners: o.Owners}
	stage := sim.NewStage()
	configs, err := Fleets(g.asked, stage, Models, o.Seed)
	if err != nil {
		return nil, err
	}
	var script sync.WaitGroup
	var scriptErr error
	script.Go(func() {
		if stage.Await(ctx, Models) != nil || !harness.Wait(ctx, o.Within/3) {
			return
		}
		victim := g.busiest(ctx)
		if victim == nil {
			return // ctx has ended
		}
		before := victim.counts()
		r.Killed = time.Now()
		g.kill(victim)
		g.dead = append(g.dead, before)
		fmt.Fprintf(about, "%5.1f s: %s is killed\n", time.Since(r.Began).Seconds(), victim.URL)
		if !harness.Wait(ctx, o.Within/3) {
			return
		}
		s, err := g.add(ctx)
		if err != nil {
			if ctx.Err() == nil {
				scriptErr = fmt.Errorf("cannot add a server: %w", err)
			}
			return
		}
		r.Added = time.Now()
		fmt.Fprintf(about, "%5.1f s: %s is added\n", time.Since(r.Began).Seconds(), s.URL)
	})
	for i := range configs {
		configs[i].Duration = o.Within
	}
	reports, err := RunFleets(ctx, configs)
	if err != nil {
		cancel()
	}
	script.Wait() // on a slow machine a server is still being added
	if err = errors.Join(err, scriptErr); err != nil {
		return nil, err
	}
	r.Elapsed = time.Since(r.Began)
	r.fill(reports, g)
	return r, nil
}

// Fleets returns fleets of several models that ask the same servers: two instances of two ranks
// each, with small caches, so that blocks come and go.
func Fleets(servers *sim.Servers, stage *sim.Stage, models int, seed uint64) ([]sim.Config, error) {
	var all []sim.Config
	for i := range models {
		source, err := workload.NewGenerator("mixed", seed+uint64(i))
		if err != nil {
			return nil, err
		}
		name := fmt.Sprintf("model-%d", i)
		n := len(sim.Families)
		all = append(all, sim.Config{
			Servers: servers, Stage: stage, Tenant: "default", Model: name, Name: name,
			Instances: 2, Ranks: 2, Families: []string{sim.Families[i%n], sim.Families[(i+1)%n]},
			BlockSize: 16, Device: 2048, Host: 1024, Disk: 2048, Chunk: 2048, Running: 3, ClearEvery: 200,
			Source: source, Clients: 1, Warm: 8, Seed: seed + uint64(i) + 1,
			SettleEvery: 8, SettleTimeout: 5 * time.Second, Audit: 50, Ring: 10_000, Queue: 100_000,
		})
	}
	return all, nil
}

// RunFleets runs fleets side by side. The first that fails ends all of them.
func RunFleets(ctx context.Context, configs []sim.Config) ([]*sim.Report, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	reports, errs := make([]*sim.Report, len(configs)), make([]error, len(configs))
	var all sync.WaitGroup
	for i, c := range configs {
		all.Go(func() {
			if reports[i], errs[i] = sim.Run(ctx, c); errs[i] != nil {
				errs[i] = fmt.Errorf("model %s: %w", c.Model, errs[i])
				cancel()
			}
		})
	}
	all.Wait()
	return reports, errors.Join(errs...)
}

// serverGroup is servers that share a store.
type serverGroup struct {
	program  Program
	settings string // of each, in YAML
	errs     io.Writer
	servers  []*Server
	asked    *sim.Servers
	dead     []shardCounts // of servers that were killed
}

// add starts a server. Clients ask it once it is ready.
func (g *serverGroup) add(ctx context.Context) (*Server, error) {
	s, err := Launch(ctx, g.program, g.errs, func(string, string) string { return g.settings })
	if err != nil {
		return nil, err
	}
	g.servers = append(g.servers, s)
	if err := s.Await(ctx, "/ready"); err != nil {
		return nil, err
	}
	if g.asked == nil {
		g.asked, err = sim.NewServers(s.URL)
		return s, err
	}
	return s, g.asked.Add(s.URL)
}

// busiest returns the server that follows the most sources.
func (g *serverGroup) busiest(ctx context.Context) (busiest *Server) {
	most := -1
	for _, s := range g.servers {
		var answer struct {
			Count int `json:"count"`
		}
		_, text, err := request.Do(ctx, http.DefaultClient, http.MethodGet, s.URL+"/services", nil)
		if err == nil && json.Unmarshal(text, &answer) == nil && answer.Count > most {
			busiest, most = s, answer.Count
		}
	}
	return busiest
}

// kill kills a server and waits until its process has ended. Clients only notice that it no longer answers.
func (g *serverGroup) kill(s *Server) {
	s.process.Process.Kill()
	<-s.ended
	os.RemoveAll(s.dir)
	for i, other := range g.servers {
		if other == s {
			g.servers = append(g.servers[:i:i], g.servers[i+1:]...)
			return
		}
	}
}

// stop ends all servers.
func (g *serverGroup) stop() {
	for _, s := range g.servers {
		s.Stop()
	}
}

// shardCounts are what servers count of shards.
type shardCounts struct {
	Forwarded int `json:"forwarded"` // queries and parts of batches that another server answered
	Moves     int `json:"moves"`     // changes of what a server does with a model
}

// counts reads the counts of a server, zeros if it does not answer.
func (s *Server) counts() (c shardCounts) {
	resp, err := http.Get(s.URL + "/metrics")
	if err != nil {
		return c
	}
	defer resp.Body.Close()
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		name, value, _ := strings.Cut(lines.Text(), " ")
		n, _ := strconv.ParseFloat(value, 64)
		switch {
		case name == `conductor_cluster_forwarded_total{result="answered"}`:
			c.Forwarded += int(n)
		case strings.HasPrefix(name, "conductor_cluster_moves_total"):
			c.Moves += int(n)
		}
	}
	return c
}

// demoStore is a store in a process of its own.
type demoStore struct {
	address, dir string
	process      *exec.Cmd
}

// startStore starts valkey-server or redis-server on a free loopback port. It keeps nothing on disk.
func startStore(ctx context.Context) (*demoStore, error) {
	binary := ""
	for _, name := range []string{"valkey-server", "redis-server"} {
		if path, err := exec.LookPath(name); err == nil {
			binary = path
			break
		}
	}
	if binary == "" {
		return nil, errors.New("neither valkey-server nor redis-server is installed: install the package valkey-server or redis-server, " +
			"or name a store that runs by --store")
	}
	address, err := freeport.Address()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "conductor-demo-store")
	if err != nil {
		return nil, err
	}
	host, port, _ := net.SplitHostPort(address)
	s := &demoStore{address: address, dir: dir, process: exec.Command(binary, "--bind", host, "--port", port, "--dir", dir, "--save", "",
		"--appendonly", "no")}
	s.process.SysProcAttr = apart()
	if err := s.process.Start(); err != nil {
		return nil, err
	}
	for end := time.Now().Add(patience); ; {
		c, err := net.Dial("tcp", address)
		if err == nil {
			return s, c.Close()
		}
		if time.Now().After(end) || !harness.Wait(ctx, 10*time.Millisecond) {
			s.stop()
			return nil, fmt.Errorf("%s does not answer at %s: %w", binary, address, err)
		}
	}
}

func (s *demoStore) url() string { return "redis://" + s.address }

// stop ends the store.
func (s *demoStore) stop() {
	s.process.Process.Kill()
	s.process.Wait()
	os.RemoveAll(s.dir)
}
