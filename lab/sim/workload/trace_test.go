package workload

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"example.com/conductor/internal/must"
)

const goodTrace = `{"timestamp": 0, "input_length": 700, "output_length": 5, "hash_ids": [0, 1]}

{"timestamp": 3000, "input_length": 1024, "output_length": 0, "hash_ids": [0, 2]}
`

func TestReadTrace(t *testing.T) {
	tr, err := ReadTrace("t.jsonl", strings.NewReader(goodTrace))
	must.Succeed(t, err)
	if tr.Len() != 2 {
		t.Fatalf("%d requests, want 2", tr.Len())
	}
	rs := draw(t, tr, 2)
	if _, ok := tr.Next(); ok {
		t.Error("a third request came out of two lines")
	}
	f := func(r Request, want []Segment, output int) {
		t.Helper()
		if !slices.Equal(r.Prompt, want) || r.Output.Len != output {
			t.Errorf("request %+v, want %v and %d output tokens", r, want, output)
		}
	}
	f(rs[0], []Segment{{0, 512}, {1, 188}}, 5)
	f(rs[1], []Segment{{0, 512}, {2, 512}}, 0)
	if rs[0].Output.ID == rs[1].Output.ID {
		t.Error("two answers share an identity")
	}
	a, b := rs[0].AppendTokens(nil), rs[1].AppendTokens(nil)
	if len(a) != 705 || len(b) != 1024 {
		t.Errorf("%d and %d tokens, want 705 and 1024", len(a), len(b))
	}
	if !slices.Equal(a[:512], b[:512]) || slices.Equal(a[512:528], b[512:528]) {
		t.Error("the prompts share something else than their first segment")
	}
}

// TestTraceTimes holds that requests of one timestamp are spread until the next, and never go back.
func TestTraceTimes(t *testing.T) {
	f := func(want string, stamps ...string) {
		t.Helper()
		var lines strings.Builder
		for _, s := range stamps {
			fmt.Fprintf(&lines, `{%s "input_length": 1, "output_length": 0, "hash_ids": [1]}`+"\n", s)
		}
		tr, err := ReadTrace("t.jsonl", strings.NewReader(lines.String()))
		must.Succeed(t, err)
		var got []time.Duration
		for _, r := range draw(t, tr, len(stamps)) {
			got = append(got, r.At)
		}
		if fmt.Sprint(got) != want {
			t.Errorf("%v: %v, want %s", stamps, got, want)
		}
	}
	f("[0s 1s 2s 3s 3s]", `"timestamp": 0,`, `"timestamp": 0,`, `"timestamp": 0,`, `"timestamp": 3000,`, `"timestamp": 3000,`)
	f("[0s 1.25ms]", `"timestamp": 7.5,`, `"timestamp": 8.75,`)
	f("[0s 2.5ms 5ms 5ms]", ``, ``, `"timestamp": 5,`, `"timestamp": 3,`)
}

func TestBadTrace(t *testing.T) {
	const good = `{"timestamp":0,"input_length":512,"output_length":1,"hash_ids":[1]}` + "\n"
	f := func(trace, want string) {
		t.Helper()
		_, err := ReadTrace("t.jsonl", strings.NewReader(trace))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want %q in it", trace, err, want)
		}
	}
	f(good+good+"{", "t.jsonl, line 3: ")
	f(good+`{"input_length":512}`, "line 2: output_length is missing")
	f(`{"output_length":5,"hash_ids":[1]}`, "line 1: input_length is missing")
	f(good+"\n"+`{"input_length":0,"output_length":5,"hash_ids":[]}`, "line 3: input_length 0")
	f(`{"timestamp":-1,"input_length":5,"output_length":1,"hash_ids":[1]}`, "timestamp -1")
	f(`{"input_length":5,"output_length":-1,"hash_ids":[1]}`, "output_length -1")
	f(`{"input_length":513,"output_length":1,"hash_ids":[1]}`, "input_length 513 needs 2 hash_ids of 512 tokens and has 1")
	f(`{"input_length":512,"output_length":1,"hash_ids":[1,2]}`, "needs 1 hash_ids")
	f(`{"input_length":512,"output_length":1,"hash_ids":[-1]}`, "line 1")
	f(`{"input_length":512,"output_length":1,"hash_ids":[9223372036854775808]}`, "hash id 9223372036854775808")
	f(`{"input_length":"512","output_length":1,"hash_ids":[1]}`, "line 1")
	f("[1]", "line 1")
	f("", "t.jsonl has no requests")
	if _, err := OpenTrace("no/such/file.jsonl"); err == nil || !strings.Contains(err.Error(), "no/such/file.jsonl") {
		t.Errorf("a missing file: %v", err)
	}
}
