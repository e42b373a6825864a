package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"example.com/conductor/internal/apitest"
	"example.com/conductor/internal/must"
)

// explainAnswer is an answer of /admin/explain.
type explainAnswer struct {
	Blocks    int
	Instances []struct {
		Instance string
		Serves   bool
		Longest  int `json:"longest_matched"`
		Ranks    []explainHolder
	}
	Pools     []explainHolder
	Elsewhere []struct {
		Reason, Salt string
		Tokens       int
	}
	Reasons []explainReason
}

type explainHolder struct {
	Source  string
	Matched int
	Media   []struct {
		Medium  string
		Matched int
		Runs    [][2]int
	}
	End *struct {
		Block   int
		Tokens  [2]int
		Reasons []explainReason
	}
}

type explainReason struct {
	Reason, Text string
	Certain      bool
	Sequence     *uint64
}

// words prints reasons: the word, ? if it is not certain, and the sequence.
func words(all []explainReason) string {
	var out []string
	for _, r := range all {
		w := r.Reason
		if !r.Certain {
			w += "?"
		}
		if r.Sequence != nil {
			w += fmt.Sprintf("@%d", *r.Sequence)
		}
		out = append(out, w)
	}
	return strings.Join(out, " ")
}

// text prints what a source holds, where that ends and why.
func (h explainHolder) text() string {
	var media []string
	for _, m := range h.Media {
		media = append(media, fmt.Sprint(m.Medium, m.Runs))
	}
	end := "all"
	if h.End != nil {
		end = fmt.Sprintf("%d %v %s", h.End.Block, h.End.Tokens, words(h.End.Reasons))
	}
	return strings.TrimSpace(strings.Join(media, " ") + " | " + end)
}

// askExplain asks for an explanation and holds the answer against openapi.yaml.
func askExplain(t *testing.T, p *process, doc *apitest.Document, question map[string]any) (a explainAnswer) {
	t.Helper()
	body, err := json.Marshal(question)
	must.Succeed(t, err)
	text := post(t, p.url+"/admin/explain", string(body), 200)
	described := httptest.NewRequest(http.MethodPost, "/admin/explain", bytes.NewReader(body))
	described.Header.Set("Content-Type", "application/json")
	rec := httptest.NewRecorder()
	rec.Header().Set("Content-Type", "application/json")
	rec.WriteString(text)
	doc.CheckAnswer(t, described, rec)
	decode(t, text, &a)
	return a
}

// explainCase is a source, what it publishes, a question and the explanation.
type explainCase struct {
	name   string // instance and model
	more   string // of the source
	events [][]any
	ask    map[string]any // besides model, block size and a prompt of 4 blocks
	want   string
}

