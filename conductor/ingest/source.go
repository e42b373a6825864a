package ingest

import (
	"fmt"
	"maps"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"example.com/conductor/conductor/catalog"
	"example.com/conductor/conductor/doctor"
	"example.com/conductor/conductor/image"
	"example.com/conductor/conductor/inspect"
	"example.com/conductor/conductor/normalize"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/conductor/statelog"
	"example.com/conductor/conductor/steady"
	"example.com/conductor/events"
	"example.com/conductor/events/stream"
	"example.com/conductor/events/tape"
	"example.com/conductor/events/wire"
	"example.com/conductor/index"
	"example.com/conductor/tiers"
)

// Source is one subscription and what it holds.
type Source struct {
	Member       *catalog.Member
	Registration *registration.Registration // of Member; never changed
	holdings     holdings
	applier      applier
	shared       *shared
	doctor       *doctor.Doctor
	group        *fleetGroup // set by addSource
	Static       bool
	givesWay     atomic.Bool            // see RegisterOptions
	by           registration.Registrar // set before the source is registered
	feed         Feed
	tape         *tape.Recorder // nil: nothing is recorded
	states       *statelog.Log  // nil: of a source that is not followed
	stopping     sync.Once
	stopped      chan struct{} // closed by stop
	done         chan struct{} // closed when follow has ended

	// recovered is a source that came from a peer and is not registered; it expires
	// then, if at all. turn guards the timer.
	recovered bool
	expires   *time.Timer

	// step is the one at hand. It is here and not on the stack of follow, because a goroutine that waits keeps
	// 8 KiB of stack if its functions need 1.2 KiB, and 4 otherwise. Only the goroutine of follow touches it.
	step stream.Step

	// filled are the parts of the snapshot that is being applied, and when it began. Guarded
	// by turn.
	filled int
	began  time.Time
	// snapshotted is how many blocks the source had behind the last one.
	snapshotted atomic.Int64

	// doubted is true if the stream knows of gaps in the numbers of standardized events.
	// Guarded by turn.
	doubted bool

	// turn is held while something of the source is applied or aged. Where it says
	// "guarded by turn", that is meant.
	turn sync.Mutex

	// recovery is the one that fills the source, and holds it back until it has ended; nil if none does. running: no
	// recovery may fill it any more. Guarded by Sources.mu.
	recovery *Recovery
	running  bool

	// gone: it has ended, or gave all it holds to another. turn guards it.
	gone bool

	// mark is the batch applied last, valid if marked. checkpoints are digests behind earlier
	// ones of the epoch. Guarded by turn.
	mark        stream.Mark
	marked      bool
	checkpoints []Checkpoint

	// peerLookAheads are the look-aheads that a peer told of the blocks it gave. Guarded by turn.
	peerLookAheads catalog.LookAheads

	opened  time.Time
	refused uint64 // messages of other connections; owned by Sources.watch
	// quietFrom is when the source was heard last, and freshBefore the QueryCounts.Fresh then; owned by Sources.watch.
	quietFrom   time.Time
	freshBefore uint64
	applied     atomic.Uint64 // events of all batches
	lastErr     string        // guarded by holdings.mu
}

// onState hears of changes of the stream's state from the goroutine that runs.
func (s *Source) onState(state stream.State, reason string) {
	s.tape.RecordState(string(state), reason)
	observeUsable(s, state, reason)
	observeStorm(s, state, reason)
	observeReplay(s)
	s.states.Change(state, reason)
	if state == stream.Synced {
		s.guard(s.holdings.dropUnverified)
	}
}

// AtGate reports whether the source is held back at the gate.
func (s *Source) AtGate() bool { return s.shared.Recovering() }

// stop ends the stream and returns once nothing of the source is indexed.
func (s *Source) stop() {
	s.stopping.Do(func() {
		close(s.stopped)
		s.states.Stop()
		s.feed.Close()
	})
	<-s.done
}

