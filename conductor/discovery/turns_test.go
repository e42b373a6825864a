package discovery

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"example.com/conductor/conductor/registration"
	"example.com/conductor/internal/must"
)

// newBadFleet returns three engines of one name that never answer well, and an update of their target, which lets time go by first. A
// turn is over after one question. The update returns whom it asked, by the last digit of the address, and a plus if some are left.
func newBadFleet(t *testing.T) (f *fleet, update func(time.Duration) string) {
	addresses := []string{"127.0.0.1", "127.0.0.2", "127.0.0.3"}
	f = newFleet(t, nil, addresses...)
	f.m.turn = 0
	for _, a := range addresses {
		f.answer(a, "/kv_event_sources", "no JSON")
		f.names = append(f.names, netip.MustParseAddr(a))
	}
	must.Succeed(t, f.m.Add(Target{URL: "http://engines:" + f.port, Registration: registration.Registration{Instance: "e", BlockSize: 16}},
		false))
	f.m.tasks.Wait()
	target := f.m.targets[f.m.List()[0].Name()]
	return f, func(d time.Duration) (asked string) {
		f.now = f.now.Add(d)
		before := maps.Clone(f.asked)
		left := f.m.updateTarget(target)
		f.m.tasks.Wait()
		for _, a := range addresses {
			if f.asked[a] > before[a] {
				asked += a[len(a)-1:]
			}
		}
		if left {
			asked += "+"
		}
		return asked
	}
}

// TestTurns: a name whose engines do not answer asks one of them in each of its turns, each in turn, so that other targets are asked
// in between.
func TestTurns(t *testing.T) {
	f, update := newBadFleet(t)
	first := ""
	for a, n := range f.asked {
		if first += a[len(a)-1:]; n != 1 || len(f.asked) != 1 {
			t.Fatalf("asked in the first turn: %v", f.asked)
		}
	}
	// The others come first, though the one that was asked is due again.
	second, third := update(maxPause), update(0)
	if all := slices.Sorted(slices.Values([]string{first, strings.Trim(second, "+"), strings.Trim(third, "+")})); !slices.Equal(all,
		[]string{"1", "2", "3"}) || second[1:] != "+" || third[1:] != "+" {
		t.Fatalf("asked were %q, %q, %q", first, second, third)
	}
	order := first + second[:1] + third[:1]
	if got := update(0); got != order[:1] {
		t.Errorf("asked again was %q, want %q", got, order[:1])
	}
	if got := update(0); got != "" {
		t.Errorf("none is due, and asked was %q", got)
	}
	for range 5 { // until all pauses are as long as they get
		f.pass(maxPause)
	}
	var again string
	f.now = f.now.Add(maxPause)
	for range 3 {
		again += strings.Trim(update(0), "+")
	}
	if sorted := slices.Sorted(slices.Values(strings.Split(again, ""))); !slices.Equal(sorted, []string{"1", "2", "3"}) {
		t.Errorf("in three turns %q were asked", again)
	}
}

// TestTurnOfGoodEngine: an engine that has answered so far is asked before those that never do, and one that answers again has its source.
func TestTurnOfGoodEngine(t *testing.T) {
	f, update := newBadFleet(t)
	f.pass(maxPause)
	f.answer("127.0.0.2", "/kv_event_sources", vllmTells(7000))
	f.answer("127.0.0.2", "/v1/models", `{"data":[{"id":"llama"}]}`)
	f.pass(maxPause)
	source := "e@127.0.0.2|default|0 tcp://127.0.0.2:%d vLLM llama 16 "
	f.want(fmt.Sprintf(source, 7000))
	f.awaitLive()
	f.answer("127.0.0.2", "/kv_event_sources", vllmTells(7001))
	for _, e := range f.m.targets[f.m.List()[0].Name()].engines {
		if len(e.keys) > 0 {
			e.next = f.now.Add(maxPause) // as if its publisher were restarted then
		}
	}
	if got := update(maxPause); got != "2+" {
		t.Errorf("asked was %q", got)
	}
	f.want(fmt.Sprintf(source, 7001))
}

// TestTurnsOfRefresh: refreshing engines of a name that answer slowly takes turns, too.
func TestTurnsOfRefresh(t *testing.T) {
	f, update := newBadFleet(t)
	for _, a := range f.names {
		f.answer(a.String(), "/kv_event_sources", vllmTells(7000))
		f.answer(a.String(), "/v1/models", `{"data":[{"id":"llama"}]}`)
	}
	f.pass(maxPause)
	f.awaitLive()
	asked := []string{update(maxRefresh), update(0), update(0)}
	if slices.Sort(asked); !slices.Equal(asked, []string{"1", "2", "3"}) {
		t.Errorf("in three turns %q were asked", asked)
	}
}
