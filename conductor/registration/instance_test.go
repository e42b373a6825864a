package registration

import "testing"

func TestIsInstanceOf(t *testing.T) {
	f := func(instance, name string, want bool) {
		t.Helper()
		if IsInstanceOf(instance, name) != want {
			t.Errorf("%q of %q: %t", instance, name, !want)
		}
	}
	f("e", "e", true)
	f("e@10.0.0.1", "e", true)
	f("e@fd00::1", "e", true)
	f("e@fe80::1%eth0", "e", true)
	f("e@f@10.0.0.1", "e@f", true)
	f("e@f@10.0.0.1", "e", false)
	f("e@node-1", "e", false)
	f("e@10.0.0.1:80", "e", false)
	f("e@", "e", false)
	f("e2", "e", false)
	f("e210.0.0.1", "e", false)
	f("", "e", false)
}
