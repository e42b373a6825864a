package bench

import (
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"kvconductor/index"
)

const (
	roundOps   = 2000 // of a writer between two comparisons
	checkEvery = 50   // rounds
	dropEvery  = 20   // rounds
	comparing  = 200  // prompts asked in a comparison
)

// Soak compares an index with the oracle for a long time.
//
// In a round writers change the blocks of their own workers in the index and in
// the oracle, while readers ask. What a reader sees has a bound that always holds:
// an owner never stores beyond a depth of its own. When all have stopped, answers
// have to equal the oracle's exactly.
type Soak struct {
	Duration time.Duration
	Seed     uint64
	Workers  int
	Writers  int
	Readers  int
	Prompts  int
	Margin   int64 // bytes of heap in use that may be left
	Progress io.Writer

	x       *index.Index
	oracle  *Oracle
	chains  []soakChain
	workers []soakWorker
	slots   []int // by owner of the index: the oracle's number, -1 when retired
	round   int
	asked   atomic.Int64
	changed atomic.Int64
}

// SoakResult says how it went.
type SoakResult struct {
	Seed             uint64
	Rounds           int
	Changed, Asked   int64 // calls
	Start, Peak, End int64 // heap in use, in bytes
}

func (r *SoakResult) String() string {
	const mb = 1e6
	return fmt.Sprintf("soak passed: seed %d, %d rounds, %d changes, %d queries; heap in use %.1f MB at the start, %.1f MB at its peak, %.1f MB at the end",
		r.Seed, r.Rounds, r.Changed, r.Asked, float64(r.Start)/mb, float64(r.Peak)/mb, float64(r.End)/mb)
}

// Run returns the first difference as an error.
func (k *Soak) Run() (*SoakResult, error) {
	if k.Workers < 1 || k.Writers < 1 || k.Readers < 0 || k.Prompts < 1 {
		return nil, fmt.Errorf("a soak needs workers, writers and prompts, not %d, %d and %d", k.Workers, k.Writers, k.Prompts)
	}
	for k.Seed == 0 {
		k.Seed = rand.Uint64()
	}
	fmt.Fprintf(k.Progress, "seed %d\n", k.Seed)
	k.prepare()
	res := &SoakResult{Seed: k.Seed, Start: inUse()}
	k.oracle = NewOracle(k.Workers * soakOwners)
	end := time.Now().Add(k.Duration)
	said := time.Now()
	for ; k.round == 0 || time.Now().Before(end); k.round++ {
		if err := k.turn(); err != nil {
			return nil, fmt.Errorf("seed %d, round %d: %w", k.Seed, k.round, err)
		}
		if k.round%checkEvery == 0 {
			res.Peak = max(res.Peak, inUse())
		}
		if time.Since(said) > 10*time.Second {
			said = time.Now()
			fmt.Fprintf(k.Progress, "round %d: %d changes, %d queries, %d memberships\n", k.round, k.changed.Load(), k.asked.Load(), k.oracle.Memberships())
		}
	}
	res.Peak = max(res.Peak, inUse())
	res.Rounds, res.Changed, res.Asked = k.round, k.changed.Load(), k.asked.Load()
	if err := k.empty(); err != nil {
		return nil, fmt.Errorf("seed %d: %w", k.Seed, err)
	}
	if res.End = inUse(); res.End > res.Start+k.Margin {
		return nil, fmt.Errorf("seed %d: %d bytes of heap in use after everything was cleared, %d at the start and %d allowed on top", k.Seed, res.End, res.Start, k.Margin)
	}
	runtime.KeepAlive(k.x)
	return res, nil
}

