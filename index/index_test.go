package index

import (
	"cmp"
	"fmt"
	"iter"
	"runtime"
	"slices"
	"strings"
	"testing"

	"example.com/conductor/index/hash"
	"example.com/conductor/internal/alloctest"
	"example.com/conductor/internal/must"
)

// lab is one index with the local hashes 1, 2, 3, ... as content; seq(n) is the
// key of the prefix 1..n.
type lab struct {
	t *testing.T
	x *Index
}

func newLab(t *testing.T, maxOrphans int) lab {
	return lab{t, New(Options{Scheme: hash.DefaultScheme(), MaxOrphans: maxOrphans})}
}

func seqs(n int) []uint64 {
	locals := make([]uint64, n)
	for i := range locals {
		locals[i] = uint64(i + 1)
	}
	return hash.DefaultScheme().AppendChain(nil, locals)
}

// blocks lists engine hashes first..last with an offset, and local hashes first..last.
func blocks(offset, first, last uint64) (engine, local []uint64) {
	for i := first; i <= last; i++ {
		engine, local = append(engine, offset+i), append(local, i)
	}
	return engine, local
}

// ownersHolding yields who holds each stretch of blocks with equal owners, ascending, and its
// length.
func ownersHolding(m *Match) iter.Seq2[[]uint32, int] {
	type change struct {
		at, owner uint32
		gone      bool
	}
	var changes []change
	for _, p := range m.Prefixes {
		changes = append(changes, change{0, p.Owner, false}, change{p.Blocks, p.Owner, true})
	}
	for _, s := range m.Later {
		changes = append(changes, change{s.From, s.Owner, false}, change{s.To, s.Owner, true})
	}
	slices.SortFunc(changes, func(a, b change) int { return int(a.at) - int(b.at) })
	return func(yield func([]uint32, int) bool) {
		var list []uint32
		for i, c := range changes {
			if n := c.at; i > 0 && n > changes[i-1].at {
				slices.Sort(list)
				if !yield(slices.Clone(list), int(n-changes[i-1].at)) {
					return
				}
			}
			if c.gone {
				list = slices.DeleteFunc(list, func(o uint32) bool { return o == c.owner })
			} else {
				list = append(list, c.owner)
			}
		}
	}
}

// sound returns the fault in the form of an answer, "" if nothing is.
func (m *Match) sound() string {
	ends := map[uint32]uint32{}
	last := uint32(0)
	for _, p := range m.Prefixes {
		if _, twice := ends[p.Owner]; twice || p.Blocks == 0 {
			return fmt.Sprintf("owner %d begins with %d blocks, twice: %t", p.Owner, p.Blocks, twice)
		}
		ends[p.Owner] = p.Blocks
		last = max(last, p.Blocks)
	}
	from := uint32(1)
	for _, s := range m.Later {
		if end, held := ends[s.Owner]; s.From < from || s.To <= s.From || held && s.From <= end {
			return fmt.Sprintf("owner %d holds blocks up to %d and then %d to %d behind another span from %d", s.Owner, end, s.From,
				s.To, from)
		}
		from, ends[s.Owner] = s.From, s.To
		last = max(last, s.To)
	}
	if int(last) != m.Blocks {
		return fmt.Sprintf("owners hold %d blocks of %d", last, m.Blocks)
	}
	return ""
}

// store stores blocks first..last, their engine hashes being offset + number,
// behind the block before.
func (l lab) store(o Owner, offset, first, last uint64) StoreResult {
	e := Store{Owner: o, Parent: offset + first - 1, HasParent: first > 1}
	e.Engine, e.Local = blocks(offset, first, last)
	return l.x.Store(&e)
}

// want compares the runs for the prefix 1..n, written "owners x blocks ...".
func (l lab) want(n int, want string) {
	l.t.Helper()
	l.wantChain(seqs(n), want)
}

func (l lab) wantChain(chain []uint64, want string) {
	l.t.Helper()
	var m Match
	l.x.matchKeys(0, chain, &m)
	var out []string
	for owners, blocks := range ownersHolding(&m) {
		out = append(out, fmt.Sprint(owners, "x", blocks))
	}
	if got := strings.Join(out, " "); got != want {
		l.t.Errorf("got %q, want %q", got, want)
	}
	must.Report(l.t, l.x.Check())
}

