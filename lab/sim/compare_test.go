package sim

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"example.com/conductor/internal/must"
	"example.com/conductor/lab/sim/workload"
)

// comparedTrace has one prompt of 1,024 tokens three times, and another in between.
const comparedTrace = `{"timestamp": 0, "input_length": 1024, "output_length": 10, "hash_ids": [1, 2]}
{"timestamp": 1, "input_length": 1024, "output_length": 10, "hash_ids": [1, 2]}
{"timestamp": 1000, "input_length": 512, "output_length": 10, "hash_ids": [3]}
{"timestamp": 2000, "input_length": 1024, "output_length": 10, "hash_ids": [1, 2]}
`

func compared(t *testing.T) Config {
	t.Helper()
	trace, err := workload.ReadTrace("t.jsonl", strings.NewReader(comparedTrace))
	must.Succeed(t, err)
	return Config{
		Server: "http://127.0.0.1:1", Tenant: "default", Model: "m", Instances: 1, Ranks: 2, Families: []string{"vllm-map"},
		BlockSize: 16, Device: 100, Chunk: 2048, Running: 1, Source: trace, Clients: 1, Seed: 1, SettleTimeout: time.Second, Ring: 10,
	}
}

// TestCompareTimes holds what requests wait for: earlier ones of their rank, then the tokens that
// the rank does not hold.
func TestCompareTimes(t *testing.T) {
	var told []string
	place := 0
	policy := func(ranks ...int) Policy {
		return Policy{Name: "fixed", Choose: func(context.Context, []uint32) (int, func()) {
			n := place
			place++
			return ranks[n], func() { told = append(told, fmt.Sprint(n)) }
		}}
	}
	f := func(ranks []int, ttft string, computed, recomputed int, order string) {
		t.Helper()
		told, place = nil, 0
		report, err := Compare(t.Context(), compared(t), []Policy{policy(ranks...)}, nil)
		must.Succeed(t, err)
		o := report.Outcomes[0]
		if got := o.TTFT.Mean.String(); got != ttft || o.Computed != computed || o.Recomputed != recomputed ||
			strings.Join(told, " ") != order {
			t.Errorf("ranks %v: TTFT %s, %d computed, %d recomputed, told %v", ranks, got, o.Computed, o.Recomputed, told)
		}
	}
	// 128 ms, then 127 ms of waiting and 2 ms for the last block, then 64 ms, then 2 ms.
	f([]int{0, 0, 0, 0}, "80.75ms", 1024+16+512+16, 0, "0 1 2 3")
	// The other rank computes the prompt while the first does.
	f([]int{0, 1, 0, 0}, "80.5ms", 1024+1024+512+16, 1008, "0 1 2 3")
	f([]int{0, 0, 1, 1}, "112.25ms", 1024+16+512+1024, 1008, "0 1 2 3")
}

// TestCompareAnnouncesAtTheEnd holds that a rank has the blocks of a prompt, and announces them, once
// it has computed it, and that until then they are expected there.
func TestCompareAnnouncesAtTheEnd(t *testing.T) {
	var look func([]uint32) []Cached
	var seen []string
	asked := Policy{
		Name:  "all to one",
		Begin: func(f func([]uint32) []Cached) { look = f },
		Choose: func(_ context.Context, prompt []uint32) (int, func()) {
			seen = append(seen, fmt.Sprint(look(prompt)))
			return 1, func() {}
		},
	}
	c := compared(t)
	trace, err := workload.ReadTrace("t.jsonl",
		strings.NewReader(`{"timestamp": 0, "input_length": 1024, "output_length": 32, "hash_ids": [1, 2]}
{"timestamp": 127, "input_length": 1536, "output_length": 10, "hash_ids": [1, 2, 3]}
{"timestamp": 128, "input_length": 1536, "output_length": 10, "hash_ids": [1, 2, 3]}
{"timestamp": 1000, "input_length": 1552, "output_length": 10, "hash_ids": [1, 2, 3, 4]}
`))
	must.Succeed(t, err)
	c.Source = trace
	report, err := Compare(t.Context(), c, []Policy{RoundRobin(2), asked}, nil)
	must.Succeed(t, err)
	want := "[{0 0 0 0} {0 0 0 0}] [{0 0 0 0} {0 0 0 1024}] [{0 0 0 0} {1024 1024 1024 1536}] [{0 0 0 0} {1536 1536 1536 1536}]"
	if got := strings.Join(seen, " "); got != want {
		t.Errorf("seen:\n%s\nwant:\n%s", got, want)
	}
	// Each rank of the other policy computes the first two segments, and one the third.
	if o := report.Outcomes; *o[1].Beyond != 0 || o[1].Computed != 1024+512+16+16 || o[0].Computed != 1024+1536+512+16 ||
		fmt.Sprintf("%.1f", *o[0].Beyond) != "96.9" {
		t.Errorf("%+v, %+v", o[0], o[1])
	}
}

// TestCompareRefuses holds that a comparison has requests and no disturbance.
func TestCompareRefuses(t *testing.T) {
	f := func(change func(*Config)) {
		t.Helper()
		c := compared(t)
		change(&c)
		if _, err := Compare(t.Context(), c, []Policy{RoundRobin(2)}, nil); err == nil {
			t.Errorf("compared with %+v", c)
		}
	}
	f(func(c *Config) { c.Faults = true })
	f(func(c *Config) { c.Pool, c.PoolHost = true, 1 })
	f(func(c *Config) { c.Instances = 0 })
	f(func(c *Config) {
		g, err := workload.NewGenerator("mixed", 1)
		must.Succeed(t, err)
		c.Source = g
	})
	c := compared(t)
	asks := RoundRobin(2)
	asks.Asks = true
	if _, err := Compare(t.Context(), c, []Policy{asks}, nil); err == nil ||
		!strings.Contains(err.Error(), "round robin: cannot register") {
		t.Errorf("without a server: %v", err)
	}
}

// TestArrivals holds that generated requests come at the rate of the configuration.
func TestArrivals(t *testing.T) {
	g, err := workload.NewGenerator("chat", 1)
	must.Succeed(t, err)
	c := Config{Source: g, Requests: 1000, QPS: 10, Seed: 7}
	all := c.arrivals()
	if last := all[len(all)-1].At; len(all) != 1000 || last < 90*time.Second || last > 110*time.Second {
		t.Errorf("%d requests in %s", len(all), last)
	}
}
