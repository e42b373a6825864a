// Package must fails tests at errors they do not expect.
package must

import (
	"os"
	"testing"
)

// T is a test, a benchmark or a random case of a test.
type T interface {
	Helper()
	Error(args ...any)
	Fatal(args ...any)
}

// Succeed ends t unless err is nil.
func Succeed(t T, err error) {
	if err != nil {
		t.Helper()
		t.Fatal(err)
	}
}

// Report fails t unless err is nil, and lets it go on.
func Report(t T, err error) {
	if err != nil {
		t.Helper()
		t.Error(err)
	}
}

// Skip skips t because a peer is missing. It ends t if REQUIRE_INTEROP is 1.
func Skip(t testing.TB, missing string) {
	t.Helper()
	if os.Getenv("REQUIRE_INTEROP") == "1" {
		t.Fatal(missing)
	}
	t.Skip(missing)
}
