package conductor_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	"github.com/vmihailenco/msgpack/v5"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/ingest"
	"example.com/conductor/conductor/match"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/events/payload"
	"example.com/conductor/events/stream"
	"example.com/conductor/events/stream/streamtest"
	"example.com/conductor/internal/must"
)

var (
	faultRuns    = flag.Int("faults.runs", 4, "random runs of the fleet with faults")
	faultSeed    = flag.Uint64("faults.seed", 0, "run only this seed")
	faultBatches = flag.Int("faults.batches", 10_000, "batches of a run, over all engines")
	faultFor     = flag.Duration("faults.for", 0, "go on with further seeds for so long")
)

// TestFaults lets eight engines publish through a network that drops, repeats,
// reorders, delays and cuts, restarts them now and then, and spoils their replays.
// Whenever a source says synced it holds exactly what the engine held at the
// watermark; in the end, when the network is sound again, all are synced and every
// query is answered exactly.
func TestFaults(t *testing.T) {
	var total faultCounts
	begun := time.Now()
	run := func(seed uint64) {
		synctest.Test(t, func(t *testing.T) {
			total.add(newFleet(t, seed).run())
		})
		if t.Failed() {
			t.Fatalf("seed %d: go test ./conductor -run TestFaults -faults.seed %d", seed, seed)
		}
	}
	if *faultSeed != 0 {
		run(*faultSeed)
		return
	}
	heap := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	run(1)
	before, runs := heap(), 1
	for ; runs < *faultRuns || time.Since(begun) < *faultFor; runs++ {
		run(uint64(runs + 1))
	}
	t.Logf("%d runs: %+v", runs, total)
	if grown := heap() - before; grown > 4<<20 {
		t.Errorf("the heap grew by %d bytes in %d runs", grown, runs-1)
	}
}

// faultCounts is what happened to a fleet.
type faultCounts struct {
	Batches, Dropped, Repeated, Late, Swapped, Delayed, Cut, Restarts int
	ReplaysIgnored, ReplaysCut, ReplaysTruncated, ReplaysHoled        int
	Checks, Gaps, Replayed, Epochs                                    int
}

func (c *faultCounts) add(o faultCounts) {
	c.Batches += o.Batches
	c.Dropped += o.Dropped
	c.Repeated += o.Repeated
	c.Late += o.Late
	c.Swapped += o.Swapped
	c.Delayed += o.Delayed
	c.Cut += o.Cut
	c.Restarts += o.Restarts
	c.ReplaysIgnored += o.ReplaysIgnored
	c.ReplaysCut += o.ReplaysCut
	c.ReplaysTruncated += o.ReplaysTruncated
	c.ReplaysHoled += o.ReplaysHoled
	c.Checks += o.Checks
	c.Gaps += o.Gaps
	c.Replayed += o.Replayed
	c.Epochs += o.Epochs
}

const (
	faultEngines = 8
	faultBlock   = 4 // tokens
)

var faultMedia = []string{"GPU", "CPU", "DISK"}

// fleet is the engines of one run; it is the network to them as well.
type fleet struct {
	t       *testing.T
	seed    uint64
	engines []*engine
	c       *conductor.Conductor

	mu     sync.Mutex
	rng    *rand.Rand // guarded by mu
	sound  bool       // no more faults
	counts faultCounts
}

// engine is one publisher and what it really holds.
type engine struct {
	fleet *fleet
	n     int

	pub *streamtest.Publisher

	second bool // a replay lost its second reply, and none came whole since; guarded by pub

	mu    sync.Mutex
	life  []byte          // publisher id, nil: none
	held  map[heldKey]int // copies
	sizes []int           // by sequence: memberships held after that batch
}

type heldKey struct{ medium, path string }

func newFleet(t *testing.T, seed uint64) *fleet {
	f := &fleet{t: t, seed: seed, rng: rand.New(rand.NewPCG(seed, 1))}
	for n := range faultEngines {
		e := &engine{fleet: f, n: n, pub: streamtest.NewPublisher(), held: make(map[heldKey]int)}
		e.pub.Ring, e.pub.HWM = math.MaxInt, 1<<14
		e.pub.OnSubscribe, e.pub.OnReplay = f.subscribe, e.replies
		if n%3 == 0 {
			e.pub.TopicInReplies, e.pub.Topic = true, "kv-events"
		}
		e.identify()
		f.engines = append(f.engines, e)
	}
	f.c = conductor.New(conductor.Options{
		HashSeed: 1337, Log: zerolog.Nop(),
		Stream: stream.Config{Transport: f, ReplayTimeout: 2 * time.Second, StaleAfter: 30 * time.Second, Queue: []int{64, 4}[seed%2],
			Replays: stream.NewLimiter(3)},
	})
	return f
}