// effects are what a step of one source means for others.
type effects struct {
	Regrouped []scope.Group // attention groups whose kind the step announced
	Awaited   []awaited     // blocks of which it announced the parts, and that others had stored by their hashes alone
	Contests  []contest     // hashes that it announced with other tokens than another source
	Relieved  bool          // it announced what was expected of its instance
	NamedRank bool          // a batch named a rank that none had named before
}

// followSource applies the steps of a source in order until its stream is closed, and hands their effects on.
func (c *Sources) followSource(s *Source) {
	defer close(s.done)
	if awaitEnd(c, s) {
		beginAging(s)
		for applySteps(c, s) {
			select {
			case <-time.After(afterPanic):
			case <-s.stopped:
			}
		}
	}
	s.guard(s.end) // what it held goes with the registration, which rings
}

// afterPanic is how long a source waits before it asks a stream again whose invariants were broken.
const afterPanic = time.Second

// applySteps applies the steps of a source until its stream is closed. It returns true if an invariant was broken outside
// of what guard runs, in the stream for example: that costs the source a resync, too.
func applySteps(c *Sources, s *Source) (again bool) {
	again = true
	defer s.resyncAfterPanic()
	for {
		effects, more := s.applyNext()
		if !more {
			return false
		}
		c.dispatch(s, &effects)
	}
}

// dispatch hands on what a step of a source means for others. No turn is held.
func (c *Sources) dispatch(s *Source, e *effects) {
	for _, at := range e.Regrouped { // every pool binds its blocks of the group again
		for _, other := range c.All() {
			if other.applier.pool != nil {
				c.dispatch(other, other.regroup(at))
			}
		}
	}
	for i := range e.Awaited {
		storeAwaited(c, &e.Awaited[i])
	}
	for _, contest := range e.Contests {
		if contest.By != nil {
			if by := c.SourceOf(contest.By); by != nil {
				by.applier.countSkipped(events.ContestedHash, 1)
			}
			reportContest(contest.By.Findings.Report, contest.Hash, contest.Other)
			contest.By.LogFindings(&c.log)
		}
		if contest.Other != nil {
			reportContest(contest.Other.Findings.Report, contest.Hash, contest.By)
			contest.Other.LogFindings(&c.log)
		}
	}
	if e.NamedRank {
		c.mu.Lock()
		judgeRanksNear(c, s)
		c.mu.Unlock()
	}
	if e.Relieved {
		for _, m := range c.catalog.MembersOf(s.Registration.Instance, s.Registration.Tenant) {
			m.Findings.Withdraw(doctor.FindingUnconfirmed)
		}
	}
}

// beginAging lets blocks expire from now on, where they have a time to live.
func beginAging(s *Source) {
	if s.shared.catalog.IsPast() || s.Registration.IsApproximate() {
		return
	}
	for _, ttl := range s.Registration.TTLs() {
		go s.age(ttl)
	}
}

// applyNext waits for a step and applies it. It returns false once the stream is closed.
func (s *Source) applyNext() (effects, bool) {
	var ok bool
	if s.step, ok = s.feed.Next(); !ok {
		return effects{}, false
	}
	s.guard(s.applyAtHand)
	s.step = stream.Step{}
	effects := s.takeEffects()
	s.holdings.ringBells()
	return effects, true
}

// end drops everything. turn is held.
func (s *Source) end() {
	s.forgetAll()
	s.forgetExpected()
	s.gone, s.marked = true, false
}

// guard runs f. A broken invariant in it costs this source a resync and nothing
// else.
func (s *Source) guard(f func()) {
	defer s.resyncAfterPanic()
	s.turn.Lock()
	defer s.turn.Unlock()
	f()
	s.logFindings()
}

// resyncAfterPanic ends a panic, if it is deferred, and lets the source resync.
func (s *Source) resyncAfterPanic() {
	if p := recover(); p != nil {
		s.noteError(fmt.Sprintf("internal error: %v", p))
		s.shared.log.Error().Str("source", s.Registration.Key().String()).Interface("panic", p).
			Str("stack", string(debug.Stack())).Msg("event application failed, source resyncs")
		s.feed.Resync("internal_error")
	}
}

