package memory

import (
	"bytes"
	"errors"
	"math"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/KimMachineGun/automemlimit/memlimit"
	"github.com/rs/zerolog"

	"example.com/conductor/conductor/meter"
	"example.com/conductor/events/payload"
)

// fake is a system that is what the test says.
type fake struct {
	vars      map[string]string
	limit     uint64
	machine   uint64 // 0 is one that does not tell
	failure   error
	out       int64
	state     runtimeState
	discarded int64
	byEnv     int64 // limit of the runtime, 0 for none

	limits   []int64
	percents []int
	gives    int
}

func (f *fake) keeper(log *bytes.Buffer) *keeper {
	return &keeper{log: zerolog.New(log), system: system{
		env:    func(name string) string { return f.vars[name] },
		cgroup: func() (uint64, error) { return f.limit, f.failure },
		machine: func() (uint64, error) {
			if f.machine == 0 {
				return 0, memlimit.ErrNoLimit
			}
			return f.machine, nil
		},
		outside:   func() int64 { return f.out },
		runtime:   func() runtimeState { return f.state },
		discarded: func() (int64, <-chan struct{}) { return f.discarded, nil },
		limit: func() int64 {
			if f.byEnv == 0 {
				return math.MaxInt64
			}
			return f.byEnv
		},
		setLimit:   func(n int64) { f.limits = append(f.limits, n) },
		setPercent: func(n int) { f.percents = append(f.percents, n) },
		give: func() {
			f.gives++
			f.state.cycles++
			f.state.objects, f.state.free = f.state.live-f.discarded, 0
			f.state.live = f.state.objects
		},
	}}
}

const mb = 1 << 20

// The limit of the cgroup, less what lies outside the runtime and a twentieth, is the
// limit of the runtime; it follows what lies outside.
func TestLimitOfCgroup(t *testing.T) {
	f := &fake{limit: 1000 * mb, out: 100 * mb, state: runtimeState{live: 40 * mb, objects: 40 * mb}}
	var log bytes.Buffer
	k := f.keeper(&log)
	k.begin()
	if len(f.limits) != 1 || f.limits[0] != 850*mb {
		t.Fatalf("limits are %d, want 850 MB", f.limits)
	}
	if !strings.Contains(log.String(), `"limit":891289600`) || !strings.Contains(log.String(), `"from":"cgroup"`) {
		t.Errorf("the log says %s", log.String())
	}
	f.out = 110 * mb
	if k.look(); len(f.limits) != 1 {
		t.Errorf("the limit is set again for a hundredth: %d", f.limits)
	}
	f.out = 400 * mb // the index has grown
	if k.look(); len(f.limits) != 2 || f.limits[1] != 550*mb {
		t.Errorf("limits are %d, want 550 MB", f.limits)
	}
	f.out = 200 * mb
	if k.look(); len(f.limits) != 3 || f.limits[2] != 750*mb {
		t.Errorf("limits are %d, want 750 MB", f.limits)
	}
	f.out = 999 * mb
	if k.look(); f.limits[len(f.limits)-1] != least {
		t.Errorf("limits are %d, the least is %d", f.limits, least)
	}
}

// Without a limit or with GOMEMLIMIT none is set.
func TestNoLimit(t *testing.T) {
	check := func(f *fake, want string) {
		t.Helper()
		var log bytes.Buffer
		k := f.keeper(&log)
		k.begin()
		k.look()
		if len(f.limits) > 0 {
			t.Errorf("limits are %d", f.limits)
		}
		if got := log.String(); !strings.Contains(got, want) {
			t.Errorf("the log says %q, want %q", got, want)
		}
	}
	check(&fake{failure: memlimit.ErrNoLimit}, `"message":"no memory limit"`)
	check(&fake{failure: memlimit.ErrNoCgroup}, `"message":"no memory limit"`)
	check(&fake{failure: errors.New("torn mounts")}, `"level":"warn","error":"torn mounts"`)
	check(&fake{limit: 1000 * mb, vars: map[string]string{"GOMEMLIMIT": "512MiB"}}, `"limit":"512MiB","from":"GOMEMLIMIT"`)
}

