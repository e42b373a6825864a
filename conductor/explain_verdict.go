package conductor

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"example.com/conductor/spelling"
)

// Verdict is an explanation in one sentence.
type Verdict struct {
	Kind VerdictKind
	Text string
}

// VerdictKind says in one word how a prompt fares.
type VerdictKind string

// Verdicts.
const (
	VerdictWhole      VerdictKind = "whole"       // an instance holds all blocks
	VerdictPart       VerdictKind = "part"        // an instance holds the first block
	VerdictNone       VerdictKind = "none"        // no instance does
	VerdictTooShort   VerdictKind = "too_short"   // the prompt has no whole block
	VerdictNoInstance VerdictKind = "no_instance" // a query has no row
)

// Verdicts returns all kinds.
func Verdicts() []VerdictKind {
	return []VerdictKind{VerdictWhole, VerdictPart, VerdictNone, VerdictTooShort, VerdictNoInstance}
}

// judge sorts the instances, the longest first, and returns the verdict about them.
func (x *Explanation) judge() Verdict {
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
	best := serving[0].Row.Longest
	if best == 0 {
		return Verdict{VerdictNone, "No instance holds the first block of the prompt."}
	}
	first, rest := leaders(serving)
	v := Verdict{VerdictPart, ""}
	what := fmt.Sprintf("%d of %s", best, spelling.Count(x.Blocks, "block"))
	if best >= x.Blocks {
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
	return v
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

// leaders splits sorted instances behind those that hold as much as the first one.
func leaders(all []ExplainedInstance) (first, rest []ExplainedInstance) {
	n := 0
	for n < len(all) && all[n].Row.Longest == all[0].Row.Longest {
		n++
	}
	return all[:n], all[n:]
}

// instanceNames names at most three instances and counts the others.
func instanceNames(all []ExplainedInstance) string {
	var names []string
	for _, in := range all {
		names = append(names, in.Name)
	}
	if n := len(names); n > 3 {
		names = append(names[:2], spelling.Count(n-2, "other"))
	}
	last := len(names) - 1
	if last == 0 {
		return names[0]
	}
	return strings.Join(names[:last], ", ") + " and " + names[last]
}
