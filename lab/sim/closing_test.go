package sim

import (
	"testing"
	"time"
)

// TestClosing holds that what was shown is said in a sentence, whatever was found.
func TestClosing(t *testing.T) {
	f := func(r Report, want string) {
		t.Helper()
		if got := r.Closing(); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
	ranks := make([]Instance, 12)
	f(Report{Instances: ranks, Pool: &Pool{}, Elapsed: 40 * time.Second, Answers: Answers{Settled: 92_695}},
		"12 ranks and a pool published for 40 s; 92,695 answers that could be checked were compared with the truth, and none was wrong.")
	f(Report{Instances: ranks, Restarts: make([]Downtime, 3), Elapsed: 40 * time.Second, Answers: Answers{Settled: 2, Wrong: 1}},
		"12 ranks published for 40 s, while the server was killed and started again 3 times; 2 answers that could be checked were "+
			"compared with the truth, and 1 was wrong.")
	f(Report{Instances: []Instance{{Faults: &Faults{Lost: 1, Cuts: 2}}}, Restarts: make([]Downtime, 1), Elapsed: time.Second},
		"1 rank published for 1 s, while 3 faults disturbed the fleet and the server was killed once and started again; no answer could "+
			"be checked.")
	f(Report{Instances: ranks, Answers: Answers{Settled: 1_000, Wrong: 20}},
		"12 ranks published for 0 s; 1,000 answers that could be checked were compared with the truth, and 20 were wrong.")
	c := Comparison{Requests: 200, Outcomes: []*Outcome{{Policy: "round robin", Computed: 3_000}, {Policy: "least loaded", Computed: 4_500},
		{Policy: "oracle", Computed: 1_500}}}
	for i, o := range c.Outcomes {
		o.TTFT.Mean = time.Duration(30-5*i) * time.Millisecond
	}
	if got, want := c.Closing(), `For 200 requests the policy "oracle" computed 1,500 tokens, in 20 ms to the first token; the others `+
		`computed 2.00 to 3.00 times as many and took 1.25 to 1.50 times as long.`; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	c.Outcomes = c.Outcomes[2:]
	if got, want := c.Closing(), `For 200 requests the policy "oracle" computed 1,500 tokens, in 20 ms to the first token.`; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}