var explainCases = []explainCase{
	{"m", "", [][]any{{ruledStored(0, 4)}}, nil, "GPU[[0 4]] | all"},
	{"never", "", [][]any{{ruledStored(0, 2)}}, nil, "GPU[[0 2]] | 2 [32 48] never_announced"},
	{"nothing", "", [][]any{{}}, nil, "| 0 [0 16] never_announced"},
	{"removed", "", [][]any{{ruledStored(0, 4)}, {ruledRemoved(3, 4)}, {ruledRemoved(1, 3)}}, nil, "GPU[[0 1]] | 1 [16 32] removed@2"},
	{"middle", "", [][]any{{ruledStored(0, 4)}, {ruledRemoved(1, 2)}}, nil, "GPU[[0 1]] | 1 [16 32] removed@1"},
	{"twice", "", [][]any{{ruledStored(0, 2)}, {ruledRemoved(0, 2)}, {ruledStored(0, 2)}, {ruledRemoved(1, 2)}}, nil,
		"GPU[[0 1]] | 1 [16 32] removed@3"},
	{"tiers", "", [][]any{{ruledStored(0, 3)}, {ruledStored(0, 3, "medium", "CPU")}, {ruledRemoved(1, 3)},
		{ruledRemoved(2, 3, "medium", "CPU")}}, nil,
		"GPU[[0 1]] CPU[[0 2]] | 2 [32 48] removed@3 removed@2"},
	{"cleared", "", [][]any{{ruledStored(0, 4)}, {map[string]any{"type": "AllBlocksCleared"}}, {ruledStored(0, 1)}}, nil,
		"GPU[[0 1]] | 1 [16 32] cleared?@1 never_announced?"},
	{"salted", "", [][]any{{ruledStored(0, 3, "extra_keys", [][]string{{"pepper"}, nil, nil})}}, nil,
		"| 0 [0 16] other_salt never_announced"},
	{"unsalted", "", [][]any{{ruledStored(0, 3)}}, map[string]any{"cache_salt": "pepper"}, "| 0 [0 16] other_salt never_announced"},
	{"gone", "", [][]any{{ruledStored(0, 2, "extra_keys", [][]string{{"pepper"}, nil})}, {ruledRemoved(0, 2)}},
		map[string]any{"cache_salt": "pepper"}, "| 0 [0 16] removed@1"},
	{"adapter", "", [][]any{{ruledStored(0, 3, "lora_name", "sql", "lora_id", 1)}}, nil, "| 0 [0 16] other_adapter never_announced"},
	{"base", "", [][]any{{ruledStored(0, 3)}}, map[string]any{"lora_name": "sql"}, "| 0 [0 16] other_adapter never_announced"},
	{"orphan", "", [][]any{{ruledStored(0, 1)}, {ruledStored(2, 4)}}, nil, "GPU[[0 1]] | 1 [16 32] parent_unknown"},
	{"tokenless", "", [][]any{{ruledStored(0, 1)},
		{ruledStored(1, 2, "token_ids", []int{}, "block_size", 0, "medium", "CPU", "parent_block_hash", nil)}}, nil,
		"GPU[[0 1]] | 1 [16 32] tokens_unknown? never_announced?"},
	{"chunk", "", [][]any{{ruledStored(0, 4, "block_hashes", []int{500}, "token_ids", recordedTokens(6), "block_size", 6*recordedBlock,
		"medium", "CPU")}}, nil, "| 0 [0 16] chunk_in_part"},
	{"large", "", [][]any{{ruledStored(0, 4, "block_hashes", []int{500, 501}, "token_ids", recordedTokens(6), "block_size",
		3*recordedBlock)}}, nil, "GPU[[0 3]] | 3 [48 64] chunk_in_part"},
	{"offloaded", "", [][]any{{ruledStored(0, 6)},
		{ruledStored(2, 3, "token_ids", []int{}, "block_size", 3*recordedBlock, "medium", "CPU", "parent_block_hash", nil),
			ruledStored(5, 6, "token_ids", []int{}, "block_size", 3*recordedBlock, "medium", "CPU", "parent_block_hash", nil)},
		{ruledRemoved(0, 4), ruledRemoved(4, 6)}}, nil, "CPU[[0 3]] | 3 [48 64] removed@2 chunk_in_part"},
	{"group", "", [][]any{{ruledStored(0, 1, "group_idx", 0, "kv_cache_spec_kind", "full_attention"),
		ruledStored(0, 3, "group_idx", 1, "kv_cache_spec_kind", "cross_attention")}}, nil,
		"GPU[[0 1]] | 1 [16 32] group_not_indexed? never_announced"},
	{"window", "", [][]any{{ruledStored(0, 3, "group_idx", 0, "kv_cache_spec_kind", "full_attention"),
		ruledStored(0, 3, "group_idx", 1, "kv_cache_spec_kind", "sliding_window", "kv_cache_spec_sliding_window", 17)},
		{ruledRemoved(1, 3, "group_idx", 1)}}, nil, "GPU[[0 1]] | 1 [16 32] attention_group removed@1"},
	{"ahead", "", [][]any{{ruledStored(0, 3, "lookahead_token_ids", [][]int{{1016}, {1032}, {1048}})}},
		map[string]any{"token_ids": recordedTokens(3)}, "GPU[[0 2]] | 2 [32 48] prompt_ends"},
	{"limited", "", [][]any{{ruledStored(0, 1)}, {ruledStored(0, 2, "lora_name", "sql", "lora_id", 1, "block_hashes", []int{2000, 2001})},
		{ruledStored(0, 2, "lora_name", "law", "lora_id", 2, "block_hashes", []int{3000, 3001})}}, map[string]any{"lora_name": "law"},
		"| 0 [0 16] refused? other_adapter other_adapter"},
}

