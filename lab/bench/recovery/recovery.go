// Package recovery measures snapshots, restarts and bootstraps of real servers: each in a
// process of its own, over real sockets, while engines go on.
//
//	engines' process                     serving processes
//	PUB and ROUTER per engine ==========> conductor serve --snapshots--> its directory
//	          ^              \                  |  GET /admin/snapshot
//	          |               \=========> conductor serve, which asks the first
//	          +-- orders, by pipe --- this process: kills, starts, asks
package recovery

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"example.com/conductor/internal/freeport"
	"example.com/conductor/lab/bench/ingest"
	"example.com/conductor/lab/harness"
)

// Config describes the load.
type Config struct {
	Blocks      int // unique blocks that are held
	Instances   int // a multiple of Holders
	Holders     int // instances that hold each block
	EventBlocks int // blocks that one event stores: a chain
	BlockSize   int // tokens per block
	Interval    time.Duration
	Rate        float64 // batches/s of all engines while servers are killed and started
	Rounds      int
	// Busy is how many engines publish while the server of a large fleet is watched, 0 for no such measurement. With it,
	// snapshots and bootstraps are not measured.
	Busy  int
	Watch time.Duration // how long a large fleet is watched at a time

	// Server is "serve" with a configuration file. Fleet runs Fleet in another process.
	Server   func(file string) *exec.Cmd
	Fleet    func(ingest.Load) *exec.Cmd
	Progress harness.Progress
}

// batchesPerEngine returns how many batches fill an engine.
func (c *Config) batchesPerEngine() uint64 {
	return uint64(max(1, c.Blocks*c.Holders/c.Instances/c.EventBlocks))
}

func (c *Config) engineLoad() ingest.Load {
	return ingest.Load{Blocks: c.EventBlocks, BlockSize: c.BlockSize, Hold: int(c.batchesPerEngine()) * c.EventBlocks, Holders: c.Holders}
}

// run is one run.
type run struct {
	*Config
	dir     string
	engines *Engines
	report  *Report
	all     []*harness.Server
}

// Run measures.
func Run(c Config) (*Report, error) {
	if c.Blocks < 1 || c.Holders < 1 || c.Instances < c.Holders || c.Instances%c.Holders != 0 || c.EventBlocks < 1 || c.BlockSize < 1 ||
		c.Rounds < 1 || c.Rate < 0 || c.Interval <= 0 || c.Busy < 0 || c.Busy > c.Instances {
		return nil, harness.Mistakef("instances must be a multiple of holders, blocks, sizes, rounds and the interval above zero, " +
			"busy engines at most all")
	}
	dir, err := os.MkdirTemp("", "conductor-recovery-")
	if err != nil {
		return nil, fmt.Errorf("cannot keep snapshots: %w", err)
	}
	defer os.RemoveAll(dir)
	r := &run{Config: &c, dir: dir, report: newReport(&c)}
	defer func() {
		for _, s := range r.all {
			s.Kill()
		}
	}()
	if r.engines, err = StartEngines(r.fleetCommands()...); err != nil {
		return nil, err
	}
	defer r.engines.Stop()
	first, err := r.fillFirst()
	phases := []func(*harness.Server) (*harness.Server, error){r.measureSnapshots, r.measureRestart, r.measureBootstrap}
	if r.Busy > 0 {
		phases = []func(*harness.Server) (*harness.Server, error){r.measureWatched, r.measureRestart}
	}
	for _, phase := range phases {
		if err == nil {
			first, err = phase(first)
		}
	}
	return r.report, err
}

// enginesEach is how many engines a process has at most: each takes four file descriptors.
const enginesEach = 2000

// fleetCommands returns the engines' processes.
func (r *run) fleetCommands() (all []*exec.Cmd) {
	l := r.engineLoad()
	for l.First < r.Instances {
		l.Sources = min(enginesEach, r.Instances-l.First)
		all = append(all, r.Fleet(l))
		l.First += l.Sources
	}
	return all
}

