package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"example.com/conductor/index/hash"
	"example.com/conductor/lab/sim/digest"
	"example.com/conductor/lab/sim/engine"
	"example.com/conductor/lab/sim/publisher"
	"example.com/conductor/lab/sim/truth"
)

// The prompts of the follower test: 20 prompts of ten blocks. All share four blocks,
// those of one group three more.
const (
	followerPrompts = 20
	followerGroups  = 4
	followerLength  = 10
)

// followerPath returns the blocks of a prompt. A number stands for one block of
// replicaBlock tokens and occurs at one place only.
func followerPath(prompt int) []int {
	group, tail := 100+10*(prompt%followerGroups), 1000+10*prompt
	return []int{0, 1, 2, 3, group, group + 1, group + 2, tail, tail + 1, tail + 2}
}

func followerTokens(blocks ...int) []uint32 {
	var tokens []uint32
	for _, b := range blocks {
		for i := range replicaBlock {
			tokens = append(tokens, uint32(b*replicaBlock+i))
		}
	}
	return tokens
}

// seededRank is a rank with its own hash chain, and the blocks the rank holds.
type seededRank struct {
	*liveRank
	algorithm digest.Algorithm
	seed      string
	parts     int // blocks of replicaBlock tokens in each published block
	held      map[truth.Tier]map[int]bool
}

var followerTiers = []truth.Tier{truth.Device, truth.Host, truth.Disk}

// names returns the rank's names of consecutive published blocks.
func (r *seededRank) names(path []int) []digest.Digest {
	chain := digest.New(r.algorithm, r.seed)
	var names []digest.Digest
	for blocks := range slices.Chunk(path, r.parts) {
		if tokens := followerTokens(blocks...); len(names) == 0 {
			names = append(names, chain.First(tokens))
		} else {
			names = append(names, chain.Next(names[len(names)-1], tokens))
		}
	}
	return names
}

// store announces the blocks path[from:to], as far as the tier does not hold them.
func (r *seededRank) store(t *testing.T, tier truth.Tier, path []int, from, to int) {
	t.Helper()
	names := r.names(path)
	for from < to && r.held[tier][path[from]] {
		from += r.parts
	}
	for i := from; i < to; i++ {
		if r.held[tier][path[i]] {
			to = i
		}
	}
	if from >= to {
		return
	}
	e := engine.Event{Kind: engine.Stored, Tier: tier, Hashes: names[from/r.parts : to/r.parts], Tokens: followerTokens(path[from:to]...)}
	if from > 0 {
		e.Parent, e.HasParent = names[from/r.parts-1], true
	}
	for _, b := range path[from:to] {
		r.held[tier][b] = true
	}
	r.publish(t, e)
}

// remove announces that a tier no longer holds path[i], and reports whether it did. A
// tier that holds a block behind path[i] keeps both.
func (r *seededRank) remove(t *testing.T, tier truth.Tier, path []int, i int) bool {
	t.Helper()
	if !r.held[tier][path[i]] {
		return false
	}
	for p := range followerPrompts {
		if other := followerPath(p); i+1 < followerLength && other[i] == path[i] && r.held[tier][other[i+1]] {
			return false
		}
	}
	delete(r.held[tier], path[i])
	r.publish(t, engine.Event{Kind: engine.Removed, Tier: tier, Hashes: r.names(path)[i : i+1]})
	return true
}

func (r *seededRank) publish(t *testing.T, e engine.Event) {
	t.Helper()
	if _, err := r.pub.Publish([]engine.Event{e}); err != nil {
		t.Fatal(err)
	}
}

// reach returns how many tokens of a prompt the rank holds: on the device, from there
// on in host memory, from there on on disk, each including those before.
//
// whole counts the rank's own blocks, which may have several parts, whole or not at all. Dynamo's servers count parts, because a
// dump does not tell sizes.
func (r *seededRank) reach(path []int, whole bool) [3]int {
	var reach [3]int
	n := 0
	for i, tier := range followerTiers {
		for n < len(path) && r.held[tier][path[n]] {
			n++
		}
		if whole {
			n -= n % r.parts
		}
		reach[i] = n * replicaBlock
	}
	return reach
}

