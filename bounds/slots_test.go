package bounds

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// crowd lets n users of a flow enter again and again, each for a second, and counts them.
func crowd(ctx context.Context, wg *sync.WaitGroup, p *Slots, f Flow, n int) (entered *atomic.Int64) {
	entered = new(atomic.Int64)
	for range n {
		wg.Go(func() {
			for p.Enter(ctx, f) == nil {
				entered.Add(1)
				time.Sleep(time.Second)
				p.Leave(f)
			}
		})
	}
	return entered
}

// TestShares holds that flows have slots by their weights, however many of their users wait, on
// one slot as on many.
func TestShares(t *testing.T) {
	for _, slots := range []int{1, 4, 8, 64} {
		t.Run(fmt.Sprint(slots), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := NewSlots(slots, 0)
				ctx, stop := context.WithCancel(t.Context())
				var wg sync.WaitGroup
				a := crowd(ctx, &wg, p, Flow{"a", 1}, 500)
				b := crowd(ctx, &wg, p, Flow{"b", 0}, 100)
				c := crowd(ctx, &wg, p, Flow{"c", 2}, 100)
				time.Sleep(1000*time.Second + time.Millisecond)
				stop()
				total := int64(1001 * slots)
				for _, x := range []struct {
					name          string
					entered, want int64
				}{{"a", a.Load(), total / 4}, {"b", b.Load(), total / 4}, {"c", c.Load(), total / 2}} {
					if x.entered < x.want*9/10 || x.entered > x.want*11/10 {
						t.Errorf("%s entered %d times, want %d", x.name, x.entered, x.want)
					}
				}
				wg.Wait()
				if inside, waiting := p.Count(); inside+waiting+len(p.flows) != 0 {
					t.Errorf("in the end %d inside, %d waiting, %d flows", inside, waiting, len(p.flows))
				}
			})
		})
	}
}

// TestOneSlot holds that a flow that asks now and then waits for one user of a busy flow at
// most, though there is one slot.
func TestOneSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewSlots(1, 0)
		ctx, stop := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		crowd(ctx, &wg, p, Flow{Name: "busy"}, 50)
		time.Sleep(500 * time.Millisecond)
		for range 20 {
			begun := time.Now()
			p.Enter(ctx, Flow{Name: "quiet"})
			if waited := time.Since(begun); waited > time.Second {
				t.Errorf("waited for %s", waited)
			}
			p.Leave(Flow{Name: "quiet"})
			time.Sleep(1300 * time.Millisecond)
		}
		stop()
		wg.Wait()
	})
}

// TestEach holds that a flow has no more slots than its bound, though others are free.
func TestEach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewSlots(4, 3)
		ctx, stop := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		entered := crowd(ctx, &wg, p, Flow{Name: "a"}, 10)
		synctest.Wait()
		if inside, waiting := p.Count(); inside != 3 || waiting != 7 || entered.Load() != 3 {
			t.Errorf("%d inside, %d waiting", inside, waiting)
		}
		if err := p.TryEnter(Flow{Name: "a"}); err != ErrShare {
			t.Errorf("a flow that has its share: %v", err)
		}
		if p.TryEnter(Flow{Name: "b"}) != nil {
			t.Error("no slot for another flow")
		}
		if err := p.TryEnter(Flow{Name: "c"}); err != ErrFull {
			t.Errorf("without a slot: %v", err)
		}
		stop()
		wg.Wait()
	})
}

// TestRaces enters and gives up at random, and holds that no slot is lost or given twice.
func TestRaces(t *testing.T) {
	const slots = 3
	p := NewSlots(slots, 2)
	var inside atomic.Int64
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			f := Flow{Name: fmt.Sprint(i % 5), Weight: i % 3}
			for range 300 {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rand.IntN(100))*time.Microsecond)
				if p.Enter(ctx, f) == nil {
					if n := inside.Add(1); n > slots {
						t.Errorf("%d inside", n)
					}
					inside.Add(-1)
					p.Leave(f)
				}
				cancel()
			}
		})
	}
	for n := range 100 {
		p.SetMost(1+n%slots, 2)
	}
	p.SetMost(slots, 2)
	wg.Wait()
	if inside, waiting := p.Count(); inside+waiting+len(p.flows) != 0 {
		t.Errorf("in the end %d inside, %d waiting, %d flows", inside, waiting, len(p.flows))
	}
}
