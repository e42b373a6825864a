package harness

import (
	"os/exec"
	"testing"

	"example.com/conductor/internal/must"
)

// TestPinAndRelease holds that a process comes back to the processors it had.
func TestPinAndRelease(t *testing.T) {
	if _, err := exec.LookPath("taskset"); err != nil {
		t.Skip("no taskset")
	}
	before, first, _ := Allowed()
	if before == "" {
		t.Fatal("no processors")
	}
	f := func(pin, want string) {
		t.Helper()
		must.Succeed(t, Pin(pin))
		if got, _, _ := Allowed(); got != want {
			t.Errorf("pinned to %q: the process may use %q", pin, got)
		}
	}
	f(first, first)
	f(before, before)
	if Pin("x") == nil {
		t.Error("a list of no processors pins")
	}
}