// followerFleet returns ranks of four hash functions. Two ranks share one, and one
// publishes blocks of twice the registered size.
func followerFleet(t *testing.T) []*seededRank {
	t.Helper()
	ranks := []*seededRank{
		{algorithm: digest.Pickle, seed: "1"}, {algorithm: digest.Pickle, seed: "1"}, {algorithm: digest.Pickle, seed: "2"},
		{algorithm: digest.CBOR, seed: "3"}, {algorithm: digest.Page}, {algorithm: digest.CBOR, seed: "4", parts: 2},
	}
	for i, r := range ranks {
		r.parts = max(1, r.parts)
		r.held = make(map[truth.Tier]map[int]bool)
		for _, tier := range followerTiers {
			r.held[tier] = make(map[int]bool)
		}
		var wire publisher.Wire = publisher.VLLMMap{}
		if r.algorithm == digest.Page {
			wire = publisher.SGLang{}
		}
		r.liveRank = &liveRank{worker: i + 1, n: i % 2}
		var err error
		if r.pub, err = publisher.Listen(publisher.Options{
			Host: "127.0.0.1", Rank: r.n, BlockSize: replicaBlock * r.parts, Wire: wire, Ring: 1 << 12,
		}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { r.pub.Close() })
	}
	return ranks
}

// answers returns a server's answer about a prompt by worker, as reach does, without
// workers that hold nothing.
type answers func(t *testing.T, path []int) map[int][3]int

// followerBody is a query of the prompt by tokens, or by local hashes.
func followerBody(path []int, byHash bool) string {
	tokens := followerTokens(path...)
	if !byHash {
		list, _ := json.Marshal(tokens)
		return fmt.Sprintf(`{"model_name":"m","token_ids":%s}`, list)
	}
	var signed []int64
	for _, local := range hash.DefaultScheme().AppendLocals(nil, tokens, replicaBlock) {
		signed = append(signed, int64(local))
	}
	list, _ := json.Marshal(signed)
	return fmt.Sprintf(`{"model_name":"m","block_hashes":%s}`, list)
}

// indexerAnswers asks an indexer, ours or Dynamo's, by tokens or by local hashes.
func indexerAnswers(p *process, byHash bool) answers {
	url := p.url + "/query"
	if byHash {
		url = p.url + "/query_by_hash"
	}
	return func(t *testing.T, path []int) map[int][3]int {
		t.Helper()
		var answer struct {
			Instances map[int]struct{ GPU, CPU, Disk int }
		}
		decode(t, post(t, url, followerBody(path, byHash), 200), &answer)
		all := make(map[int][3]int)
		for worker, row := range answer.Instances {
			all[worker] = [3]int{row.GPU, row.CPU, row.Disk}
		}
		return all
	}
}

// tieredAnswers asks as a router with a remote indexer does, which adds the tiers up.
func tieredAnswers(p *process) answers {
	return func(t *testing.T, path []int) map[int][3]int {
		t.Helper()
		type hits = [][2]json.RawMessage // worker, blocks
		var answer struct {
			Size   int `json:"block_size"`
			Tiered struct {
				Device struct{ Scores hits }
				Lower  [][2]json.RawMessage `json:"lower_tier"` // tier, hits
			}
		}
		decode(t, post(t, p.url+"/query_tiered_by_hash", followerBody(path, true), 200), &answer)
		all := make(map[int][3]int)
		add := func(found hits, from int) {
			for _, hit := range found {
				var who struct {
					Worker int `json:"worker_id"`
				}
				var blocks int
				decode(t, string(hit[0]), &who)
				decode(t, string(hit[1]), &blocks)
				reach := all[who.Worker]
				for tier := from; tier < len(reach); tier++ {
					reach[tier] += blocks * answer.Size
				}
				all[who.Worker] = reach
			}
		}
		add(answer.Tiered.Device.Scores, 0)
		for _, tier := range answer.Tiered.Lower {
			var name string
			var found struct{ Hits hits }
			decode(t, string(tier[0]), &name)
			decode(t, string(tier[1]), &found)
			add(found.Hits, map[string]int{"host_pinned": 1, "disk": 2}[name])
		}
		return all
	}
}