// applyAtHand applies step. turn is held.
func (s *Source) applyAtHand() { s.applyStep(&s.step) }

// takeEffects returns the effects since the last call.
func (s *Source) takeEffects() (found effects) {
	s.turn.Lock()
	defer s.turn.Unlock()
	found, s.applier.effects = s.applier.effects, effects{}
	return found
}

// regroup makes a pool bind its blocks of an attention group again.
func (s *Source) regroup(at scope.Group) *effects {
	s.guard(func() {
		if !s.gone {
			s.applier.applyChanges(s.applier.pool.Regroup(at))
			s.holdings.ringBells()
		}
	})
	effects := s.takeEffects()
	return &effects
}

// applyStep applies one step. turn is held.
func (s *Source) applyStep(step *stream.Step) {
	switch step.Kind {
	case stream.DropBlocks:
		s.tape.RecordReset(step.Epoch, step.Reason)
		s.states.Dropped(step.Reason, step.Epoch)
		s.holdings.leaveFilling()
		s.forgetAll()
		s.noteError("")
		s.marked, s.checkpoints = false, nil
		s.applier.origin.Store(nil)
		if step.Reason == stream.ReasonSnapshot {
			s.holdings.filling, s.filled, s.began = true, 0, s.shared.now() // hides the owners that it gets from here on
		}
	case stream.ApplySnapshotPart:
		s.fill(step)
	case stream.EndSnapshot:
		s.reveal(step)
	case stream.ApplyBatch:
		if s.marked && step.Seq != s.mark.Seq+1 {
			if step.Seq > s.mark.Seq {
				s.states.Lost(step.Seq - s.mark.Seq - 1)
			}
			s.applier.normal.BatchMissing()
			s.doctor.ForgetCopies() // removals may be missing
		}
		now, empty := s.shared.now(), len(step.Batch.Events) == 0 && len(step.Batch.Dropped) == 0
		s.holdings.past.begin(step.Seq, now)
		if empty {
			s.tape.RecordIdle(step.Epoch, step.Seq)
		} else {
			s.tape.RecordBatch(step.Epoch, step.Seq, step.Replayed, step.Payload, step.Block)
			s.Member.Heard.Store(steady.Nanos(now))
		}
		s.applier.at, s.applier.news = now, !step.Replayed
		s.apply(&step.Batch)
		if n := step.Batch.Count(); n > 0 {
			s.applied.Add(uint64(n))
		}
		if w := s.shared.watcher.Load(); w != nil {
			(*w).Batch(&AppliedBatch{Source: s.Registration.Key(), Seq: step.Seq, Replayed: step.Replayed, At: now,
				Events: step.Batch.Events})
		}
		s.mark, s.marked = stream.Mark{Seq: step.Seq, Print: step.Print, ID: step.ID}, true
		s.noteCheckpoint()
		s.applier.release(&step.Batch)
	}
}

// release lets others use the memory of a batch that was applied. turn is held.
func (a *applier) release(b *events.Batch) {
	a.stored, a.clientHashes = index.Store{}, nil // they refer to it
	normalLists.Put(a.normal.Release())
	wire.ReleaseBatch(b)
}

// normalLists are those that no source uses.
var normalLists = sync.Pool{New: func() any { return new(normalize.Lists) }}

// forgetAll drops everything the source holds and what it learned.
func (s *Source) forgetAll() {
	s.dropExpected()
	s.holdings.leaveAll()
	s.holdings.past.reset()
	s.applier.forgetLearned()
	s.noteGaps()
}

// noteObjects shows others what the pool holds.
func (a *applier) noteObjects() {
	if a.pool != nil {
		a.objects.Store(int64(a.pool.Objects()))
		a.bound.Store(a.pool.Bytes())
		a.incomplete.Store(int64(a.pool.Incomplete()))
	}
}

