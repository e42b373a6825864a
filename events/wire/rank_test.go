package wire

import "testing"

func TestRankOfBatch(t *testing.T) {
	f := func(batch any, want int, ok bool) {
		t.Helper()
		p := pack(t, batch)
		got, named := RankOf(p)
		if got != want && ok || named != ok {
			t.Errorf("%v: got %d, %v", batch, got, named)
		}
		for i := range p { // truncated: never a panic
			RankOf(p[:i])
		}
	}
	f(arr{1.5, arr{bigStore(3)}, 7}, 7, true)
	f(arr{1.5, arr{}, 0}, 0, true)
	f(arr{1.5, arr{bigStore(1)}, 300, "later"}, 300, true)
	f(arr{1.5, arr{}, nil}, 0, false)
	f(arr{1.5, arr{}}, 0, false)
	f(arr{1.5, arr{}, -1}, 0, false)
	f(arr{1.5, arr{}, "1"}, 0, false)
	f(obj{"ts", 1.5, "events", arr{bigStore(2)}, "data_parallel_rank", 4}, 4, true)
	f(obj{"ts", 1.5, "events", arr{}}, 0, false)
	f("no batch", 0, false)
}
