// Package index measures the index in one process: a load runs through simulated
// prefix caches once, and the events they would have published are replayed.
//
//	trace --> prompts --> router --> LRU caches            untimed
//	           (blocks)          device, host, disk, pool
//	                                  |
//	recording, ops file,
//	synthetic, smg --------------> Stream: query | store | remove ...
//	                                  |
//	                        hard case, copies, names
//	                                  |
//	              +-------------------+--------------------+
//	              v                   v                    v
//	        index (timed)       oracle (--verify)    ops file (--export)
//	              |                                        |
//	              v                                        v
//	       Report (JSON, table)                 lab/bench/peers/dynamo, the rival
//
// A block operation is one block of a query, of a store or of a removal. A query of 700
// blocks counts 700, also if three probes answer it. Rates are by CPU time of the process, the collector's included; latencies
// are by the wall clock.
//
// Invariants
//  1. The same Config gives the same Stream, operation by operation.
//  2. On the device an engine holds the parent of every block it holds. Host, disk and
//     pool are filled by eviction and have holes at the front; but over all its tiers
//     together an engine is closed, too.
//  3. Queries of engine events start from local hashes and take the server's path.
//  4. Nothing is generated, encoded or sorted while a clock runs.
//
// Concurrency: Run belongs to one goroutine and starts writers and readers of
// its own. A Stream is read-only once it is built.
//
// Cost: some 100 bytes a block of the stream, a second of work per million
// blocks, and the index.
package index

import (
	"fmt"
	"slices"
	"time"

	"example.com/conductor/lab/harness"
)

// Kinds of events that reach the index.
const (
	Canonical = "canonical" // sequence hashes, without tokens; queries give sequence hashes
	Engine    = "engine"    // the engines' own hashes, with local hashes
	Wire      = "wire"      // msgpack payloads with tokens, decoded and hashed
)

// Config is one run.
type Config struct {
	// Where operations come from: at most one. Without any the built-in shape of
	// Requests prompts takes the place of a trace.
	Trace     string `json:"trace,omitempty"`     // file in the format of the Mooncake traces
	Synthetic int    `json:"synthetic,omitempty"` // unique blocks, in families of 128
	SMG       string `json:"smg,omitempty"`       // profile of smg's pinned benchmark
	Ops       string `json:"ops,omitempty"`       // file that Export wrote
	Stream    string `json:"recorded,omitempty"`  // recording of engines, as package streams reads it
	Apart     bool   `json:"apart,omitempty"`     // with Stream: each event by itself, not joined as the server joins those of a batch

	Requests int `json:"requests,omitempty"` // prompts of the built-in shape
	Holders  int `json:"holders,omitempty"`  // with Synthetic: workers that hold each block
	Churn    int `json:"churn,omitempty"`    // with Synthetic: blocks that replace the oldest ones after the load
	Target   int `json:"target,omitempty"`   // with SMG: blocks times holders

	Workers   int    `json:"workers"`
	Copies    int    `json:"copies"` // of the trace, each with prompts of its own
	BlockSize int    `json:"block_size"`
	Capacity  int    `json:"capacity"` // blocks of a worker, on each tier
	Tiers     int    `json:"tiers"`    // 1 is the device, 3 adds host and disk
	Pools     int    `json:"pools"`    // take evicted blocks of the workers they serve, as hashes without tokens
	HashOnly  bool   `json:"hash_only"`
	Choices   int    `json:"choices"` // workers the router looks at for a request
	Seed      uint64 `json:"seed"`    // of the router's choices

	Events     string `json:"events"`
	HashSeeds  int    `json:"hash_seeds"`     // families of engine hashes
	EventBlock int    `json:"event_block"`    // most blocks of one event, 0 for no limit (Wire: 64)
	Case       string `json:"case,omitempty"` // one of Cases
	Repeat     int    `json:"repeat"`         // percent of stores that come twice, as counted copies

	Writers  int           `json:"writers"`
	Readers  int           `json:"readers"`
	Duration time.Duration `json:"duration"`        // of readers alone, 0 for a second
	Scale    []int         `json:"scale,omitempty"` // numbers of cores
	Rival    string        `json:"rival,omitempty"` // with Scale: program of lab/bench/peers/dynamo
	Together bool          `json:"together"`        // measure writers and readers side by side too
	Idle     time.Duration `json:"idle"`            // how long the idle process is watched
	Verify   bool          `json:"verify"`          // compare each answer with the oracle's, in a replay of its own
	Answers  string        `json:"-"`               // with Verify: file for one hash per answer

	Progress harness.Progress `json:"-"`
}

// traced reports whether the operations come from a trace or the built-in shape.
func (c *Config) traced() bool {
	return c.Synthetic == 0 && c.SMG == "" && c.Ops == "" && c.Stream == ""
}

