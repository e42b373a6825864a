package main

import (
	"testing"
	"time"
)

// TestHeartbeat: three heartbeats are over within stale_after, as far as they may be that frequent.
func TestHeartbeat(t *testing.T) {
	f := func(staleAfter, want time.Duration) {
		t.Helper()
		if got := heartbeat(staleAfter); got != want {
			t.Errorf("heartbeats come every %v with stale_after %v, want %v", got, staleAfter, want)
		}
	}
	f(30*time.Second, 10*time.Second)
	f(15*time.Second, 5*time.Second)
	f(2*time.Second, time.Second)
	f(time.Millisecond, time.Second)
	f(time.Hour, 10*time.Second)
}