// incompleteBlocks returns how many blocks of a pool lack objects.
func incompleteBlocks(s *Source) int {
	if f, is := s.feed.(*pushed); is {
		return f.feed.Lacking()
	}
	return int(s.applier.incomplete.Load())
}

// noteWindow shows queries the largest window that a group announced.
func (a *applier) noteWindow() {
	if w := int64(a.normal.Window()); a.member.Window.Load() != w {
		a.member.Window.Store(w)
	}
}

// noteGaps lets the stream know whether a stream of standardized events has gaps.
func (s *Source) noteGaps() {
	gaps := s.applier.normal.Gaps()
	if gaps == s.doubted {
		return
	}
	s.doubted = gaps
	reason := ""
	if gaps {
		reason = reasonEventGap
	}
	s.feed.MarkIncomplete(reason)
}

// countSkipped counts n skipped events or hashes. Any goroutine may call it.
func (a *applier) countSkipped(reason events.Reason, n int) {
	if n <= 0 {
		return
	}
	a.holdings.mu.Lock()
	a.dropped[reason] += uint64(n)
	a.holdings.mu.Unlock()
}

func (s *Source) noteError(text string) {
	s.holdings.mu.Lock()
	s.lastErr = text
	s.holdings.mu.Unlock()
}

// Drops returns the counts of the stream and of the application together.
func (s *Source) Drops(st stream.Status) map[events.Reason]uint64 {
	all := make(map[events.Reason]uint64, len(st.Dropped))
	maps.Copy(all, st.Dropped)
	s.holdings.mu.Lock()
	defer s.holdings.mu.Unlock()
	for r, n := range s.applier.dropped {
		all[r] += n
	}
	return all
}

// inheritFrom moves the blocks of a recovered source to the one that is registered in its
// place, as far as the rules of that registration allow. The rest leaves when old stops.
// old.turn and Sources.mu are held, and s does not run yet.
func (s *Source) inheritFrom(c *Sources, old *Source) {
	if old.expires != nil {
		old.expires.Stop()
	}
	if !s.Registration.SharesRowsWith(old.Registration) || c.refuses(s, *old.Registration) {
		return // what it holds goes when it stops
	}
	filling := old.recovery
	if filling != nil && (!s.AtGate() || !filling.claim(s)) {
		return // a recovery at work can give it no more
	}
	s.holdings.media, s.applier.chunks, s.applier.versions = old.holdings.media, old.applier.chunks, old.applier.versions
	s.applier.normal.RaiseParts(old.applier.normal.Parts())
	if old.applier.normal.ZeroHash() {
		s.applier.normal.NoteZeroHash()
	}
	s.recallFull(old.doctor.Full())
	for _, spec := range old.applier.normal.Specs() {
		s.applier.normal.RecallSpec(spec)
	}
	s.mark, s.marked = old.mark, old.marked
	s.applier.origin.Store(old.applier.origin.Load())
	s.peerLookAheads = old.peerLookAheads
	var taken, left []*namespace
	var passed []*catalog.Namespace
	for _, ns := range old.holdings.namespaces {
		at := ns.Deployment.Key
		if !s.Registration.AllowsTenant(at.Tenant) {
			left = append(left, ns)
			continue
		}
		taken = append(taken, ns)
		s.holdings.byKey[at] = ns
		s.holdings.holders += len(ns.owners)
		delete(old.holdings.byKey, at)
		passed = append(passed, ns.Namespace)
		for key, h := range ns.owners {
			if key.Owned && s.Registration.Owned == registration.OwnedDrop {
				ns.clear(h)
			}
			s.holdings.countIn(ns, key, h.owners[0])
			for _, o := range h.owners {
				s.holdings.past.recordLosses(ns, key, o)
			}
		}
	}
	s.shared.catalog.HandOver(passed, old.Member, s.Member)
	old.holdings.mu.Lock()
	tallies, specs := old.holdings.tallies, old.holdings.specs
	old.holdings.namespaces, old.holdings.tallies, old.holdings.specs = left, nil, nil
	old.holdings.mu.Unlock()
	s.holdings.mu.Lock()
	s.holdings.namespaces, s.holdings.tallies, s.holdings.specs = taken, tallies, specs
	s.holdings.mu.Unlock()
	old.gone = true
	if filling == nil {
		resumeFeed(s)
	}
}