// startServer starts a server with snapshots in a directory of its own, or a peer to ask.
func (r *run) startServer(name, peer string) (*harness.Server, error) {
	address, err := freeport.Address()
	if err != nil {
		return nil, err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "listeners: [{address: %q, dialect: conductor}]\nready: {min_sources: %d}\nlog: {level: warn}\n", address, r.Instances)
	if peer == "" {
		fmt.Fprintf(&b, "snapshot: {dir: %q, interval: %s}\n", filepath.Join(r.dir, name), r.Interval)
	} else {
		fmt.Fprintf(&b, "dynamo: {peers: [%q]}\n", peer)
	}
	b.WriteString("sources:\n")
	for i, p := range r.engines.Ports {
		fmt.Fprintf(&b, "- {endpoint: 'tcp://127.0.0.1:%d', replay_endpoint: 'tcp://127.0.0.1:%d', type: vLLM, modelname: bench, "+
			"instance_id: '%06d', block_size: %d}\n", p.Live, p.Replay, i, r.BlockSize)
	}
	file := filepath.Join(r.dir, name+".yaml")
	if err := os.WriteFile(file, []byte(b.String()), 0o600); err != nil {
		return nil, err
	}
	s, err := harness.Serve(r.Server(file), "http://"+address)
	if err == nil {
		r.all = append(r.all, s)
	}
	return s, err
}

// fillFirst starts the first server and has the engines fill it.
func (r *run) fillFirst() (*harness.Server, error) {
	s, err := r.startServer("first", "")
	if err != nil {
		return nil, err
	}
	if _, err := s.Ready(); err != nil {
		return nil, err
	}
	r.Progress.Say("filling %d blocks, each of %d of %d instances", r.Blocks, r.Holders, r.Instances)
	return s, r.engines.Fill(s, r.batchesPerEngine())
}

// measureSnapshots takes what snapshots cost while nothing comes, and how long events wait for them.
func (r *run) measureSnapshots(s *harness.Server) (*harness.Server, error) {
	r.Progress.Say("writing snapshots of an idle fleet")
	err := r.eachSnapshot(s, r.Rounds, func() error {
		blocks, err := s.Metric("conductor_snapshot_blocks")
		took, err2 := s.Metric("conductor_snapshot_write_seconds")
		r.report.Write.addValue(blocks / took)
		r.report.SnapshotBlocks = int(blocks)
		return errors.Join(err, err2)
	})
	if err == nil {
		err = r.weighSnapshot()
	}
	if err == nil {
		err = r.engines.sendOrder(order{Rate: r.Rate})
	}
	r.Progress.Say("writing snapshots while engines publish %.0f batches/s", r.Rate)
	return s, errors.Join(err, r.eachSnapshot(s, 2*r.Rounds, func() error {
		paused, err := s.Metric("conductor_snapshot_pause_seconds")
		r.report.Pause.addValue(paused * 1e3)
		return err
	}))
}

// eachSnapshot calls f behind each of the next n snapshots.
func (r *run) eachSnapshot(s *harness.Server, n int, f func() error) error {
	const name = "conductor_snapshots_written_total"
	before, err := s.Metric(name)
	if err != nil {
		return err
	}
	for i := range n + 1 {
		err := s.Until(20*time.Millisecond, func() error {
			now, err := s.Metric(name)
			if err == nil && now == before {
				err = errors.New("no snapshot is written")
			}
			if err == nil {
				before = now
			}
			return err
		})
		if err != nil {
			return err
		}
		if i == 0 {
			continue // it may have begun before
		}
		if err := f(); err != nil {
			return err
		}
	}
	return nil
}

