package index

import (
	"slices"
	"sync/atomic"
)

// An engine hash is contested while sources that announce tokens hold different blocks by
// it. One of them is wrong, or hostile, and the index cannot know which one:
//
//	learn(hash, block) --another block is the hash's--> contest --> blocks of sources without
//	                                                                tokens wait by the hash
//	decideContest: the holders of one block alone are left --> the hash means it to all
//
// Sources that announce tokens go on with what they mean themselves. To others, and to
// Means, a contested hash means nothing. What a source has under it goes on waiting if the
// source begins to announce tokens meanwhile.

// maxContested bounds the contested hashes of an index: 2 MiB. More keep the meaning that
// came first.
const maxContested = 1 << 16

// maxContests bounds the contests that wait for TakeContests.
const maxContests = 1024

// Contest is an announcement that contradicts another source.
type Contest struct {
	Engine uint64
	Source Source // the one that announced the hash last
	Other  Source // holds another block by the hash; NoSource if none that announces tokens does
}

// contests are the contested hashes. All lanes guard them.
type contests struct {
	contradicts func() bool // Options.Contradicts
	of          map[uint64]bool
	n           atomic.Int64 // of of
	some        atomic.Bool  // there is news
	news        []Contest
}

// isContested reports whether an engine hash means nothing to a source because it is
// contested.
func (rs *resolver) isContested(s *source, engine uint64) bool {
	return (s == nil || !s.teaches) && rs.contests.n.Load() > 0 && rs.contests.of[engine]
}

// isUncontested reports whether contested hashes concern a source.
func (rs *resolver) isUncontested(s *source) bool { return s.teaches || rs.contests.n.Load() == 0 }

// contestHash notes that a source means something else by an engine hash than a block,
// which the hash means to all. Blocks of sources without tokens begin to wait by it. All
// lanes are locked.
//
// The sources of the pool are not asked which meaning is theirs; they have no tokens. Their
// blocks wait under the hash itself, so no query counts them for the wrong prompt, and they
// get their places back when the contest is decided.
func (rs *resolver) contestHash(s *source, engine uint64, shared position) {
	c := &rs.contests
	if c.contradicts == nil || !s.teaches || !c.contradicts() || !c.of[engine] && len(c.of) >= maxContested {
		return
	}
	rs.markContested(engine)
	found := Contest{Engine: plain(engine), Source: s.name, Other: NoSource}
	var wait []*owner
	rs.holders.eachHolder(rs.tree.lines.setOf(shared), func(o *owner) {
		switch {
		case o.s.private.find(engine) != nil:
		case o.s.teaches:
			found.Other = o.s.name
		default:
			wait = append(wait, o)
		}
	})
	// Nobody who announces tokens holds the other block by this hash, so what it means to
	// all is a claim without a witness. The hash gives it up.
	if found.Other == NoSource {
		rs.dropName(shared, engine) // first: the block may end with its owners
	}
	for _, o := range wait {
		rs.unplaceBlock(o, engine, shared)
	}
	if len(c.news) < maxContests {
		c.news = append(c.news, found)
		c.some.Store(true)
	}
}

// markContested makes an engine hash a contested one.
func (rs *resolver) markContested(engine uint64) {
	c := &rs.contests
	if c.of == nil {
		c.of = make(map[uint64]bool)
	}
	c.of[engine] = true
	c.n.Store(int64(len(c.of)))
}

// unplaceBlock lets a block of an owner wait by an engine hash. Of several copies of a
// block that has other names too, one waits: which hash announced which copy is not known.
// Where the budget has no room the owner loses the block.
//
// To lose it is the right way to be wrong: an index may know too little, and a router then
// computes what it could have reused. A block that stays where the hash may not mean it
// would be promised to the wrong prompt.
func (rs *resolver) unplaceBlock(o *owner, engine uint64, from position) {
	to := rs.tree.findLoose(engine)
	if !to.isNone() && !rs.names.isAlive(to) {
		to = rs.tree.findLoose(engine)
	}
	if to.isNone() {
		if to = rs.holders.createLoose(o.s, chainIdentity{}, engine, 0, 1); to.isNone() {
			rs.holders.removeHolder(o, from)
			return
		}
	}
	others := 0
	rs.tree.lines.eachNameOf(from, func(name uint64, _ uint32) {
		if name != engine {
			others++
		}
	})
	o.s.raw = true
	before := o.digest.Blocks
	if more := o.copies.extraOf(from); others > 0 && more > 0 {
		o.copies.setExtra(from, more-1)
		rs.holders.addHolder(o, to)
		o.raw += o.digest.Blocks - before
		return
	}
	rs.holders.moveBlock(o, from, to)
	o.raw = min(o.raw+1, o.digest.Blocks)
}

// meaning is the block that a source means by an engine hash, and holds.
type meaning struct {
	s  *source
	at position
}

