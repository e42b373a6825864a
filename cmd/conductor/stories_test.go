package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"example.com/conductor/internal/apitest"
	"example.com/conductor/internal/must"
	"example.com/conductor/lab/sim/proxy"
)

// story is something that goes wrong with an engine. The operator hears of it by doctor and by a
// metric that an alert names, and learns from explain why the prompt matches no further.
type story struct {
	name, settings, kind, more string // more is of the source
	publish                    func(e *ruledEngine)
	each                       func(e *ruledEngine, round int) // while the operator waits; nil for nothing
	doctor                     string                          // a code that doctor prints; "" for none
	metric                     string                          // a line of /metrics
	explain                    string                          // a reason
}

var stories = []story{
	{
		name: "wrong-size", kind: "vLLM",
		publish: func(e *ruledEngine) {
			for i := range 8 {
				e.publish(map[string]any{"type": "BlockStored", "block_hashes": []int{i}, "parent_block_hash": nil,
					"token_ids": recordedTokens(1)[:12], "block_size": 12, "medium": "GPU"})
			}
		},
		doctor:  "block_size_mismatch",
		metric:  `conductor_source_finding{code="block_size_mismatch",dp_rank="0",instance_id="wrong-size",tenant_id="default"} 1`,
		explain: "never_announced",
	},
	{
		name: "restarted", kind: "vLLM",
		publish: func(e *ruledEngine) {
			e.publish(ruledStored(0, 4))
			e.publish(ruledStored(0, 4))
			e.seq = 0
			e.publish(ruledStored(0, 2))
		},
		metric:  `conductor_source_restarts_total{dp_rank="0",instance_id="restarted",tenant_id="default"} 1`,
		explain: "never_announced",
	},
	{
		name: "silent", kind: "vLLM", settings: "# fixed: {silentafter: 1s}\n",
		publish: func(e *ruledEngine) { e.publish(ruledStored(0, 2)) },
		doctor:  "silent",
		metric:  `conductor_source_finding{code="silent",dp_rank="0",instance_id="silent",tenant_id="default"} 1`,
		explain: "never_announced",
	},
	{
		name: "salted", kind: "vLLM", settings: "# fixed: {silentafter: 1s}\n",
		publish: func(e *ruledEngine) {
			e.publish(ruledStored(0, 4, "extra_keys", [][]string{{"pepper"}, nil, nil, nil}, "block_hashes", []int{2000, 2001, 2002, 2003}))
		},
		doctor:  "unasked",
		metric:  `conductor_source_finding{code="unasked",dp_rank="0",instance_id="salted",tenant_id="default"} 1`,
		explain: "other_salt",
	},
	{
		name: "evicting", kind: "vLLM", settings: "# fixed: {silentafter: 1s}\n",
		publish: func(e *ruledEngine) { e.publish(ruledStored(0, 4)) },
		each: func(e *ruledEngine, round int) {
			hashes := make([]int, 64)
			for i := range hashes {
				hashes[i] = 1_000_000 + round*64 + i
			}
			tokens := make([]int, 64*recordedBlock)
			tokens[0] = round
			e.publish(map[string]any{"type": "BlockStored", "block_hashes": hashes, "parent_block_hash": nil, "token_ids": tokens,
				"block_size": recordedBlock, "medium": "GPU"},
				map[string]any{"type": "BlockRemoved", "block_hashes": hashes, "medium": "GPU"}, ruledRemoved(3, 4), ruledStored(3, 4),
				ruledRemoved(2, 4))
		},
		doctor:  "short_lived",
		metric:  `conductor_source_finding{code="short_lived",dp_rank="0",instance_id="evicting",tenant_id="default"} 1`,
		explain: "removed",
	},
	{
		name: "gap", kind: "vLLM",
		publish: func(e *ruledEngine) {
			e.publish(ruledStored(0, 2))
			e.seq += 5
			e.publish(ruledStored(0, 1))
		},
		doctor:  "partial",
		metric:  `conductor_source_gaps_total{dp_rank="0",instance_id="gap",tenant_id="default"} 1`,
		explain: "source_partial",
	},
	{
		name: "recorder", kind: "vLLM", settings: "# fixed: {silentafter: 1s}\n", more: ", snapshot_endpoint: 'tcp://127.0.0.1:1'",
		publish: func(e *ruledEngine) {
			e.seq = 5 // it has published before
			e.publish(ruledStored(0, 2))
		},
		doctor:  "engine_snapshot",
		metric:  `conductor_source_finding{code="engine_snapshot",dp_rank="0",instance_id="recorder",tenant_id="default"} 1`,
		explain: "source_partial",
	},
	{
		name: "shards", kind: "Mooncake",
		publish: func(e *ruledEngine) {
			for i, rank := range []int{0, 1, 0} {
				object := ruledObject("stored", "default", i+1, i/2)
				object["object_key"] = fmt.Sprintf("m@tp_rank:%d@%048x%016x", rank, 0, 1000+i/2)
				e.publish(object)
			}
		},
		metric:  `conductor_source_incomplete_blocks{dp_rank="0",instance_id="shards",tenant_id="default"} 1`,
		explain: "shards_missing",
	},
}

