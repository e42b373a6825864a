package expect

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// TestTogether has all calls at the same time.
func TestTogether(t *testing.T) {
	var at atomic.Int64
	now := func() time.Time { return time.Unix(1_700_000_000, at.Add(int64(time.Millisecond))) }
	table := New(200_000, now)
	spaces := []*Space{table.NewSpace("a", 16), table.NewSpace("a", 16), table.NewSpace("b", 16)}
	var all sync.WaitGroup
	for worker := range uint64(6) {
		all.Go(func() {
			dice := rand.New(rand.NewPCG(worker, 42))
			for i := range 2000 {
				s := spaces[dice.IntN(len(spaces))]
				instance, rank := int32(dice.IntN(3)), int32(dice.IntN(3))-1
				p := promptOf("abcabcabc"[:dice.IntN(9)])
				for range dice.IntN(10) {
					p = append(p, p.Last()*31+uint64(dice.IntN(3)))
				}
				var o Options
				if instance == 2 {
					o = Options{Capacity: 20 + dice.IntN(2), TTL: time.Second}
				}
				switch dice.IntN(12) {
				case 0, 1, 2, 3:
					s.Target(instance, rank, o).Add(Report{Keys: p, ID: fmt.Sprint(dice.IntN(50)),
						TTL: time.Duration(dice.IntN(2000)) * time.Millisecond, Named: i%2 == 0})
				case 4:
					s.Target(instance, rank, o).Has(p)
				case 5, 6:
					if s.Awaits(instance, rank) {
						s.Announced(instance, max(rank, 0), p, 1)
					}
				case 7, 8:
					for _, f := range s.Match(nil, p, 0, dice.IntN(len(p)+1)) {
						if f.From >= f.To || int(f.To) > len(p) {
							t.Errorf("blocks %d to %d of %d", f.From, f.To, len(p))
						}
					}
				case 9:
					table.Cancel([]string{"a", "b"}[dice.IntN(2)], fmt.Sprint(dice.IntN(50)))
				case 10:
					s.Drop(instance, max(rank, 0))
				case 11:
					switch dice.IntN(20) {
					case 0:
						s.Forget(instance)
					case 1:
						table.SetLimit(int64(100_000 + dice.IntN(100_000)))
					default:
						s.States()
						s.Doubts(time.Now().Add(-time.Second))
						table.Totals()
						table.check(t)
					}
				}
			}
		})
	}
	all.Wait()
	table.check(t)
	for _, s := range spaces {
		s.Close()
	}
	table.checkEmpty(t, spaces...)
}

// Last returns the last key of a prompt, 1 without one.
func (k keys) Last() uint64 {
	if len(k) == 0 {
		return 1
	}
	return k[len(k)-1]
}
