package names

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"example.com/conductor/conductor/scope"
	"example.com/conductor/index"
	"example.com/conductor/index/hash"
	"example.com/conductor/internal/must"
)

// lab is an index with its table, and a holder of blocks.
type lab struct {
	*Table
	x     *index.Index
	owner index.Owner
}

func newLab(most int) *lab {
	x := index.New(index.Options{Scheme: hash.DefaultScheme()})
	return &lab{New(x, most, func(scope.Variant) uint64 { return 1 }), x, x.NewOwner(x.NewSource())}
}

// store stores a block of an identity.
func (l *lab) store(id *Identity, engine uint64) {
	l.x.Store(&index.Store{Owner: l.owner, Identity: id.Number, Engine: []uint64{engine}, Local: []uint64{7}, Copies: index.CopySet})
}

func (l *lab) remove(engine uint64) { l.x.Remove(l.owner, []uint64{engine}, nil, index.CopySet) }

func salted(i int) scope.Variant { return scope.Variant{Salt: fmt.Sprint("user-", i)} }

// TestEnter holds that an identity is one and the same until it leaves, also for those who enter it at
// the same time, and that no two have a constant or a number in common.
func TestEnter(t *testing.T) {
	l := newLab(0)
	const identities, workers = 500, 4
	var got [workers][identities]*Identity
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := range identities {
				id, err := l.Enter(scope.Variant{Lora: fmt.Sprint(i % 7), Salt: fmt.Sprint(i)})
				must.Report(t, err)
				got[w][i] = id
			}
		})
	}
	wg.Wait()
	constants, numbers := map[uint64]bool{0: true}, map[index.Identity]bool{0: true}
	for i := range identities {
		id := got[0][i]
		for w := range workers {
			if got[w][i] != id {
				t.Fatalf("identity %d is two", i)
			}
		}
		if constants[id.Constant] || numbers[id.Number] {
			t.Errorf("identity %d has the constant or the number of another", i)
		}
		constants[id.Constant], numbers[id.Number] = true, true
		if l.Find(id.Variant) != id || l.Of(id.Number) != id || l.Constant(id.Variant) != id.Constant {
			t.Errorf("identity %d is not found", i)
		}
	}
	if n := len(l.All()); n != identities+1 || l.Len() != identities {
		t.Errorf("%d identities are listed, %d counted", n, l.Len())
	}
	if id, err := l.Enter(scope.Variant{}); err != nil || id != l.Base() || id.Constant != 0 || id.Number != 0 {
		t.Errorf("the base identity is %+v, %v", id, err)
	}
	// The lengths are in the constant.
	if l.Constant(scope.Variant{Lora: "ab", Salt: "c"}) == l.Constant(scope.Variant{Lora: "a", Salt: "bc"}) {
		t.Error("two identities have one constant")
	}
	if other := newLab(0); other.Constant(salted(1)) == l.Constant(salted(1)) {
		t.Error("two deployments have one secret")
	}
}

// TestFullTable holds that a full table drops identities without blocks, first those that were not used
// lately, and refuses others. An identity that comes again has the constant of before.
func TestFullTable(t *testing.T) {
	l := newLab(10)
	held, err := l.Enter(salted(0))
	must.Succeed(t, err)
	l.store(held, 100)
	for i := 1; i < 200; i++ {
		id, err := l.Enter(salted(i))
		must.Succeed(t, err)
		l.store(id, uint64(100+i))
		l.remove(uint64(100 + i))
		if l.Len() > 10 {
			t.Fatalf("%d identities", l.Len())
		}
	}
	if l.Find(held.Variant) != held {
		t.Error("an identity with a block has left")
	}
	constant := l.Constant(salted(1))
	again, err := l.Enter(salted(1))
	if err != nil || again.Constant != constant {
		t.Errorf("%+v, %v", again, err)
	}
	for i := range 30 { // all have blocks
		if id, err := l.Enter(salted(1000 + i)); err == nil {
			l.store(id, uint64(1000+i))
		} else if !errors.Is(err, ErrFull) {
			t.Error(err)
		}
	}
	if _, err := l.Enter(salted(5000)); !errors.Is(err, ErrFull) || l.Len() != 10 {
		t.Errorf("%v, %d identities", err, l.Len())
	}
	// Names have a bound of their own.
	small := newLab(4)
	if _, err := small.Enter(scope.Variant{Salt: strings.Repeat("x", 4*nameBytes+1)}); !errors.Is(err, ErrFull) {
		t.Errorf("a giant salt: %v", err)
	}
	for i := range 100 {
		if _, err := small.Enter(scope.Variant{Salt: fmt.Sprint(i, strings.Repeat("x", 4*nameBytes-10))}); err != nil {
			t.Fatalf("salt %d: %v", i, err)
		}
	}
	if small.Len() != 1 || small.bytes > 4*nameBytes {
		t.Errorf("%d identities, %d bytes", small.Len(), small.bytes)
	}
	must.Report(t, l.x.Check())
}

