package expect

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

type keys []uint64

func (k keys) Len() int        { return len(k) }
func (k keys) At(i int) uint64 { return k[i] }

// clock is a clock that a test moves.
type clock struct{ at time.Time }

func (c *clock) now() time.Time { return c.at }

func newClock() *clock { return &clock{time.Unix(1_700_000_000, 0)} }

// promptOf returns the keys of a prompt whose blocks are letters. A key is made of all letters up to its own.
func promptOf(tokens string) (all keys) {
	h := uint64(14695981039346656037)
	for _, c := range []byte(tokens) {
		h = (h ^ uint64(c)) * 1099511628211
		all = append(all, h)
	}
	return all
}

// lab is a space next to an oracle, which knows the blocks of each report by their prompts.
type lab struct {
	*clock
	t     *testing.T
	table *Table
	space *Space
	live  []*reported
}

type reported struct {
	at     rankID
	id     string
	prompt string
	from   int
	ends   time.Time
	gone   map[int]bool // blocks that were announced, by their places
}

func (l *lab) report(at rankID, id, prompt string, from int, ttl time.Duration) {
	l.expire()
	if id != "" {
		for i, r := range l.live {
			if r.id == id {
				if r.at == at && r.prompt == prompt {
					return
				}
				l.live = slices.Delete(l.live, i, i+1)
				break
			}
		}
	}
	l.live = append(l.live, &reported{at: at, id: id, prompt: prompt, from: from, ends: l.at.Add(ttl), gone: map[int]bool{}})
}

func (l *lab) expire() {
	l.live = slices.DeleteFunc(l.live, func(r *reported) bool { return !r.ends.After(l.at) })
}

// expected returns which blocks of a prompt are expected of a target.
func (l *lab) expected(at rankID, prompt string) []bool {
	l.expire()
	all := make([]bool, len(prompt))
	for _, r := range l.live {
		if r.at != at {
			continue
		}
		for i := r.from; i < len(r.prompt) && i < len(prompt) && r.prompt[:i+1] == prompt[:i+1]; i++ {
			all[i] = all[i] || !r.gone[i]
		}
	}
	return all
}

func (l *lab) announced(instance, rank int32, prompt string, from int) {
	for _, r := range l.live {
		if r.at != (rankID{instance, rank}) && r.at != (rankID{instance, AnyRank}) {
			continue
		}
		for i := from; i < len(prompt) && i < len(r.prompt) && r.prompt[:i+1] == prompt[:i+1]; i++ {
			r.gone[i] = true
		}
	}
}

// TestModel compares random reports, announcements, cancellations and moments with the oracle. Announcements go on
// where the one before of the same prompt ended, as engines announce them.
func TestModel(t *testing.T) {
	for seed := range uint64(60) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { testModel(t, seed) })
	}
}

func testModel(t *testing.T, seed uint64) {
	dice := rand.New(rand.NewPCG(seed, 39))
	l := &lab{clock: newClock(), t: t}
	l.table = New(1<<30, l.now)
	l.space = l.table.NewSpace("a", 16)
	known := []string{"abcabcab"}
	has := make(map[rankID]map[string]bool) // what ranks have announced
	draw := func() string {
		p := known[dice.IntN(len(known))]
		p = p[:dice.IntN(len(p)+1)]
		for range 1 + dice.IntN(12) {
			p += string(rune('a' + dice.IntN(3)))
		}
		if len(known) < 40 {
			known = append(known, p)
		}
		return p
	}
	holds := func(at rankID, prompt string) (n int) {
		for n < len(prompt) {
			some := has[at][prompt[:n+1]]
			if at.rank == AnyRank {
				for rank := range int32(2) {
					some = some || has[rankID{at.instance, rank}][prompt[:n+1]]
				}
			}
			if !some {
				break
			}
			n++
		}
		return n
	}
	for range 400 {
		at := rankID{int32(dice.IntN(2)), int32(dice.IntN(3)) - 1}
		switch n := dice.IntN(10); {
		case n < 4:
			p, id := draw(), ""
			if dice.IntN(2) == 0 {
				id = fmt.Sprint("id", dice.IntN(20))
			}
			from, ttl := holds(at, p), time.Duration(1+dice.IntN(5000))*time.Millisecond
			l.space.Target(at.instance, at.rank, Options{}).Add(Report{Keys: promptOf(p)[from:], TTL: ttl, ID: id,
				Print: uint64(len(p))<<32 | promptOf(p + "x")[len(p)]>>32})
			l.report(at, id, p, from, ttl)
		case n < 7 && at.rank != AnyRank:
			p := draw()
			if len(l.live) > 0 {
				p = l.live[dice.IntN(len(l.live))].prompt
			}
			from := holds(at, p)
			p = p[:from+dice.IntN(len(p)-from+1)]
			l.space.Announced(at.instance, at.rank, promptOf(p)[from:], 1)
			l.announced(at.instance, at.rank, p, from)
			if has[at] == nil {
				has[at] = make(map[string]bool)
			}
			for i := range p {
				has[at][p[:i+1]] = true
			}
		case n == 7:
			id := fmt.Sprint("id", dice.IntN(20))
			l.expire()
			at := slices.IndexFunc(l.live, func(r *reported) bool { return r.id == id })
			if got := l.table.Cancel("a", id); got != (at >= 0) {
				t.Fatalf("cancel of %s: %v", id, got)
			}
			if at >= 0 {
				l.live = slices.Delete(l.live, at, at+1)
			}
		case n == 8 && dice.IntN(2) == 0 && at.rank != AnyRank: // the engine evicts the end of a prompt
			p := draw()
			for held := range has[at] {
				if strings.HasPrefix(held, p) {
					delete(has[at], held)
				}
			}
		case n == 8:
			l.at = l.at.Add(time.Duration(dice.IntN(1000)) * time.Millisecond)
		case n == 9 && dice.IntN(20) == 0 && at.rank != AnyRank:
			l.space.Drop(at.instance, at.rank)
			l.live = slices.DeleteFunc(l.live, func(r *reported) bool { return r.at == at || r.at == rankID{at.instance, AnyRank} })
			delete(has, at)
		}
		l.table.check(t)
		l.check(draw())
		for _, r := range l.live {
			l.check(r.prompt)
		}
	}
	l.at = l.at.Add(time.Hour)
	l.table.mu.Lock()
	l.table.expireReports(l.at.UnixNano())
	l.table.mu.Unlock()
	l.table.checkEmpty(t, l.space)
}

// check compares the expected blocks of a prompt with the oracle. All of the prompt counts as held, so that Match does not end.
func (l *lab) check(prompt string) {
	l.t.Helper()
	got := make(map[rankID][]bool)
	for _, f := range l.space.Match(nil, promptOf(prompt), 0, len(prompt)) {
		at := rankID{f.Instance, f.Rank}
		if got[at] == nil {
			got[at] = make([]bool, len(prompt))
		}
		for i := f.From; i < f.To; i++ {
			if got[at][i] {
				l.t.Fatalf("%v: block %d twice", at, i)
			}
			got[at][i] = true
		}
	}
	for instance := range int32(2) {
		for rank := int32(AnyRank); rank < 2; rank++ {
			at := rankID{instance, rank}
			want := l.expected(at, prompt)
			if got[at] == nil {
				got[at] = make([]bool, len(prompt))
			}
			if !slices.Equal(got[at], want) {
				l.t.Fatalf("%q at %v: %v, want %v", prompt, at, got[at], want)
			}
		}
	}
}
