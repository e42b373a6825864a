package main

import (
	"strings"
	"testing"
)

// TestStatus holds that wrong flags end with 2, what breaks with 1, and that each says why.
func TestStatus(t *testing.T) {
	f := func(status int, said string, args ...string) {
		t.Helper()
		var out, errs strings.Builder
		if got := run(t.Context(), args, &out, &errs); got != status || !strings.Contains(errs.String(), said) {
			t.Errorf("%q ends with %d and %q, want %d and %q", args, got, &errs, status, said)
		}
	}
	f(0, "-no-bursts", "-h")
	f(2, "not defined", "--bad")
	f(2, `unexpected "x"`, "x")
	f(2, "missing closing", "--only", "(")
	f(1, "--conductor names no program", "--conductor", "no-such-program")
	f(1, "--wait", "--grid", "--wait", "1,x")
}
