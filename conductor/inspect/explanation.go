package inspect

import (
	"cmp"
	"fmt"
	"slices"

	"example.com/conductor/conductor/doctor"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/events/stream"
	"example.com/conductor/spelling"
	"example.com/conductor/tiers"
)

// Explanation says how far each source holds a prompt, and why no further.
type Explanation struct {
	Tenant, Model, Lora string
	BlockSize           int // tokens
	Blocks              int // whole blocks of the prompt
	Tokens              int
	Verdict             Verdict
	Instances           []ExplainedInstance // the longest first, then by name
	Pools               []ExplainedHolder
	Elsewhere           []Elsewhere // longest first
	// Searched is how many other contexts were searched, of how many in view.
	Searched, Contexts int
	// Causes are about the deployment as a whole.
	Causes []Cause
}

// ExplainedInstance is what one instance holds.
type ExplainedInstance struct {
	Name   string
	Serves bool // a query has a row of the instance
	Row    tiers.Row
	Ranks  []ExplainedHolder
}

// ExplainedHolder is what one source holds as one rank.
type ExplainedHolder struct {
	Rank     int32
	Source   registration.Key
	State    stream.State
	Reason   string // of State
	Blocks   int    // leading blocks, over all media
	Media    []HeldRuns
	Causes   []Cause // why block Blocks is missing, the most useful first; none if there is no such block
	Findings []doctor.Finding
}

// HeldRuns are the blocks that a holder has on one medium.
type HeldRuns struct {
	Medium tiers.Medium
	Blocks int      // leading blocks
	Runs   [][2]int // [from, to) in ascending order
}

// Elsewhere is another adapter, salt or deployment that holds a beginning of the prompt.
type Elsewhere struct {
	Tenant, Model, Lora string
	Salt                string // as the client may see it
	BlockSize           int    // tokens
	Reason              Reason // the first difference that counts: OtherTenant to OtherSalt
	Instances           []ElsewhereInstance
	Tokens              int // of the longest instance
	Differences         string
}

// ElsewhereInstance is how far one instance, or pool, holds the prompt there.
type ElsewhereInstance struct {
	Name   string
	Blocks int
}

// Judge sorts the instances, the longest first, and returns the verdict about them.
func (x *Explanation) Judge() Verdict {
	slices.SortStableFunc(x.Instances, func(a, b ExplainedInstance) int { return cmp.Compare(b.Row.Longest, a.Row.Longest) })
	if x.Blocks == 0 {
		return Verdict{VerdictTooShort, fmt.Sprintf("The prompt is shorter than one block: it has %s, and a block has %d.",
			spelling.Count(x.Tokens, "token"), x.BlockSize)}
	}
	var serving []ExplainedInstance
	for _, in := range x.Instances {
		if in.Serves {
			serving = append(serving, in)
		}
	}
	if len(serving) == 0 {
		return Verdict{VerdictNoInstance, x.noInstance()}
	}
	first, rest := leaders(serving)
	best, inPart := serving[0].Row.Longest, x.inPart(first)
	switch {
	case best == 0 && inPart != "":
		return Verdict{VerdictNone, "No instance can use the first block of the prompt." + inPart}
	case best == 0:
		return Verdict{VerdictNone, "No instance holds the first block of the prompt."}
	}
	v := Verdict{VerdictPart, ""}
	what := fmt.Sprintf("%d of %s", best, spelling.Count(x.Blocks, "block"))
	if best >= x.Blocks {
		inPart = ""
		v.Kind, what = VerdictWhole, "all "+spelling.Count(x.Blocks, "block")
		if x.Blocks == 1 {
			what = "the one block of the prompt"
		}
	}
	holds := func(n int) string { return spelling.Agree(n, "holds", "hold") }
	if slices.ContainsFunc(x.Pools, func(p ExplainedHolder) bool { return len(p.Media) > 0 }) {
		holds = func(int) string { return "can use" }
		what += ", those of pools included"
	}
	v.Text = instanceNames(first) + " " + holds(len(first)) + " " + what
	switch next, _ := leaders(rest); {
	case len(rest) == 0:
		v.Text += "."
	case rest[0].Row.Longest == 0:
		v.Text += fmt.Sprintf("; the other %s.", spelling.Agree(len(rest), "instance "+holds(1)+" none", "instances "+holds(2)+" none"))
	default:
		v.Text += fmt.Sprintf("; the next best, %s, %s %d.", instanceNames(next), holds(len(next)), rest[0].Row.Longest)
	}
	v.Text += inPart
	return v
}

// inPart returns a sentence about why a match ends where blocks are held: the prompt shares only a part of a larger block with one of some
// instances, or with a pool, or an attention group of the instance lacks what the engine needs to go on. It returns "" if no match
// ends so.
func (x *Explanation) inPart(of []ExplainedInstance) string {
	at := func(name string, holders []ExplainedHolder) string {
		for _, h := range holders {
			for _, c := range h.Causes {
				if (c.Reason == ChunkInPart || c.Reason == AttentionGroup) && h.Blocks >= of[0].Row.Longest {
					return fmt.Sprintf(" On %s: %s", cmp.Or(name, h.Source.Instance), c.Text)
				}
			}
		}
		return ""
	}
	for i := range of {
		if text := at(of[i].Name, of[i].Ranks); text != "" {
			return text
		}
	}
	return at("", x.Pools)
}

// noInstance says why a query has no row.
func (x *Explanation) noInstance() string {
	switch i := slices.IndexFunc(x.Causes, func(c Cause) bool { return c.Reason == NotRegistered }); {
	case i >= 0:
		return x.Causes[i].Text
	case x.Lora != "":
		return fmt.Sprintf("No instance is registered for the adapter %q.", x.Lora)
	}
	return "Each instance is registered for an adapter, and the query names none."
}