// resumeFeed lets the feed go on behind the blocks that the source has from a former life, if a mark says up to where they are.
func resumeFeed(s *Source) {
	if s.marked {
		mark := s.mark
		mark.Ranks = s.holdings.ranks()
		s.feed.ResumeBehind(mark)
	}
}

// recallFull assumes full reports of a source whose former life has shown them.
func (s *Source) recallFull(shown bool) {
	if shown && s.doctor.RecallFull() {
		s.holdings.full = true
	}
}

// snapshotMark returns how far the source has come. turn is held.
func (s *Source) snapshotMark() image.Source {
	m := image.Source{Registration: *s.Member.Registered(), Static: s.Static, By: s.by, GivesWay: s.givesWay.Load(),
		Parts: s.applier.normal.Parts(), ZeroHash: s.applier.normal.ZeroHash(),
		FullReports: s.doctor.Full(), Mark: s.verifiedMark()}
	var ahead catalog.LookAheads
	for _, ns := range s.holdings.namespaces {
		if ns.blocks() > 0 {
			ahead |= ns.LookAheads
		}
	}
	m.LookAheads = ahead.List()
	m.Adapters = s.shared.catalog.AnnouncedBy(s.Member)
	m.Groups = s.applier.normal.Specs()
	m.Versions = s.applier.versions.list()
	return m
}

// verifiedMark returns the mark with what its history misses, nil without one. turn is held.
func (s *Source) verifiedMark() *stream.Mark {
	if !s.marked {
		return nil
	}
	mark := s.mark
	mark.Missing = s.feed.Status().History
	if s.doubted && mark.Missing == "" {
		mark.Missing = reasonEventGap // the step that shows it may still be in hand
	}
	if mark.Missing == "" && hasUnverified(&s.holdings) {
		mark.Missing = stream.ReasonUnknown
	}
	return &mark
}

// age lets blocks expire on the media that have a time to live. A block is
// held by the generation it was last announced in; every half time to live the
// older of two generations is cleared. So a block goes between half and once the
// time to live after its last announcement, without a timestamp per block. Blocks
// that a pool has bound by object age with their objects, in two generations too.
func (s *Source) age(ttl time.Duration) {
	tick := time.NewTicker(ttl / 2)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			s.guard(func() { s.rotateGenerations(ttl) })
		case <-s.done:
			return
		}
	}
}

// rotateGenerations clears the older generation on the media that have a time to live, and begins
// a new one there.
func (s *Source) rotateGenerations(ttl time.Duration) {
	s.tape.RecordAging(ttl)
	ages := func(medium string) bool { return s.Registration.TTLOn(medium) == ttl }
	for _, ns := range s.holdings.namespaces {
		for key, h := range ns.owners {
			if key.Objects || !ages(key.Medium) {
				continue
			}
			empty := s.holdings.previousGeneration(ns, h, key, tiers.ParseMedium(key.Medium))
			s.holdings.past.at = s.shared.now()
			s.holdings.past.noteEmptied(inspect.Expired, ns.Deployment.Key, key, ns.Deployment.Index.ClearOwner(empty))
			s.holdings.mu.Lock()
			h.owners, h.unverified = []index.Owner{empty, h.owners[0]}, false
			s.holdings.mu.Unlock()
		}
	}
	if s.applier.pool != nil {
		s.applier.applyChanges(s.applier.pool.Age(ages))
		s.applier.noteObjects()
	}
}