// The available memory is the limit of the cgroup, and the machine's memory where there is none, or a larger one.
func TestAvailable(t *testing.T) {
	check := func(f *fake, want int64, wantFrom string) {
		t.Helper()
		if got, from := f.keeper(new(bytes.Buffer)).system.available(); got != want || from != wantFrom {
			t.Errorf("%d MB are available from %q, want %d from %q", got/mb, from, want/mb, wantFrom)
		}
	}
	check(&fake{limit: 256 * mb, machine: 1000 * mb}, 256*mb, "cgroup")
	check(&fake{limit: 256 * mb}, 256*mb, "cgroup")
	check(&fake{limit: 2000 * mb, machine: 1000 * mb}, 1000*mb, "machine")
	check(&fake{limit: 1<<63 - 4096, machine: 1000 * mb}, 1000*mb, "machine")
	check(&fake{failure: memlimit.ErrNoLimit, machine: 1000 * mb}, 1000*mb, "machine")
	check(&fake{failure: memlimit.ErrNoCgroup, machine: 1000 * mb}, 1000*mb, "machine")
	check(&fake{failure: errors.New("torn mounts"), machine: 1000 * mb}, 1000*mb, "machine")
	check(&fake{failure: memlimit.ErrNoLimit}, 0, "")
}

// Waiting batches have at most a quarter of the available memory.
func TestBoundOfCgroup(t *testing.T) {
	check := func(f *fake, want int64) {
		t.Helper()
		if got := f.keeper(new(bytes.Buffer)).system.bound(256 * mb); got != want {
			t.Errorf("the bound is %d, want %d", got, want)
		}
	}
	check(&fake{limit: 256 * mb}, 64*mb)
	check(&fake{limit: 4096 * mb}, 256*mb)
	check(&fake{failure: memlimit.ErrNoLimit, machine: 512 * mb}, 128*mb)
	check(&fake{failure: memlimit.ErrNoLimit}, 256*mb)
}

// A small heap has 8 MiB to grow, a large one a quarter of itself; GOGC stands.
func TestHeadroomOfHeap(t *testing.T) {
	f := &fake{failure: memlimit.ErrNoLimit}
	k := f.keeper(new(bytes.Buffer))
	at := func(live int64, want int) {
		t.Helper()
		f.state.live, f.state.objects = live, live
		k.look()
		if got := f.percents[len(f.percents)-1]; got != want {
			t.Errorf("GOGC of %d MB is %d, want %d", live/mb, got, want)
		}
	}
	at(mb, 200) // the runtime collects no heap below 4 MiB * GOGC/100
	at(8*mb, 100)
	at(16*mb, 50)
	at(400*mb, 25)
	n := len(f.percents)
	at(410*mb, 25)
	if len(f.percents) != n {
		t.Error("GOGC is set again to what it is")
	}
	f = &fake{vars: map[string]string{"GOGC": "100"}, failure: memlimit.ErrNoLimit}
	if f.keeper(new(bytes.Buffer)).look(); len(f.percents) > 0 {
		t.Errorf("GOGC is set to %d although it was set from outside", f.percents)
	}
}

// Under a load that lasts, the heap may grow by what a second allocates, up to 16 MiB or an eighth of the limit.
func TestHeadroomOfRate(t *testing.T) {
	check := func(f *fake, allocated int64, seconds int, want int64) *keeper {
		t.Helper()
		f.state.live, f.state.objects = 20*mb, 20*mb
		k := f.keeper(new(bytes.Buffer))
		k.begin()
		for range seconds {
			f.state.allocated += allocated
			k.tick()
		}
		if got := k.room(20 * mb); got != want*mb {
			t.Errorf("after %d MB a second for %d s the heap may grow by %d MB, want %d", allocated/mb, seconds, got/mb, want)
		}
		if got, want := f.percents[len(f.percents)-1], int(100*want/20); got*10 < want*9 || got*10 > want*11 {
			t.Errorf("GOGC is %d, want %d", got, want)
		}
		return k
	}
	none := memlimit.ErrNoLimit
	check(&fake{failure: none, state: runtimeState{allocated: 900 * mb}}, 4*mb, 20, 8) // what the start allocated does not count
	check(&fake{failure: none}, 12*mb, 20, 12)
	check(&fake{failure: none}, 500*mb, 2, 8) // a burst
	check(&fake{failure: none}, 500*mb, 6, 12)
	check(&fake{limit: 120 * mb, out: 18 * mb}, 500*mb, 20, 12)
	check(&fake{limit: 64 * mb, out: 60 * mb}, 500*mb, 20, 8)
	check(&fake{failure: none, byEnv: 96 * mb, vars: map[string]string{"GOMEMLIMIT": "96MiB"}}, 500*mb, 20, 12)
	f := &fake{failure: none}
	k := check(f, 500*mb, 20, 16)
	if k.tick(); k.room(20*mb) != 14*mb { // it may have been a late tick
		t.Errorf("after a second without allocations the heap may grow by %d MB, want 14", k.room(20*mb)/mb)
	}
	for range 3 {
		k.tick()
	}
	if k.room(20*mb) != 8*mb || f.percents[len(f.percents)-1] != 40 {
		t.Errorf("after four seconds without allocations the heap may grow by %d MB, GOGC is %d", k.room(20*mb)/mb,
			f.percents[len(f.percents)-1])
	}
}

