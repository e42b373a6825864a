package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"kvconductor/internal/must"
)

// TestDemoRouter holds that the example router computes fewer tokens and answers sooner than
// policies that know no cache, over generated requests and over a trace.
func TestDemoRouter(t *testing.T) {
	t.Parallel()
	// 20 conversations of 10 turns: each prompt begins with the one before.
	var lines strings.Builder
	for turn := 1; turn <= 10; turn++ {
		for talk := range 20 {
			ids := make([]string, 2*turn)
			for i := range ids {
				ids[i] = fmt.Sprint(talk*100 + i)
			}
			fmt.Fprintf(&lines, `{"timestamp":%d,"input_length":%d,"output_length":8,"hash_ids":[%s]}`+"\n", 3000*turn, 1024*turn, strings.Join(ids, ","))
		}
	}
	trace := filepath.Join(t.TempDir(), "trace.jsonl")
	must.Succeed(t, os.WriteFile(trace, []byte(lines.String()), 0o600))
	for _, c := range []struct {
		args     []string
		requests int
	}{{[]string{"--requests", "200"}, 200}, {[]string{"--trace", trace}, 200}, {[]string{"--trace", trace, "--requests", "50"}, 50}} {
		out, err := command(append([]string{"demo", "--router", "--json", "--seed", "1"}, c.args...)...).Output()
		if err != nil {
			t.Fatalf("%v: %v\n%s", c.args, err, out)
		}
		var r struct {
			Requests int `json:"requests"`
			Outcomes []struct {
				Policy     string
				Computed   int `json:"computed_tokens"`
				Recomputed int `json:"recomputed_tokens"`
				Alone      int
				TTFT       struct {
					Mean int `json:"mean_ns"`
				}
			}
		}
		decode(t, string(out), &r)
		if r.Requests != c.requests || len(r.Outcomes) != 3 {
			t.Fatalf("%v: %s", c.args, out)
		}
		aware := r.Outcomes[2]
		for _, other := range r.Outcomes[:2] {
			if aware.Policy != "cache aware" || aware.Alone > 0 || aware.Computed >= other.Computed || aware.Recomputed >= other.Recomputed || aware.TTFT.Mean >= other.TTFT.Mean {
				t.Errorf("%v: %+v, and %+v", c.args, aware, other)
			}
		}
	}
	for _, args := range []string{"--router --faults", "--router --restarts 1", "--router --duration 1s", "--requests 5", "--json", "--seed 1"} {
		if out, err := command(append([]string{"demo"}, strings.Fields(args)...)...).CombinedOutput(); err == nil || !strings.Contains(string(out), "router") {
			t.Errorf("%s: %v\n%s", args, err, out)
		}
	}
}
