// Package soak plays a fleet of engines and pools into a Conductor and checks every answer
// while the fleet publishes.
//
//	history ----> truth: state of each block by event
//	   |                          |
//	   +--batches--> Conductor    +--> judge <-- answer, watermarks
//	                     ^                          |
//	                     +------ query <-- readers -+
//
// A run has rounds. In a round each source gets a history of batches. Then all sources
// publish their histories at once, and readers ask. A reader knows a window of each source:
// from the event that the watermark in the answer covers to the last event published. The
// judge computes each number of the answer twice. The least number takes the blocks held
// during the whole window, the most those held at some moment of it. At the end of a round
// both are equal, so answers have to be exact.
//
// The histories of a round depend on the seed alone. The order of the goroutines does not.
package soak

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"example.com/conductor/conductor"
	"example.com/conductor/events/stream"
	"example.com/conductor/index/hash"
	"example.com/conductor/internal/memory"
)

const (
	model        = "m"
	blockSize    = 4   // tokens
	maxDepth     = 200 // blocks of a prompt; a piece of the index has 64
	roundEvents  = 300 // of a source, at least
	hot          = 3   // prompts that a round is about
	checkEvery   = 20  // rounds
	progress     = 10 * time.Second
	patience     = time.Minute // without a batch applied
	queueBatches = 1           // so that windows are short
)

// recallBytes are bounds of the recall: nothing, some and all.
var recallBytes = []int64{0, 32 << 10, 4 << 20}

// Soak is one run.
type Soak struct {
	Duration time.Duration // no further round begins after it
	Rounds   int           // played at least
	Seed     uint64        // 0 for a random one
	Readers  int
	Prompts  int
	Margin   int64 // bytes of heap in use that may be left
	Progress io.Writer

	conductor *conductor.Conductor
	nodes     []node
	prompts   []prompt
	sources   []*source
	lines     sync.Map // *line by endpoint
	round     int
	result    Result
	asked     atomic.Int64
	logged    firstLine
}

// firstLine keeps the first line that is logged.
type firstLine struct{ line atomic.Pointer[string] }

func (f *firstLine) Write(line []byte) (int, error) {
	s := string(line)
	f.line.CompareAndSwap(nil, &s)
	return len(line), nil
}

// err returns an error if something was logged.
func (f *firstLine) err() error {
	if line := f.line.Load(); line != nil {
		return fmt.Errorf("the Conductor logged an error: %s", *line)
	}
	return nil
}

// Result counts the events and answers of a run.
type Result struct {
	Seed   uint64       `json:"seed"`
	Rounds int          `json:"rounds"`
	Events [kinds]int64 `json:"events"`
	Asked  int64        `json:"answers_under_race"`
	Exact  int64        `json:"answers_at_rest"`
	Held   int          `json:"held_blocks"`      // at the end of the last round, by source and medium
	Start  int64        `json:"heap_start_bytes"` // in use
	Peak   int64        `json:"heap_peak_bytes"`
	End    int64        `json:"heap_end_bytes"`
}

func (r *Result) String() string {
	var played []string
	for kind, n := range r.Events {
		played = append(played, fmt.Sprintf("%d %s", n, kindNames[kind]))
	}
	const mb = 1e6
	return fmt.Sprintf("soak passed: seed %d, %d rounds; answers: %d under race, %d at rest; events: %s; heap in use: %.1f MB at the "+
		"start, %.1f MB at its peak, %.1f MB at the end",
		r.Seed, r.Rounds, r.Asked, r.Exact, strings.Join(played, ", "), float64(r.Start)/mb, float64(r.Peak)/mb, float64(r.End)/mb)
}

// Run returns the first wrong answer as an error.
func (k *Soak) Run() (*Result, error) {
	if k.Readers < 0 || k.Prompts < 1 {
		return nil, fmt.Errorf("a soak needs prompts and no negative number of readers, not %d and %d", k.Prompts, k.Readers)
	}
	for k.Seed == 0 {
		k.Seed = rand.Uint64()
	}
	fmt.Fprintf(k.Progress, "seed %d\n", k.Seed)
	if err := k.play(); err != nil {
		return nil, fmt.Errorf("%w\nrepeat the histories with: conductor-lab bench soak --seed %d --prompts %d --readers %d --rounds %d "+
			"--duration 0s",
			err, k.Seed, k.Prompts, k.Readers, k.round+1)
	}
	return &k.result, nil
}

// open makes a Conductor that follows the fleet. The caller closes it.
func (k *Soak) open() error {
	k.result.Seed = k.Seed
	k.conductor = conductor.New(conductor.Options{
		HashSeed: hash.DefaultSeed, GhostBytes: recallBytes[k.Seed%uint64(len(recallBytes))],
		Log:    zerolog.New(&k.logged).Level(zerolog.ErrorLevel),
		Stream: stream.Config{Transport: k, Queue: queueBatches},
	})
	return k.prepare(rand.New(rand.NewPCG(k.Seed, 0)))
}

