package main

import (
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/admin"
	"example.com/conductor/conductor/ingest"
	"example.com/conductor/conductor/registration"

	conductorhttp "example.com/conductor/conductor/http"
	"example.com/conductor/conductor/server"
	"example.com/conductor/events/stream"
	"example.com/conductor/events/zmq"
	"example.com/conductor/internal/apitest"
	"example.com/conductor/internal/must"
)

// explainedPrompt is a question about four blocks of the one prompt.
func explainedPrompt() map[string]any {
	return map[string]any{"model": "m", "block_size": recordedBlock, "token_ids": recordedTokens(4)}
}

// onlyHolder returns the only rank of an answer.
func onlyHolder(t *testing.T, a explainAnswer) explainHolder {
	t.Helper()
	if len(a.Instances) != 1 || len(a.Instances[0].Ranks) != 1 {
		t.Fatalf("instances %+v", a.Instances)
	}
	return a.Instances[0].Ranks[0]
}

// TestExplainStates brings sources, and servers, into the states that reasons name.
func TestExplainStates(t *testing.T) {
	t.Parallel()
	many := func() (batches [][]any) {
		for i := range 400 {
			tokens := make([]int, 64*recordedBlock)
			tokens[0] = i
			hashes := make([]int, 64)
			for k := range hashes {
				hashes[k] = 1_000_000 + i*64 + k
			}
			batches = append(batches, []any{map[string]any{"type": "BlockStored", "block_hashes": hashes, "parent_block_hash": nil,
				"token_ids": tokens, "block_size": recordedBlock, "medium": "GPU"}})
		}
		return append(batches, []any{ruledStored(0, 4)})
	}
	var evicted [][]any
	evicted = append(evicted, []any{ruledStored(0, 4)})
	for block := 3; block >= 1; block-- {
		evicted = append(evicted, []any{ruledRemoved(block, block+1)})
	}
	for _, c := range []struct {
		name, config, more string
		batches            [][]any
		then               func(e *ruledEngine)
		want               string
	}{
		{"gap", "", "", [][]any{{ruledStored(0, 2)}}, func(e *ruledEngine) {
			e.seq += 3
			e.publish(ruledStored(0, 1))
		}, "GPU[[0 2]] | 2 [32 48] source_partial? never_announced?"},
		{"stale", "stream: {stale_after: 100ms}\n", "", [][]any{{ruledStored(0, 2)}}, func(e *ruledEngine) { e.pub.Close() },
			"GPU[[0 2]] | 2 [32 48] source_stale? never_announced?"},
		{"expired", "", ", ttl: 1s", [][]any{{ruledStored(0, 2)}}, nil, "| 0 [0 16] expired? never_announced?"},
		{"full", "index: {max_bytes: 256KiB}\n", "", many(), nil, "| 0 [0 16] refused"},
		{"salted", "privacy: {salted_only: true}\n", "", [][]any{{ruledStored(0, 2)}}, nil, "| 0 [0 16] never_announced"},
		{"evicted", "", "", append(evicted, []any{ruledStored(0, 1)}), nil, "GPU[[0 1]] | 1 [16 32] removed@3"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			e := newRuledEngine(t, c.name, 0)
			p, doc := serveProcess(t, c.config+"sources:\n"+explainSource(e, "vLLM", "m", c.more)), apitest.Load(t)
			for _, batch := range c.batches {
				e.publish(batch...)
			}
			if e.settled(p); c.then != nil {
				c.then(e)
			}
			eventually(t, "no such explanation", func() (string, bool) {
				a := askExplain(t, p, doc, explainedPrompt())
				hidden := len(a.Reasons) == 1 && a.Reasons[0].Reason == "unsalted_hidden"
				return onlyHolder(t, a).text(), onlyHolder(t, a).text() == c.want && hidden == (c.name == "salted")
			})
		})
	}
}

// TestExplainForgets overflows a ring of removals: what it has forgotten is no certain answer.
func TestExplainForgets(t *testing.T) {
	t.Parallel()
	e := newRuledEngine(t, "e", 0)
	p, doc := serveProcess(t, "sources:\n"+explainSource(e, "vLLM", "m", "")), apitest.Load(t)
	e.publish(ruledStored(0, 4))
	e.publish(ruledRemoved(1, 4))
	var others []any // chains of one block: each removal is a stretch
	var hashes []int
	for i := range 2 * removalsBytes / 40 {
		tokens := make([]int, recordedBlock)
		tokens[0] = i
		hashes = append(hashes, 1_000_000+i)
		others = append(others, map[string]any{"type": "BlockStored", "block_hashes": hashes[i:], "parent_block_hash": nil,
			"token_ids": tokens, "block_size": recordedBlock, "medium": "GPU"})
	}
	e.publish(others...)
	e.publish(map[string]any{"type": "BlockRemoved", "block_hashes": hashes, "medium": "GPU"})
	e.settled(p)
	h := onlyHolder(t, askExplain(t, p, doc, explainedPrompt()))
	if got := h.text(); got != "GPU[[0 1]] | 1 [16 32] never_announced?" ||
		!strings.Contains(h.End.Reasons[0].Text, "Removals up to sequence 3 are forgotten") {
		t.Errorf("%s %+v", got, h.End)
	}
}

