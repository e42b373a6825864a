// Package shards simulates which replicas own the deployments of a large fleet, and walks what
// happens to one: replicas die and join, a weight changes, a model becomes hot.
//
//	Config --newFleet--> deployments with costs --walk--> placements --judge--> Report
//
// Nothing is sent and no engine runs: costs are measured figures times counts. The placement is
// the one that servers compute (conductor/cluster/placement).
package shards

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"example.com/conductor/conductor/cluster/placement"
)

// Config is a fleet, the costs of its work and the capacity of a replica.
type Config struct {
	Workers   int     `json:"workers"` // engine ranks, each one source
	Models    int     `json:"models"`  // each one deployment
	Zipf      float64 `json:"zipf"`    // exponent of the law by which models have workers; 0 is equal parts
	Replicas  int     `json:"replicas"`
	Owners    int     `json:"owners"`
	MaxOwners int     `json:"max_owners"` // 0 for all replicas
	Slack     float64 `json:"slack"`

	Blocks  float64 `json:"rank_blocks"`  // blocks that a rank holds
	Stored  float64 `json:"rank_stored"`  // blocks that a rank stores a second; it removes as many
	Queries float64 `json:"rank_queries"` // queries a second for each rank of the fleet

	BlockBytes    float64 `json:"block_bytes"`        // of memory, in the index
	SourceBytes   float64 `json:"source_bytes"`       // of memory, next to the blocks
	BaseBytes     float64 `json:"base_bytes"`         // of memory, of a replica without sources
	Garbage       float64 `json:"garbage"`            // resident memory to the account
	StoredMicros  float64 `json:"stored_cpu_micros"`  // of a core, for a block stored and one removed
	QueryMicros   float64 `json:"query_cpu_micros"`   // of a core, for a query
	WireBytes     float64 `json:"wire_bytes"`         // for a block stored and one removed
	SnapshotBytes float64 `json:"snapshot_bytes"`     // for a block that moves
	Memory        float64 `json:"replica_memory_gib"` // capacity of a replica of weight 1
	Cores         float64 `json:"replica_cores"`      // the same

	HotModel   int     `json:"hot_model"`   // number of the model that becomes hot, from 0
	HotQueries float64 `json:"hot_queries"` // queries a second that it gets in addition
	Seed       uint64  `json:"seed"`        // of the loads that waver
}

// Default returns a fleet of 10,000 ranks with a billion blocks. docs/scale.md says where each
// cost was measured.
func Default() Config {
	return Config{
		Workers: 10_000, Models: 200, Zipf: 1.1, Replicas: 12, Owners: 2, Slack: 0.25,
		Blocks: 100_000, Stored: 1250, Queries: 2.5,
		BlockBytes: 24, SourceBytes: 167_000, BaseBytes: 697e6, Garbage: 1.4,
		StoredMicros: 1.03, QueryMicros: 57, WireBytes: 106, SnapshotBytes: 16.2,
		Memory: 16, Cores: 4, HotModel: 10, HotQueries: 100_000,
	}
}

// check returns an error that names the first field that no fleet has.
func (c *Config) check() error {
	type field struct {
		name         string
		value, least float64
	}
	for _, f := range []field{
		{"models", float64(c.Models), 1}, {"workers", float64(c.Workers), float64(c.Models)},
		{"replicas", float64(c.Replicas), 3}, {"owners", float64(c.Owners), 1}, {"max-owners", float64(c.MaxOwners), 0},
		{"zipf", c.Zipf, 0}, {"slack", c.Slack, 0.01}, {"rank-blocks", c.Blocks, 0}, {"rank-stored", c.Stored, 0},
		{"rank-queries", c.Queries, 0},
		{"block-bytes", c.BlockBytes, 0}, {"source-bytes", c.SourceBytes, 0}, {"base-bytes", c.BaseBytes, 0}, {"garbage", c.Garbage, 1},
		{"stored-cpu", c.StoredMicros, 0}, {"query-cpu", c.QueryMicros, 0}, {"wire-bytes", c.WireBytes, 0},
		{"snapshot-bytes", c.SnapshotBytes, 0},
		{"replica-memory", c.Memory, 0.001}, {"replica-cores", c.Cores, 0.001}, {"hot-model", float64(c.HotModel), 0},
		{"hot-queries", c.HotQueries, 0},
	} {
		if !(f.value >= f.least) || math.IsInf(f.value, 1) {
			return fmt.Errorf("%s is %g; the least is %g", f.name, f.value, f.least)
		}
	}
	if c.HotModel >= c.Models {
		return fmt.Errorf("hot-model is %d; the last model is %d", c.HotModel, c.Models-1)
	}
	return nil
}

// deployment is one shard of the fleet.
type deployment struct {
	key     string
	ranks   int
	queries float64 // a second
	wavers  float64 // factor of its load, nearly 1
}

// newFleet deals the workers over the models.
func newFleet(c *Config) []deployment {
	parts := zipf(c.Workers, c.Models, c.Zipf)
	fleet := make([]deployment, c.Models)
	for m := range fleet {
		fleet[m] = deployment{key: fmt.Sprintf("default|model-%d|16", m), ranks: parts[m], queries: c.Queries * float64(parts[m]),
			wavers: 1}
	}
	return fleet
}

// zipf deals n things over parts so that part k gets about 1/(k+1)^s of them, and each at least
// one. The largest remainders get those that rounding leaves.
func zipf(n, parts int, s float64) []int {
	sum := 0.0
	for k := range parts {
		sum += math.Pow(float64(k+1), -s)
	}
	out, order, rest := make([]int, parts), make([]int, parts), make([]float64, parts)
	left := n - parts
	for k := range out {
		exact := float64(n-parts) * math.Pow(float64(k+1), -s) / sum
		whole := math.Floor(exact)
		out[k], order[k], rest[k] = 1+int(whole), k, exact-whole
		left -= int(whole)
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(rest[b], rest[a]) })
	for _, k := range order[:max(left, 0)] {
		out[k]++
	}
	return out
}

// need is what work takes of a replica.
type need struct {
	Memory  float64 `json:"memory_bytes"`
	Cores   float64 `json:"cores"`
	Network float64 `json:"network_bytes_per_second"`
}

func (n *need) add(other need) {
	n.Memory += other.Memory
	n.Cores += other.Cores
	n.Network += other.Network
}

// follow returns what each owner of a deployment needs, without queries.
func (c *Config) follow(d *deployment) need {
	ranks := float64(d.ranks) * d.wavers
	return need{
		Memory:  c.Garbage * ranks * (c.Blocks*c.BlockBytes + c.SourceBytes),
		Cores:   ranks * c.Stored * c.StoredMicros / 1e6,
		Network: ranks * c.Stored * c.WireBytes,
	}
}

// answer returns the cores that all queries of a deployment need.
func (c *Config) answer(d *deployment) float64 { return d.queries * d.wavers * c.QueryMicros / 1e6 }

// capacity returns what a replica of a weight has.
func (c *Config) capacity(weight float64) need {
	return need{Memory: weight * c.Memory * (1 << 30), Cores: weight * c.Cores}
}

// shard returns a deployment as the placement sees it. The unit of its loads is a replica of
// weight 1; the scarcer of memory and cores counts.
func (c *Config) shard(d *deployment) placement.Shard {
	each, one := c.follow(d), c.capacity(1)
	return placement.Shard{
		Key:     d.key,
		Load:    max(each.Memory/max(one.Memory-c.BaseBytes, 1), each.Cores/one.Cores),
		Queries: c.answer(d) / one.Cores,
	}
}
