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
		"12 ranks published for 40 s, while the server was killed and started again 3 times; 2 answers that could be checked were compared with the truth, and 1 was wrong.")
	f(Report{Instances: []Instance{{Faults: &Faults{Lost: 1, Cuts: 2}}}, Restarts: make([]Downtime, 1), Elapsed: time.Second},
		"1 rank published for 1 s, while 3 faults disturbed the fleet and the server was killed once and started again; no answer could be checked.")
	f(Report{Instances: ranks, Answers: Answers{Settled: 1_000, Wrong: 20}},
		"12 ranks published for 0 s; 1,000 answers that could be checked were compared with the truth, and 20 were wrong.")
	c := Comparison{Requests: 200, Outcomes: []*Outcome{{Policy: "round robin", Computed: 3_000}, {Policy: "cache aware", Computed: 1_500}}}
	c.Outcomes[0].TTFT.Mean, c.Outcomes[1].TTFT.Mean = 30*time.Millisecond, 20*time.Millisecond
	if got, want := c.Closing(), `For 200 requests the policy "cache aware" computed 1,500 tokens, in 20 ms to the first token; tokens and time were 2.00 and 1.50 times that with "round robin".`; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}