// play plays all rounds.
func (k *Soak) play() error {
	err := k.open()
	defer k.conductor.Close()
	if err != nil {
		return err
	}
	res := &k.result
	res.Start = inUse()
	begun, said := time.Now(), time.Now()
	for ; k.round < max(1, k.Rounds) || time.Since(begun) < k.Duration; k.round++ {
		if err := k.turn(); err != nil {
			return fmt.Errorf("round %d: %w", k.round, err)
		}
		res.Rounds, res.Asked = k.round+1, k.asked.Load()
		if k.round%checkEvery == 0 {
			if err := errors.Join(k.conductor.Check()...); err != nil {
				return fmt.Errorf("round %d: %w", k.round, err)
			}
			res.Peak = max(res.Peak, inUse())
		}
		if time.Since(said) > progress {
			said = time.Now()
			k.report()
		}
	}
	res.Peak = max(res.Peak, inUse())
	if err := k.empty(); err != nil {
		return err
	}
	if res.End = inUse(); res.End > res.Start+k.Margin {
		return fmt.Errorf("%d bytes of heap in use after every source has left, %d at the start and %d allowed on top", res.End, res.Start,
			k.Margin)
	}
	return nil
}

// report prints a line of progress, with resident memory and its account.
func (k *Soak) report() {
	events, account, indexed := int64(0), int64(0), int64(0)
	for _, n := range k.result.Events {
		events += n
	}
	for _, p := range memory.Account(k.conductor.Meter().Memory()) {
		account += p.Bytes
		if strings.HasPrefix(p.Name, "index_") {
			indexed += p.Bytes
		}
	}
	const mb = 1e6
	fmt.Fprintf(k.Progress, "round %d: %d events, %d answers under race, %d at rest, %d blocks held; resident %.1f MB, account %.1f MB, "+
		"of them the index %.1f MB\n",
		k.round, events, k.result.Asked, k.result.Exact, k.result.Held, float64(memory.Resident())/mb, float64(account)/mb,
		float64(indexed)/mb)
}

// turn plays one round: histories, race, rest.
func (k *Soak) turn() error {
	var wg sync.WaitGroup
	for i, s := range k.sources {
		wg.Go(func() { s.imagine(rand.New(rand.NewPCG(k.Seed, uint64(k.round)<<16|uint64(i)<<1|1))) })
	}
	wg.Wait()
	ctx, stop := context.WithCancelCause(context.Background())
	defer stop(nil)
	var reading, writing sync.WaitGroup
	for i := range k.Readers {
		reading.Go(func() {
			r := reader{Soak: k, rng: rand.New(rand.NewPCG(k.Seed, uint64(k.round)<<16|uint64(i)<<1))}
			for ctx.Err() == nil {
				if err := r.ask(k.pick(r.rng)); err != nil {
					stop(err)
				}
				k.asked.Add(1)
			}
		})
	}
	for _, s := range k.sources {
		writing.Go(func() {
			if err := s.publish(ctx); err != nil {
				stop(err)
			}
		})
	}
	writing.Wait()
	if err := k.settle(ctx); err != nil {
		stop(err)
	}
	err := context.Cause(ctx)
	stop(nil)
	reading.Wait()
	if err := errors.Join(k.logged.err(), err); err != nil {
		return err
	}
	return k.compare()
}

// pick returns the number of a prompt: mostly of the few that this round is about, so that
// writers and readers meet.
func (k *Soak) pick(rng *rand.Rand) int {
	if rng.IntN(4) > 0 {
		return (k.round*hot + rng.IntN(hot)) % len(k.prompts)
	}
	return rng.IntN(len(k.prompts))
}

// settle returns when every batch is applied.
func (k *Soak) settle(ctx context.Context) error {
	t := time.NewTicker(time.Millisecond)
	defer t.Stop()
	var last []uint64
	for since := time.Now(); ; {
		marks, left := k.conductor.Watermarks(), 0
		for i, s := range k.sources { // both are sorted by key
			if i >= len(marks) || marks[i] < s.next {
				left++
			} else {
				s.floor.Store(s.begun.Load())
			}
		}
		switch {
		case left == 0:
			return nil
		case !slices.Equal(marks, last):
			last, since = marks, time.Now()
		case time.Since(since) > patience:
			return fmt.Errorf("%d sources have not applied all batches, and applied none for %v", left, patience)
		}
		select {
		case <-t.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// compare asks for every prompt while nothing changes, and counts the blocks.
func (k *Soak) compare() error {
	r := reader{Soak: k, rng: rand.New(rand.NewPCG(k.Seed, uint64(k.round)))}
	for i := range k.prompts {
		if err := r.ask(i); err != nil {
			return fmt.Errorf("at rest: %w", err)
		}
		k.result.Exact++
	}
	k.result.Held = 0
	services := k.conductor.Services()
	for i, s := range k.sources {
		want := s.rest(&k.result.Events)
		k.result.Held += want
		got := &services[i]
		if got.Blocks != want || got.Gaps+got.Restarts > 0 {
			return fmt.Errorf("at rest: source %s holds %d blocks, it saw %d gaps and %d restarts; want %d blocks",
				got.Key(), got.Blocks, got.Gaps, got.Restarts, want)
		}
	}
	return nil
}

// empty checks the indexes a last time and lets all sources leave.
func (k *Soak) empty() error {
	if err := errors.Join(k.conductor.Check()...); err != nil {
		return err
	}
	for _, s := range k.sources {
		if _, err := k.conductor.Unregister(s.reg.Key()); err != nil {
			return err
		}
		k.lines.Delete(s.endpoint())
		s.steps, s.lives = nil, nil
	}
	if left := k.conductor.For(conductor.Reader{}).Inspect().GlobalView(1); len(left) > 0 {
		return fmt.Errorf("every source has left, and contexts remain: %+v", left)
	}
	return nil
}

// inUse returns the bytes in spans that hold objects.
func inUse() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapInuse)
}