func (l lab) equal(got, want any) {
	l.t.Helper()
	if res, ok := got.(StoreResult); ok {
		got = res.counts()
	}
	if got != want {
		l.t.Errorf("got %+v, want %+v", got, want)
	}
}

// counts returns what a result counts.
func (r StoreResult) counts() StoreResult {
	r.Identity, r.Placed, r.Before, r.Chained = 0, false, 0, false
	return r
}

func TestStoreAndMatch(t *testing.T) {
	l := newLab(t, 0)
	a, b := l.x.NewSource(), l.x.NewSource()
	gpu, cpu, other := l.x.NewOwner(a), l.x.NewOwner(a), l.x.NewOwner(b)
	l.equal(l.store(gpu, 100, 1, 4), StoreResult{Added: 4})
	l.equal(l.store(cpu, 100, 1, 2), StoreResult{Added: 2})
	l.equal(l.store(other, 500, 1, 3), StoreResult{Added: 3})
	l.want(6, "[0 1 2]x2 [0 2]x1 [0]x1")
	l.equal(l.x.Remove(other, []uint64{502, 102}, nil, CopyCount), RemoveResult{Removed: 1, Unknown: 1})
	l.want(6, "[0 1 2]x1 [0 1]x1 [0 2]x1 [0]x1")
	l.equal(l.x.ClearOwner(gpu), 4)
	l.want(6, "[1 2]x1 [1]x1 [2]x1")
	l.equal(l.x.BlocksOf(gpu), 0)
	l.equal(l.x.knows(a, 101), true)
	l.equal(l.x.knows(a, 103), true) // the other source holds it
	l.equal(l.x.knows(a, 104), false)
	l.x.DropSource(a)
	l.want(6, "[2]x1")
	// Retired ids do nothing.
	l.equal(l.store(gpu, 100, 1, 4), StoreResult{})
	l.equal(l.x.Remove(gpu, []uint64{101}, nil, CopyCount), RemoveResult{Unknown: 1})
	l.equal(l.x.ClearOwner(gpu), 0)
	l.equal(l.x.knows(a, 101), false)
	l.equal(l.x.BlocksOf(gpu), 0)
	late := l.x.NewOwner(a)
	l.equal(l.store(late, 100, 1, 4), StoreResult{})
	l.x.DropSource(a)
	l.equal(l.x.NewOwner(b), late+1)
}

func TestStoreCountsCopies(t *testing.T) {
	l := newLab(t, 0)
	o := l.x.NewOwner(l.x.NewSource())
	one := []uint64{101}
	l.store(o, 100, 1, 1)
	l.equal(l.store(o, 100, 1, 1), StoreResult{Copies: 1})
	l.equal(l.store(o, 100, 1, 1), StoreResult{Copies: 1})
	l.equal(l.x.Remove(o, one, nil, CopyCount), RemoveResult{Copies: 1})
	l.equal(l.x.Remove(o, one, nil, CopyCount), RemoveResult{Copies: 1})
	l.equal(l.x.Remove(o, one, nil, CopyCount), RemoveResult{Removed: 1})
	l.equal(l.x.Remove(o, one, nil, CopyCount), RemoveResult{Unknown: 1})
	// The first removal takes it.
	l.store(o, 100, 1, 1)
	l.store(o, 100, 1, 1)
	l.equal(l.x.Remove(o, one, nil, CopySet), RemoveResult{Removed: 1})
	l.want(1, "")
	// A count left wins over both.
	l.store(o, 100, 1, 1)
	l.equal(l.x.Remove(o, one, []int{2}, CopySet), RemoveResult{Copies: 1})
	l.equal(l.x.Remove(o, one, nil, CopyCount), RemoveResult{Copies: 1})
	l.equal(l.x.Remove(o, one, []int{1}, CopyCount), RemoveResult{Copies: 1})
	l.want(1, "[0]x1")
	l.equal(l.x.Remove(o, one, []int{0}, CopyCount), RemoveResult{Removed: 1})
	l.want(1, "")
}

