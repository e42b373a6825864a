package doctor

import (
	"slices"
	"testing"
)

// TestSeverityOfEachCode requires that every code of a finding has a severity, and that the others are of those that belong
// to no source, or of states.
func TestSeverityOfEachCode(t *testing.T) {
	all := codes(t)
	for _, code := range all {
		if s, known := severityOf[code]; !known || s != Error && s != Warning && s != Info {
			t.Errorf("%s has the severity %q", code, s)
		}
	}
	others := []string{"failed", "partial", "paused", "connecting", "replaying", "synced", "approximate", "no_sources", "not_ready",
		"memory_bound", "discovery", "unclaimed", "unclaimed_topic", "not_registered"}
	for code := range severityOf {
		if !slices.Contains(all, code) && !slices.Contains(others, code) {
			t.Errorf("%s has a severity and is no code", code)
		}
	}
	if s := SeverityOf("of_tomorrow"); s != Warning {
		t.Errorf("a code that is not known is of severity %s", s)
	}
	if !slices.IsSortedFunc([]Severity{Error, Warning, Info, OK}, Severity.Compare) {
		t.Error("the order is another one")
	}
}
