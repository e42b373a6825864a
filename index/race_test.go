package index

import (
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"kvconductor/index/hash"
)

// prompt is a chain given by its local hashes, as the server asks.
type prompt struct{ local, seq []uint64 }

func (p *prompt) Len() int            { return len(p.local) }
func (p *prompt) At(i int) uint64     { return p.seq[i] }
func (p *prompt) Locals(int) []uint64 { return p.local }

// depthsOf returns how far each owner goes in an answer.
func depthsOf(m *Match) map[Owner]int {
	deep, at := map[Owner]int{}, 0
	for _, r := range m.Runs {
		for _, o := range r.Owners {
			if deep[Owner(o)] == at {
				deep[Owner(o)] += r.Blocks
			}
		}
		at += r.Blocks
	}
	return deep
}

// change is an event of a writer, and how far its owner holds each prompt afterwards.
type raceEvent struct {
	store  bool
	prompt int
	from   int
	to     int
	clear  bool
	depth  []int
}

// TestAnswersUnderRace asks while writers of several sources run, by the path of the
// server. Each answer lies between the least and the most that was true at a moment of
// it; what a resting owner holds is answered exactly.
func TestAnswersUnderRace(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rounds := 6
	if testing.Short() {
		rounds = 2
	}
	for round := range rounds {
		raceRound(t, seed, uint64(round))
	}
}

func raceRound(t *testing.T, seed, round uint64) {
	const writers, events, width, depth = 3, 400, 8, 200
	rng := rand.New(rand.NewPCG(seed, round<<8))
	scheme := hash.Default()
	prompts := make([]prompt, width)
	for i := range prompts {
		var local []uint64
		if i > 0 && rng.IntN(4) > 0 {
			from := prompts[rng.IntN(i)].local
			local = append(local, from[:rng.IntN(len(from))]...)
		}
		for n := 1 + rng.IntN(depth); len(local) < n || len(local) == 0; {
			local = append(local, rng.Uint64())
		}
		prompts[i] = prompt{local, scheme.Chain(nil, local)}
	}
	engine := func(family int, p *prompt, from, to int) []uint64 {
		var out []uint64
		for _, key := range p.seq[from:to] {
			out = append(out, key^uint64(family+1)*0x9e3779b97f4a7c15)
		}
		return out
	}
	x := New(Options{Scheme: scheme, KeepLabels: round%2 == 0})
	rest := x.NewOwner(x.NewSource())
	resting := make([]int, width)
	restHeld := map[uint64]bool{}
	for i := range prompts {
		n := rng.IntN(len(prompts[i].local) + 1)
		x.Store(&Store{Owner: rest, Engine: engine(0, &prompts[i], 0, n), Local: prompts[i].local[:n], Copies: CopySet})
		for _, key := range prompts[i].seq[:n] {
			restHeld[key] = true
		}
	}
	holds := func(held map[uint64]bool, p *prompt) (n int) {
		for n < len(p.seq) && held[p.seq[n]] {
			n++
		}
		return n
	}
	for i := range prompts {
		resting[i] = holds(restHeld, &prompts[i])
	}
	// Each writer's history is known beforehand.
	owners := make([]Owner, writers)
	history := make([][]raceEvent, writers)
	begun, done := make([]atomic.Int64, writers), make([]atomic.Int64, writers)
	for w := range writers {
		owners[w] = x.NewOwner(x.NewSource())
		held := map[uint64]bool{}
		note := func(e raceEvent) {
			for i := range prompts {
				e.depth = append(e.depth, holds(held, &prompts[i]))
			}
			history[w] = append(history[w], e)
		}
		note(raceEvent{})
		for range events {
			i := rng.IntN(width)
			p := &prompts[i]
			switch n := rng.IntN(20); {
			case n < 11:
				from := rng.IntN(holds(held, p) + 1)
				if from == len(p.seq) {
					from = 0
				}
				to := from + 1 + rng.IntN(len(p.seq)-from)
				for _, key := range p.seq[from:to] {
					held[key] = true
				}
				note(raceEvent{store: true, prompt: i, from: from, to: to})
			case n < 19:
				from := rng.IntN(len(p.seq))
				to := from + 1 + rng.IntN(len(p.seq)-from)
				for _, key := range p.seq[from:to] {
					delete(held, key)
				}
				note(raceEvent{prompt: i, from: from, to: to})
			default:
				clear(held)
				note(raceEvent{clear: true})
			}
		}
	}
	var writing, reading sync.WaitGroup
	var stop atomic.Bool
	var looks atomic.Int64
	for r := range 3 {
		reading.Go(func() {
			rng := rand.New(rand.NewPCG(seed, round<<8+100+uint64(r)))
			var m Match
			before := make([]int64, writers)
			for !stop.Load() && !t.Failed() {
				i := rng.IntN(width)
				for w := range before {
					before[w] = done[w].Load()
				}
				x.MatchLazy(&prompts[i], &m)
				deep := depthsOf(&m)
				if deep[rest] != resting[i] {
					t.Errorf("prompt %d: the resting owner holds %d blocks, want %d", i, deep[rest], resting[i])
				}
				for w := range before {
					least, most := len(prompts[i].seq), 0
					for _, e := range history[w][before[w] : begun[w].Load()+1] {
						least, most = min(least, e.depth[i]), max(most, e.depth[i])
					}
					// An event is seen in part: an owner that loses some blocks and then gains
					// others is between.
					if got := deep[owners[w]]; got > most || got < least {
						t.Errorf("prompt %d: writer %d holds %d blocks, want %d to %d", i, w, got, least, most)
					}
				}
				looks.Add(1)
				runtime.Gosched()
			}
		})
	}
	for w := range writers {
		writing.Go(func() {
			for k, e := range history[w][1:] {
				begun[w].Store(int64(k + 1))
				p := &prompts[e.prompt]
				switch {
				case e.clear:
					x.Clear(owners[w])
				case e.store:
					s := Store{Owner: owners[w], Engine: engine(w%2, p, e.from, e.to), Local: p.local[e.from:e.to], Copies: CopySet}
					if e.from > 0 {
						s.Parent, s.HasParent = engine(w%2, p, e.from-1, e.from)[0], true
					}
					x.Store(&s)
				default:
					list := engine(w%2, p, e.from, e.to)
					if k%2 == 0 {
						slices.Reverse(list)
					}
					x.Remove(owners[w], list, nil, CopySet)
				}
				done[w].Store(int64(k + 1))
				if k%64 == 0 {
					if err := x.Check(); err != nil {
						t.Error(err)
						return
					}
				}
				runtime.Gosched()
			}
		})
	}
	writing.Wait()
	for before := looks.Load(); looks.Load() < before+10 && !t.Failed(); { // readers did run
		runtime.Gosched()
	}
	stop.Store(true)
	reading.Wait()
	if err := x.Check(); err != nil {
		t.Error(err)
	}
	var m Match
	for i := range prompts {
		x.MatchLazy(&prompts[i], &m)
		deep := depthsOf(&m)
		for w := range owners {
			if want := history[w][events].depth[i]; deep[owners[w]] != want {
				t.Errorf("at rest, prompt %d: writer %d holds %d blocks, want %d", i, w, deep[owners[w]], want)
			}
		}
	}
	for w := range owners {
		x.Clear(owners[w])
	}
	x.Clear(rest)
	if st := x.Stats(); st.Blocks+st.Memberships+st.Aliases+st.Raw+st.Orphans+st.Sets != 0 {
		t.Errorf("something is left: %+v", st)
	}
}