// Copies belong to the engine hash and survive the move to the canonical key.
func TestCopiesMoveAlong(t *testing.T) {
	l := newLab(t, 0)
	src := l.x.NewSource()
	gpu, cpu := l.x.NewOwner(src), l.x.NewOwner(src)
	l.equal(l.store(gpu, 100, 2, 3), StoreResult{Added: 2, Orphaned: 2})
	l.store(gpu, 100, 2, 2)
	l.equal(l.x.Store(&Store{Owner: cpu, Engine: []uint64{103, 104}}), StoreResult{Added: 2, HashOnly: 2})
	l.equal(l.store(cpu, 100, 1, 1), StoreResult{Added: 1, Resolved: 2})
	l.want(3, "[1]x1 [0]x1 [0 1]x1")
	l.equal(l.x.Remove(gpu, []uint64{102}, nil, CopyCount), RemoveResult{Copies: 1})
	l.equal(l.x.Remove(gpu, []uint64{102}, nil, CopyCount), RemoveResult{Removed: 1})
	l.want(3, "[1]x1")
	// The hash-only block gets its key from a store by any owner of the source.
	l.equal(l.store(gpu, 100, 4, 4), StoreResult{Added: 1, Resolved: 1})
	l.equal(l.store(gpu, 100, 2, 2), StoreResult{Added: 1})
	l.want(4, "[1]x1 [0]x1 [0 1]x2")
}

func TestHashOnly(t *testing.T) {
	l := newLab(t, 0)
	o := l.x.NewOwner(l.x.NewSource())
	p := l.x.NewOwner(l.x.NewSource())
	// A publisher that announces canonical keys without tokens is found by them.
	l.equal(l.x.Store(&Store{Owner: o, Engine: seqs(3)}), StoreResult{Added: 3, HashOnly: 3})
	l.want(4, "[0]x3")
	// Tokens for the same hash change the knowledge alone.
	e := Store{Owner: o, Engine: seqs(1), Local: []uint64{1}}
	l.equal(l.x.Store(&e), StoreResult{Copies: 1})
	l.want(4, "[0]x3")
	// Under a known alias tokens are not needed.
	l.store(p, 100, 1, 2)
	l.equal(l.x.Store(&Store{Owner: p, Engine: []uint64{102}}), StoreResult{Copies: 1})
	// Nor by other sources.
	l.equal(l.x.Store(&Store{Owner: o, Engine: []uint64{102}}), StoreResult{Copies: 1})
	l.want(4, "[0 1]x2 [0]x1")
}

// TestVersionsAreNew holds that a piece has no version, and no count of lost blocks, that
// another piece had in the same line. A query that stood still would believe it.
func TestVersionsAreNew(t *testing.T) {
	l := newLab(t, 0)
	o, other := l.x.NewOwner(l.x.NewSource()), l.x.NewOwner(l.x.NewSource())
	type word struct{ line, ver uint32 }
	vers, losts := map[word]int{}, map[word]int{}
	for life := range 20 {
		engine := []uint64{uint64(life) + 100}
		e := Store{Owner: o, Engine: engine, Local: engine}
		l.x.Store(&e)
		n := l.x.tree.findFirst(engine[0]).piece
		for range 40 - life {
			e.Owner = other
			l.x.Store(&e)
			l.x.Remove(other, engine, nil, CopySet)
			for _, m := range []struct {
				visitedPiece map[word]int
				now          uint32
			}{{vers, l.x.tree.lines.pieceAt(n).ver}, {losts, l.x.tree.lines.pieceAt(n).lost}} {
				if before, ok := m.visitedPiece[word{n, m.now}]; ok && before != life {
					t.Fatalf("line %d has %d in the lives %d and %d", n, m.now, before, life)
				}
				m.visitedPiece[word{n, m.now}] = life
			}
		}
		l.x.Remove(o, engine, nil, CopySet)
	}
}

// A removal counts only what the owner held.
func TestRemoveOfAnother(t *testing.T) {
	l := newLab(t, 0)
	src := l.x.NewSource()
	a, b := l.x.NewOwner(src), l.x.NewOwner(src)
	l.x.Store(&Store{Owner: a, Engine: []uint64{5, 6}})
	l.x.Store(&Store{Owner: b, Engine: []uint64{6, 8}})
	l.equal(l.x.Remove(b, []uint64{5, 6}, nil, CopySet), RemoveResult{Removed: 1, Unknown: 1})
	l.equal(l.x.Stats().Raw, 3)
}

