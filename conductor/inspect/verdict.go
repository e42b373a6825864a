package inspect

import (
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
