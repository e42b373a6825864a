package index

import (
	"fmt"
	"strings"
	"testing"

	"example.com/conductor/index/hash"
	"example.com/conductor/internal/must"
)

// Check finds a broken invariant, and its number.
func TestCheckFinds(t *testing.T) {
	f := func(invariant int, harm func(x *Index, r *piece)) {
		t.Helper()
		l := lab{t, New(Options{Scheme: hash.DefaultScheme(), Ghosts: NewGhosts(100 * ghostBytes)})}
		src := l.x.NewSource()
		a, b := l.x.NewOwner(src), l.x.NewOwner(src)
		c := l.x.NewOwner(l.x.NewSource())
		l.store(a, 100, 1, 3)
		l.store(a, 100, 1, 1)
		l.store(b, 100, 1, 2)
		l.store(c, 500, 1, 4)
		l.store(a, 600, 13, 15)
		l.store(b, 700, 13, 13)
		if invariant >= 12 {
			l.x.KeepGhosts()
			l.storeRoot(a, 900, 900)
			l.x.Remove(a, []uint64{900}, nil, CopySet)
		}
		must.Succeed(t, l.x.Check())
		harm(l.x, l.x.tree.lines.pieceAt(l.x.tree.findFirst(seqs(1)[0]).piece))
		err := l.x.Check()
		if want := fmt.Sprintf("invariant %d: ", invariant); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want a broken invariant %d, got %v", invariant, err)
		}
	}
	loose := func(x *Index) position { return x.tree.findLoose(613) }
	f(1, func(x *Index, _ *piece) { x.tree.lanes.each[0].lane.live++ })
	f(1, func(x *Index, _ *piece) { x.tree.looseBlocks.Add(1) })
	f(1, func(_ *Index, r *piece) { r.head++ })
	f(1, func(_ *Index, r *piece) { r.anchor++ })
	f(1, func(_ *Index, r *piece) { r.meta |= 7 << anchorShift })
	f(1, func(_ *Index, r *piece) { r.localHashes()[1]++ })
	f(1, func(_ *Index, r *piece) { r.ver++ })
	f(1, func(x *Index, _ *piece) { p := loose(x); x.tree.lines.pieceAt(p.piece).localHashes()[p.at]++ })
	f(1, func(x *Index, r *piece) { x.tree.heads.insertEntry(mix(77), position{at: 1}) })
	f(2, func(x *Index, r *piece) { *(*uint32)(x.tree.lines.addressOf(r.intervals[0])) |= 0xffffff << endBits })
	f(5, func(x *Index, r *piece) { r.intervals[0] = 1 << 30 })
	f(2, func(x *Index, _ *piece) { *x.tree.sets.stateOf(1)++ })
	f(2, func(x *Index, _ *piece) { x.tree.sets.hash[1]++ })
	f(3, func(x *Index, _ *piece) { x.holders.owners[0].digest.Blocks++ })
	f(3, func(x *Index, _ *piece) { x.holders.owners[0].digest.Sum++ })
	f(3, func(x *Index, _ *piece) { x.holders.sources[0].held-- })
	f(3, func(x *Index, _ *piece) { x.holders.owners[0].raw = 99 })
	f(4, func(x *Index, _ *piece) { x.tree.ids.Load().owner[0] = 7 })
	f(4, func(x *Index, _ *piece) { x.tree.ids.Load().retired[0] |= 1 })
	f(5, func(x *Index, _ *piece) { x.tree.lines.live.Add(1) })
	f(5, func(x *Index, r *piece) { x.tree.lines.used[0] = 0 })
	f(6, func(x *Index, _ *piece) { *x.holders.owners[0].copies.second.insertKey(999) = 1 })
	f(6, func(x *Index, _ *piece) { x.holders.owners[0].copies.n++ })
	f(7, func(_ *Index, r *piece) { r.engineHashes()[1]++ })
	f(7, func(x *Index, _ *piece) { x.names.table.insertEntry(mix(5), 64) })
	f(7, func(x *Index, r *piece) { x.tree.lines.sideAt(r.side).piece++ })
	f(7, func(x *Index, _ *piece) { *x.holders.sources[0].private.insertKey(5) = 64 })
	f(8, func(x *Index, _ *piece) { x.holders.sources[0].room.used++ })
	f(8, func(x *Index, _ *piece) { x.maxOrphans = 1 })
	f(8, func(x *Index, _ *piece) { x.holders.sources[0].room.pushLink(link{engine: 890, parent: 890, local: 1}) })
	f(8, func(x *Index, _ *piece) { r := &x.holders.sources[0].room; r.links[r.oldest].parent++ })
	f(8, func(x *Index, _ *piece) { r := &x.holders.sources[0].room; r.links[r.newest].engine++ })
	f(8, func(x *Index, _ *piece) { r := &x.holders.sources[0].room; r.newest = r.oldest })
	f(12, func(x *Index, _ *piece) { x.names.ghosts.count.addGhosts(1) })
	f(12, func(x *Index, _ *piece) { x.names.ghosts.queue[0].blocks = 0 })
	f(12, func(x *Index, _ *piece) { x.names.ghosts.queue[0].blocks |= 1 << 63 })
	f(12, func(x *Index, _ *piece) { x.names.ghosts.stale.addCopies(5, 1) })
	f(12, func(x *Index, _ *piece) { x.names.naming = onDemand })
	f(13, func(x *Index, _ *piece) { x.names.ghosts.lost.Store(1) })
	f(13, func(x *Index, _ *piece) { x.names.ghosts.held = map[uint64]struct{}{77: {}} })
}

func TestCheckIsBounded(t *testing.T) {
	l := newLab(t, 0)
	o := l.x.NewOwner(l.x.NewSource())
	for i := range uint64(100) {
		l.x.Store(&Store{Owner: o, Engine: []uint64{1000 + 2*i, 1001 + 2*i}, Local: []uint64{i + 1, i + 1}})
	}
	l.x.tree.lines.eachPiece(func(_ uint32, r *piece) { r.head ^= 1 << 50 })
	err := l.x.Check()
	if err == nil || strings.Count(err.Error(), "\n") >= maxFindings {
		t.Errorf("got %v", err)
	}
}
