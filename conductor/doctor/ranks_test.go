package doctor

import (
	"testing"
	"time"
)

func TestListRanks(t *testing.T) {
	f := func(want string, ranks ...int) {
		t.Helper()
		if got := listRanks(ranks); got != want {
			t.Errorf("%v: %q, want %q", ranks, got, want)
		}
	}
	f("ranks 3", 3)
	f("ranks 0 and 1", 0, 1)
	f("ranks 0, 1 and 3", 0, 1, 3)
	f("ranks 0 to 2", 0, 1, 2)
	f("ranks 0 to 3 and 7", 0, 1, 2, 3, 7)
	f("ranks 0, 2, 4, 6, 8, 10, 12, 14 and 16 to 18", 0, 2, 4, 6, 8, 10, 12, 14, 16, 17, 18)
	f("ranks 0, 2, 4, 6, 8, 10, 12, 14 and others", 0, 2, 4, 6, 8, 10, 12, 14, 16, 18)
}

// TestRanksAreBounded requires that a publisher which makes ranks up costs bounded memory.
func TestRanksAreBounded(t *testing.T) {
	r := NewRanks("a|default|0", 0, &New(Registered{}, time.Now).Findings)
	for rank := range 2 * maxRanks {
		r.Add(rank)
	}
	if n := len(r.Named()); n != maxRanks {
		t.Errorf("%d ranks are remembered, want %d", n, maxRanks)
	}
}
