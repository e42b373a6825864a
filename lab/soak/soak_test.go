package soak

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"example.com/conductor/conductor/registration"
	"example.com/conductor/events/payload"
	"example.com/conductor/internal/must"
)

// TestSoakPasses plays a few rounds of a small fleet.
func TestSoakPasses(t *testing.T) {
	k := Soak{Rounds: 8, Readers: 2, Prompts: 30, Margin: 16 << 20, Progress: t.Output()}
	if payload.PoisonsReleased { // the race detector multiplies the time, and readers take it from the sources
		k.Rounds, k.Readers = 2, 1
	}
	res, err := k.Run()
	must.Succeed(t, err)
	t.Log(res)
	for kind, n := range res.Events {
		if n == 0 {
			t.Errorf("the fleet had no %s", kindNames[kind])
		}
	}
	if res.Asked == 0 || res.Exact != int64(k.Rounds*k.Prompts) || res.Held == 0 {
		t.Errorf("too little was judged: %+v", res)
	}
}

// TestSoakNotices holds that a soak fails where the truth and the Conductor differ.
func TestSoakNotices(t *testing.T) {
	check := func(want string, spoil func(teacher *source, h *holder, first int32)) {
		t.Helper()
		k := Soak{Seed: 1, Prompts: 5, Progress: t.Output()}
		err := k.open()
		defer k.conductor.Close()
		must.Succeed(t, err)
		must.Succeed(t, k.turn())
		s := k.sources[slices.IndexFunc(k.sources, func(s *source) bool { return s.reg.Instance == "teacher-1" })]
		s.event++
		s.begun.Store(int64(s.event))
		spoil(s, s.holders[device], k.prompts[0].path[0])
		s.floor.Store(int64(s.event))
		if err := k.compare(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one about %q", err, want)
		}
	}
	check("want 0 to 0", func(s *source, h *holder, first int32) { s.set(h, first, absent) })
	check("CPU is", func(s *source, _ *holder, first int32) { s.set(s.holders[host], first, sure) })
	check("want 267 blocks", func(s *source, h *holder, _ int32) { h.now[anchor] = sure })
	check("the answer has no row of", func(s *source, _ *holder, _ int32) {
		if _, err := s.conductor.Unregister(s.reg.Key()); err != nil {
			t.Fatal(err)
		}
	})
}

// TestSoakNoticesErrors holds that a soak fails once the Conductor has logged an error.
func TestSoakNoticesErrors(t *testing.T) {
	k := Soak{Seed: 1, Prompts: 5, Progress: t.Output()}
	err := k.open()
	defer k.conductor.Close()
	must.Succeed(t, err)
	fmt.Fprint(&k.logged, "event application failed")
	fmt.Fprint(&k.logged, "source has stopped")
	if err := k.turn(); err == nil || !strings.Contains(err.Error(), "event application failed") {
		t.Errorf("error %v, want the first one that was logged", err)
	}
}

// TestBoundsOfWindow holds the truth of a window: something was true all the time, something
// at some moment.
func TestBoundsOfWindow(t *testing.T) {
	k := Soak{nodes: make([]node, 1)}
	s := k.join(1, registration.Registration{}, device, host)
	s.teacher = &source{taught: []int32{7}}
	check := func(h *holder, w window, least, most, somewhere bool) {
		t.Helper()
		l, m := s.bounds(h, 0, &w)
		if some := s.somewhere(0, &w); l != least || m != most || some != somewhere {
			t.Errorf("window %+v: %t and %t, on some tier %t", w, l, m, some)
		}
	}
	d, h := s.holders[0], s.holders[1]
	// The block is on the device from event 2 to 4, and in host memory from event 4 on.
	for s.event = 1; s.event < 6; s.event++ {
		switch s.event {
		case 2:
			s.set(d, 0, sure)
		case 4:
			s.set(h, 0, named)
			s.set(d, 0, absent)
		}
	}
	check(d, window{first: 1, last: 1}, false, false, false)
	check(d, window{first: 1, last: 2}, false, true, false)
	check(d, window{first: 2, last: 3}, true, true, true)
	check(d, window{first: 2, last: 4}, false, true, false)
	check(d, window{first: 2, last: 4, taught: 7}, false, true, true)
	check(h, window{first: 4, last: 5}, false, true, false)
	check(h, window{first: 4, last: 5, taught: 7}, true, true, true)
	check(d, window{first: 4, last: 5, taught: 7}, false, false, true)
}
