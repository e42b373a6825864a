// Package bench measures the index in one process: a recorded or made-up load
// runs through simulated prefix caches once, and what they would have announced
// is replayed into the index and into three baselines.
//
//	trace --> prompts --> router --> LRU caches          untimed
//	           (blocks)             device, host, disk
//	                                      |
//	                                      v
//	            Stream: query | store | remove ...       pointer-free, in memory
//	                                      |
//	            +--------------+----------+---+--------------+
//	            v              v              v              v      timed
//	          index          map           radix        positional
//	            |
//	            +--> rates, latencies, bytes, collector --> Report (JSON, table, SVG)
//
// A block operation is one block of a query, of a store or of a removal,
// whatever a structure does for it: a query of 700 blocks counts 700 even where
// three probes answer it.
//
// Invariants
//  1. The same Config gives the same Stream, operation by operation.
//  2. On the device an engine holds the parent of every block it holds. Host and
//     disk are filled by eviction and have holes at the front; but over all its
//     tiers together an engine is closed, too.
//  3. Every structure gets the same operations and has to give the same answers;
//     a run in which they differ fails.
//  4. Nothing is generated, encoded or sorted while a clock runs.
//
// Concurrency: Run belongs to one goroutine and starts writers and readers of
// its own. A Stream is read-only once it is built.
//
// Cost: some 100 bytes a block of the stream, a second of work per million
// blocks, and the structures themselves, one after the other.
package bench

import (
	"fmt"
	"slices"
	"time"
)

// Names of structures, in the order in which they run.
const (
	Index      = "index"
	Map        = "map"
	Radix      = "radix"
	Positional = "positional"
)

// Structures are all names there are.
var Structures = []string{Index, Map, Radix, Positional}

// Kinds of events that reach the index.
const (
	Canonical = "canonical" // sequence hashes, without tokens
	Engine    = "engine"    // the engines' own hashes, with local hashes
	Wire      = "wire"      // msgpack payloads with tokens, decoded and hashed
)

// Config is one run.
type Config struct {
	Trace     string `json:"trace,omitempty"`     // file in the format of the Mooncake traces
	Synthetic int    `json:"synthetic,omitempty"` // instead of a trace: unique blocks
	Holders   int    `json:"holders,omitempty"`   // with Synthetic: workers that hold each

	Workers   int    `json:"workers"`
	Copies    int    `json:"copies"` // of the trace, each with prompts of its own
	BlockSize int    `json:"block_size"`
	Capacity  int    `json:"capacity"` // blocks of a worker, on each tier
	Tiers     int    `json:"tiers"`    // 1 is the device, 3 adds host and disk
	Choices   int    `json:"choices"`  // workers the router looks at for a request
	Seed      uint64 `json:"seed"`     // of the router's choices

	Events     string `json:"events"`
	HashSeeds  int    `json:"hash_seeds"`  // with Engine and Wire: groups of workers that hash alike
	EventBlock int    `json:"event_block"` // with Wire: most blocks of one event

	Structures []string      `json:"structures"`
	Writers    int           `json:"writers"`
	Readers    int           `json:"readers"`
	Duration   time.Duration `json:"duration"` // repeat the replay for so long, 0 for once
	Scale      []int         `json:"scale,omitempty"`
	Together   bool          `json:"together"` // measure writers and readers side by side too
	Idle       time.Duration `json:"idle"`     // how long the idle process is watched

	Progress func(string) `json:"-"` // told what happens next, may be nil
}

// Check says what is wrong with a configuration.
func (c *Config) Check() error {
	positive := func(name string, n int) error {
		if n < 1 {
			return fmt.Errorf("%s is %d, must be at least 1", name, n)
		}
		return nil
	}
	for _, f := range []struct {
		name string
		n    int
	}{
		{"workers", c.Workers}, {"copies", c.Copies}, {"block size", c.BlockSize}, {"capacity", c.Capacity}, {"choices", c.Choices},
		{"writers", c.Writers}, {"readers", c.Readers}, {"hash seeds", c.HashSeeds}, {"event blocks", c.EventBlock},
	} {
		if err := positive(f.name, f.n); err != nil {
			return err
		}
	}
	for _, n := range c.Scale {
		if err := positive("scale", n); err != nil {
			return err
		}
	}
	switch {
	case (c.Trace == "") == (c.Synthetic == 0):
		return fmt.Errorf("give either a trace or a number of synthetic blocks")
	case c.Synthetic < 0:
		return fmt.Errorf("synthetic is %d, must not be negative", c.Synthetic)
	case c.Synthetic > 0 && (c.Holders < 1 || c.Holders > c.Workers):
		return fmt.Errorf("holders is %d, must be between 1 and the %d workers", c.Holders, c.Workers)
	case c.Synthetic > 0 && c.Tiers != 1:
		return fmt.Errorf("tiers is %d, synthetic blocks have 1", c.Tiers)
	case c.Tiers != 1 && c.Tiers != 3:
		return fmt.Errorf("tiers is %d, must be 1 or 3", c.Tiers)
	case !slices.Contains([]string{Canonical, Engine, Wire}, c.Events):
		return fmt.Errorf("events is %q, must be canonical, engine or wire", c.Events)
	case len(c.Structures) == 0:
		return fmt.Errorf("there is no structure to measure")
	case c.Trace != "" && segmentTokens%c.BlockSize != 0:
		return fmt.Errorf("block size %d does not divide the %d tokens of a trace's hash id", c.BlockSize, segmentTokens)
	}
	for _, s := range c.Structures {
		if !slices.Contains(Structures, s) {
			return fmt.Errorf("structure is %q, must be one of %q", s, Structures)
		}
	}
	return nil
}

// closed reports whether every owner holds the parent of every block it holds.
func (c *Config) closed() bool { return c.Tiers == 1 }

// owners is how many owners the structures know.
func (c *Config) owners() int { return c.Workers * c.Tiers }

func (c *Config) say(format string, args ...any) {
	if c.Progress != nil {
		c.Progress(fmt.Sprintf(format, args...))
	}
}