// The keeper leaves young garbage to the runtime, however much GOGC allows, and gives memory back where much is free.
func TestYoungGarbageStays(t *testing.T) {
	f := &fake{failure: memlimit.ErrNoLimit, vars: map[string]string{"GOGC": "1600"}}
	k := f.keeper(new(bytes.Buffer))
	f.state = runtimeState{live: 40 * mb, objects: 600 * mb, free: 10 * mb}
	for range 2 * quiet {
		f.state.cycles++
		k.tick()
	}
	if f.gives > 0 {
		t.Error("the keeper collects what GOGC lets grow")
	}
	f.state.free = 20 * mb
	if k.tick(); f.gives != 1 {
		t.Errorf("much free memory is given back %d times, want 1", f.gives)
	}
}

// Garbage goes back when a flood is over, or when nothing was collected for a while, and
// is not looked for again and again.
func TestGarbageGoesBack(t *testing.T) {
	f := &fake{failure: memlimit.ErrNoLimit, state: runtimeState{live: 40 * mb, objects: 48 * mb}}
	k := f.keeper(new(bytes.Buffer))
	ticks := func(n int) {
		for range n {
			k.tick()
		}
	}
	ticks(quiet - 1)
	if f.gives > 0 {
		t.Error("garbage is given back while it is little and young")
	}
	ticks(1)
	if f.gives != 1 {
		t.Errorf("garbage is given back %d times when it is old, want 1", f.gives)
	}
	ticks(10 * quiet)
	if f.gives != 1 {
		t.Errorf("garbage is given back %d times while there is none", f.gives-1)
	}
	f.state.live, f.state.objects = 240*mb, 240*mb // a flood, all of it found reachable
	f.state.cycles++
	if ticks(1); f.gives != 1 {
		t.Error("payloads are given back while they wait")
	}
	f.discarded = 200 * mb // it is applied
	if ticks(1); f.gives != 2 {
		t.Errorf("after a flood garbage is given back %d times, want 1", f.gives-1)
	}
}

// The parts of this process add up to its resident memory, and contain known sizes.
func TestAccountOfThisProcess(t *testing.T) {
	held := make([]byte, 64*mb)
	for i := 0; i < len(held); i += 4096 {
		held[i] = 1
	}
	all, _ := resident()
	if all == 0 {
		t.Skip("this system does not tell resident memory")
	}
	parts, sum := map[string]int64{}, int64(0)
	for _, p := range Account([]meter.MemoryPart{{Name: "held", Bytes: 64 * mb}, {Name: "mapped", Bytes: 5 * mb, OffHeap: 5 * mb}}) {
		parts[p.Name] += p.Bytes
		sum += p.Bytes
	}
	if parts["held"] != 64*mb || parts["mapped"] != 5*mb || parts["binary"] == 0 || parts["stacks"] == 0 || parts["runtime"] == 0 {
		t.Errorf("parts are %v", parts)
	}
	if r := readRuntime(); r.mapped <= 0 || r.metadata <= 0 || r.objects < 64*mb {
		t.Errorf("the runtime says %+v", r)
	}
	if sum < all*8/10 && !payload.PoisonsReleased { // memory of the race detector is no part
		t.Errorf("parts are %d of %d bytes: %v", sum, all, parts)
	}
	_ = held[0]
}

// The keeper restores GOGC at its end.
func TestKeepEnds(t *testing.T) {
	before := debug.SetGCPercent(77)
	defer debug.SetGCPercent(before)
	Keep(zerolog.Nop())()
	if got := debug.SetGCPercent(77); got != 77 {
		t.Errorf("GOGC is %d, it was 77", got)
	}
}