// Segments that arrive in any order join when the first one does.
func TestOrphansJoin(t *testing.T) {
	f := func(order ...uint64) {
		t.Helper()
		l := newLab(t, 0)
		o := l.x.NewOwner(l.x.NewSource())
		for _, i := range order {
			l.store(o, 100, 3*i+1, 3*i+3)
		}
		l.want(12, "[0]x12")
		l.equal(l.x.Stats().Orphans, 0)
	}
	f(0, 1, 2, 3)
	f(3, 2, 1, 0)
	f(2, 3, 1, 0)
	f(1, 3, 0, 2)
	f(2, 1, 3, 3, 2, 0)
}

// Of waiting blocks with one key the newest counts, also where it was announced before.
func TestOrphansWithOneKey(t *testing.T) {
	l := newLab(t, 0)
	o := l.x.NewOwner(l.x.NewSource())
	for _, engine := range []uint64{102, 202, 102} {
		l.x.Store(&Store{Owner: o, Parent: 101, HasParent: true, Engine: []uint64{engine}, Local: []uint64{2}})
	}
	l.store(o, 100, 1, 1)
	l.equal(l.x.Remove(o, []uint64{102}, nil, CopyCount), RemoveResult{Copies: 1})
	l.want(2, "[0]x2")
}

func TestOrphanWithoutItsBlock(t *testing.T) {
	l := newLab(t, 0)
	o := l.x.NewOwner(l.x.NewSource())
	l.store(o, 100, 2, 5)
	l.x.Remove(o, []uint64{103}, nil, CopyCount) // in the middle: still shows the way
	l.x.Remove(o, []uint64{105}, nil, CopyCount) // at the end: of no use
	l.equal(l.x.Stats().Orphans, 3)
	l.equal(l.store(o, 100, 1, 1), StoreResult{Added: 1, Resolved: 2})
	l.want(5, "[0]x2")
	l.equal(l.store(o, 100, 3, 3), StoreResult{Added: 1})
	l.want(5, "[0]x4")
}

// A block that turns out to follow another parent keeps the way to that one open.
func TestOrphanChangesParent(t *testing.T) {
	l := newLab(t, 0)
	o := l.x.NewOwner(l.x.NewSource())
	l.store(o, 100, 2, 4)
	l.x.Remove(o, []uint64{102, 103}, nil, CopyCount)
	e := Store{Owner: o, Engine: []uint64{104}, Local: []uint64{3}, Parent: 102, HasParent: true}
	l.equal(l.x.Store(&e), StoreResult{Copies: 1, Orphaned: 1})
	l.equal(l.x.Stats().Orphans, 2)
	l.equal(l.store(o, 100, 1, 2), StoreResult{Added: 2, Resolved: 1})
	l.want(3, "[0]x3")
}

func TestStoreRootless(t *testing.T) {
	l := newLab(t, 0)
	o := l.x.NewOwner(l.x.NewSource())
	e := Store{Owner: o, Rootless: true}
	e.Engine, e.Local = blocks(100, 2, 4)
	l.equal(l.x.Store(&e), StoreResult{Added: 3, Orphaned: 3})
	l.equal(l.x.Stats().Orphans, 2) // the first waits for none
	l.equal(l.store(o, 100, 1, 2), StoreResult{Added: 1, Copies: 1, Resolved: 3})
	l.want(4, "[0]x4")
	// A known hash needs no parent.
	l.equal(l.x.Store(&e), StoreResult{Copies: 3})
}

// A parent that left takes its alias along; its children arrive as orphans.
func TestParentGone(t *testing.T) {
	l := newLab(t, 0)
	o := l.x.NewOwner(l.x.NewSource())
	l.store(o, 100, 1, 2)
	l.x.Remove(o, []uint64{102}, nil, CopyCount)
	l.equal(l.store(o, 100, 3, 3), StoreResult{Added: 1, Orphaned: 1})
	l.equal(l.store(o, 100, 2, 2), StoreResult{Added: 1, Resolved: 1})
	l.want(3, "[0]x3")
}

