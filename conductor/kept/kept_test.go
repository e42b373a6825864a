package kept

import (
	"slices"
	"testing"
)

// A log returns each part that changed since a revision once, in the order of the last changes, as long as it remembers.
func TestLog(t *testing.T) {
	var l Log[int]
	f := func(since uint64, want []int, ok bool) {
		t.Helper()
		if got, known := l.Since(since); !slices.Equal(got, want) || known != ok {
			t.Errorf("since %d: %v, %t, want %v, %t", since, got, known, want, ok)
		}
	}
	f(0, nil, true)
	for _, part := range []int{1, 2, 1, 3} {
		l.Note(part)
	}
	f(0, []int{2, 1, 3}, true)
	f(2, []int{1, 3}, true)
	f(4, nil, true)
	f(5, nil, false) // of another log
	for range 3 * remembered {
		l.Note(4)
	}
	f(0, nil, false)
	f(l.Revision()-1, []int{4}, true)
	f(l.Revision()-remembered, []int{4}, true)
	if n := len(l.last); n > 2*remembered {
		t.Errorf("it remembers %d changes", n)
	}
}
