package spelling

import (
	"strings"
	"testing"
)

func TestDidYouMean(t *testing.T) {
	known := []string{"level", "format", "modelname", "dp_rank", "replace", "replay-endpoint", "replay-port", "block_size"}
	f := func(word, want string) {
		t.Helper()
		if want != "" {
			want = "; did you mean \"" + want + "\"?"
		}
		if got := DidYouMean(word, known); got != want {
			t.Errorf("%q: %q, want %q", word, got, want)
		}
	}
	f("levle", "level")
	f("LEVEL", "level")
	f("lvl", "")
	f("fromat", "format")
	f("model", "modelname")
	f("rank", "dp_rank")
	f("replay", "replay-endpoint")
	f("replac", "replace")
	f("Block", "block_size")
	f("x", "")
	f("", "")
	f(strings.Repeat("level", 100), "")
}
