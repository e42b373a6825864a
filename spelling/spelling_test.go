package spelling

import "testing"

func TestClosest(t *testing.T) {
	f := func(word, want string, known ...string) {
		t.Helper()
		if got := Closest(word, known); got != want {
			t.Errorf("%s: %q, want %q of %q", word, got, want, known)
		}
	}
	f("replay", "replay-endpoint", "replace", "replay-endpoint", "replay-port")
	f("Block", "block_size", "lock", "block_size")
	f("replac", "replace", "replace", "replay-endpoint")
	f("nothing", "", "replace", "replay-port")
}