// chance is true n times in a thousand while there are faults.
func (f *fleet) chance(n int) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	// Seeds differ in how bad the network is: between two faults a source has to
	// come to rest, or nothing is checked but the end.
	return !f.sound && f.rng.IntN(10_000) < n*int(1+f.seed%10)
}

func (f *fleet) count(n *int) {
	f.mu.Lock()
	*n++
	f.mu.Unlock()
}

func (f *fleet) pick(n int) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.rng.IntN(n)
}

func (f *fleet) run() faultCounts {
	defer f.c.Close()
	var wg sync.WaitGroup
	for _, e := range f.engines {
		if f.pick(2) == 0 { // some have history when they are registered
			for range 20 {
				e.step()
			}
		}
		endpoint := fmt.Sprintf("ipc://%d", e.n)
		err := f.c.Register(registration.Registration{
			Endpoint: endpoint, ReplayEndpoint: endpoint + "/replay", Type: "vLLM", Model: "m", Instance: e.name(), BlockSize: faultBlock,
			Clear: registration.ClearAll,
		}, ingest.RegisterOptions{})
		must.Succeed(f.t, err)
		wg.Go(func() {
			for range *faultBatches / faultEngines {
				e.step()
				time.Sleep(time.Duration(f.pick(20)) * time.Millisecond)
				if f.chance(4) {
					e.restart()
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	for going := true; going; {
		select {
		case <-done:
			going = false
		case <-time.After(time.Duration(50+f.pick(500)) * time.Millisecond):
		}
		synctest.Wait()
		f.checkHonest()
	}

	f.mu.Lock()
	f.sound = true
	f.mu.Unlock()
	// A batch after the last one lost shows that it is missing. A replay service that did not answer is
	// asked again after 5 minutes at most (STREAM-11), and a connection whose batches came in an order
	// that looked like several publishers is trusted again after 16 batches and 10 minutes.
	for range 20 {
		for _, e := range f.engines {
			e.step()
		}
		time.Sleep(6 * time.Minute)
		synctest.Wait()
	}
	f.checkHonest()
	f.checkExact()
	for _, s := range f.c.Services() {
		f.counts.Gaps += int(s.Gaps)
		f.counts.Replayed += int(s.Replayed)
		f.counts.Epochs += int(s.Epoch)
	}
	return f.counts
}

// checkHonest compares every source that says synced with its engine.
func (f *fleet) checkHonest() {
	for i, s := range f.c.Services() {
		if s.State != stream.Synced || s.LastSeq == nil {
			continue
		}
		f.counts.Checks++
		e := f.engines[i]
		e.mu.Lock()
		if int(*s.LastSeq) >= len(e.sizes) {
			f.t.Errorf("%s is synced at %d, the engine is at %d", s.Instance, *s.LastSeq, len(e.sizes))
		} else if want := e.sizes[*s.LastSeq]; s.Blocks != want {
			f.t.Errorf("%s says synced at %d of epoch %d with %d blocks, the engine held %d", s.Instance, *s.LastSeq, s.Epoch, s.Blocks,
				want)
		}
		e.mu.Unlock()
	}
}

// checkExact compares states and queries with what the engines hold.
func (f *fleet) checkExact() {
	for i, s := range f.c.Services() {
		if e := f.engines[i]; s.State != stream.Synced || s.LastSeq == nil || int(*s.LastSeq) != len(e.sizes)-1 {
			f.t.Errorf("%s ends %s %s at %v, want synced at %d: %s", s.Instance, s.State, s.Reason, s.LastSeq, len(e.sizes)-1, s.LastError)
		}
	}
	for _, err := range f.c.Check() {
		f.t.Error(err)
	}
	for range 100 {
		path := f.path()
		ans := f.c.Query(match.Query{Model: "m", BlockSize: faultBlock, Tokens: promptOf(path, faultBlock)})
		for i, row := range ans.Rows {
			longest, on := f.engines[i].truth(path)
			if row.Longest != longest {
				f.t.Errorf("%s has %d blocks of %s, answered %d", row.Instance, longest, path, row.Longest)
			}
			for _, m := range row.Media {
				if m.Blocks != on[m.Name] {
					f.t.Errorf("%s has %d blocks of %s on %s, answered %d", row.Instance, on[m.Name], path, m.Name, m.Blocks)
				}
			}
		}
	}
}

// path is a prompt: few enough that engines share and repeat them.
func (f *fleet) path() string {
	names := make([]string, 1+f.pick(6))
	for i := range names {
		names[i] = string(rune('a' + f.pick(3)))
	}
	return strings.Join(names, "/")
}

func (e *engine) name() string { return fmt.Sprintf("engine-%d", e.n) }

// truth returns how many leading blocks of a prompt the engine holds, and how many
// of those on each medium.
func (e *engine) truth(path string) (longest int, on map[string]int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	on = make(map[string]int)
	names := strings.Split(path, "/")
	for i := range names {
		prefix, held := strings.Join(names[:i+1], "/"), false
		for _, m := range faultMedia {
			if e.held[heldKey{m, prefix}] > 0 {
				on[m]++
				held = true
			}
		}
		if !held {
			break
		}
		longest++
	}
	return longest, on
}

// step does something to the cache and publishes it.
func (e *engine) step() {
	e.mu.Lock()
	defer e.mu.Unlock()
	medium := faultMedia[e.fleet.pick(len(faultMedia))]
	var list []any
	switch n := e.fleet.pick(100); {
	case n < 2:
		clear(e.held)
		list = append(list, e.encode("AllBlocksCleared", "", "", nil))
	case n < 5: // nothing: a batch without events
	case n < 40:
		list = e.evict(medium)
	default:
		list = append(list, e.store(medium, e.fleet.path()))
	}
	batch := []any{float64(time.Now().UnixNano()) / 1e9, list, 0}
	if e.life != nil {
		batch = append(batch, e.life)
	}
	payload, err := msgpack.Marshal(batch)
	if err != nil {
		panic(err)
	}
	e.sizes = append(e.sizes, len(e.held))
	e.fleet.count(&e.fleet.counts.Batches)
	e.pub.Publish(string(payload))
}

// store holds a prompt from its first missing block on, now and then all of it once
// more.
func (e *engine) store(medium, path string) any {
	names := strings.Split(path, "/")
	from := 0
	for from < len(names)-1 && e.held[heldKey{medium, strings.Join(names[:from+1], "/")}] > 0 && e.fleet.pick(8) > 0 {
		from++
	}
	var hashes []string
	for i := from; i < len(names); i++ {
		prefix := strings.Join(names[:i+1], "/")
		e.held[heldKey{medium, prefix}]++
		hashes = append(hashes, prefix)
	}
	return e.encode("BlockStored", medium, strings.Join(names[:from], "/"), hashes)
}

// evict takes one copy of each of some blocks.
func (e *engine) evict(medium string) (list []any) {
	var on []string
	for k := range e.held {
		if k.medium == medium {
			on = append(on, k.path)
		}
	}
	slices.SortFunc(on, func(a, b string) int { return strings.Compare(b, a) }) // children first
	for len(on) > 0 && len(list) < 3 {
		i := e.fleet.pick(len(on))
		key := heldKey{medium, on[i]}
		if e.held[key]--; e.held[key] == 0 {
			delete(e.held, key)
		}
		list = append(list, e.encode("BlockRemoved", medium, "", []string{on[i]}))
		on = slices.Delete(on, i, i+1)
	}
	return list
}

// encode writes an event in the form of the engine's version.
func (e *engine) encode(kind, medium, parent string, paths []string) any {
	var hashes []any
	var tokens []uint32
	for _, p := range paths {
		h := engineHash("", p)
		if e.n%4 == 3 { // SGLang's are signed
			hashes = append(hashes, int64(h))
		} else {
			hashes = append(hashes, h)
		}
		tokens = append(tokens, tokensOf(p[strings.LastIndex(p, "/")+1:], faultBlock)...)
	}
	var above any
	if parent != "" {
		above = engineHash("", parent)
	}
	switch {
	case e.n%2 == 0 && kind == "BlockStored":
		of := any("full_attention")
		if medium != "GPU" {
			of = nil // an event of several blocks with a kind would be one chunk there
		}
		return []any{kind, hashes, above, tokens, faultBlock, nil, medium, nil, nil, 0, of, nil}
	case e.n%2 == 0 && kind == "BlockRemoved":
		return []any{kind, hashes, medium, 0}
	case e.n%2 == 0:
		return []any{kind}
	case kind == "BlockStored":
		return map[string]any{"type": kind, "block_hashes": hashes, "parent_block_hash": above, "token_ids": tokens,
			"block_size": faultBlock, "lora_id": nil, "medium": medium}
	case kind == "BlockRemoved":
		return map[string]any{"type": kind, "block_hashes": hashes, "medium": medium}
	}
	return map[string]any{"type": kind}
}

// restart loses the cache; the next life may be far ahead before anybody is back.
func (e *engine) restart() {
	e.mu.Lock()
	e.sizes = nil
	e.identify()
	clear(e.held)
	e.pub.Restart()
	e.mu.Unlock()
	e.fleet.count(&e.fleet.counts.Restarts)
	for range e.fleet.pick(200) {
		e.step()
	}
}

// identify gives every other engine an id for its lifetime.
func (e *engine) identify() {
	if e.n%2 == 1 {
		e.life = fmt.Appendf(nil, "%08d%08d", e.n, e.fleet.pick(1e8))
	}
}

func (f *fleet) engine(endpoint string) *engine {
	var n int
	fmt.Sscanf(endpoint, "ipc://%d", &n)
	return f.engines[n]
}

// Subscribe spoils what a live connection delivers.
func (f *fleet) Subscribe(ctx context.Context, endpoint string) (stream.Subscription, error) {
	c, err := f.engine(endpoint).pub.Subscribe(ctx, endpoint)
	if err != nil {
		return nil, err
	}
	return &line{Conn: c.(*streamtest.Conn), fleet: f}, nil
}

func (f *fleet) Replay(ctx context.Context, endpoint string, from uint64) (stream.Subscription, error) {
	return f.engine(endpoint).pub.Replay(ctx, endpoint, from)
}

// subscribe refuses some connections. Batches published while it waits are missed.
func (f *fleet) subscribe(context.Context) error {
	if f.chance(100) {
		return errors.New("no route")
	}
	time.Sleep(time.Duration(f.pick(30)) * time.Millisecond)
	return nil
}

// replies spoils some answers to replay requests.
func (e *engine) replies(_ uint64, replies [][][]byte) [][][]byte {
	f, ring := e.fleet, replies[:len(replies)-1]
	switch {
	case f.chance(150):
		f.count(&f.counts.ReplaysIgnored)
		return nil
	case f.chance(150) && len(ring) > 0:
		f.count(&f.counts.ReplaysTruncated)
		return ring[:f.pick(len(ring))]
	case f.chance(150):
		f.count(&f.counts.ReplaysCut)
		return append(ring[:f.pick(len(ring)+1)], nil)
	case f.chance(150) && len(ring) > 2:
		// Not the first: nothing waits yet on a connection that begins, so its
		// socket has no reason to drop. A reply that begins late says that the
		// publisher has no more what comes before. Nor the second twice in a row:
		// then its number counts as skipped.
		if at := 1 + f.pick(len(ring)-2); at > 1 || !e.second {
			f.count(&f.counts.ReplaysHoled)
			e.second = e.second || at == 1
			return slices.Delete(replies, at, at+1)
		}
	}
	e.second = false
	return replies
}

// line is a live connection with faults.
type line struct {
	*streamtest.Conn
	fleet *fleet
	kept  *payload.Message  // overtaken by the next
	ready []payload.Message // delivered next
	old   []payload.Message // delivered lately
}

// Recv returns the next message, spoiled or not.
func (l *line) Recv() (payload.Message, error) {
	f := l.fleet
	for len(l.ready) == 0 {
		m, err := l.next()
		if err != nil {
			return m, err
		}
		switch {
		case f.chance(30):
			f.count(&f.counts.Dropped)
			continue
		case f.chance(20):
			f.count(&f.counts.Delayed)
			select {
			case <-time.After(time.Duration(f.pick(300)) * time.Millisecond):
			case <-l.Closing():
				return payload.Message{}, streamtest.ErrCut
			}
		case f.chance(3):
			f.count(&f.counts.Cut)
			l.Close()
			return payload.Message{}, streamtest.ErrCut
		case l.kept == nil && f.chance(10):
			f.count(&f.counts.Swapped)
			l.kept = &m
			continue
		}
		l.ready = append(l.ready, m)
		if f.chance(20) {
			f.count(&f.counts.Repeated)
			l.ready = append(l.ready, m)
		}
		if l.old = append(l.old, m); len(l.old) > 50 {
			l.old = l.old[1:]
		}
		if f.chance(10) {
			f.count(&f.counts.Late)
			l.ready = append(l.ready, l.old[f.pick(len(l.old))])
		}
		if l.kept != nil {
			l.ready, l.kept = append(l.ready, *l.kept), nil
		}
	}
	m := l.ready[0]
	l.ready = l.ready[1:]
	return m, nil
}

// next returns a message whose frames may be delivered more than once.
func (l *line) next() (payload.Message, error) {
	m, err := l.Conn.Recv()
	if err != nil {
		return m, err
	}
	frames := make([][]byte, len(m.Frames))
	for i, f := range m.Frames {
		frames[i] = slices.Clone(f)
	}
	m.Block.Release()
	return payload.Of(frames...), nil
}
