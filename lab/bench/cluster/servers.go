package cluster

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"example.com/conductor/internal/freeport"
	"example.com/conductor/internal/request"
	"example.com/conductor/lab/bench/ingest"
	"example.com/conductor/lab/bench/recovery"
	"example.com/conductor/lab/harness"
)

const (
	replicas   = 3
	blockSize  = 16
	patience   = 2 * time.Minute
	pause      = 5 * time.Millisecond // between two looks
	shardModel = "bench"              // of a filled shard
)

// group are servers that share a store under a name of their own, and engines that they follow.
type group struct {
	name    string
	servers []*harness.Server
	engines *recovery.Engines
}

// startServers starts a number of servers. The group is to be closed even after an error.
func (c *Config) startServers(n int, flags ...string) (*group, error) {
	g := &group{name: rand.Text()}
	for range n {
		address, err := freeport.Address()
		if err != nil {
			return g, err
		}
		s, err := harness.Serve(c.Serve(append([]string{
			"--listen", address + "=conductor", "--store", c.Store, "--store-name", g.name, "--store-advertise", "http://" + address,
			"--log-level", "error",
		}, flags...)...), "http://"+address)
		if err != nil {
			return g, err
		}
		g.servers = append(g.servers, s)
	}
	return g, nil
}

func (g *group) close() {
	for _, s := range g.servers {
		s.Kill()
	}
	if g.engines != nil {
		g.engines.Stop()
	}
}

// registerSource registers a source at the first server.
func (g *group) registerSource(endpoint, replay, model, instance string, rank int) error {
	body, err := json.Marshal(map[string]any{
		"endpoint": endpoint, "replay_endpoint": replay, "type": "vLLM", "modelname": model, "instance_id": instance,
		"block_size": blockSize, "dp_rank": rank,
	})
	if err != nil {
		return err
	}
	first := g.servers[0]
	return awaitSuccess(func() error {
		status, text, err := request.Do(context.Background(), http.DefaultClient, http.MethodPost, first.URL+"/register", body)
		if err == nil && status != http.StatusOK {
			err = fmt.Errorf("/register answers %d: %s", status, text)
		}
		return err
	})
}

// awaitPlacement waits until a server knows the given number of models and each is served by
// owners replicas. It returns the URLs of these, by model.
func (g *group) awaitPlacement(s *harness.Server, models, owners int) (served map[string][]string, err error) {
	err = s.Until(20*time.Millisecond, func() error {
		var answer struct {
			Shards []struct {
				Model    string `json:"model_name"`
				Moving   bool
				Replicas []struct{ URL, Phase string }
			}
		}
		text, err := s.Get("/admin/cluster")
		if err == nil {
			err = json.Unmarshal(text, &answer)
		}
		if err == nil && len(answer.Shards) != models {
			err = fmt.Errorf("%s knows %d of %d models", s.URL, len(answer.Shards), models)
		}
		served = make(map[string][]string)
		for _, shard := range answer.Shards {
			for _, r := range shard.Replicas {
				if r.Phase == "serving" {
					served[shard.Model] = append(served[shard.Model], r.URL)
				}
			}
			if shard.Moving || len(served[shard.Model]) != owners {
				err = errors.Join(err, fmt.Errorf("model %s moves", shard.Model))
			}
		}
		return err
	})
	return served, err
}

// serverAt returns the server with a URL.
func (g *group) serverAt(url string) *harness.Server {
	for _, s := range g.servers {
		if s.URL == url {
			return s
		}
	}
	return nil
}

// batchesPerEngine returns how many batches of an engine fill its part of the shard.
func (c *Config) batchesPerEngine() uint64 {
	return uint64(max(1, c.ShardBlocks/c.Load.Sources/c.Load.Blocks))
}

// shardLoad returns the load of the engines that share a shard.
func (c *Config) shardLoad() ingest.Load {
	return ingest.Load{
		Sources: c.Load.Sources, Blocks: c.Load.Blocks, BlockSize: blockSize, Hold: int(c.batchesPerEngine()) * c.Load.Blocks,
	}
}

// startEngines starts the engines and registers them.
func (c *Config) startEngines(g *group) (err error) {
	if g.engines, err = recovery.StartEngines(c.Fleet(c.shardLoad())); err != nil {
		return err
	}
	for i, p := range g.engines.Ports {
		if err := g.registerSource(fmt.Sprintf("tcp://127.0.0.1:%d", p.Live), fmt.Sprintf("tcp://127.0.0.1:%d", p.Replay), shardModel,
			instanceName(i), 0); err != nil {
			return err
		}
	}
	return nil
}

// fillShard fills the shard. It returns once some servers have applied every batch and the shelf has
// a snapshot that was begun later.
func (c *Config) fillShard(g *group, servers []*harness.Server) error {
	c.Progress.Say("filling %d engines with %d blocks each", c.Load.Sources, c.shardLoad().Hold)
	for _, s := range servers {
		if err := g.engines.Fill(s, c.batchesPerEngine()); err != nil {
			return err
		}
	}
	before, err := countSnapshots(servers)
	if err != nil {
		return err
	}
	c.Progress.Say("waiting for the shelf")
	return servers[0].Until(20*time.Millisecond, func() error {
		now, err := countSnapshots(servers)
		if err == nil && now < before+2 { // the first one may have begun before
			err = errors.New("no snapshot is written")
		}
		return err
	})
}

// countSnapshots returns how many snapshots servers have put on the shelf.
func countSnapshots(servers []*harness.Server) (sum float64, err error) {
	for _, s := range servers {
		n, err := s.Metric("conductor_shelf_written_total")
		if err != nil {
			return 0, err
		}
		sum += n
	}
	return sum, nil
}

// awaitSuccess looks until there is no error.
func awaitSuccess(look func() error) (err error) {
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(pause) {
		if err = look(); err == nil {
			return nil
		}
	}
	return err
}

func instanceName(i int) string { return fmt.Sprintf("%06d", i) }