func TestWaitingRoomSheds(t *testing.T) {
	l := newLab(t, 4)
	o := l.x.NewOwner(l.x.NewSource())
	l.equal(l.store(o, 100, 2, 4), StoreResult{Added: 3, Orphaned: 3})
	l.equal(l.store(o, 200, 2, 4), StoreResult{Added: 3, Orphaned: 3, Shed: 2})
	l.equal(l.store(o, 100, 1, 1), StoreResult{Added: 1})
	l.equal(l.store(o, 200, 1, 1), StoreResult{Copies: 1, Resolved: 3})
	l.want(4, "[0]x4")
	l.wantChain([]uint64{102, 103, 104}, "[0]x3") // still held, and found by raw hash

	l = newLab(t, -1)
	o = l.x.NewOwner(l.x.NewSource())
	l.equal(l.store(o, 100, 2, 4), StoreResult{Added: 3, Orphaned: 3, Shed: 3})
	l.wantChain([]uint64{102}, "[0]x1")
}

// Two engine hashes with the same tokens are copies of one block.
func TestTwoHashesOneKey(t *testing.T) {
	f := func(policy CopyPolicy, want string) {
		t.Helper()
		l := newLab(t, 0)
		o := l.x.NewOwner(l.x.NewSource())
		l.store(o, 100, 1, 2)
		l.store(o, 200, 1, 2)
		l.want(2, "[0]x2")
		l.equal(l.x.BlocksOf(o), 2)
		l.x.Remove(o, []uint64{101, 102}, nil, policy)
		l.want(2, want)
		l.x.Remove(o, []uint64{201, 202}, nil, policy)
		l.want(2, "")
	}
	f(CopyCount, "[0]x2")
	f(CopySet, "")
}

// Publishers that hash alike share what a hash means; one that means something
// else by it is believed for itself.
func TestAliasesShared(t *testing.T) {
	l := newLab(t, 0)
	a, b := l.x.NewOwner(l.x.NewSource()), l.x.NewOwner(l.x.NewSource())
	l.store(a, 100, 1, 3)
	l.equal(l.x.Store(&Store{Owner: b, Engine: []uint64{101, 102}}), StoreResult{Added: 2})
	l.want(3, "[0 1]x2 [0]x1")
	l.equal(l.x.Stats().Aliases, 3)
	c := l.x.NewOwner(l.x.NewSource())
	l.equal(l.x.Store(&Store{Owner: c, Engine: []uint64{101}, Local: []uint64{50}}), StoreResult{Added: 1})
	l.want(3, "[0 1]x2 [0]x1")
	l.wantChain([]uint64{50}, "[2]x1")
	l.equal(l.x.Remove(c, []uint64{101, 102}, nil, CopySet), RemoveResult{Removed: 1, Unknown: 1})
	l.equal(l.x.Remove(a, []uint64{101}, nil, CopySet), RemoveResult{Removed: 1})
	l.want(3, "[1]x1 [0 1]x1 [0]x1")
}

// A hash that means another prefix now no longer stands for the old one.
func TestStoreMovesHash(t *testing.T) {
	l := newLab(t, 0)
	l.x.NameAllBlocks()
	src := l.x.NewSource()
	gpu, cpu := l.x.NewOwner(src), l.x.NewOwner(src)
	l.store(gpu, 100, 1, 3)
	l.store(cpu, 100, 1, 3)
	e := Store{Owner: gpu, Engine: []uint64{102}, Local: []uint64{77}}
	l.equal(l.x.Store(&e), StoreResult{Added: 1, Conflicts: 1})
	l.want(3, "[0 1]x1")
	l.wantChain([]uint64{77}, "[0]x1")
	l.equal(l.x.Remove(cpu, []uint64{102}, nil, CopyCount), RemoveResult{Unknown: 1})
}