// TestExplainBehind asks while batches wait at a closed gate.
func TestExplainBehind(t *testing.T) {
	t.Parallel()
	gate := make(chan struct{})
	c := conductor.New(conductor.Options{HashSeed: 1337, Gate: gate, RemovalsBytes: 1 << 10, Log: zerolog.Nop(),
		Stream: stream.Config{Transport: zmq.Transport{}}})
	defer c.Close()
	opts := admin.Options{
		Dialect:  conductorhttp.Options{MaxBody: 1 << 20, MaxTokens: 1 << 10, Admission: server.NewAdmission(1, 0)},
		Gatherer: prometheus.NewRegistry(), Log: zerolog.Nop(),
	}
	s := httptest.NewServer(admin.New(c, opts))
	defer s.Close()
	e := newRuledEngine(t, "e", 0)
	must.Succeed(t, c.Register(registration.Registration{Endpoint: fmt.Sprintf("tcp://%s", e.pub.Addr()), Type: "vLLM", Model: "m",
		Instance: "e", BlockSize: recordedBlock}, ingest.RegisterOptions{}))
	e.publish(ruledStored(0, 4))
	p, doc := &process{url: s.URL}, apitest.Load(t)
	eventually(t, "the batch is not reported", func() (string, bool) {
		h := onlyHolder(t, askExplain(t, p, doc, explainedPrompt()))
		return h.text(), strings.Contains(words(h.End.Reasons), "source_behind?") &&
			strings.Contains(fmt.Sprint(h.End.Reasons), "1 batch waits")
	})
	close(gate)
	eventually(t, "the batch is not applied", func() (string, bool) {
		h := onlyHolder(t, askExplain(t, p, doc, explainedPrompt()))
		return h.text(), h.text() == "GPU[[0 4]] | all"
	})
}

// TestExplainCommand prints sentences and JSON, and fails without an answer.
func TestExplainCommand(t *testing.T) {
	t.Parallel()
	e := newRuledEngine(t, "e", 0)
	p := serveProcess(t, "sources:\n"+explainSource(e, "vLLM", "m", ""))
	e.publish(ruledStored(0, 4))
	e.publish(ruledRemoved(2, 4))
	e.settled(p)
	run := func(args ...string) (string, error) {
		out, err := command(append([]string{"explain", "--block-size", "16", "--tokens", "-"}, args...)...), error(nil)
		out.Stdin = strings.NewReader(fmt.Sprint(recordedTokens(4)))
		text, err := out.CombinedOutput()
		return string(text), err
	}
	text, err := run("--server", p.url, "--model", "m")
	for _, want := range []string{
		"e holds 2 of 4 blocks", "\nThe prompt has 64 tokens: 4 whole blocks of 16 tokens.\n",
		"e, rank 0 (e|default|0, synced) holds 2 blocks: GPU 0-1.",
		"It lacks block 2, tokens 32 to 47:", "removed: The event at sequence 1 removed block 2 from GPU.",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in %s", want, text)
		}
	}
	must.Succeed(t, err)
	text, err = run("--server", p.url, "--model", "m", "--json")
	must.Succeed(t, err)
	var a explainAnswer
	if decode(t, text, &a); onlyHolder(t, a).text() != "GPU[[0 2]] | 2 [32 48] removed@1" {
		t.Errorf("%s", text)
	}
	text, err = run("--server", p.url, "--model", "other")
	if must.Succeed(t, err); strings.Count(text, "Model \"other\" is not registered for tenant") != 1 ||
		!strings.Contains(text, `other_model: e holds 32 tokens of the prompt under model "m".`) {
		t.Errorf("%s", text)
	}
	if text, err = run("--server", "http://127.0.0.1:1", "--model", "m"); err == nil || err.Error() != "exit status 1" ||
		!strings.Contains(text, "no server listens at 127.0.0.1:1: ") {
		t.Errorf("%v %s", err, text)
	}
	if text, err = run("--server", p.url, "--model", ""); err == nil || !strings.Contains(text, "--model: the name is empty") {
		t.Errorf("%v %s", err, text)
	}
}

