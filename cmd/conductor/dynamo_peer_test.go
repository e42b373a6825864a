package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"reflect"
	"slices"
	"strings"
	"testing"

	"example.com/conductor/internal/must"
	"example.com/conductor/lab/sim/digest"
	"example.com/conductor/lab/sim/engine"
	"example.com/conductor/lab/sim/publisher"
	"example.com/conductor/lab/sim/truth"
)

// dynamoProcess starts a module of Dynamo's own, such as dynamo.indexer, and waits until
// it answers. DYNAMO_INDEXER is the command of the indexer.
func dynamoProcess(t *testing.T, module string, args ...string) *process {
	t.Helper()
	port := freePorts(t, 1)[0]
	words := strings.Fields(strings.Replace(os.Getenv("DYNAMO_INDEXER"), "dynamo.indexer", module, 1))
	p := &process{url: "http://127.0.0.1:" + port}
	p.cmd = exec.Command(words[0], append(append(words[1:], "--port", port), args...)...)
	p.cmd.Env = append(os.Environ(), "RUST_LOG=error")
	must.Succeed(t, p.cmd.Start())
	t.Cleanup(func() { p.cmd.Process.Kill(); p.cmd.Wait() })
	eventually(t, "Dynamo's indexer does not answer", func() (string, bool) {
		status, body := get(p.url + "/health")
		return body, status == 200
	})
	return p
}

// needDynamo skips a test where Dynamo's own programs are not installed.
func needDynamo(t *testing.T) {
	t.Helper()
	switch os.Getenv("DYNAMO_INDEXER") {
	case "none":
		t.Skip("Dynamo's indexer is not published for this machine")
	case "":
		must.Skip(t, `DYNAMO_INDEXER is not set to the command of Dynamo's indexer, which make dynamo-indexer installs`)
	}
}

// TestDynamoPeer recovers from Dynamo's own indexer, and lets one recover from us.
func TestDynamoPeer(t *testing.T) {
	t.Parallel()
	needDynamo(t)
	const blocks = 12
	var tokens []uint32
	var hashes []digest.Digest
	for i := range blocks {
		hashes = append(hashes, numbered(uint64(i)<<60|uint64(1000+i))) // some beyond 63 bits
		for j := range replicaBlock {
			tokens = append(tokens, uint32(i*replicaBlock+j))
		}
	}
	// stored announces blocks of the one prompt there is.
	stored := func(tier truth.Tier, from, to int) engine.Event {
		e := engine.Event{Kind: engine.Stored, Tier: tier, Hashes: hashes[from:to], Tokens: tokens[from*replicaBlock : to*replicaBlock]}
		if from > 0 {
			e.Parent, e.HasParent = hashes[from-1], true
		}
		return e
	}
	ranks := []*liveRank{{worker: 1}, {worker: 2}, {worker: 2, n: 1}}
	f := &liveFleet{t: t, ranks: ranks}
	for i, r := range ranks {
		var err error
		if r.pub, err = publisher.Listen(publisher.Options{
			Host: "127.0.0.1", Rank: r.n, BlockSize: replicaBlock, Wire: publisher.VLLMMap{}, TopicInReplay: i%2 == 0, Ring: 100,
		}); err != nil {
			t.Fatal(err)
		}
		defer r.pub.Close()
	}
	publish := func(r int, events ...engine.Event) {
		t.Helper()
		if _, err := ranks[r].pub.Publish(events); err != nil {
			t.Fatal(err)
		}
	}
	ask := func(p *process) string {
		text, _ := json.Marshal(tokens)
		resp, err := http.Post(p.url+"/query", "application/json",
			strings.NewReader(fmt.Sprintf(`{"model_name":"m","token_ids":%s}`, text)))
		must.Succeed(t, err)
		defer resp.Body.Close()
		var answer map[string]any
		must.Succeed(t, json.NewDecoder(resp.Body).Decode(&answer))
		out, _ := json.Marshal([]any{answer["scores"], answer["instances"]})
		return string(out)
	}
	alike := func(when string, want string, all ...*process) {
		t.Helper()
		for i, p := range all {
			eventually(t, fmt.Sprintf("%s: server %d", when, i), func() (string, bool) {
				got := ask(p)
				if got != want {
					for r := range ranks {
						publish(r) // the reference finds a gap at its start by the batch behind it
					}
				}
				return got + ", want " + want, got == want
			})
			if one, other := dumped(t, all[0]), dumped(t, p); !reflect.DeepEqual(one, other) {
				t.Errorf("%s: the dumps differ:\n%v\n%v", when, one, other)
			}
		}
	}

	real := dynamoProcess(t, "dynamo.indexer")
	for _, r := range ranks {
		f.register(real.url, r)
	}
	publish(0, stored(truth.Device, 0, 5), stored(truth.Device, 5, 8), stored(truth.Host, 8, 10), stored(truth.Disk, 10, 12))
	publish(1, stored(truth.Device, 0, 4))
	publish(2, stored(truth.Device, 0, 6))
	const first = `[{"1":{"0":128},"2":{"0":64,"1":96}},` +
		`{"1":{"cpu":160,"disk":192,"dp":{"0":128},"gpu":128,"longest_matched":192},` +
		`"2":{"cpu":96,"disk":96,"dp":{"0":64,"1":96},"gpu":96,"longest_matched":96}}]`
	alike("Dynamo's", first, real)

	ours := serveProcess(t, "dynamo: {peers: ['"+real.url+"/']}\n", "127.0.0.1:0=dynamo")
	recovered(t, ours)
	alike("we recovered from it", first, real, ours)
	other := dynamoProcess(t, "dynamo.indexer", "--peers", ours.url)
	alike("another recovered from us", first, real, ours, other)

	// All three follow, and agree.
	for _, r := range ranks {
		f.register(ours.url, r)
		f.register(other.url, r)
	}
	publish(0, engine.Event{Kind: engine.Removed, Tier: truth.Device, Hashes: hashes[7:8]})
	publish(1, stored(truth.Device, 4, 9))
	publish(2, engine.Event{Kind: engine.Cleared})
	const second = `[{"1":{"0":112},"2":{"0":144}},` +
		`{"1":{"cpu":112,"disk":112,"dp":{"0":112},"gpu":112,"longest_matched":112},` +
		`"2":{"cpu":144,"disk":144,"dp":{"0":144},"gpu":144,"longest_matched":144}}]`
	alike("all followed", second, real, ours, other)
}

// dumped is what a dump, of ours or of Dynamo's, says of each worker's rank and tier: its blocks, as
// hash=tokens. Parents are left out, because they are named by engine hashes: a
// block without a holder has a name in a replica that was told it more recently.
func dumped(t *testing.T, p *process) map[string][]string {
	t.Helper()
	status, body := get(p.url + "/dump")
	var slots map[string]struct {
		BlockSize int `json:"block_size"`
		Events    []plainEvent
	}
	if err := json.Unmarshal([]byte(body), &slots); err != nil || status != 200 || slots["m:default"].BlockSize != replicaBlock {
		t.Fatalf("dump: %d %v %.300s", status, err, body)
	}
	all := make(map[string][]string)
	for _, e := range slots["m:default"].Events {
		key := fmt.Sprintf("%d:%d %s", e.Worker, e.Event.Rank, e.Tier)
		for _, b := range e.Event.Data.Stored.Blocks {
			all[key] = append(all[key], fmt.Sprintf("%d=%d", b.Block, b.Tokens))
		}
	}
	for _, blocks := range all {
		slices.Sort(blocks)
	}
	return all
}
