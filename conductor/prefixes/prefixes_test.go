package prefixes

import (
	"fmt"
	"math/bits"
	"math/rand/v2"
	"testing"
	"time"
)

// keys returns the keys of a prompt by depth: prompts of one family agree up to a depth.
func keys(family, own uint64, shared, depths int) (all []uint64) {
	for i := range depths {
		k := family<<32 | uint64(i)<<24 | 1
		if i >= shared {
			k |= own << 40
		}
		all = append(all, k)
	}
	return all
}

// TestHottest asks for prompts with frequencies of a power law among many that come once, and
// holds that the most frequent are found, with counts within their error.
func TestHottest(t *testing.T) {
	room := new(Room)
	s := New(room)
	rng := rand.New(rand.NewPCG(1, 2))
	asked := make(map[uint64]uint64)
	now := time.Unix(1e9, 0)
	for i := range 200_000 {
		var q Query
		if family := uint64(rng.ExpFloat64() * 3); i%2 == 0 {
			q.Keys = keys(family+1, 0, 4, 4)
		} else {
			q.Keys = keys(1000+uint64(i), uint64(i), 0, 5)
		}
		for _, k := range q.Keys {
			asked[k]++
		}
		s.Observe(&q, now)
	}
	r := s.Report(40)
	if r.Queries != 200_000*Every {
		t.Errorf("%d queries", r.Queries)
	}
	for i, p := range r.Prefixes {
		if n := asked[p.Key] * Every; p.Queries > n || p.Queries+p.Error < n {
			t.Errorf("prefix %d: %d queries, error %d, asked for %d", i, p.Queries, p.Error, n)
		}
		if (p.Parent == 0) != (p.Depth == 1) {
			t.Errorf("%+v", p)
		}
	}
	for family := uint64(1); family < 10; family++ {
		found := 0
		for _, p := range r.Prefixes {
			if p.Key>>32 == family {
				found++
			}
		}
		if found != 4 {
			t.Errorf("family %d: %d of 4 prefixes are among the hottest", family, found)
		}
	}
	if n := len(s.entries); n > maxEntries || room.entries.Load() != int64(n) {
		t.Errorf("%d entries, %d in the room", n, room.entries.Load())
	}
	if s.Close(); room.Bytes() != 0 {
		t.Errorf("%d bytes after the end", room.Bytes())
	}
}

// TestRoom holds that all Summaries together stay within their bound, and that each still has
// its hottest prefix.
func TestRoom(t *testing.T) {
	room := new(Room)
	now := time.Unix(1e9, 0)
	var all []*Summary
	for range 200 {
		s := New(room)
		all = append(all, s)
		for i := range 3000 {
			s.Observe(&Query{Keys: keys(uint64(i), 0, 1, 1)}, now)
			s.Observe(&Query{Keys: keys(9999, 0, 1, 1)}, now)
		}
	}
	if n := room.entries.Load(); n > maxTotal+200*fewEntries {
		t.Errorf("%d entries", n)
	}
	for i, s := range all {
		if r := s.Report(1); len(r.Prefixes) != 1 || r.Prefixes[0].Key>>32 != 9999 {
			t.Errorf("summary %d: %+v", i, r.Prefixes)
		}
	}
}

// TestHolders holds that a prefix has the holders of all its blocks at the last query.
func TestHolders(t *testing.T) {
	s := New(new(Room))
	now := time.Unix(1e9, 0)
	q := Query{Keys: keys(1, 0, 3, 3), Blocks: 7, Longest: 4, Holders: []Holder{{"a", 4}, {"b", 1}}, Media: []Medium{{"GPU", 4}}}
	s.Observe(&q, now)
	want := func(held ...string) {
		t.Helper()
		for i, p := range s.Report(9).Prefixes {
			if fmt.Sprint(p.Holders) != held[i] || p.Depth != 1<<i {
				t.Errorf("depth %d: %v, want %s", p.Depth, p.Holders, held[i])
			}
		}
	}
	want("[a b]", "[a]", "[a]")
	q.Holders = q.Holders[1:]
	s.Observe(&q, now)
	want("[b]", "[]", "[]")
	q.Holders = nil
	for i := range 20 {
		q.Holders = append(q.Holders, Holder{fmt.Sprint(i), 1})
	}
	s.Observe(&q, now.Add(time.Second))
	r := s.Report(9)
	if p := r.Prefixes[0]; p.Held != 20 || len(p.Holders) != maxHolders || !p.Last.Equal(now.Add(time.Second)) {
		t.Errorf("%+v", p)
	}
	if r.Asked != 21*Every || r.Cached != 12*Every || r.Media[0] != (Medium{"GPU", 12 * Every}) || r.Reuse[bits.Len(Every)] != 2*Every {
		t.Errorf("%+v", r)
	}
	s.Observe(&q, now.Add(3*halfLife))
	if r := s.Report(9); r.Prefixes[0].Queries != 2*Every {
		t.Errorf("after the half-life: %d queries", r.Prefixes[0].Queries)
	}
}

func BenchmarkObserve(b *testing.B) {
	s := New(new(Room))
	q := Query{Keys: keys(1, 0, 7, 7), Blocks: 64, Longest: 64, Holders: []Holder{{"a", 64}, {"b", 8}}, Media: []Medium{{"GPU", 64}}}
	now := time.Unix(1e9, 0)
	for b.Loop() {
		q.Keys[6]++
		s.Observe(&q, now)
	}
}