// TestPin holds that a pinned identity stays, and that one which has left cannot be pinned.
func TestPin(t *testing.T) {
	l := newLab(1)
	id, err := l.Enter(salted(1))
	must.Succeed(t, err)
	if !l.Pin(id) {
		t.Fatal("an identity in the table is not pinned")
	}
	entered := make(chan *Identity)
	go func() {
		other, _ := l.Enter(salted(2))
		entered <- other
	}()
	l.store(id, 1)
	l.Unpin()
	if other := <-entered; other != nil {
		t.Fatalf("%+v took the place of an identity with a block", other)
	}
	l.remove(1)
	other, err := l.Enter(salted(2))
	must.Succeed(t, err)
	if l.Pin(id) {
		t.Error("an identity that has left is pinned")
	}
	if other.Number != id.Number || l.Of(id.Number) != other {
		t.Error("the number is not used again")
	}
}

// TestAdopt holds that a table without constants takes over the secret of another one, and only then.
func TestAdopt(t *testing.T) {
	a, b, c, d := newLab(0), newLab(0), newLab(0), newLab(0)
	_, err := c.Enter(salted(1))
	must.Succeed(t, err)
	d.Fold(salted(1))
	if !b.Adopt(a.Secret()) || b.Constant(salted(3)) != a.Constant(salted(3)) || !b.Adopt(a.Secret()) {
		t.Error("an empty table keeps its secret")
	}
	if c.Adopt(a.Secret()) || d.Adopt(a.Secret()) {
		t.Error("a table with constants takes over another secret")
	}
}

// TestFolds lists the constants that engine hashes may need.
func TestFolds(t *testing.T) {
	l := newLab(0)
	all := []scope.Variant{{Lora: "a"}, {Salt: "s"}, {Lora: "a", Salt: "s"}}
	for _, v := range all {
		for range 2 {
			if l.Fold(v) != l.Constant(v) {
				t.Errorf("%v folds to another constant", v)
			}
		}
	}
	count := func(of scope.Variant) (n int) {
		l.Folds(of, func(constant uint64) bool {
			if n == 0 && constant != 0 {
				t.Error("the plain hash does not come first")
			}
			n++
			return true
		})
		return n
	}
	for v, want := range map[scope.Variant]int{{}: 1, {Lora: "a"}: 2, {Salt: "s"}: 2, {Lora: "a", Salt: "s"}: 4,
		{Lora: "b", Salt: "s"}: 2} {
		if got := count(v); got != want {
			t.Errorf("%v: %d constants, want %d", v, got, want)
		}
	}
}

// TestUncoveredLeave gives standardized events ever new salts. What a removal looks under is bounded by
// the identities that the table still has.
func TestUncoveredLeave(t *testing.T) {
	l := newLab(8)
	n := l.NewSpeaker(l.x.NewSource(), scope.Variant{}, Standard)
	for i := range 4 * fewUncovered {
		id, err := l.Enter(salted(i))
		must.Succeed(t, err)
		n.Has(id)
	}
	if len(n.uncovered) > fewUncovered {
		t.Errorf("%d constants are kept", len(n.uncovered))
	}
	for _, id := range l.All() {
		if _, kept := n.uncovered[id.Constant]; id.Constant != 0 && !kept {
			t.Errorf("the constant of %s is lost", id.Salt)
		}
	}
}

// BenchmarkEnter enters an identity that is there, and one new one each time.
func BenchmarkEnter(b *testing.B) {
	b.Run("known", func(b *testing.B) {
		l := newLab(0)
		l.Enter(salted(1))
		for b.Loop() {
			l.Enter(salted(1))
		}
	})
	b.Run("new", func(b *testing.B) {
		l := newLab(16_384)
		for i := 0; b.Loop(); i++ {
			l.Enter(salted(i))
		}
	})
}
