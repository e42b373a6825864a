package extproc

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

// testTime is a moment at which nothing is logged yet.
var testTime = time.Unix(1, 0)

func TestUsage(t *testing.T) {
	f := func(body, want string) {
		t.Helper()
		for _, size := range []int{1, 2, 7, 100, 1 << 20} {
			var s usageScanner
			for i := 0; i < len(body); i += size {
				s.write([]byte(body[i:min(i+size, len(body))]))
			}
			got := ""
			if prompt, cached, ok := s.tokens(); ok {
				got = fmt.Sprint(prompt, " ", cached)
			}
			if got != want {
				t.Errorf("%.200s in pieces of %d: %q, want %q", body, size, got, want)
			}
		}
	}
	const object = `{"prompt_tokens": 40, "total_tokens": 42, "prompt_tokens_details": {"cached_tokens": 32}}`
	f(`{"id":"a","choices":[{"text":"x"}],"usage":`+object+`,"kv":null}`, "40 32")
	f(`{"usage" : `+object+`,"prompt_token_ids":[`+strings.Repeat("1,", 50_000)+`1]}`, "40 32")
	f("data: {\"usage\":null}\n\ndata: {\"choices\":[],\"usage\":"+object+"}\n\ndata: {\"usage\": null}\n\ndata: [DONE]\n\n", "40 32")
	f("data: {\"usage\":{\"prompt_tokens\":1}}\n\ndata: {\"usage\":{\"prompt_tokens\":2}}\n\n", "2 -1")
	f("event: response.completed\n"+
		`data: {"response":{"usage":{"input_tokens":9,"input_tokens_details":{"cached_tokens":8}}}}`+"\n\n", "9 8")
	f(`{"usage":{"prompt_tokens":5,"prompt_tokens_details":null}}`, "5 -1")
	f(`{"usage":{"prompt_tokens":5,"prompt_tokens_details":{"cached_tokens":null}}}`, "5 -1")
	f(`{"usage":{"prompt_tokens":5,"a":"}{\"","prompt_tokens_details":{"cached_tokens":0}}}`, "5 0")
	// In a generated text the quotes are escaped.
	quoted, _ := json.Marshal(`{"usage":{"prompt_tokens":666}}`)
	f(`{"choices":[{"text":`+string(quoted)+`}],"usage":{"prompt_tokens":5}}`, "5 -1")
	f(`{"choices":[{"text":`+string(quoted)+`}]}`, "")
	f(`["usage","usage",{"usage":{"prompt_tokens":5}}]`, "5 -1")
	// What is no usage.
	f("", "")
	f(`{"usage":{"prompt_tokens":`, "")
	f(`{"usage":[1],"x":{"prompt_tokens":5}}`, "")
	f(`{"usage":{}}`, "")
	f(`{"usage":{"prompt_tokens":-5}}`, "")
	f(`{"usage":{"prompt_tokens":"5"}}`, "")
	f(`{"usage":{"prompt_tokens":1e99}}`, "")
	f(`{"usage"`, "")
	// An object that is too long is passed over, not kept.
	f(`{"usage":{"x":"`+strings.Repeat("y", 3*maxUsage)+`"}} {"usage":{"prompt_tokens":5}}`, "5 -1")
	f(`"usage"`+strings.Repeat(" ", 3*maxUsage)+`:{"prompt_tokens":4} {"usage":{"prompt_tokens":5}}`, "5 -1")
}

// TestUsageIsBounded sees that the scanner holds little, whatever comes.
func TestUsageIsBounded(t *testing.T) {
	var s usageScanner
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	parts := []string{`"usage":{`, `"usage"`, "{", `"`, "xxxxxxxxxxxxxx", `\`, "}", ":", strings.Repeat("z", 100_000)}
	for range 20_000 {
		s.write([]byte(parts[random.IntN(len(parts))]))
		if len(s.pending) > 2*maxUsage || cap(s.pending) > 8*maxUsage || cap(s.object) > 4*maxUsage {
			t.Fatalf("seed %d: pending %d of %d bytes, object %d", seed, len(s.pending), cap(s.pending), cap(s.object))
		}
	}
}

func BenchmarkUsage(b *testing.B) {
	chunk := []byte(`data: {"id":"cmpl-1","choices":[{"index":0,"text":" word","logprobs":null}],"usage":null}` + "\n\n")
	b.ReportAllocs()
	b.SetBytes(int64(len(chunk)))
	var s usageScanner
	for b.Loop() {
		s.write(chunk)
	}
}
