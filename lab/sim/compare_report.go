package sim

import (
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	"example.com/conductor/lab/sim/workload"
)

// Comparison is what policies made of the same requests.
type Comparison struct {
	Source       string        `json:"source"`
	Seed         uint64        `json:"seed"`
	BlockSize    int           `json:"block_size"`
	Ranks        int           `json:"ranks"`
	Requests     int           `json:"requests"`
	PromptTokens int           `json:"prompt_tokens"`
	Span         time.Duration `json:"span_ns"`          // of simulated time, until the last request
	Oracle       string        `json:"oracle,omitempty"` // the policy that the others are compared with
	Outcomes     []*Outcome    `json:"outcomes"`
}

// Outcome is what one policy made of the requests.
type Outcome struct {
	Policy string `json:"policy"`
	// Hits are prompt tokens that their rank had not to compute, in percent.
	Hits     HitRate `json:"hits_percent"`
	Computed int     `json:"computed_tokens"`
	// Beyond is how many more tokens were computed than with the oracle, in percent; nil without one.
	Beyond *float64 `json:"beyond_oracle_percent,omitempty"`
	// Recomputed are those of Computed that some rank of the fleet held then, or was computing.
	Recomputed int `json:"recomputed_tokens"`
	// TTFT is the simulated time to the first token: the wait for earlier prompts of the rank, the
	// load of blocks from host and disk, and the computing of the others.
	TTFT struct {
		Mean time.Duration `json:"mean_ns"`
		P50  time.Duration `json:"p50_ns"`
		P90  time.Duration `json:"p90_ns"`
		P99  time.Duration `json:"p99_ns"`
		Max  time.Duration `json:"max_ns"`
	} `json:"ttft"`
	// Busiest is the work of the busiest rank, of all the mean is 1.
	Busiest float64 `json:"busiest"`
	// Decisions took real time, most of it for the server's answer.
	DecisionP50 time.Duration `json:"decision_p50_ns"`
	DecisionP99 time.Duration `json:"decision_p99_ns"`
	Alone       int           `json:"alone"` // decisions without an answer
}

// outcome returns the counts of a trial.
func (t *trial) outcome(requests []workload.Request) *Outcome {
	o := &Outcome{Policy: t.policy.Name, Recomputed: t.recomputed, DecisionP50: t.decisions.At(50), DecisionP99: t.decisions.At(99)}
	prompts := 0
	for _, r := range requests {
		prompts += r.PromptLen()
	}
	o.Hits, o.Computed = t.hits.rate(prompts), prompts-t.hits[3]
	o.TTFT.Mean = t.waited / time.Duration(len(requests))
	o.TTFT.P50, o.TTFT.P90, o.TTFT.P99, o.TTFT.Max = t.ttft.At(50), t.ttft.At(90), t.ttft.At(99), t.ttft.At(100)
	var all time.Duration
	for _, w := range t.work {
		all += w
	}
	o.Busiest = float64(slices.Max(t.work)) * float64(len(t.work)) / float64(max(all, 1))
	if t.policy.Alone != nil {
		o.Alone = t.policy.Alone()
	}
	return o
}

// measure compares the outcomes with that of the oracle.
func (c *Comparison) measure() {
	at := slices.IndexFunc(c.Outcomes, func(o *Outcome) bool { return o.Policy == c.Oracle })
	if at < 0 {
		return
	}
	for _, o := range c.Outcomes {
		beyond := 100 * (float64(o.Computed)/float64(max(c.Outcomes[at].Computed, 1)) - 1)
		o.Beyond = &beyond
	}
}

// Table writes the comparison for people.
func (c *Comparison) Table(w io.Writer) {
	fmt.Fprintf(w, "\n%s, seed %d, %d tokens a block: %s requests with %s prompt tokens in %.0f s of simulated time, on %d ranks\n",
		c.Source, c.Seed, c.BlockSize, thousands(c.Requests), thousands(c.PromptTokens), c.Span.Seconds(), c.Ranks)
	fmt.Fprintf(w, "a rank computes %s tokens/s, and loads %s from its host and %s from its disk\n\n",
		thousands(int(time.Second/computeToken)), thousands(int(time.Second/hostToken)), thousands(int(time.Second/diskToken)))
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintf(t, "policy\thit rate\tGPU\tCPU\tDISK\ttokens computed\tbeyond the oracle\tof those, cached somewhere\tTTFT "+
		"mean\tp50\tp90\tp99\tbusiest rank\n")
	for _, o := range c.Outcomes {
		fmt.Fprintf(t, "%s\t%.1f %%\t%.1f %%\t%.1f %%\t%.1f %%\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%.2fx the mean\n", o.Policy,
			o.Hits.Any, o.Hits.GPU, o.Hits.CPU, o.Hits.Disk, thousands(o.Computed), o.beyond(), thousands(o.Recomputed),
			short(o.TTFT.Mean), short(o.TTFT.P50), short(o.TTFT.P90), short(o.TTFT.P99), o.Busiest)
	}
	fmt.Fprintf(t, "\npolicy\tchoices, real time\tp99\twithout an answer\n")
	for _, o := range c.Outcomes {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", o.Policy, short(o.DecisionP50), short(o.DecisionP99), thousands(o.Alone))
	}
	t.Flush()
	fmt.Fprintf(w, "\n%s\n", c.Closing())
}

// beyond says how many more tokens were computed than with the oracle.
func (o *Outcome) beyond() string {
	if o.Beyond == nil {
		return "-"
	}
	return fmt.Sprintf("%+.1f %%", *o.Beyond)
}
