package conductor

import (
	"fmt"

	"example.com/conductor/events/stream"
)

// Summary says in one sentence how the sources are, for people who look at /ready or the page.
type Summary struct {
	Text     string
	Severity string // SeverityError, SeverityWarning or SeverityOK
}

// Severities of a Summary.
const (
	SeverityError   = "error"   // no source can be relied on: answers are empty or old
	SeverityWarning = "warning" // some sources cannot, or there is none
	SeverityOK      = "ok"
)

// summarized are the states of sources in the order in which a Summary names them: the lost ones first.
var summarized = []stream.State{stream.Failed, stream.Stale, stream.Paused, stream.Synced, stream.Approximate, stream.Partial, stream.Connecting, stream.Replaying}

// Summarize returns the summary of sources by their states. unfound is how many configured engines have not told
// yet where they publish; it matters only while there is no source.
//
// Sources that connect, replay or are partial are no warning as long as others are synced: the first two are over
// soon, and a partial source still answers for what it has.
func Summarize(states map[stream.State]int, unfound int) Summary {
	all := 0
	for _, n := range states {
		all += n
	}
	synced := states[stream.Synced] + states[stream.Approximate]
	lost := states[stream.Failed] + states[stream.Stale] + states[stream.Paused]
	switch {
	case all == 0 && unfound > 0:
		return Summary{fmt.Sprintf("no source is registered yet: %d %s not told where to subscribe", unfound, pick(unfound, "engine has", "engines have")), SeverityWarning}
	case all == 0:
		return Summary{"no source is registered", SeverityWarning}
	case synced == all:
		return Summary{fmt.Sprintf("%d %s synced", all, pick(all, "source is", "sources are")), SeverityOK}
	}
	out := Summary{Severity: SeverityOK}
	for _, state := range summarized {
		switch n := states[state]; {
		case n == 0:
		case out.Text == "":
			out.Text = fmt.Sprintf("%d of %d %s %s %s", n, all, pick(all, "source", "sources"), pick(n, "is", "are"), state)
		default:
			out.Text += fmt.Sprintf(", %d %s", n, state)
		}
	}
	switch {
	case lost == all:
		out.Severity = SeverityError
	case lost > 0 || synced == 0:
		out.Severity = SeverityWarning
	}
	return out
}

// pick returns the form of a word that goes with a number.
func pick(n int, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}
