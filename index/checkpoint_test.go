package index

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"example.com/conductor/index/hash"
	"example.com/conductor/internal/must"
)

// linesOf returns what a snapshot says, a line for each block of an owner, and for
// what comes before.
func linesOf(s *Snapshot) (lines []string) {
	s.Walk(all, func(r *Stretch) bool {
		key := r.Key
		lines = append(lines, fmt.Sprint(r.Owner, key, r.Root, r.HasParent, r.Gone, r.Parent))
		for i, engine := range r.Engine {
			if i > 0 {
				key = s.x.tree.scheme.Next(key, r.ClientHashes[i])
			}
			lines = append(lines, fmt.Sprint(r.Owner, key, r.HasKey, r.Waiting, engine, r.ClientHashes[i], r.Copies[i], r.More[i]))
		}
		return true
	})
	slices.Sort(lines)
	return lines
}

// A cut has the blocks, owners and names of its moment, whatever events come before its
// blocks are copied.
func TestCutStandsStill(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	for i := range 150 {
		w := newWorld(t, rand.New(rand.NewPCG(seed, uint64(i))), true, false, ghostly(i/2%3))
		w.say("seed %d, world %d", seed, i)
		w.exchange(w.keeping())
		w.addIdentities(w.x)
		for range w.sources {
			w.x.NewSource()
		}
		for i, o := range w.owners {
			w.x.NewCountedOwner(w.o.owners[o], w.tallies[i])
		}
		for range 60 {
			w.step()
		}
		want := linesOf(w.x.Checkpoint().Snapshot())
		c := w.x.Checkpoint()
		for range 40 {
			w.step()
		}
		if got := linesOf(c.Snapshot()); !slices.Equal(got, want) {
			for _, line := range got {
				if !slices.Contains(want, line) {
					t.Errorf("new: %s", line)
				}
			}
			for _, line := range want {
				if !slices.Contains(got, line) {
					t.Errorf("missing: %s", line)
				}
			}
			w.fail("a cut is not what was at its moment")
		}
		w.compare()
	}
}

// TestCutNextToForks copies pieces while events go on behind blocks in the midst of them.
func TestCutNextToForks(t *testing.T) {
	l := lab{t, New(Options{Scheme: hash.DefaultScheme(), KeepClientHashes: true})}
	o := l.x.NewOwner(l.x.NewSource())
	const chains = 400
	for k := range uint64(chains) {
		e := Store{Owner: o}
		e.Engine, e.Local = blocks(1000*k, 1, 40)
		for i := range e.Local {
			e.Local[i] += 1000 * k
		}
		l.x.Store(&e)
	}
	c := l.x.Checkpoint()
	copied := make(chan *Snapshot)
	go func() { copied <- c.Snapshot() }()
	for k := range uint64(chains) { // from behind, towards the copies
		n := chains - 1 - k
		l.storeBehind(o, 1000*n+18, 1<<40+n, 1<<41+n)
	}
	if s := <-copied; len(s.pieces) != chains {
		t.Errorf("the cut has %d pieces, want %d", len(s.pieces), chains)
	}
	must.Succeed(t, l.x.Check())
}

// A cut has a block without its client hash, also if an event that comes before it is copied says that.
func TestCutKeepsClientHashes(t *testing.T) {
	l := newIdentityLab(t)
	l.x.Store(&Store{Owner: l.gpu, Identity: l.b, Parent: 101, HasParent: true, Engine: []uint64{102}, Local: []uint64{2}})
	l.x.Store(&Store{Owner: l.gpu, Identity: l.a, Engine: []uint64{101}, Local: []uint64{1}})
	want := linesOf(l.x.Checkpoint().Snapshot())
	c := l.x.Checkpoint()
	l.x.Store(&Store{Owner: l.pool, Engine: []uint64{202}}) // so that the event is not ordinary
	l.x.Store(&Store{Owner: l.gpu, Parent: 101, HasParent: true, Engine: []uint64{202}, Local: []uint64{2}, Copies: CopySet})
	if got := linesOf(c.Snapshot()); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// A cut has a name that means two blocks, also if an event comes before its pieces are copied that brings this out and
// takes the name off one of them.
func TestCutKeepsSharedNames(t *testing.T) {
	x := New(Options{Scheme: hash.DefaultScheme(), KeepClientHashes: true})
	var owners []Owner
	for i := range uint64(3) {
		o := x.NewOwner(x.NewSource())
		x.Store(&Store{Owner: o, Engine: []uint64{10 + i, 7}, Local: []uint64{20 + i, 30 + i}})
		owners = append(owners, o)
	}
	want := linesOf(x.Checkpoint().Snapshot())
	c := x.Checkpoint()
	if x.names.naming != onDemand {
		t.Fatal("all names have entries before the event")
	}
	// The parent is nowhere, so all names get entries, and the hash is left to one block.
	x.Store(&Store{Owner: owners[0], Parent: 99, HasParent: true, Engine: []uint64{100}, Local: []uint64{100}})
	private := 0
	for _, o := range owners {
		private += x.holders.owners[o].s.private.len()
	}
	if private != 2 {
		t.Fatalf("%d sources keep the hash to themselves, want 2", private)
	}
	if got := linesOf(c.Snapshot()); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	must.Succeed(t, x.Check())
}
