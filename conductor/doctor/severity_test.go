package doctor

import (
	"slices"
	"testing"
)

// TestSeverityOfEachCode requires that every code has a severity, and that no severity is of another code.
func TestSeverityOfEachCode(t *testing.T) {
	all := codes(t)
	for _, code := range all {
		if s, known := severityOf[code]; !known || s != Error && s != Warning && s != Info {
			t.Errorf("%s has the severity %q", code, s)
		}
	}
	for code := range severityOf {
		if !slices.Contains(all, code) {
			t.Errorf("%s has a severity and is no code", code)
		}
	}
	if s := SeverityOf("of_tomorrow"); s != Warning {
		t.Errorf("a code that is not known is of severity %s", s)
	}
	if !slices.IsSortedFunc([]Severity{Error, Warning, Info, OK}, CompareSeverity) {
		t.Error("the order is another one")
	}
}
