package workload

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// A burst is BurstSize requests with one prompt, within burstSpan: samples of one prompt, or the
// calls that an agent makes in parallel. Half of the prompts begin with one of a few system
// prompts, the others are new from their first token on. Twelve ranks that compute 8,000 tokens/s
// are busy for two thirds of the time if each of them computes each prompt.
const (
	BurstSize = 16
	burstSpan = 50 * time.Millisecond
	burstGap  = 1500 * time.Millisecond // between two bursts, on average
	systems   = 4
)

var (
	burstPrompt = span{4000, 12000}
	burstSystem = span{1500, 3000}
	burstAnswer = span{50, 400}
)

// Bursts are requests that come with others of the same prompt.
type Bursts struct {
	all  []Request
	next int
}

// NewBursts returns a source of n requests.
func NewBursts(n int, seed uint64) *Bursts {
	dice := rand.New(rand.NewPCG(seed, 0x627572737473))
	fresh := dice.Uint64() >> 1 // another seed means other tokens too
	segment := func(length int) Segment {
		fresh++
		return Segment{ID: fresh, Len: length}
	}
	var shared [systems]Segment
	for i := range shared {
		shared[i] = segment(burstSystem.draw(dice))
	}
	b := &Bursts{all: make([]Request, 0, n)}
	for began := time.Duration(0); len(b.all) < n; began += time.Duration(dice.ExpFloat64() * float64(burstGap)) {
		length := burstPrompt.draw(dice)
		prompt := []Segment{segment(length)}
		if dice.IntN(2) == 0 {
			system := shared[dice.IntN(systems)]
			prompt[0].Len -= system.Len
			prompt = []Segment{system, prompt[0]}
		}
		for range min(BurstSize, n-len(b.all)) {
			at := began + time.Duration(dice.Int64N(int64(burstSpan)))
			b.all = append(b.all, Request{Prompt: prompt, Output: segment(burstAnswer.draw(dice)), At: at})
		}
	}
	slices.SortStableFunc(b.all, func(x, y Request) int { return int(x.At - y.At) })
	return b
}

// Next returns the next request. Bursts may overlap.
func (b *Bursts) Next() (Request, bool) {
	if b.next == len(b.all) {
		return Request{}, false
	}
	b.next++
	return b.all[b.next-1], true
}

// Len returns the number of requests.
func (b *Bursts) Len() int { return len(b.all) }

// String says what the source is.
func (b *Bursts) String() string { return fmt.Sprintf("bursts of %d equal prompts", BurstSize) }