// turn is one round.
func (k *Soak) turn() error {
	var writers, readers sync.WaitGroup
	var halt atomic.Bool
	errs := make([]error, k.Readers)
	for i := range k.Readers {
		readers.Go(func() {
			r := rand.New(rand.NewPCG(k.Seed, uint64(k.round)<<16|uint64(i)<<8|1))
			var rd reader
			for !halt.Load() && errs[i] == nil {
				errs[i] = k.ask(r, &rd)
			}
		})
	}
	for i := range k.Writers {
		writers.Go(func() {
			r := rand.New(rand.NewPCG(k.Seed, uint64(k.round)<<16|uint64(i)<<8|2))
			for range roundOps {
				if w := r.IntN(k.Workers); w%k.Writers == i {
					k.change(r, w)
				}
			}
		})
	}
	writers.Wait()
	halt.Store(true)
	readers.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	if k.round%dropEvery == dropEvery-1 {
		k.drop(k.round / dropEvery % k.Workers)
	}
	return k.compare(rand.New(rand.NewPCG(k.Seed, uint64(k.round)<<16|3)))
}

// ask queries while writers run.
func (k *Soak) ask(r *rand.Rand, rd *reader) error {
	k.asked.Add(1)
	c := &k.chains[r.IntN(len(k.chains))]
	for _, d := range k.depths(c, rd) {
		slot := k.slots[d.Owner]
		if slot < 0 || d.Blocks < 1 || int(d.Blocks) > min(len(c.seq), limit(slot)) {
			return fmt.Errorf("owner %d (number %d) holds %d of %d blocks, it never stored that many", d.Owner, slot, d.Blocks, len(c.seq))
		}
	}
	return nil
}

// depths asks the index by the path of the server.
func (k *Soak) depths(c *soakChain, r *reader) []index.Prefix {
	r.chain.Reset(c.local)
	k.x.MatchLazy(&r.chain, &r.match)
	return r.match.Prefixes
}

// drop removes a source with all it holds and lets the worker come back.
func (k *Soak) drop(worker int) {
	w := &k.workers[worker]
	for j, o := range w.owners {
		k.slots[o] = -1
		k.oracle.Clear(uint32(worker*soakOwners + j))
	}
	k.x.DropSource(w.source)
	k.join(worker)
}

// compare asks while nothing changes.
func (k *Soak) compare(r *rand.Rand) error {
	var want []index.Prefix
	var rd reader
	for range comparing {
		c := &k.chains[r.IntN(len(k.chains))]
		got := k.depths(c, &rd)
		for i := range got {
			if k.slots[got[i].Owner] < 0 {
				return fmt.Errorf("retired owner %d still holds %d blocks", got[i].Owner, got[i].Blocks)
			}
			got[i].Owner = uint32(k.slots[got[i].Owner])
		}
		slices.SortFunc(got, func(a, b index.Prefix) int { return int(a.Owner) - int(b.Owner) })
		want = k.oracle.Depths(c.seq, want[:0])
		if !slices.Equal(got, want) {
			return fmt.Errorf("%d blocks: the index says %v, the oracle %v", len(c.seq), got, want)
		}
	}
	if got, want := k.x.Stats().Memberships, k.oracle.Memberships(); got != want {
		return fmt.Errorf("the index counts %d memberships, the oracle %d", got, want)
	}
	if k.round%checkEvery == 0 {
		return k.x.Check()
	}
	return nil
}

// empty checks the index a last time and takes everything out: half of the workers
// are cleared, the others leave.
func (k *Soak) empty() error {
	if err := k.x.Check(); err != nil {
		return err
	}
	for i := range k.workers {
		if i%2 == 0 {
			k.x.DropSource(k.workers[i].source)
			continue
		}
		for _, o := range k.workers[i].owners {
			k.x.Clear(o)
		}
	}
	k.oracle = nil
	if st := k.x.Stats(); st.Memberships != 0 || st.Blocks != 0 {
		return fmt.Errorf("%d blocks and %d memberships after everything was cleared", st.Blocks, st.Memberships)
	}
	return k.x.Check()
}

// inUse returns the bytes in spans that hold objects.
func inUse() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapInuse)
}