// Whatever a publisher claims about parents, storing ends and nothing stays behind.
func TestStoreEndsAtCycles(t *testing.T) {
	f := func(pairs ...uint64) {
		t.Helper()
		for i := range pairs {
			pairs[i] += 50
		}
		l := newLab(t, 0)
		o := l.x.NewOwner(l.x.NewSource())
		for i := 0; i < len(pairs); i += 2 {
			l.x.Store(&Store{Owner: o, Engine: pairs[i : i+1], Local: []uint64{9}, Parent: pairs[i+1], HasParent: true})
			l.want(1, "")
		}
		for i := 0; i < len(pairs); i += 2 {
			l.x.Store(&Store{Owner: o, Engine: pairs[i : i+1], Local: []uint64{uint64(i)}})
			l.want(1, "")
		}
		for i := 0; i < len(pairs); i += 2 {
			l.x.Remove(o, pairs[i:i+1], nil, CopySet)
			l.want(1, "")
		}
		l.x.compactAll()
		st := l.x.Stats()
		l.equal(st.Blocks+st.Aliases+st.Raw+st.Orphans+st.Sets, 0)
	}
	f(1, 1)
	f(1, 2, 2, 1)
	f(1, 2, 2, 3, 3, 1)
	f(1, 2, 2, 3, 3, 2)
	f(1, 2, 2, 1, 1, 3, 3, 1)
}

func TestRepeatedHashInOneEvent(t *testing.T) {
	l := newLab(t, 0)
	l.x.NameAllBlocks()
	o := l.x.NewOwner(l.x.NewSource())
	e := Store{Owner: o, Engine: []uint64{7, 7}, Local: []uint64{1, 2}}
	l.equal(l.x.Store(&e), StoreResult{Added: 2, Conflicts: 1})
	l.equal(l.x.BlocksOf(o), 1)
	e = Store{Owner: o, Engine: []uint64{8, 8}, Local: []uint64{1, 2}, Rootless: true}
	l.equal(l.x.Store(&e), StoreResult{Added: 1, Copies: 1, Orphaned: 2, Conflicts: 1})
	l.want(2, "")
}

func TestZeroHash(t *testing.T) {
	l := newLab(t, 0)
	o := l.x.NewOwner(l.x.NewSource())
	e := Store{Owner: o, Engine: []uint64{11, 12}, Local: []uint64{2, 3}, Parent: 0, HasParent: true}
	l.equal(l.x.Store(&e), StoreResult{Added: 2, Orphaned: 2})
	l.equal(l.x.Store(&Store{Owner: o, Engine: []uint64{0}, Local: []uint64{1}}), StoreResult{Added: 1, Resolved: 2})
	l.want(3, "[0]x3")
	l.equal(l.x.knows(0, 0), true)
	l.equal(l.x.Remove(o, []uint64{0, 11, 12}, nil, CopyCount), RemoveResult{Removed: 3})
	l.equal(l.x.knows(0, 0), false)
}

// A chain of orphans that arrives backwards, one block at a time, costs no stack
// and no square of its length.
func TestLongOrphanChain(t *testing.T) {
	skipUnderRace(t)
	const n = 20_000
	l := newLab(t, 0)
	o := l.x.NewOwner(l.x.NewSource())
	for i := uint64(n); i > 1; i-- {
		l.store(o, 1<<32, i, i)
	}
	l.equal(l.x.Stats().Orphans, n-1)
	l.equal(l.store(o, 1<<32, 1, 1), StoreResult{Added: 1, Resolved: n - 1})
	l.want(n, fmt.Sprintf("[0]x%d", n))
	// And one that goes before its parent came leaves nothing behind.
	for i := uint64(2); i <= n; i++ {
		l.store(o, 2<<32, i, i)
	}
	for i := uint64(2); i <= n; i++ {
		l.x.Remove(o, []uint64{2<<32 + i}, nil, CopyCount)
	}
	l.equal(l.x.Stats().Orphans, 0)
	l.want(1, "[0]x1")
}

func TestBadLocal(t *testing.T) {
	defer func() {
		if r := recover(); r == nil || !strings.HasPrefix(fmt.Sprint(r), "BUG: ") {
			t.Errorf("got %v", r)
		}
	}()
	l := newLab(t, 0)
	o := l.x.NewOwner(l.x.NewSource())
	l.x.Store(&Store{Owner: o, Engine: []uint64{1, 2}, Local: []uint64{1}})
}

