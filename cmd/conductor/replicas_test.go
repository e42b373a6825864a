package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"example.com/conductor/cmd/internal/cli"
	"example.com/conductor/conductor"
	"example.com/conductor/history"
	"example.com/conductor/history/diff"
	"example.com/conductor/internal/freeport"
	"example.com/conductor/internal/must"
	"example.com/conductor/lab/sim/digest"
	"example.com/conductor/lab/sim/engine"
	"example.com/conductor/lab/sim/publisher"
	"example.com/conductor/lab/sim/truth"
	"example.com/conductor/tiers"
)

// Small caches, so that blocks move between all tiers all the time.
const (
	replicaBlock  = 16
	replicaDevice = 96
	replicaHost   = 64
	replicaDisk   = 64
)

// liveRank is a rank of a worker that works until stop.
type liveRank struct {
	worker, n int
	engine    *engine.Engine
	pub       *publisher.Publisher
}

// liveFleet are the ranks; one at a time takes a step.
type liveFleet struct {
	t     *testing.T
	tree  *truth.Tree
	ranks []*liveRank
	rng   *rand.Rand
}

// newLiveFleet returns a fleet whose ranks replay their last batches, as many as ring.
func newLiveFleet(t *testing.T, ring int) *liveFleet {
	const workers, ranks = 3, 2
	f := &liveFleet{t: t, tree: truth.New(replicaBlock, 0, workers*ranks, 0), rng: rand.New(rand.NewPCG(5, 1))}
	for i := range workers * ranks {
		r := &liveRank{worker: i/ranks + 1, n: i % ranks}
		traits := engine.Traits{OffloadFirst: i%2 == 1, Placeholder: i%2 == 1, WriteThrough: i%3 == 2}
		r.engine = engine.New(engine.Config{
			Tree: f.tree, Index: i, Chain: digest.New([]digest.Algorithm{digest.Pickle, digest.CBOR, digest.Page}[i/ranks],
				strconv.Itoa(i)), Device: replicaDevice, Host: replicaHost, Disk: replicaDisk, Chunk: 4, Running: 2, Traits: traits,
		})
		wires := []publisher.Wire{publisher.VLLMMap{}, publisher.VLLMArray{Length: 8, Digests: true}, publisher.SGLang{}}
		var err error
		if r.pub, err = publisher.Listen(publisher.Options{
			Host: "127.0.0.1", Rank: r.n, BlockSize: replicaBlock, Wire: wires[i/ranks], TopicInReplay: i%2 == 0, Ring: ring,
		}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { r.pub.Close() })
		f.ranks = append(f.ranks, r)
	}
	return f
}

// step lets one rank do one step: one batch, or none.
func (f *liveFleet) step() {
	r := f.ranks[f.rng.IntN(len(f.ranks))]
	var events []engine.Event
	switch busy := r.engine.Busy(); {
	case busy == 0 && f.rng.IntN(400) == 0:
		events = r.engine.Clear()
	case busy < 2:
		prompt := make([]uint32, 0, 256)
		for tokens := 32 + f.rng.IntN(160); len(prompt) < tokens; { // prefixes are shared often
			prompt = append(prompt, uint32(len(prompt)), uint32(f.rng.IntN(2+len(prompt)/64)))
		}
		r.engine.Submit(engine.Request{Path: f.tree.Intern(prompt, nil), Prompt: len(prompt) / replicaBlock, PromptTokens: len(prompt)})
		fallthrough
	default:
		events = r.engine.Step()
	}
	if len(events) == 0 {
		return
	}
	if _, err := r.pub.Publish(events); err != nil {
		f.t.Error(err)
	}
}

// work lets the fleet work until stop is called, which returns when it rests.
func (f *liveFleet) work() (stop func()) {
	quit := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		pace := time.NewTicker(time.Millisecond)
		defer pace.Stop()
		for {
			select {
			case <-quit:
				return
			case <-pace.C:
				f.step()
			}
		}
	})
	return func() { close(quit); wg.Wait() }
}

// batches returns how many have been published.
func (f *liveFleet) batches() (n int64) {
	for _, r := range f.ranks {
		n += r.pub.LastSeq() + 1
	}
	return n
}

// config are the settings of a replica that knows all ranks from the start.
func (f *liveFleet) config(peer string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "dynamo: {peers: %q}\nsources:\n", peer)
	for _, r := range f.ranks {
		fmt.Fprintf(&b, "- {endpoint: %q, replay_endpoint: %q, type: vLLM, clear: all, "+
			"modelname: m, instance_id: '%d', dp_rank: %d, block_size: %d}\n",
			r.pub.Endpoint(), r.pub.ReplayEndpoint(), r.worker, r.n, replicaBlock)
	}
	return b.String()
}