// weighSnapshot takes the bytes of the newest snapshot, in all and without the owner sets.
func (r *run) weighSnapshot() error {
	const (
		header, section = 36, 20 // docs/formats.md
		chunkSets       = 18
	)
	files, err := filepath.Glob(filepath.Join(r.dir, "first", "*.snapshot"))
	if err != nil || len(files) == 0 {
		return fmt.Errorf("no snapshot is there: %w", err)
	}
	text, err := os.ReadFile(slices.Max(files))
	if err != nil {
		return err
	}
	sets, blocks := 0, 0
	for at := header; at+section <= len(text); {
		kind, n, length := binary.LittleEndian.Uint16(text[at:]), binary.LittleEndian.Uint32(text[at+8:]),
			binary.LittleEndian.Uint32(text[at+12:])
		blocks += int(n)
		if kind == chunkSets {
			sets += int(length) + section
		}
		at += section + int(length)
	}
	if blocks == 0 {
		return errors.New("the snapshot has no blocks")
	}
	r.report.Bytes.addValue(float64(len(text)) / float64(blocks))
	r.report.BytesWithoutSets.addValue(float64(len(text)-sets) / float64(blocks))
	return nil
}

// measureRestart kills the server, and starts it from its snapshot, while engines publish.
func (r *run) measureRestart(s *harness.Server) (*harness.Server, error) {
	for i := range r.Rounds {
		r.Progress.Say("restart %d of %d", i+1, r.Rounds)
		s.Kill()
		var err error
		if s, err = r.restartServer(s); err != nil {
			return nil, err
		}
		took, err := s.Ready()
		if err != nil {
			return nil, err
		}
		r.report.Restart.addValue(took.Seconds())
		r.report.RestartCPU.addValue(s.CPU().Seconds())
		blocks, err := s.Metric("conductor_snapshot_loaded_blocks")
		loading, err2 := s.Metric("conductor_snapshot_load_seconds")
		if err := errors.Join(err, err2); err != nil {
			return nil, err
		}
		if int(blocks) < r.report.SnapshotBlocks/2 {
			return nil, fmt.Errorf("a server began with %.0f blocks of a snapshot: %s", blocks, s.Logs)
		}
		r.report.Load.addValue(blocks / loading)
		if err := r.eachSnapshot(s, 1, func() error { return nil }); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// restartServer starts a server with the configuration of one that was killed.
func (r *run) restartServer(was *harness.Server) (*harness.Server, error) {
	s, err := harness.Serve(r.Server(filepath.Join(r.dir, "first.yaml")), was.URL)
	if err == nil {
		r.all = append(r.all, s)
	}
	return s, err
}

// measureBootstrap fills further servers from the first while engines publish, and compares what both
// hold once they rest.
func (r *run) measureBootstrap(first *harness.Server) (*harness.Server, error) {
	for i := range r.Rounds {
		r.Progress.Say("bootstrap %d of %d", i+1, r.Rounds)
		s, err := r.startServer("second", first.URL)
		if err != nil {
			return nil, err
		}
		took, err := s.Ready()
		if err != nil {
			return nil, err
		}
		r.report.Peer.addValue(took.Seconds())
		blocks, err := s.Metric("conductor_recovery_blocks")
		if err == nil && int(blocks) < r.report.SnapshotBlocks/2 {
			err = fmt.Errorf("a server took %.0f blocks from its peer: %s", blocks, s.Logs)
		}
		if err == nil && i == r.Rounds-1 {
			err = r.compareServers(first, s)
		}
		if s.Kill(); err != nil {
			return nil, err
		}
	}
	return first, nil
}

// compareServers waits until both servers have applied all batches, and compares their digests.
func (r *run) compareServers(a, b *harness.Server) error {
	sent, err := r.engines.awaitRest()
	if err != nil {
		return err
	}
	var held [2]map[string]harness.Mark
	for i, s := range []*harness.Server{a, b} {
		err := s.Until(50*time.Millisecond, func() error {
			past, err := s.Applied(r.Instances)
			if err == nil && !slices.Equal(past, sent) {
				err = errors.New("batches are missing")
			}
			return err
		})
		if err != nil {
			return err
		}
		if held[i], err = s.Marks(); err != nil {
			return err
		}
	}
	for name, x := range held[0] {
		if y := held[1][name]; x == y && x.Blocks == int(r.batchesPerEngine())*r.EventBlocks {
			r.report.Equal++
		}
	}
	return nil
}
