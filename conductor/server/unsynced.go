package server

import (
	"fmt"
	"slices"
	"strings"

	"example.com/conductor/conductor/status"
	"example.com/conductor/spelling"
)

// Unsynced are the sources that reports of routers were about and that are not synced, each once.
type Unsynced []status.SourceState

// mostUnsynced is how many sources Warnings names. A request may be about thousands.
const mostUnsynced = 8

// Add adds sources that are not there yet.
func (u *Unsynced) Add(all []status.SourceState) {
	for _, s := range all {
		if !slices.ContainsFunc(*u, func(o status.SourceState) bool { return o.Key == s.Key }) {
			*u = append(*u, s)
		}
	}
}

// Warnings returns a warning for each of the first 8 sources, and one that says how many more there
// are.
func (u Unsynced) Warnings() (all []string) {
	for i, s := range u {
		switch left := len(u) - i; {
		case i < mostUnsynced:
			all = append(all, fmt.Sprintf("%s is %s: its events may not confirm the report", s.Key,
				strings.TrimSpace(string(s.State)+" "+s.Reason)))
		case left == 1:
			return append(all, "1 more source is not synced")
		default:
			return append(all, fmt.Sprintf("%s not synced", spelling.Count(left, "more source")+" "+spelling.Agree(left, "is", "are")))
		}
	}
	return all
}