// register tells a server of a rank as Dynamo's workers do.
func (f *liveFleet) register(url string, r *liveRank) {
	f.t.Helper()
	body := fmt.Sprintf(`{"instance_id":%d,"dp_rank":%d,"endpoint":%q,"replay_endpoint":%q,"model_name":"m","block_size":%d}`,
		r.worker, r.n, r.pub.Endpoint(), r.pub.ReplayEndpoint(), replicaBlock)
	post(f.t, url+"/register", body, 201)
}

// caughtUp waits until a server has applied all that was published.
func (f *liveFleet) caughtUp(p *process) {
	f.t.Helper()
	eventually(f.t, "not caught up", func() (string, bool) {
		_, body := get(p.url + "/workers")
		type worker struct {
			ID        int `json:"instance_id"`
			Listeners map[string]struct {
				State     string
				Watermark *int64
			}
		}
		var rows []worker
		if err := json.Unmarshal([]byte(body), &rows); err != nil {
			return body, false
		}
		for _, r := range f.ranks {
			i := slices.IndexFunc(rows, func(row worker) bool { return row.ID == r.worker })
			if i < 0 {
				return body, false
			}
			if l := rows[i].Listeners[fmt.Sprint(r.n)]; l.State != "synced" || l.Watermark == nil || *l.Watermark != r.pub.LastSeq() {
				return fmt.Sprintf("%s\n%d:%d is at %d", body, r.worker, r.n, r.pub.LastSeq()), false
			}
		}
		return "", true
	})
}

// heldBlocks returns the canonical hashes of the blocks in a server's snapshot, sorted, by model,
// instance, rank and tier: "m 1:0 device".
func heldBlocks(ctx context.Context, p *process) (map[string][]string, error) {
	held, err := loadSnapshot(ctx, &cli.ClientFlags{AtOnce: true}, p.base(), nil)
	if err != nil {
		return nil, err
	}
	defer held.Close()
	bare := conductor.New(conductor.Options{HashSeed: held.HashSeed, KeepClientHashes: true, Log: zerolog.Nop()})
	defer bare.Close()
	var empty bytes.Buffer
	if _, err := history.Write(&empty, bare, nil, time.Now(), nil); err != nil {
		return nil, err
	}
	nothing, err := diff.Load(&empty, (*history.SealingKey)(nil).Open)
	if err != nil {
		return nil, err
	}
	defer nothing.Close()
	all := make(map[string][]string)
	_, err = diff.Compare(held, nothing, false, func(b diff.Block) {
		tier := []string{tiers.Device: "device", tiers.Host: "host_pinned", tiers.Disk: "disk", tiers.External: "external",
			tiers.Other: b.Medium}[tiers.ParseMedium(b.Medium).Tier]
		key := fmt.Sprintf("%s %s:%d %s", b.Deployment.Model, b.Source.Instance, b.Rank, tier)
		all[key] = append(all[key], strconv.FormatUint(b.Key, 16))
	})
	for _, blocks := range all {
		slices.Sort(blocks)
	}
	return all, err
}

// alike holds that both servers have caught up, hold the same blocks, which are those the
// engines hold, and answer alike.
func (f *liveFleet) alike(when string, a, b *process) {
	f.t.Helper()
	f.caughtUp(a)
	f.caughtUp(b)
	one, err := heldBlocks(f.t.Context(), a)
	must.Succeed(f.t, err)
	other, err := heldBlocks(f.t.Context(), b)
	must.Succeed(f.t, err)
	total := 0
	for i, r := range f.ranks {
		held := make(map[truth.Tier]int)
		f.tree.Each(i, func(_ truth.ID, in truth.Tier) {
			for _, tier := range []truth.Tier{truth.Device, truth.Host, truth.Disk} {
				if in&tier != 0 {
					held[tier]++
				}
			}
		})
		for tier, name := range map[truth.Tier]string{truth.Device: "device", truth.Host: "host_pinned", truth.Disk: "disk"} {
			key := fmt.Sprintf("m %d:%d %s", r.worker, r.n, name)
			if !slices.Equal(one[key], other[key]) {
				f.t.Errorf("%s: the servers differ about %s: %d and %d blocks", when, key, len(one[key]), len(other[key]))
			}
			if len(one[key]) != held[tier] {
				f.t.Errorf("%s: %d blocks are there of %s, which holds %d", when, len(one[key]), key, held[tier])
			}
			total += len(one[key])
		}
	}
	if total < 6*replicaDevice {
		f.t.Errorf("%s: only %d blocks are there", when, total)
	}
	for i := range f.ranks {
		var longest []uint32 // of the prompts it holds a block of
		f.tree.Each(i, func(id truth.ID, _ truth.Tier) {
			if path := f.tree.Path(id); len(path) > len(longest) {
				longest = path
			}
		})
		if longest == nil {
			continue // it cleared its cache last
		}
		tokens, _ := json.Marshal(longest)
		ask := func(p *process) string {
			var answer map[string]any
			decode(f.t, post(f.t, p.url+"/query", fmt.Sprintf(`{"model_name":"m","token_ids":%s}`, tokens), 200), &answer)
			text, _ := json.Marshal(answer)
			return string(text)
		}
		if one, other := ask(a), ask(b); one != other || !strings.Contains(one, `"instances":{"`) {
			f.t.Errorf("%s: one answers %s, the other %s", when, one, other)
		}
	}
}

