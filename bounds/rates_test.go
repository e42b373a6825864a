package bounds

import (
	"errors"
	"fmt"
	"testing"
	"time"
)

// TestRatesForgetKeys holds that Rates remembers a bounded number of keys.
func TestRatesForgetKeys(t *testing.T) {
	r, now := NewRates(1, 1), time.Now()
	for i := range 3 * maxKeys {
		r.Spend(fmt.Sprint(i), 1, now)
	}
	if len(r.byKey) > maxKeys {
		t.Errorf("%d keys", len(r.byKey))
	}
}

// TestRatesByKey spends the burst of a key, and what comes back with time.
func TestRatesByKey(t *testing.T) {
	r, now := NewRates(2, 3), time.Now()
	f := func(key string, n int, at time.Duration, want error) {
		t.Helper()
		if err := r.Spend(key, n, now.Add(at)); err != want {
			t.Errorf("%s spends %d after %s: %v, want %v", key, n, at, err, want)
		}
	}
	f("a", 2, 0, nil)
	f("a", 2, 0, ErrShare)
	f("b", 9, 0, nil) // the burst at most
	f("a", 2, 500*time.Millisecond, nil)
	r.Charge("a", 3, now.Add(500*time.Millisecond))
	if err := r.Check("a", now.Add(time.Second)); !errors.Is(err, ErrFull) {
		t.Errorf("a may spend while it owes: %v", err)
	}
	f("a", 1, 3*time.Second, nil)
	var none *Rates
	if err := none.Spend("a", 1, now); err != nil {
		t.Error(err)
	}
}

// TestBytesAreShared holds that a flow has no more than is left for the others.
func TestBytesAreShared(t *testing.T) {
	b := NewBytes(90)
	f := func(flow string, n int64, want error) {
		t.Helper()
		if err := b.Reserve(flow, n); err != want {
			t.Errorf("%s reserves %d: %v, want %v", flow, n, err, want)
		}
	}
	f("a", 46, ErrFull)
	f("a", 30, nil)
	f("b", 30, nil)
	f("b", 1, ErrFull)
	b.Release("a", 30)
	f("b", 1, nil)
	b.SetMost(0)
	f("b", 1000, nil)
	if got, want := b.Stats(), (BytesStats{Used: 1031, Refused: 2}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}
