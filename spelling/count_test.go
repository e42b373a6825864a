package spelling

import "testing"

func TestCount(t *testing.T) {
	f := func(n int, noun, want, verb string) {
		t.Helper()
		if got := Count(n, noun); got != want || Agree(n, "is", "are") != verb {
			t.Errorf("%q %s, want %q %s", got, Agree(n, "is", "are"), want, verb)
		}
	}
	f(0, "source", "0 sources", "are")
	f(1, "source", "1 source", "is")
	f(2, "source", "2 sources", "are")
	f(1, "batch", "1 batch", "is")
	f(3, "batch", "3 batches", "are")
	f(2, "block membership", "2 block memberships", "are")
	f(2, "entry", "2 entries", "are")
	f(2, "key", "2 keys", "are")
	f(2, "prefix", "2 prefixes", "are")
}