// recovered holds that a server got its blocks from a peer.
func recovered(t *testing.T, p *process) {
	t.Helper()
	var out struct {
		Recovery struct {
			State, Peer string
			Blocks      int
		}
	}
	_, body := get(p.url + "/peers?detail=1")
	if err := json.Unmarshal([]byte(body), &out); err != nil || out.Recovery.State != "recovered" || out.Recovery.Blocks == 0 {
		t.Errorf("recovery: %s", body)
	}
}

// TestReplicasRecoverFromEachOther runs two replicas over a fleet that never rests: one recovers from the
// other, is killed and recovers again, and then the first from it.
func TestReplicasRecoverFromEachOther(t *testing.T) {
	t.Parallel()
	f := newLiveFleet(t, 1<<16)
	a := serveProcess(t, "{}\n", "127.0.0.1:0=dynamo")
	for _, r := range f.ranks {
		f.register(a.url, r)
	}
	worked := func(n int64) {
		t.Helper()
		from := f.batches()
		eventually(t, "the fleet does not work", func() (string, bool) { return "", f.batches() >= from+n })
	}
	stop := f.work()
	worked(800)

	nowhere := "http://127.0.0.1:1" // the first peer is down
	b := serveProcess(t, f.config(nowhere+","+a.url+"/"), "127.0.0.1:0=dynamo")
	recovered(t, b)
	worked(200)
	stop()
	f.alike("both followed", a, b)

	stop = f.work()
	worked(100)
	b.cmd.Process.Kill()
	worked(200)
	b = serveProcess(t, f.config(a.url), "127.0.0.1:0=dynamo")
	recovered(t, b)
	worked(200)
	stop()
	f.alike("one was killed under load", a, b)

	stop = f.work()
	a.cmd.Process.Kill()
	worked(100)
	a = serveProcess(t, "dynamo: {peers: ['"+b.url+"']}\n", "127.0.0.1:0=dynamo") // and knows no rank
	recovered(t, a)
	if _, body := get(a.url + "/workers"); body != "[]" {
		t.Errorf("workers that only the peer knows: %s", body)
	}
	worked(100)
	for _, r := range f.ranks {
		f.register(a.url, r)
	}
	worked(200)
	stop()
	f.alike("ranks were registered after the recovery", a, b)
}

// TestServerIsItsOwnPeer starts a server that lists itself as a peer, as all replicas of a chart do, and another that is not up.
// It asks itself once, and logs nothing above the level info. So it does with a peer that a client adds.
func TestServerIsItsOwnPeer(t *testing.T) {
	t.Parallel()
	address, err := freeport.Address()
	must.Succeed(t, err)
	down, err := freeport.Address()
	must.Succeed(t, err)
	p := serveProcess(t, "dynamo: {peers: ['http://"+address+"', 'http://"+down+"']}\n# fixed: {compareevery: 100ms}\n", address+"=dynamo")
	const itself = "a peer is this server itself, and is not asked again"
	eventually(t, "it does not know itself", func() (string, bool) { return p.log(), strings.Contains(p.log(), itself) })
	eventually(t, "it stays its own peer", func() (string, bool) {
		_, text := get(p.url + "/peers")
		return text, text == `["http://`+down+`"]`
	})
	post(t, p.url+"/register_peer", `{"url": "http://`+address+`/"}`, http.StatusCreated)
	eventually(t, "it becomes its own peer", func() (string, bool) { return p.log(), strings.Count(p.log(), itself) == 2 })
	eventually(t, "it does not look for the peer that is down", func() (string, bool) {
		return p.log(), strings.Contains(p.log(), "a peer cannot be compared with")
	})
	for line := range strings.Lines(p.log()) {
		if strings.Contains(line, "fewer sources than limits.max_sources") {
			continue // this machine may have few open files
		}
		if strings.Contains(line, `"level":"warn"`) || strings.Contains(line, `"level":"error"`) {
			t.Errorf("a cold start logs %s", line)
		}
	}
}