func TestAliasesStops(t *testing.T) {
	l := newLab(t, 0)
	for range 3 {
		l.store(l.x.NewOwner(l.x.NewSource()), 100, 1, 3)
	}
	l.x.DropSource(1)
	n := 0
	l.x.Inspect().EachAlias(func(_ Source, id Identity, engine, seq uint64) bool {
		l.equal(id, Identity(0))
		l.equal(seq, seqs(3)[engine-101])
		n++
		return n < 4
	})
	l.equal(n, 4)
}

func TestMatchAllocates(t *testing.T) {
	f := newFleet(16, 50, 64)
	f.fill()
	var m Match
	var c hash.Chain
	tokens := make([]uint32, 64)
	var list keyList
	i := 0
	run := func() {
		list = f.chains[i%len(f.chains)]
		f.x.matchChain(0, &list, &m)
		c.Reset(hash.DefaultScheme(), tokens, 16, 0)
		f.x.matchChain(0, &c, &m)
		i++
	}
	for range f.chains {
		run()
	}
	if n := alloctest.PerRun(100, run); n != 0 {
		t.Errorf("match allocates %v times", n)
	}
}

// Blocks come and go without allocating; only distinct owner sets do.
func TestStoreAllocates(t *testing.T) {
	f := newFleet(16, 50, 64)
	f.fill()
	var buf []uint64
	run := func() {
		buf = f.store(buf, 3, 7)
		f.x.Remove(f.owners[3], buf, nil, CopySet)
		buf = f.store(buf, 3, 7)
		buf = f.store(buf, 3, 7)
	}
	run()
	var m Match
	f.x.matchKeys(0, f.chains[7], &m)
	runs := 0
	for range ownersHolding(&m) {
		runs++
	}
	most := float64(2*runs + 2) // the lists of the sets a run passes through
	if n := alloctest.PerRun(100, run); n > most || most > 40 {
		t.Errorf("store and remove of 64 blocks in %d runs allocate %v times", runs, n)
	}
}

// The bytes accounted are the bytes taken.
func TestStatsBytes(t *testing.T) {
	if !offHeap {
		t.Skip("pieces lie on the heap, whose chunks are not given back one by one")
	}
	f := newFleet(64, 400, 128)
	heap := func() int {
		runtime.GC()
		runtime.GC()
		var ms runtime.MemStats
		runtime.ReadMemStats(&ms)
		return int(ms.HeapAlloc) + f.x.tree.lines.bytes() + f.x.names.table.offHeapBytes()
	}
	empty := f.x.Stats().Bytes
	before := heap()
	f.fill()
	for p := range 20 { // orphans, too
		e := Store{Owner: f.owners[p], Rootless: true, Engine: f.engine(nil, p+7, p), Local: f.locals[p]}
		f.x.Store(&e)
	}
	took, says := heap()-before, f.x.Stats().Bytes-empty
	if took < says*9/10 || took > says*11/10 {
		t.Errorf("the heap grew by %d bytes, accounted are %d", took, says)
	}
	if st := f.x.Stats(); st.Orphans == 0 || st.Memberships < 10_000 {
		t.Errorf("too little to weigh: %+v", st)
	}
	for _, o := range f.owners {
		f.x.ClearOwner(o)
	}
	f.x.Stats() // the last owner gone, the tables go
	took = heap() - before
	if took > says/10 {
		t.Errorf("%d bytes stay after everything has left, %d were taken", took, says)
	}
	runtime.KeepAlive(f)
}

