package steady

import (
	"testing"
	"time"

	"example.com/conductor/internal/clocktest"
)

// Moments are apart by the time that has passed, whatever the wall clock says meanwhile, and are shown by the clock as it is.
func TestMomentsWhenTheClockIsSet(t *testing.T) {
	clocktest.Within(t, func(set func(time.Duration)) {
		first := Nanos(time.Now())
		for _, ahead := range []time.Duration{24 * time.Hour, -24 * time.Hour, 0} {
			set(ahead)
			now := time.Now()
			if age := time.Duration(Nanos(now) - first); age < 0 || age > time.Hour {
				t.Errorf("%v ahead: %v have passed", ahead, age)
			}
			if age := now.Round(0).Sub(Time(first, now).Round(0)); age < 0 || age > time.Hour {
				t.Errorf("%v ahead: it shows what was %v ago", ahead, age)
			}
		}
	})
}

// A time without a monotonic reading is its own number.
func TestMomentsOfTests(t *testing.T) {
	at := time.Unix(1e9, 7)
	if n := Nanos(at); n != at.UnixNano() || Seconds(at) != 1e9 {
		t.Errorf("%d is not %d", n, at.UnixNano())
	}
	if back := Time(at.UnixNano(), time.Unix(2e9, 0)); !back.Equal(at) {
		t.Error(back)
	}
}