// selectorAnswers asks Dynamo's selection service.
func selectorAnswers(p *process) answers {
	return func(t *testing.T, path []int) map[int][3]int {
		t.Helper()
		var answer struct {
			Workers []struct {
				Worker int `json:"worker_id"`
				Device int `json:"device_blocks"`
				Host   int `json:"host_pinned_blocks"`
				Disk   int `json:"disk_blocks"`
			}
		}
		decode(t, post(t, p.url+"/overlap_scores", followerBody(path, false), 200), &answer)
		all := make(map[int][3]int)
		for _, row := range answer.Workers {
			if row.Disk > 0 {
				all[row.Worker] = [3]int{row.Device * replicaBlock, row.Host * replicaBlock, row.Disk * replicaBlock}
			}
		}
		return all
	}
}

// plainNames returns the one name the dump has for each block, by local hash. It
// reports a block of two names, and a block that comes before its parent.
func plainNames(t *testing.T, p *process) map[uint64]uint64 {
	t.Helper()
	_, body := get(p.url + "/dump")
	var slots map[string]struct{ Events []plainEvent }
	decode(t, body, &slots)
	names := make(map[uint64]uint64)
	known := make(map[string]bool)
	for _, e := range slots["m:default"].Events {
		who := fmt.Sprint(e.Worker, e.Event.Rank, e.Tier)
		stored := e.Event.Data.Stored
		if stored.Parent != nil && e.Tier == "device" && !known[fmt.Sprint(who, *stored.Parent)] {
			t.Errorf("%s: %d comes before its parent", who, stored.Blocks[0].Block)
		}
		for _, b := range stored.Blocks {
			if name, there := names[b.Tokens]; there && name != b.Block {
				t.Errorf("%s: block %d is named %d and %d", who, b.Tokens, name, b.Block)
			}
			names[b.Tokens] = b.Block
			known[fmt.Sprint(who, b.Block)] = true
		}
	}
	return names
}

// plainEvent is a RouterEvent.
type plainEvent struct {
	Worker int    `json:"worker_id"`
	Tier   string `json:"storage_tier"`
	Event  struct {
		Rank int `json:"dp_rank"`
		Data struct {
			Stored struct {
				Parent *uint64 `json:"parent_hash"`
				Blocks []struct {
					Block  uint64 `json:"block_hash"`
					Tokens uint64 `json:"tokens_hash"`
				}
			}
		}
	}
}

