package scripttest

import (
	"os"
	"path/filepath"
	"testing"

	"example.com/conductor/internal/must"
)

// TestScriptIsPrintedAsRead holds that a script is printed as it was read.
func TestScriptIsPrintedAsRead(t *testing.T) {
	const text = `# What it is about.

only ours eventually query P blocks=3
line
---- ours
a
---- theirs

exits key=value
----
rc 1
`
	file := filepath.Join(t.TempDir(), "x")
	must.Succeed(t, os.WriteFile(file, []byte(text), 0o600))
	steps, comments := Parse(t, file, "exits")
	if got := Print(steps, comments); got != text {
		t.Errorf("printed %q", got)
	}
	q, x := steps[0], steps[1]
	if !q.Eventually || q.Only != "ours" || q.Name != "query" || !q.Has("P") || q.Keys["blocks"] != "3" || q.Line != 3 ||
		len(x.Keys) != 0 || !x.Has("key=value") {
		t.Errorf("%+v", steps)
	}
	for kind, want := range map[string]int{"ours": 1, "theirs": 0} {
		if lines := q.Expected(kind); lines == nil || len(*lines) != want {
			t.Errorf("%s: %v", kind, lines)
		}
	}
	if q.Expected("others") != nil {
		t.Error("an expectation for others")
	}
}
