package pick

import "example.com/conductor/client"

// Weights say how much the three parts of a cost count. Raise one against the others, and
//
//   - Compute keeps prompts where their prefix is: fewer tokens are computed, hot engines get hotter;
//   - Wait spreads prompts over engines that have nothing to compute: first tokens come sooner, prefixes are computed twice;
//   - Load evens out the requests that engines have, and the tokens that they got of late: streams are smoother, prefixes count for less.
//
// With the defaults {1, 0.7, 1} a token of wait costs less than one that is computed again, so a prompt waits for an engine that is
// computing its beginning, up to a point: an idle engine computes it again if the wait is more than 1.4 times as long. Never set Wait
// above Compute: each of a burst of equal prompts would go to an engine of its own. docs/benchmarks/picker.md has the measurements.
type Weights struct{ Compute, Wait, Load float64 }

// Load is what an engine's rank has to do already.
type Load struct {
	// Queued are tokens that this picker has sent there and that are not computed yet.
	Queued float64
	// Others are tokens that other pickers have sent there and that are not computed yet, as far as Conductor knows.
	Others float64
	// Waiting are requests of others that wait there, Running those that it decodes, and CacheUse is how much of its cache is
	// in use, from 0 to 1.
	Waiting, Running, CacheUse float64
	// Recent is how many tokens a second this picker has sent there of late.
	Recent float64
	// Typical is what a request computes, in tokens.
	Typical float64
}

// Parts of computing a token.
const (
	// hostCost and diskCost are for a token that is loaded from host memory or disk. One on the device costs nothing.
	hostCost = 0.25
	diskCost = 0.75
	// runningCost is for a request that decodes, as a part of a typical request: it takes room in each step and in the cache.
	runningCost = 0.1
	// recentCost is for a token a second that was sent to a rank of late, in seconds. A prefix that most prompts share, such as a system
	// prompt, would otherwise draw new conversations to the few ranks that have it already, and once they are there, their turns find
	// the rank busy and compute elsewhere what it has.
	recentCost = 0.25
	// fullCache is the cache use from which an engine is about to preempt requests, that is to compute them twice.
	fullCache = 0.9
)

// Cost returns what it costs to have a rank compute a prompt, in tokens to compute. The lowest cost wins.
//
//	compute = tokens − expected + 0.25·(cpu − gpu) + 0.75·(disk − cpu)
//	wait    = max(queued + others, expected − disk)
//	load    = typical·(waiting + 0.1·running + max(0, cacheUse − 0.9)/0.1) + 0.25·recent
//	cost    = Compute·compute + Wait·wait + Load·load
//
// Row says how far the rank's device, host memory, disk and expected blocks reach, each with those before, as in
// client.Rank. Expected tokens are computed for another prompt: they cost nothing, but this prompt has to wait for them.
func Cost(w Weights, tokens int, row client.Rank, l Load) float64 {
	expected := float64(row.Expected - row.Disk)
	compute := Compute(tokens, row)
	wait := max(l.Queued+l.Others, expected)
	load := l.Typical*(l.Waiting+runningCost*l.Running+max(0, l.CacheUse-fullCache)/(1-fullCache)) + recentCost*l.Recent
	return w.Compute*compute + w.Wait*wait + w.Load*load
}

// Compute returns what a rank has to do for a prompt itself, in tokens to compute.
func Compute(tokens int, row client.Rank) float64 {
	return float64(tokens-row.Expected) + hostCost*float64(row.CPU-row.GPU) + diskCost*float64(row.Disk-row.CPU)
}