// TestDynamoFollowers lets Dynamo's indexer and its selection service recover from us
// where engines name equal blocks differently. Every answer equals what the engines
// hold. So does every answer after the followers have applied live events, among
// them the removal of each block that the dump calls as its engine does.
func TestDynamoFollowers(t *testing.T) {
	t.Parallel()
	needDynamo(t)
	ranks := followerFleet(t)
	f := &liveFleet{t: t}
	ours := serveProcess(t, "{}\n", "127.0.0.1:0=dynamo")
	for _, r := range ranks {
		f.ranks = append(f.ranks, r.liveRank)
		f.register(ours.url, r.liveRank)
	}
	rng := rand.New(rand.NewPCG(6, 20))
	for _, r := range ranks {
		for _, p := range rng.Perm(followerPrompts) {
			if rng.IntN(3) == 0 {
				continue
			}
			path, from := followerPath(p), 0
			for _, tier := range followerTiers {
				to := from + r.parts*rng.IntN((followerLength-from)/r.parts+1)
				if tier == truth.Device && rng.IntN(2) == 0 {
					to = followerLength
				}
				r.store(t, tier, path, from, to)
				from = to
			}
		}
	}
	f.caughtUp(ours)

	servers := map[string]answers{"ours": indexerAnswers(ours, false), "ours, by hash": indexerAnswers(ours, true),
		"ours, tiered": tieredAnswers(ours)}
	var indexers []*process
	for _, threads := range []string{"1", "4"} {
		p := dynamoProcess(t, "dynamo.indexer", "--threads", threads, "--peers", ours.url)
		servers["indexer of "+threads+" threads"] = indexerAnswers(p, false)
		servers["indexer of "+threads+" threads, by hash"] = indexerAnswers(p, true)
		indexers = append(indexers, p)
	}
	selector := dynamoProcess(t, "dynamo.select_service", "--indexer-peers", ours.url)
	servers["selection service"] = selectorAnswers(selector)
	for _, r := range ranks {
		for _, p := range indexers {
			post(t, p.url+"/register", fmt.Sprintf(`{"instance_id":%d,"dp_rank":%d,"endpoint":%q,"model_name":"m","block_size":%d}`,
				r.worker, r.n, r.pub.Endpoint(), replicaBlock), 201)
		}
		post(t, selector.url+"/workers", fmt.Sprintf(
			`{"worker_id":%d,"model_name":"m","endpoint":"http://127.0.0.1:1","kv_events_endpoints":{"%d":%q},"block_size":%d,`+
				`"data_parallel_start_rank":%[2]d,"data_parallel_size":1}`,
			r.worker, r.n, r.pub.Endpoint(), replicaBlock), 201)
	}

	right := func(when string, paths ...[]int) {
		t.Helper()
		for _, name := range slices.Sorted(maps.Keys(servers)) {
			wrong := 0
			eventually(t, when+": "+name, func() (string, bool) {
				wrong = 0
				var last string
				for _, path := range paths {
					want := make(map[int][3]int)
					for _, r := range ranks {
						if reach := r.reach(path, strings.HasPrefix(name, "ours")); reach[2] > 0 {
							want[r.worker] = reach
						}
					}
					if got := servers[name](t, path); !reflect.DeepEqual(got, want) {
						wrong++
						last = fmt.Sprintf("prompt %d\n got %v\nwant %v", path, got, want)
					}
				}
				return fmt.Sprintf("%d of %d prompts are wrong, the last: %s", wrong, len(paths), last), wrong == 0
			})
		}
	}
	var paths [][]int
	for p := range followerPrompts {
		paths = append(paths, followerPath(p))
	}
	right("loaded", paths...)
	names := plainNames(t, ours)

	// A follower applies a removal, or a store behind a block, if the engine's name of
	// the block is the dump's. Blocks of two parts are none of Dynamo's.
	common := func(r *seededRank, path []int, from, to int) bool {
		own := r.names(path)
		for i := from; i < to; i++ {
			if r.parts > 1 || names[hash.DefaultScheme().Local(followerTokens(path[i]))] != r.algorithm.Event(own[i]) {
				return false
			}
		}
		return true
	}
	for _, r := range ranks {
		if r.parts > 1 {
			continue
		}
		probe := []int{9000 + r.worker}
		for _, name := range slices.Sorted(maps.Keys(servers)) {
			eventually(t, name+" does not hear a rank", func() (string, bool) {
				delete(r.held[truth.Device], probe[0])
				r.store(t, truth.Device, probe, 0, 1)
				got := servers[name](t, probe)
				return fmt.Sprint(got), got[r.worker][0] == replicaBlock
			})
		}
		paths = append(paths, probe)
	}
	removals := make(map[int]int)
	for i := followerLength - 1; i >= 4; i-- { // leaves first, as engines evict
		for p := 0; p < followerPrompts; p += 2 {
			for _, r := range ranks {
				for _, tier := range followerTiers {
					if common(r, followerPath(p), i, i+1) && r.remove(t, tier, followerPath(p), i) {
						removals[r.worker]++
					}
				}
			}
		}
	}
	if len(removals) < 5 || removals[1] < 20 {
		t.Errorf("removals by worker: %v", removals)
	}
	right("removed", paths...)
	stores := 0
	for p := range followerPrompts {
		longer := append(followerPath(p), 5000+p)
		for _, r := range ranks {
			if from := r.reach(longer, false)[0] / replicaBlock; from > 0 && common(r, longer, from-1, followerLength) {
				r.store(t, truth.Device, longer, from, len(longer))
				stores++
			}
		}
		paths = append(paths, longer)
	}
	if stores < followerPrompts {
		t.Errorf("%d stores", stores)
	}
	ranks[2].publish(t, engine.Event{Kind: engine.Cleared})
	for _, tier := range followerTiers {
		clear(ranks[2].held[tier])
	}
	right("stored", paths...)
}
