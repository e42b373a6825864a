package spelling

import (
	"fmt"
	"strings"
	"testing"
)

// between returns what stands before alternative i of n.
func between(i, n int) string {
	switch i {
	case 0:
		return "; did you mean "
	case n - 1:
		return " or "
	}
	return ", "
}

func TestDidYouMean(t *testing.T) {
	known := []string{"level", "format", "modelname", "dp_rank", "replace", "replay-endpoint", "replay-port", "block_size",
		"store_url", "store_name", "store_key", "pool-a", "pool-b", "pool-c", "pool-d", "pole"}
	f := func(word string, meant ...string) {
		t.Helper()
		want := ""
		for i, m := range meant {
			want += between(i, len(meant)) + fmt.Sprintf("%q", m)
		}
		if want != "" {
			want += "?"
		}
		if got := DidYouMean(word, known); got != want {
			t.Errorf("%q: %q, want %q", word, got, want)
		}
	}
	f("levle", "level")
	f("LEVEL", "level")
	f("lvl")
	f("fromat", "format")
	f("model", "modelname")
	f("rank", "dp_rank")
	f("replay", "replay-endpoint", "replay-port")
	f("store", "store_url", "store_name", "store_key")
	f("pool") // too many to name, and pole is not meant
	f("replac", "replace")
	f("Block", "block_size")
	f("x")
	f("")
	f(strings.Repeat("level", 100))
	if got := Closest("replay", known); got != "" {
		t.Errorf("the closest to one of two is %s", got)
	}
}
