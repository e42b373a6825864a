package conductor

import (
	"testing"

	"example.com/conductor/events/stream"
)

func TestSummarize(t *testing.T) {
	f := func(synced, stale, partial, connecting, unfound int, text, severity string) {
		t.Helper()
		got := Summarize(map[stream.State]int{stream.Synced: synced, stream.Stale: stale, stream.Partial: partial, stream.Connecting: connecting}, unfound)
		if (got != Summary{text, severity}) {
			t.Errorf("got %+v, want %q %s", got, text, severity)
		}
	}
	f(0, 0, 0, 0, 0, "no source is registered", SeverityWarning)
	f(0, 0, 0, 0, 1, "no source is registered yet: 1 engine has not told where to subscribe", SeverityWarning)
	f(13, 0, 0, 0, 0, "13 sources are synced", SeverityOK)
	f(1, 0, 0, 0, 4, "1 source is synced", SeverityOK)
	f(0, 13, 0, 0, 0, "13 of 13 sources are stale", SeverityError)
	f(0, 1, 0, 0, 0, "1 of 1 source is stale", SeverityError)
	f(10, 3, 0, 0, 0, "3 of 13 sources are stale, 10 synced", SeverityWarning)
	f(12, 0, 1, 0, 0, "12 of 13 sources are synced, 1 partial", SeverityOK)
	f(0, 2, 1, 0, 0, "2 of 3 sources are stale, 1 partial", SeverityWarning)
	f(0, 0, 0, 3, 0, "3 of 3 sources are connecting", SeverityWarning)
	f(2, 0, 0, 1, 0, "2 of 3 sources are synced, 1 connecting", SeverityOK)
}
