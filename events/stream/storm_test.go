package stream

import (
	"fmt"
	"strings"
	"testing"

	"example.com/conductor/events"
)

// interleaved are batches of two publishers that take turns, n of each. Their payloads differ.
func interleaved(n int) string {
	var ops []string
	for i := range n {
		ops = append(ops, fmt.Sprintf("%dx", 100+i), fmt.Sprintf("%dy", 50+i))
	}
	return strings.Join(ops, " ")
}

// TestRestartStorm: two publishers behind one forwarder are no restarts. Until one has spoken alone
// for a while, or the connection is another one, nothing of them is handed out.
func TestRestartStorm(t *testing.T) {
	for _, cfg := range []machineConfig{{}, replaying} {
		r := newRig(cfg)
		r.script("up " + interleaved(200))
		if state, reason := stateOf(r.m); state != Partial || reason != ReasonStorm || historyReasonOf(r.m) != ReasonStorm {
			t.Fatalf("replay %v: two publishers on one connection make it %s, %s", cfg.canReplay, state, reason)
		}
		if n := r.m.counts.dropped[events.Storm]; n < 150 || r.m.counts.restarts > 10 {
			t.Errorf("replay %v: %d batches were dropped, %d restarts seen", cfg.canReplay, n, r.m.counts.restarts)
		}
		if out := r.script(interleaved(300)[len(interleaved(200)):]); strings.ContainsAny(out, "0123456789") {
			t.Errorf("replay %v: in the storm it does %s", cfg.canReplay, out)
		}
		alone := func(from, to int) (ops string) {
			for i := from; i < to; i++ {
				ops += fmt.Sprintf("%dy ", i)
			}
			return ops
		}
		r.script(alone(350, 365) + "29s 365y")
		if _, reason := stateOf(r.m); reason != ReasonStorm {
			t.Errorf("replay %v: it ends early, %q", cfg.canReplay, reason)
		}
		if out := r.script("2s 366y"); r.m.storm.active {
			t.Errorf("replay %v: one publisher alone does not end it: %s", cfg.canReplay, out)
		}
		r.script("367y 400x 368y 401x 369y 402x")
		if !r.m.storm.active {
			t.Errorf("replay %v: the other comes back, and no storm begins", cfg.canReplay)
		}
		r.script("down up")
		if r.m.storm.active {
			t.Errorf("replay %v: another connection begins in the storm", cfg.canReplay)
		}
	}
}

// TestStormOfTwins: two publishers that were started together and count alike.
func TestStormOfTwins(t *testing.T) {
	var ops strings.Builder
	for i := range 20 {
		fmt.Fprintf(&ops, "%dx %dy ", i, i)
	}
	if r := newRig(machineConfig{}); !strings.HasSuffix(r.script("up "+ops.String()), "=partial:restart_storm") {
		t.Errorf("two publishers that count alike are none: %s", strings.Join(r.out, " "))
	}
}

// TestNoStorm: restarts, losses and repeated batches of one publisher are none, however many.
func TestNoStorm(t *testing.T) {
	var restarts, losses, repeats strings.Builder
	for life := range 30 {
		for seq := range 5 + life {
			fmt.Fprintf(&restarts, "%d%c ", seq, "xyz"[life%3])
		}
	}
	for i := range 200 {
		fmt.Fprintf(&losses, "%d ", i*i)
	}
	for life := range 3 {
		for seq := range 100 {
			fmt.Fprintf(&repeats, "%d%c ", seq, "xyz"[life])
			if seq > 30 && seq%5 == 0 {
				fmt.Fprintf(&repeats, "%d%c ", seq-20, "xyz"[life])
			}
		}
	}
	for _, cfg := range []machineConfig{{}, replaying} {
		for _, ops := range []string{restarts.String(), losses.String(), repeats.String()} {
			r := newRig(cfg)
			if r.script("up " + ops); r.m.storm.active {
				t.Errorf("replay %v: one publisher is taken for several: %.40s", cfg.canReplay, ops)
			}
		}
	}
}
