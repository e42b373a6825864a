package expect

import (
	"testing"
	"time"
)

// FuzzSpace makes calls with keys that need not be those of any prompt, as hashes of a client need not be.
func FuzzSpace(f *testing.F) {
	f.Add([]byte("0ab0abab1ab0aba2abcd"))
	f.Add([]byte{0, 1, 2, 3, 0, 0, 1, 2, 0, 1, 3, 1, 1, 6, 0, 2, 2, 2, 4, 9, 5})
	f.Fuzz(func(t *testing.T, calls []byte) {
		clock := newClock()
		table := New(4000, clock.now)
		spaces := []*Space{table.NewSpace("a", 16), table.NewSpace("b", 16)}
		next := func() int {
			if len(calls) == 0 {
				return 0
			}
			b := calls[0]
			calls = calls[1:]
			return int(b)
		}
		for n := 0; len(calls) > 0 && n < 300; n++ {
			call, at := next(), next()
			s, instance, rank := spaces[at%2], int32(at/2%2), int32(at/4%3)-1
			var p keys
			for range next() % 12 {
				p = append(p, uint64(next()%5)+1)
			}
			o := Options{Capacity: at / 16 % 2 * 7, TTL: time.Duration(at/32%2) * time.Second}
			id := []string{"", "x", "y"}[call/8%3]
			switch call % 8 {
			case 0, 1, 2:
				s.Target(instance, rank, o).Add(Report{Keys: p, ID: id, TTL: time.Duration(call/24) * time.Second / 4, Print: p.Last()})
			case 3:
				s.Announced(instance, max(rank, 0), p, 1)
			case 4:
				table.Cancel(s.owner, id)
			case 5:
				clock.at = clock.at.Add(time.Duration(call) * 10 * time.Millisecond)
			case 6:
				if at%5 == 0 {
					s.Drop(instance, max(rank, 0))
				} else {
					s.Target(instance, rank, o).Has(p)
				}
			case 7:
				if at%7 == 0 {
					s.Forget(instance)
				}
			}
			table.check(t)
			for _, f := range s.Match(nil, p, 0, len(p)) {
				if f.From >= f.To || int(f.To) > len(p) {
					t.Fatalf("blocks %d to %d of %d", f.From, f.To, len(p))
				}
			}
		}
		for _, s := range spaces {
			s.Close()
		}
		table.checkEmpty(t, spaces...)
	})
}