// TestMatchForm holds that an answer has each owner of the first block once, and as a span
// what an owner holds behind a gap, in one place and in two.
func TestMatchForm(t *testing.T) {
	l := newLab(t, 0)
	src := l.x.NewSource()
	const owners, most = 150, 7 // more than two words of a set
	depth := func(o Owner) uint64 {
		if o%3 > 0 {
			return 3 // most bits of a word at once
		}
		return 1 + uint64(o)*5%most
	}
	var want []Prefix
	for o := range Owner(owners) {
		l.x.NewOwner(src)
		l.store(o, 0, 1, depth(o))
		want = append(want, Prefix{uint32(o), uint32(depth(o))})
	}
	var later []Span
	for o := range Owner(owners) {
		if o%30 == 0 && depth(o)+2 <= most {
			engine, _ := blocks(0, depth(o)+2, most)
			_, local := blocks(0, depth(o)+2, most)
			l.x.Store(&Store{Owner: o, Parent: depth(o) + 1, HasParent: true, Engine: engine, Local: local})
			later = append(later, Span{uint32(o), uint32(depth(o)) + 1, most})
		}
	}
	if len(later) == 0 {
		t.Fatal("no owner has a gap")
	}
	slices.SortFunc(later, func(a, b Span) int { return cmp.Or(cmp.Compare(a.From, b.From), cmp.Compare(a.Owner, b.Owner)) })
	prompt := keys(seqs(most))
	for _, others := range [][]Lookup{nil, {{Chain: prompt}}} {
		var m Match
		for range 2 { // reuse
			l.x.Match(Lookup{Chain: prompt}, others, &m)
			slices.SortFunc(m.Prefixes, func(a, b Prefix) int { return cmp.Compare(a.Owner, b.Owner) })
			if wrong := m.sound(); wrong != "" || m.Blocks != most || !slices.Equal(m.Prefixes, want) || !slices.Equal(m.Later, later) {
				t.Errorf("%d other places: %d blocks %v, later %v, want later %v; %s", len(others), m.Blocks, m.Prefixes, m.Later,
					later, wrong)
			}
		}
	}
}

// counted is a chain that counts which local hashes it is asked for.
type counted struct {
	local []uint64
	most  int
}

func (c *counted) Len() int      { return len(c.local) }
func (c *counted) At(int) uint64 { panic("a chain with local hashes is asked for a key") }

func (c *counted) Locals(n int) []uint64 {
	c.most = max(c.most, n)
	return c.local[:n]
}

// TestMatchIsLazy holds that a prompt costs no more keys than the group of the
// first block without a holder, and the first block alone where that is the one.
func TestMatchIsLazy(t *testing.T) {
	f := newFleet(1, 1, 100)
	f.store(nil, 0, 0)
	var m Match
	for held := range 100 {
		local := append([]uint64(nil), f.locals[0]...)
		for i := held; i < len(local); i++ {
			local[i] ^= 1
		}
		c := counted{local: local}
		f.x.matchChain(0, &c, &m)
		want := 1
		if held > 0 {
			want = min(1+((held-1)/ahead+1)*ahead, len(local))
		}
		if m.Blocks != held || c.most != want {
			t.Errorf("%d held: %d found, asked for %d hashes, want %d", held, m.Blocks, c.most, want)
		}
	}
}

// A private name concerns its source alone: events of others go on next to each other, also
// the one that takes the last owner from the block of the name.
func TestPrivateNamesOfOthers(t *testing.T) {
	x := New(Options{Scheme: hash.DefaultScheme()})
	a, b, c := x.NewSource(), x.NewSource(), x.NewSource()
	oa, ob, oc := x.NewOwner(a), x.NewOwner(b), x.NewOwner(c)
	x.Store(&Store{Owner: ob, Engine: []uint64{100, 101}, Local: []uint64{10, 11}})
	x.Store(&Store{Owner: oa, Engine: []uint64{100, 200}, Local: []uint64{20, 21}})
	x.Store(&Store{Owner: oc, Engine: []uint64{300, 301}, Local: []uint64{20, 21}})
	if n := x.holders.sources[a].private.len(); n != 1 {
		t.Fatalf("%d private names, want that of 100", n)
	}
	if x.resolver.isCalmFor(x.holders.sources[a]) || !x.resolver.isCalmFor(x.holders.sources[b]) ||
		!x.resolver.isCalmFor(x.holders.sources[c]) {
		t.Fatal("a private name makes its source's events wait, and no others")
	}
	x.Remove(oa, []uint64{200, 100}, nil, CopySet)
	r := removing{x: x}
	if i, more := r.removeBesideOthers(oc, []uint64{301, 300}, nil); i != 2 || r.res.Removed != 2 {
		t.Fatalf("%d of 2 events next to others, %+v", i, r.res)
	} else if more {
		x.lockRest()
		x.maintain(r.s)
		x.unlock()
	}
	must.Succeed(t, x.Check())
	if n := x.holders.sources[a].private.len(); n != 0 {
		t.Fatalf("%d private names of a block that has left", n)
	}
	if !x.resolver.isCalmFor(x.holders.sources[a]) {
		t.Fatal("without private names its events wait for nobody")
	}
}
