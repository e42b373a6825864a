package memory

import (
	"context"
	"errors"
	"math"
	"os"
	"runtime/debug"
	"time"

	"github.com/KimMachineGun/automemlimit/memlimit"
	"github.com/rs/zerolog"

	"example.com/conductor/events/payload"
)

const (
	// tick is how often the keeper looks.
	tick = time.Second
	// headroom is the least that the heap may grow between two collections.
	headroom = 8 << 20
	// mostHeadroom bounds the headroom of a process that allocates fast. Queries at full speed allocate
	// some 30 MB/s.
	mostHeadroom = 16 << 20
	// fraction of the heap that is its headroom above that. Most of a large heap are tables
	// without pointers, which cost a collection next to nothing.
	fraction = 4
	// smallestHeap is the heap at which the runtime collects first, times GOGC/100.
	smallestHeap = 4 << 20
	// quiet is for how many ticks there was no collection when the keeper asks for one, if
	// the heap has grown by growth bytes since it last did.
	quiet  = 5
	growth = 2 << 20
	// reserve is the part of the cgroup's limit that stays free: memory outside the
	// heap grows between two ticks.
	reserve = 20
	// least is the smallest limit of the Go runtime. Below it the process would do nothing
	// but collect.
	least = 64 << 20
	// coarse is the part of the cgroup's limit by which the limit of the runtime has to be
	// wrong before it is set again, which stops the world.
	coarse = 64
	// rateStep is how far the rate of allocations moves in a second: a burst enlarges no heap, and a late tick
	// does not make one smaller.
	rateStep = mostHeadroom / 8
)

// keeper keeps the memory of the process in bounds:
//
//   - limit of the Go runtime = limit of the cgroup - memory outside the runtime - reserve,
//     followed while pieces of the index grow;
//   - headroom of the collector: what a second allocates, between 8 and 16 MiB, or a quarter of the heap. While the
//     collector marks, it takes a quarter of the processors and requests take a third longer, so queries queue up;
//   - garbage goes back to the system when the process has calmed down, or a flood is over. That holds a processor
//     for some milliseconds, so it must not happen under a steady load of queries.
//
// GOMEMLIMIT and GOGC, where they are set, stand.
type keeper struct {
	log    zerolog.Logger
	system system

	cgroup  int64 // limit of the cgroup, 0 for none
	limit   int64 // of the Go runtime, 0 for none
	percent int   // set last
	rate    int64 // bytes that a second allocates, up to mostHeadroom; moves by rateStep a tick at most
	total   int64 // bytes allocated up to the last tick
	cycles  uint64
	calm    int   // ticks without a collection
	seen    int64 // discarded at the last look
	gone    int64 // discarded at the last collection, or before
	settled int64 // bytes of the heap after the keeper's last collection
}

// system is what the keeper looks at and changes; tests replace it.
type system struct {
	env        func(string) string
	cgroup     func() (uint64, error)
	machine    func() (uint64, error) // memory of the machine
	outside    func() int64           // resident memory outside the Go runtime
	runtime    func() runtimeState
	discarded  func() (bytes int64, more <-chan struct{}) // garbage that still counts as live, so far
	limit      func() int64                               // of the Go runtime, math.MaxInt64 for none
	setLimit   func(int64)
	setPercent func(int)
	give       func() // collects, and gives free memory back
}

func real() system {
	return system{
		env: os.Getenv, cgroup: memlimit.FromCgroup, machine: memlimit.FromSystem, runtime: readRuntime, discarded: payload.DiscardedBytes,
		outside: func() int64 {
			all, _ := resident()
			return max(0, all-readRuntime().mapped)
		},
		limit:      func() int64 { return debug.SetMemoryLimit(-1) },
		setLimit:   func(n int64) { debug.SetMemoryLimit(n) },
		setPercent: func(n int) { debug.SetGCPercent(n) },
		give: func() {
			payload.TrimPools()
			debug.FreeOSMemory()
		},
	}
}

// Keep keeps the memory of the process in bounds until the function it returns is called.
func Keep(log zerolog.Logger) (end func()) {
	k := &keeper{log: log, system: real()}
	limit, percent := debug.SetMemoryLimit(-1), debug.SetGCPercent(100)
	debug.SetGCPercent(percent)
	k.begin()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		k.run(ctx)
	}()
	return func() {
		cancel()
		<-ended
		debug.SetMemoryLimit(limit)
		debug.SetGCPercent(percent)
	}
}

// run looks until ctx ends.
func (k *keeper) run(ctx context.Context) {
	t := time.NewTicker(tick)
	defer t.Stop()
	_, flood := k.system.discarded()
	for {
		select {
		case <-t.C:
			k.tick()
		case <-flood:
			k.look()
		case <-ctx.Done():
			return
		}
	}
}