// meaningsOf returns what the sources that announce tokens mean by an engine hash. A source
// that lost its block no longer takes part. All lanes are locked.
func (rs *resolver) meaningsOf(engine uint64) (all []meaning) {
	for _, s := range rs.holders.sources {
		if s == nil || s.private.len() == 0 || s.private.find(engine) == nil {
			continue
		}
		at := rs.meaningOf(s, engine)
		if s.private.find(engine) != nil && rs.tree.isHeldBy(s, at) { // else only retired owners held it
			all = append(all, meaning{s, at})
		}
	}
	if shared, _ := rs.names.findName(engine); !shared.isNone() {
		rs.holders.eachHolder(rs.tree.lines.setOf(shared), func(o *owner) {
			if o.s.teaches && o.s.private.find(engine) == nil {
				all = append(all, meaning{o.s, shared})
			}
		})
	}
	return all
}

// decideContest ends the contest of an engine hash if the holders of one block alone are
// left. Else it returns what they mean. All lanes are locked.
//
// It is not enough that one source is left which announced a meaning: as long as the holder
// of the other meaning holds its block, both are true for somebody.
//
// The private meaning that is left becomes the one of all (learnMeaning moves it), and
// blocks that wait under the hash get their places with the next placeWaiters.
func (rs *resolver) decideContest(engine uint64) (open []meaning) {
	c := &rs.contests
	if !c.of[engine] {
		return nil
	}
	all := rs.meaningsOf(engine)
	if slices.ContainsFunc(all, func(m meaning) bool { return m.at != all[0].at }) {
		return all
	}
	delete(c.of, engine)
	c.n.Store(int64(len(c.of)))
	private := slices.DeleteFunc(all, func(m meaning) bool { return m.s.private.find(engine) == nil })
	if shared, _ := rs.names.findName(engine); len(private) > 0 && private[0].at != shared && !shared.isNone() {
		rs.dropName(shared, engine)
	}
	for _, m := range private {
		rs.learnMeaning(m.s, engine, m.at, 1)
	}
	rs.names.noteMeaning(engine)
	return nil
}

// MarkTeaching says that a source announces tokens, before it does.
func (x *Index) MarkTeaching(src Source) {
	x.lock()
	defer x.unlock()
	if s := x.holders.sources[src]; s != nil {
		s.teaches = true
	}
}

// ContestedHashes returns the number of contested hashes.
func (x *Index) ContestedHashes() int { return int(x.resolver.contests.n.Load()) }

// DecideContests looks whether contests of some engine hashes, nil for all, have ended
// because sources have lost blocks.
//
// Nothing calls it by itself: a removal would have to ask for each block whether its names
// are contested. So the caller asks from time to time.
func (x *Index) DecideContests(engine []uint64) {
	if engine == nil {
		engine = contestedHashes(x)
	}
	decideContests(x, engine, func(uint64, []meaning) {})
}

// OpenContests decides all contests. It returns those that go on by the sources that hold a
// block of one, the one with the smallest hash for each.
func (q Inspector) OpenContests() map[Source]Contest {
	all := make(map[Source]Contest)
	decideContests(q.x, contestedHashes(q.x), func(engine uint64, open []meaning) {
		for _, m := range open {
			if _, known := all[m.s.name]; !known {
				other := open[slices.IndexFunc(open, func(o meaning) bool { return o.at != m.at })]
				all[m.s.name] = Contest{Engine: engine, Source: m.s.name, Other: other.s.name}
			}
		}
	})
	return all
}

// contestedHashes returns the contested engine hashes, sorted.
func contestedHashes(x *Index) (all []uint64) {
	if x.ContestedHashes() == 0 {
		return nil
	}
	x.lock()
	for h := range x.resolver.contests.of {
		all = append(all, plain(h))
	}
	x.unlock()
	slices.Sort(all)
	return all
}

// decideContests decides contests, and calls f for each one that goes on. It goes by parts
// of 256, each under a lock of its own, because a hostile publisher may have contested
// thousands.
func decideContests(x *Index, engine []uint64, f func(engine uint64, open []meaning)) {
	if x.ContestedHashes() == 0 {
		return
	}
	for part := range slices.Chunk(engine, 256) { // others have their turn between
		x.lock()
		for _, h := range part {
			if open := x.resolver.decideContest(normal(h)); open != nil {
				f(h, open)
			}
		}
		placeOthers(x)
		x.unlock()
	}
}

// TakeContests returns the contests that began or got another announcement, at most 1,024.
// It leaves none.
func (x *Index) TakeContests() (news []Contest) {
	c := &x.resolver.contests
	if !c.some.Load() {
		return nil
	}
	x.lock()
	defer x.unlock()
	news, c.news = c.news, nil
	c.some.Store(false)
	return news
}