// TestExplainTenants asks as a client of one tenant, and as one of all.
func TestExplainTenants(t *testing.T) {
	t.Parallel()
	p, _ := twoTenants(t, "")
	question := fmt.Sprintf(`{"model":"m","block_size":16,"tenant_id":"a","token_ids":%s}`, asJSON(recordedTokens(4)))
	status, answer := askAs(t, "POST", p.url+"/admin/explain", "all-a", "application/json", []byte(question))
	if status != 200 || !strings.Contains(answer, "engine-a") {
		t.Errorf("%d %s", status, answer)
	}
	for _, hidden := range []string{"engine-b", "registered-b", "pepper", `"b"`, "other_tenant"} {
		if strings.Contains(answer, hidden) {
			t.Errorf("the client of a sees %s: %s", hidden, answer)
		}
	}
	_, answer = askAs(t, "POST", p.url+"/admin/explain", "operator", "application/json", []byte(question))
	if !strings.Contains(answer, `"reason":"other_tenant","tenant":"b"`) || !strings.Contains(answer, "engine-b") ||
		strings.Contains(answer, "pepper") {
		t.Errorf("the operator sees %s", answer)
	}
	eventually(t, "no line in the audit log", func() (string, bool) { log := p.log(); return log, strings.Contains(log, "/admin/explain") })
}

// TestPrintExplained shows the verdict first, then the three best ranks, and all of them if asked.
func TestPrintExplained(t *testing.T) {
	var a explained
	must.Succeed(t, json.Unmarshal([]byte(`{"blocks":4,"tokens":70,"block_size":16,
		"verdict":{"kind":"part","text":"b holds 3 of 4 blocks; the next best, a, holds 2."},
		"instances":[
			{"instance":"b","serves":true,"longest_matched":4,"ranks":[
				{"source":"b|default|0","state":"synced","dp_rank":0,"matched":0,"media":[],
					"end":{"block":0,"tokens":[0,16],"reasons":[{"reason":"never_announced","certain":true,"text":"No event."}]}},
				{"source":"b|default|1","state":"synced","dp_rank":1,"matched":3,
					"media":[{"medium":"GPU","runs":[[0,2],[2,3]]}],"end":null}]},
			{"instance":"a","serves":true,"longest_matched":2,"ranks":[
				{"source":"a|default|0","state":"partial","dp_rank":0,"matched":2,"media":[{"medium":"GPU","runs":[[0,2]]}],"end":null}]},
			{"instance":"c","serves":false,"longest_matched":1,"ranks":[
				{"source":"c|default|0","state":"synced","dp_rank":0,"matched":1,"media":[{"medium":"GPU","runs":[[0,1]]}],"end":null}]}],
		"pools":[
			{"source":"p|default|0","state":"synced","dp_rank":0,"matched":1,"media":[{"medium":"CPU","runs":[[3,4]]}]},
			{"source":"q|default|0","state":"synced","dp_rank":0,"matched":0,"media":[]}],
		"reasons":[]}`), &a))
	f := func(all bool, want string) {
		t.Helper()
		var out strings.Builder
		must.Succeed(t, printExplained(&out, &a, all))
		if out.String() != want {
			t.Errorf("%s\nwant %s", out.String(), want)
		}
	}
	head := "b holds 3 of 4 blocks; the next best, a, holds 2.\nThe prompt has 70 tokens: 4 whole blocks of 16 tokens.\n"
	f(false, head+`
b, rank 1 (b|default|1, synced) holds 3 blocks: GPU 0-1+2.
  With what pools and its other ranks hold, b can serve 4 blocks.

a, rank 0 (a|default|0, partial) holds 2 blocks: GPU 0-1.

c, rank 0 (c|default|0, synced) holds 1 block: GPU 0.

Pool, rank 0 (p|default|0, synced) holds 1 block: CPU 3.

Not shown: 1 more rank, 1 pool without a block of the prompt (--all).
`)
	f(true, head+`
b can serve 4 blocks, pools included.
  Rank 0 (b|default|0, synced) holds 0 blocks.
    It lacks block 0, tokens 0 to 15:
      never_announced: No event.
  Rank 1 (b|default|1, synced) holds 3 blocks: GPU 0-1+2.

a can serve 2 blocks, pools included.
  Rank 0 (a|default|0, partial) holds 2 blocks: GPU 0-1.

c can serve 1 block, pools included.
  A query has no row of it: it is not registered for the adapter.
  Rank 0 (c|default|0, synced) holds 1 block: GPU 0.

Pool p|default|0:
  Rank 0 (p|default|0, synced) holds 1 block: CPU 3.

Pool q|default|0:
  Rank 0 (q|default|0, synced) holds 0 blocks.
`)
	a = explained{Tokens: 5, BlockSize: 16, Instances: a.Instances[:1]}
	a.Verdict.Kind, a.Verdict.Text = tooShort, "The prompt is shorter than one block: it has 5 tokens, and a block has 16."
	f(false, a.Verdict.Text+"\n")
}