// Check returns the first error of a configuration.
func (c *Config) Check() error {
	least := func(name string, n, min int) error {
		if n < min {
			return fmt.Errorf("%s is %d, must be at least %d", name, n, min)
		}
		return nil
	}
	for _, f := range []struct {
		name   string
		n, min int
	}{
		{"workers", c.Workers, 1}, {"copies", c.Copies, 1}, {"block size", c.BlockSize, 1}, {"capacity", c.Capacity, 1},
		{"choices", c.Choices, 1},
		{"writers", c.Writers, 1}, {"readers", c.Readers, 0}, {"hash seeds", c.HashSeeds, 1}, {"event blocks", c.EventBlock, 0},
		{"synthetic", c.Synthetic, 0}, {"churn", c.Churn, 0}, {"pools", c.Pools, 0}, {"repeat", c.Repeat, 0},
	} {
		if err := least(f.name, f.n, f.min); err != nil {
			return err
		}
	}
	for _, n := range c.Scale {
		if err := least("scale", n, 1); err != nil {
			return err
		}
	}
	origins := 0
	for _, given := range []bool{c.Trace != "", c.Synthetic > 0, c.SMG != "", c.Ops != "", c.Stream != ""} {
		if given {
			origins++
		}
	}
	switch {
	case origins > 1:
		return fmt.Errorf("a trace, synthetic blocks, a profile of smg, an ops file and a recorded stream exclude each other")
	case c.traced() && c.Trace == "" && c.Requests < 1:
		return fmt.Errorf("requests is %d, must be at least 1", c.Requests)
	case c.Synthetic > 0 && (c.Holders < 1 || c.Holders > c.Workers):
		return fmt.Errorf("holders is %d, must be between 1 and the %d workers", c.Holders, c.Workers)
	case !c.traced() && c.Ops == "" && c.Stream == "" && (c.Tiers != 1 || c.Pools > 0 || c.HashOnly):
		return fmt.Errorf("tiers, pools and hash-only events need a trace")
	case c.Apart && c.Stream == "":
		return fmt.Errorf("events are apart only in a recorded stream")
	case c.Tiers != 1 && c.Tiers != 3:
		return fmt.Errorf("tiers is %d, must be 1 or 3", c.Tiers)
	case c.SMG != "" && smgProfiles[c.SMG] == nil:
		return fmt.Errorf("smg's profile is %q, must be one of %q", c.SMG, SMGProfiles())
	case c.SMG != "" && c.Target < 1:
		return fmt.Errorf("target is %d, must be at least 1", c.Target)
	case c.SMG != "" && (c.Events != Engine || c.HashSeeds != 1 || c.Repeat > 0):
		return fmt.Errorf("smg's keys are engine hashes of one family, without counted copies")
	case !slices.Contains([]string{Canonical, Engine, Wire}, c.Events):
		return fmt.Errorf("events is %q, must be canonical, engine or wire", c.Events)
	case c.Events == Wire && !c.traced():
		return fmt.Errorf("events is %q, which needs a trace: the blocks of other loads have no tokens", c.Events)
	case c.Events == Wire && (c.Case != "" || c.Repeat > 0 || c.Pools > 0 || c.HashOnly || c.Verify):
		return fmt.Errorf("wire events have no cases, copies, pools, hash-only blocks or verification")
	case c.HashSeeds > 1<<8:
		return fmt.Errorf("hash seeds is %d, must be at most %d", c.HashSeeds, 1<<8)
	case c.Pools%c.HashSeeds != 0:
		return fmt.Errorf("pools is %d, must be a multiple of the %d hash seeds", c.Pools, c.HashSeeds)
	case c.Repeat > 100:
		return fmt.Errorf("repeat is %d percent, must be at most 100", c.Repeat)
	case c.Case != "" && !slices.Contains(Cases, c.Case):
		return fmt.Errorf("case is %q, must be one of %q", c.Case, Cases)
	case c.traced() && segmentTokens%c.BlockSize != 0:
		return fmt.Errorf("block size %d does not divide the %d tokens of a trace's hash id", c.BlockSize, segmentTokens)
	}
	return nil
}

// generateStreams makes the stream in canonical hashes, and the prompts of its payloads if the
// events are on the wire.
func generateStreams(c *Config) (*Stream, *prompts, error) {
	var s *Stream
	var p *prompts
	var err error
	switch {
	case c.Ops != "":
		s, err = openOps(c.Ops)
	case c.Stream != "":
		s, err = openStream(c.Stream, c.Apart)
	case c.Synthetic > 0:
		s = synthesizeStream(c)
	case c.SMG != "":
		s = makeSMG(smgProfiles[c.SMG], c.Target)
	default:
		s, p, err = simulateFleet(c)
	}
	if err != nil {
		return nil, nil, err
	}
	if c.Events == Wire {
		return s, p, nil
	}
	s.ids = nil
	if c.Case != "" {
		s.makeCase(c.Case)
	}
	if c.EventBlock > 0 {
		s.splitEvents(c.EventBlock)
	}
	if c.Repeat > 0 {
		s.repeatStores(c.Repeat, c.Seed)
	}
	return s, nil, nil
}
