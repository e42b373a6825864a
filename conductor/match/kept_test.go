package match

import (
	"strings"
	"testing"
)

// TestKeptNamesCount holds that a query's names, which clients choose, count as memory.
func TestKeptNamesCount(t *testing.T) {
	text := strings.Repeat("x", 1000)
	for _, q := range []Query{{Salt: text}, {Lora: text}, {Model: text}, {Tenant: text}} {
		a := keptAnswer{query: q, chains: []keptChain{{0, make([]uint64, 10)}, {1, make([]uint64, 10)}}}
		if got := a.size(); got != 1160 {
			t.Errorf("an answer with 1,000 bytes of a name and twice 10 hashes takes %d bytes", got)
		}
	}
}