// TestStories plays what operators ask about, each over sockets with a server of its own.
func TestStories(t *testing.T) {
	t.Parallel()
	for _, s := range stories {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			first := uint64(0)
			if s.kind == "Mooncake" {
				first = 1
			}
			e := newRuledEngine(t, s.name, first)
			settings := s.settings + "sources:\n" + explainSource(e, s.kind, "m", s.more)
			engine := newRuledEngine(t, "engine", 0) // whose hashes the objects of a pool have
			if s.kind == "Mooncake" {
				settings += explainSource(engine, "vLLM", "m", "")
			}
			p, doc := serveProcess(t, settings), apitest.Load(t)
			if s.kind == "Mooncake" {
				engine.publish(ruledStored(0, 4))
				engine.settled(p)
			}
			s.publish(e)
			pace := time.NewTicker(100 * time.Millisecond)
			defer pace.Stop()
			deadline := time.After(4 * time.Minute)
			var missing string
			for round := 0; ; round++ {
				if missing = s.missing(t, p, doc); missing == "" {
					return
				}
				select {
				case <-deadline:
					t.Fatal(missing)
				case <-pace.C:
				}
				if s.each != nil {
					s.each(e, round)
				}
			}
		})
	}
}

// missing returns what the operator does not see yet, "" if nothing.
func (s *story) missing(t *testing.T, p *process, doc *apitest.Document) string {
	a := askExplain(t, p, doc, explainedPrompt())
	query, err := json.Marshal(explainedPrompt())
	must.Succeed(t, err)
	post(t, p.url+"/query", string(query), 200)
	var reasons []string
	for _, in := range a.Instances {
		for _, h := range in.Ranks {
			if h.End != nil {
				reasons = append(reasons, words(h.End.Reasons))
			}
		}
	}
	for _, h := range a.Pools {
		if h.End != nil {
			reasons = append(reasons, words(h.End.Reasons))
		}
	}
	if !strings.Contains(strings.Join(reasons, " "), s.explain) {
		return fmt.Sprintf("explain says %q, want %s", reasons, s.explain)
	}
	if _, metrics := get(p.url + "/metrics"); !strings.Contains(metrics, "\n"+s.metric+"\n") {
		return "no metric " + s.metric
	}
	if s.doctor == "" {
		return ""
	}
	out, _ := command("doctor", "--server", p.url).Output()
	if !strings.Contains(string(out), " "+s.doctor+": ") {
		return fmt.Sprintf("doctor says %s, want %s", out, s.doctor)
	}
	return ""
}

// behindServer is the second of two servers of an engine, which has applied a batch less than the
// first: its road to the engine is held for a while.
func behindServer(t *testing.T) (e *ruledEngine, second *process, road *proxy.Proxy) {
	t.Helper()
	e = newRuledEngine(t, "engine", 0)
	first := serveProcess(t, "sources:\n"+explainSource(e, "vLLM", "m", ""))
	e.publish(ruledStored(0, 2))
	e.settled(first)
	road, err := proxy.Open(e.pub.Addr().String())
	must.Succeed(t, err)
	t.Cleanup(road.Close)
	second = serveProcess(t, fmt.Sprintf("dynamo: {peers: %q}\n# fixed: {compareevery: 200ms}\nsources:\n", first.url)+
		fmt.Sprintf("  - {endpoint: \"tcp://%s\", type: vLLM, modelname: m, instance_id: engine, block_size: %d}\n", road.Addr(),
			recordedBlock))
	e.settled(second)
	// The second server may have the blocks from the first one and not be subscribed yet: it would never get the batch
	// that is held. So it has to get one from the engine before.
	seq := e.seq
	eventually(t, "the second server is never subscribed", func() (string, bool) {
		e.publish()
		rows, body := servicesOf[ruledService](t, second.url)
		return body, *rows[0].LastSeq >= seq
	})
	e.settled(second)
	road.Hold(time.Hour) // until the test lets go
	e.publish(ruledStored(2, 4))
	e.settled(first)
	return e, second, road
}

// TestStoryOfReplicaBehind holds the connection of one of two servers to their engine.
func TestStoryOfReplicaBehind(t *testing.T) {
	t.Parallel()
	e, second, road := behindServer(t)
	doc := apitest.Load(t)
	s := story{doctor: "behind", explain: "source_behind",
		metric: `conductor_source_finding{code="behind",dp_rank="0",instance_id="engine",tenant_id="default"} 1`}
	eventually(t, "the operator does not see it", func() (string, bool) {
		missing := s.missing(t, second, doc)
		return missing, missing == ""
	})
	road.Hold(0)
	e.settled(second)
	eventually(t, "the finding stays", func() (string, bool) {
		_, metrics := get(second.url + "/metrics")
		return metrics, !strings.Contains(metrics, s.metric)
	})
}
