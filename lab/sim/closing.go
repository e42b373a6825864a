package sim

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Closing says in a sentence what the run has shown.
func (r *Report) Closing() string {
	var b strings.Builder
	b.WriteString(count(len(r.Instances), "rank"))
	if r.Pool != nil {
		b.WriteString(" and a pool")
	}
	fmt.Fprintf(&b, " published for %.0f s", r.Elapsed.Seconds())
	var meanwhile []string
	if faults := r.faults(); faults > 0 {
		meanwhile = append(meanwhile, count(faults, "fault")+" disturbed the fleet")
	}
	switch n := len(r.Restarts); n {
	case 0:
	case 1:
		meanwhile = append(meanwhile, "the server was killed once and started again")
	default:
		meanwhile = append(meanwhile, "the server was killed and started again "+count(n, "time"))
	}
	if len(meanwhile) > 0 {
		b.WriteString(", while " + strings.Join(meanwhile, " and "))
	}
	return b.String() + "; " + r.Answers.Closing() + "."
}

// faults returns how many faults were done to the ranks.
func (r *Report) faults() (n int) {
	for _, i := range r.Instances {
		if f := i.Faults; f != nil {
			n += f.Lost + f.Cuts + f.Stalls + f.Restarts + f.Spoiled
		}
	}
	return n
}

// Closing says in words how many answers were compared with the truth, and how many of them were wrong.
func (a *Answers) Closing() string {
	switch {
	case a.Settled == 0:
		return "no answer could be checked"
	case a.Settled == 1:
		return fmt.Sprintf("the one answer that could be checked was compared with the truth, and it was %s",
			map[bool]string{true: "right", false: "wrong"}[a.Wrong == 0])
	case a.Wrong == 0:
		return thousands(a.Settled) + " answers that could be checked were compared with the truth, and none was wrong"
	case a.Wrong == 1:
		return thousands(a.Settled) + " answers that could be checked were compared with the truth, and 1 was wrong"
	}
	return fmt.Sprintf("%s answers that could be checked were compared with the truth, and %s were wrong", thousands(a.Settled),
		thousands(a.Wrong))
}

// Closing says in a sentence how the last policy, which knows most, compares with the others.
func (c *Comparison) Closing() string {
	if len(c.Outcomes) == 0 {
		return "no policy was tried."
	}
	last := len(c.Outcomes) - 1
	best := c.Outcomes[last]
	text := fmt.Sprintf("For %s the policy %q computed %s tokens, in %s to the first token", count(c.Requests, "request"), best.Policy,
		thousands(best.Computed), short(best.TTFT.Mean))
	if last == 0 {
		return text + "."
	}
	var tokens, times []float64
	for _, o := range c.Outcomes[:last] {
		tokens = append(tokens, float64(o.Computed)/float64(max(best.Computed, 1)))
		times = append(times, float64(o.TTFT.Mean)/float64(max(best.TTFT.Mean, time.Nanosecond)))
	}
	return fmt.Sprintf("%s; the others computed %.2f to %.2f times as many and took %.2f to %.2f times as long.", text,
		slices.Min(tokens), slices.Max(tokens), slices.Min(times), slices.Max(times))
}

// count writes a number with its noun.
func count(n int, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return thousands(n) + " " + noun
}