// begin finds the limit and says what it is.
func (k *keeper) begin() {
	if text := k.system.env("GOMEMLIMIT"); text != "" {
		if n := k.system.limit(); n < math.MaxInt64 {
			k.limit = n
		}
		k.log.Info().Str("limit", text).Str("from", "GOMEMLIMIT").Msg("memory limit of the Go runtime")
	} else {
		k.find()
	}
	k.total = k.system.runtime().allocated
	k.look()
}

// find takes the limit of the cgroup.
func (k *keeper) find() {
	n, err := k.system.cgroup()
	switch {
	case errors.Is(err, memlimit.ErrNoLimit), errors.Is(err, memlimit.ErrNoCgroup), errors.Is(err, memlimit.ErrCgroupsNotSupported):
		k.log.Info().Str("from", "cgroup").Msg("no memory limit")
	case err != nil:
		k.log.Warn().Err(err).Msg("the memory limit of the cgroup cannot be read")
	default:
		k.cgroup = int64(n)
		k.follow()
		k.log.Info().Int64("limit", k.limit).Int64("cgroup_limit", k.cgroup).Str("from",
			"cgroup").Msg("memory limit of the Go runtime; it falls as the index grows")
	}
}

// Available returns how many bytes the process may take, and what says so: the limit of the cgroup, or the
// memory of the machine if there is no limit or one that is larger. It returns 0 if neither can be read.
func Available() (bytes int64, from string) { return real().available() }

func (s system) available() (bytes int64, from string) {
	if n, err := s.machine(); err == nil && n < math.MaxInt64 {
		bytes, from = int64(n), "machine"
	}
	if n := s.limitOfCgroup(); n > 0 && (n <= bytes || bytes == 0) {
		bytes, from = n, "cgroup"
	}
	return bytes, from
}

// limitOfCgroup returns the memory limit of the cgroup in bytes, 0 without one.
func (s system) limitOfCgroup() int64 {
	if n, err := s.cgroup(); err == nil && n < math.MaxInt64 {
		return int64(n)
	}
	return 0
}

// Bound returns how many bytes waiting batches may take: want, but at most a quarter of the available
// memory. A flood would else end a small container.
func Bound(want int64) int64 { return real().bound(want) }

func (s system) bound(want int64) int64 {
	if n, _ := s.available(); n > 0 {
		return min(want, n/4)
	}
	return want
}

// tick looks once a second.
func (k *keeper) tick() {
	k.calm++
	total := k.system.runtime().allocated
	k.rate, k.total = max(min(total-k.total, mostHeadroom, k.rate+rateStep), k.rate-rateStep), total
	k.look()
}

// look does what the moment needs.
func (k *keeper) look() {
	if k.cgroup > 0 {
		k.follow()
	}
	r := k.system.runtime()
	if k.system.env("GOGC") == "" {
		if p := percent(r.live+r.stacks, k.room(r.live+r.stacks)); p*10 < k.percent*9 || p*10 > k.percent*11 {
			k.percent = p
			k.system.setPercent(p)
		}
	}
	gone, _ := k.system.discarded()
	if r.cycles != k.cycles {
		k.calm, k.cycles, k.gone = 0, r.cycles, k.seen // the collection was after the last look
	}
	k.seen = gone
	// What was discarded since the last collection is garbage that the runtime takes for live. The rest of the
	// garbage is its own business.
	unknown := min(r.live, gone-k.gone)
	waste := unknown + r.free
	if 2*waste > 3*k.room(r.live-unknown+r.stacks) || k.calm >= quiet && r.objects+r.free > k.settled+growth {
		k.system.give()
		r = k.system.runtime()
		k.calm, k.cycles, k.gone, k.settled = 0, r.cycles, gone, r.objects+r.free
	}
}

// follow sets the limit of the runtime to what the cgroup leaves.
func (k *keeper) follow() {
	n := max(least, k.cgroup-k.cgroup/reserve-k.system.outside())
	if d := n - k.limit; k.limit == 0 || d > k.cgroup/coarse || -d > k.cgroup/coarse {
		k.limit = n
		k.system.setLimit(n)
	}
}

// room is how many bytes a heap may grow between two collections. Near the limit of the runtime, what allocates fast
// gets less, and the runtime itself collects more often.
func (k *keeper) room(live int64) int64 {
	most := int64(mostHeadroom)
	if k.limit > 0 {
		most = min(most, k.limit/8)
	}
	return max(headroom, live/fraction, min(k.rate, most))
}

// percent is the GOGC that gives a heap its room.
func percent(live, room int64) int {
	return int(100 * room / max(live, smallestHeap))
}