// TestExplainOverSockets publishes what each reason needs over sockets, and asks over HTTP.
func TestExplainOverSockets(t *testing.T) {
	t.Parallel()
	var config strings.Builder
	config.WriteString("limits: {max_contexts: 1}\nsources:\n")
	engines := make([]*ruledEngine, len(explainCases))
	for i, c := range explainCases {
		engines[i] = newRuledEngine(t, c.name, 0)
		config.WriteString(explainSource(engines[i], "vLLM", c.name, c.more))
	}
	pool := newRuledEngine(t, "pool", 1)
	config.WriteString(explainSource(pool, "Mooncake", "m", ""))
	p, doc := serveProcess(t, config.String()), apitest.Load(t)
	for i, c := range explainCases {
		for _, batch := range c.events {
			engines[i].publish(batch...)
		}
		engines[i].settled(p)
		question := map[string]any{"model": c.name, "block_size": recordedBlock, "token_ids": recordedTokens(4)}
		maps.Copy(question, c.ask)
		a := askExplain(t, p, doc, question)
		if len(a.Instances) != 1 || len(a.Instances[0].Ranks) != 1 {
			t.Errorf("%s: instances %+v", c.name, a.Instances)
			continue
		}
		if got := a.Instances[0].Ranks[0].text(); got != c.want {
			t.Errorf("%s: %s\nwant %s", c.name, got, c.want)
		}
	}

	shard := func(id, rank, block int) map[string]any {
		e := ruledObject("stored", "default", id, block)
		e["object_key"] = fmt.Sprintf("m@tp_rank:%d@%048x%016x", rank, 0, 1000+block)
		return e
	}
	pool.publish(shard(1, 0, 0), shard(2, 1, 0), shard(3, 0, 1))
	pool.settled(p)
	a := askExplain(t, p, doc, map[string]any{"model": "m", "block_size": recordedBlock, "token_ids": recordedTokens(4)})
	if len(a.Pools) != 1 || a.Pools[0].text() != "CPU[[0 1]] | 1 [16 32] shards_missing" ||
		!strings.Contains(a.Pools[0].End.Reasons[0].Text, "1 of 2 objects") {
		t.Errorf("pools %+v", a.Pools)
	}

	for _, c := range []struct {
		ask  map[string]any
		want string // besides not_registered
	}{
		{map[string]any{"block_size": 8}, "other_block_size"},
		{map[string]any{"model": "nothing known"}, "other_model"},
		{map[string]any{"tenant_id": "z"}, "other_tenant"},
		{map[string]any{"instance_id": "ghost"}, "other_model"},
	} {
		question := map[string]any{"model": "never", "block_size": recordedBlock, "token_ids": recordedTokens(4)}
		maps.Copy(question, c.ask)
		a := askExplain(t, p, doc, question)
		if got := strings.Fields(words(a.Reasons)); len(a.Instances) > 0 || len(got) < 2 || got[0] != "not_registered" ||
			!slices.Contains(got, c.want) {
			t.Errorf("%v: %v, want %s", c.ask, got, c.want)
		}
	}
}

func explainSource(e *ruledEngine, kind, model, more string) string {
	return fmt.Sprintf("  - {endpoint: \"tcp://%s\", type: %s, modelname: %s, instance_id: %s, block_size: %d%s}\n", e.pub.Addr(), kind,
		model, e.name, recordedBlock, more)
}
