package index

import (
	"testing"

	"example.com/conductor/index/hash"
	"example.com/conductor/internal/must"
)

// TestAnchor follows the anchor of a piece whose prompts part, through growth and removals, and asks for prompts that
// end before it, at it and behind it.
func TestAnchor(t *testing.T) {
	l := newLab(t, 0)
	o := l.x.NewOwner(l.x.NewSource())
	at := func(want uint32) {
		t.Helper()
		must.Succeed(t, l.x.Check())
		r := l.x.tree.lines.pieceAt(l.x.tree.findFirst(seqs(1)[0]).piece)
		if got := anchorAt(r.meta); got != want || r.anchor != seqs(64)[want] {
			t.Errorf("the anchor is block %d with key %d, want block %d with key %d", got, r.anchor, want, seqs(64)[want])
		}
	}
	// part stores a prompt that leaves the piece behind its block n. Then it asks for that prompt, and for one that
	// no owner holds behind block n.
	part := func(n uint64) {
		t.Helper()
		l.storeBehind(o, n, 1000+n, 1000+n)
		_, local := blocks(0, 1, n)
		for _, other := range []uint64{1000 + n, 7} {
			asked := append(local[:n:n], other)
			chain := &locals{hash.DefaultScheme().AppendChain(nil, asked), asked}
			var m Match
			l.x.Match(Lookup{Chain: chain}, nil, &m)
			if want := int(n) + min(int(other/1000), 1); m.Blocks != want {
				t.Errorf("%d blocks are held behind %d, want %d", m.Blocks, n, want)
			}
		}
	}
	l.store(o, 0, 1, 40)
	at(39)
	part(5) // too close to the beginning
	at(39)
	part(18)
	at(15)
	part(33)
	part(10)
	l.store(o, 0, 41, 44)
	at(15)
	gone := func(from, to uint64) {
		engine, _ := blocks(0, from, to)
		l.x.Remove(o, engine, nil, CopySet)
	}
	gone(17, 44)
	at(15)
	gone(2, 16)
	must.Succeed(t, l.x.Check())
	l.store(o, 0, 2, 12)
	at(11)
	part(8)
	at(7)
	l.want(12, "[0]x12")
}

// TestLoadedAnchor holds that a piece from an image knows the key of its last block, as the piece did that was saved.
func TestLoadedAnchor(t *testing.T) {
	l := lab{t, New(Options{Scheme: hash.DefaultScheme(), KeepClientHashes: true})}
	l.store(l.x.NewOwner(l.x.NewSource()), 0, 1, 40)
	x := New(Options{Scheme: hash.DefaultScheme(), KeepClientHashes: true})
	x.NewOwner(x.NewSource())
	load(t, x, imageOf(t, l.x))
	must.Succeed(t, x.Check())
	if r := x.tree.lines.pieceAt(x.tree.findFirst(seqs(1)[0]).piece); r.anchor != seqs(40)[39] {
		t.Errorf("the last key is %d, want %d", r.anchor, seqs(40)[39])
	}
}
