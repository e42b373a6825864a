package doctor

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"example.com/conductor/events"
	"example.com/conductor/spelling"
)

// A source may be synced, send events all day, and count in no answer: its keys have an unknown form, no engine announces
// the blocks of its pool, its tokens are none. Whatever the reason, two shares show that:
//
//	of events   those of which a block was taken, among all that stored something
//	of blocks   those that queries can find, among all that the source holds; blocks that wait for a parent
//	            have a finding of their own
//
// The finding comes when their product is next to nothing in two looks in a row: a pool may announce blocks before
// the engines do that have their tokens.

const (
	// accountMany events tell enough at any time, accountFew only once the first is accountLong ago.
	accountMany = 64
	accountFew  = 4
	accountLong = 10 * time.Minute
	// accountFade halves the counts once there are so many, so that what came long ago matters less.
	accountFade = 16 * accountMany
	// accountShare: one in so many is next to nothing.
	accountShare = 20
)

// account counts what became of stored events.
type account struct {
	since    time.Time // of the first; zero if there was none
	taken    int       // a block of it was
	bare     int       // of those taken: came without tokens
	unpaired int       // of those taken: with another number of tokens than their blocks have
	early    int       // of those taken: blocks below the device that wait for the device to say whose they are
	astray   int       // batches that were not read, because their topic is no source's
	lost     map[events.Reason]int
	key      string // of an object that was lost, "" if none was
	poor     bool   // the last look found that next to nothing counts
	// untoldGroups: the last look found that events do not tell enough of the attention groups.
	untoldGroups bool
}

// count adds n events to one of the counts of an account.
func (d *Doctor) count(to *int, n int) {
	if d.account.since.IsZero() {
		d.account.since = d.Findings.now()
	}
	*to += n
}

// Lose counts n stored events of which nothing was taken.
func (d *Doctor) Lose(reason events.Reason, n int) {
	if d.account.lost == nil {
		d.account.lost = make(map[events.Reason]int)
	}
	sum := d.account.lost[reason]
	d.count(&sum, n)
	d.account.lost[reason] = sum
}

// LoseObject counts an event that stored an object of a pool, which was not taken.
func (d *Doctor) LoseObject(reason events.Reason, key string) {
	if d.Lose(reason, 1); d.account.key == "" {
		d.account.key = key[:min(len(key), 96)]
	}
}

// countStored counts a stored event of which something was taken.
func (d *Doctor) countStored(o *Observation) {
	n := o.Event.Count()
	d.count(&d.account.taken, n)
	switch {
	case o.Undecided > 0:
		d.account.early += n
	case !o.Blocks || o.Local != nil:
	case len(o.Event.Tokens) == 0:
		d.account.bare += n
	default:
		d.account.unpaired += n
	}
}

// Holding is what a source holds at one moment, in blocks. A block on two media counts twice.
type Holding struct {
	Blocks      int
	Untold      int // of Blocks: known by a hash alone, by which no query asks
	Lacking     int // blocks of a pool that lack objects, which are not among Blocks
	WithoutKind int // events that wait for the kind of their attention group
	WithoutSize int // those that wait for the size of its blocks
	// Sparse says that no group of the engine's layers has full attention, so that it may keep some blocks of a prompt alone.
	Sparse bool
}

// weighGroups reports what events leave out about attention groups: which blocks an engine without full attention has kept, or the kind
// of a group.
func (d *Doctor) weighGroups(h Holding) {
	before := d.account.untoldGroups
	d.account.untoldGroups = true
	switch {
	case h.Sparse && h.Untold >= accountMany && 4*h.Untold >= h.Blocks:
		d.Findings.Update(FindingLayers,
			"%d of %s are known by their hash alone. The engine has no layers with full attention and keeps only some blocks of a prompt, "+
				"and its events do not say which. So most answers are too short: register its hash_profile",
			h.Untold, spelling.Count(h.Blocks, "block"))
	case h.WithoutKind >= accountFew:
		d.Findings.Update(FindingLayers,
			"%s wait, because no event names the kind of their attention group. Answers leave that group out, so they can be too long: "+
				"use a release of the engine whose events have kv_cache_spec_kind", spelling.Count(h.WithoutKind, "event"))
	case h.WithoutSize >= accountFew:
		d.Findings.Update(FindingLayers,
			"%s below the device wait, because no event says how large the blocks of their attention group are. Answers can be too short "+
				"until the engine stores such a block on its device", spelling.Count(h.WithoutSize, "event"))
	default:
		if d.account.untoldGroups = false; before {
			d.Findings.Withdraw(FindingLayers)
		}
	}
}

// Weigh compares what the source announced and holds with what of that counts in answers.
func (d *Doctor) Weigh(h Holding, now time.Time) {
	d.weighGroups(h)
	a := &d.account
	lost := a.sumLost()
	all := a.taken + lost
	enough := all >= accountMany || all >= accountFew && now.Sub(a.since) >= accountLong || all == 0 && a.astray >= accountMany
	useful, held := 1, 1
	if h.Blocks+h.Lacking > 0 {
		useful, held = h.Blocks-h.Untold, h.Blocks+h.Lacking
	}
	if d.reg.Pool && useful >= accountFew { // engines do announce its hashes; what is cold waits until one does
		useful, held = 1, 1
	}
	before := a.poor
	a.poor = enough && a.taken*useful*accountShare <= all*held
	switch {
	case !a.poor, d.explains(lost):
		d.Findings.Withdraw(FindingNothing)
	case before:
		d.Findings.Update(FindingNothing, "next to nothing that this source announces counts in answers: %s", d.causeOfNothing(h, lost))
	}
	if all >= accountFade {
		a.taken, a.bare, a.unpaired, a.early = a.taken/2, a.bare/2, a.unpaired/2, a.early/2
		for reason := range a.lost {
			a.lost[reason] /= 2
		}
	}
}

// sumLost returns how many events were lost. What is left out by design, such as the windows of a hybrid model, is lost only
// where there is nothing else.
func (a *account) sumLost() (n int) {
	for reason, lost := range a.lost {
		if a.taken == 0 || reason != events.OtherGroup && reason != events.AsideObject && reason != events.Foreign {
			n += lost
		}
	}
	return n
}

// ofFinding has the reasons that have a finding of their own.
var ofFinding = map[events.Reason]string{
	events.BlockSizeMismatch: FindingBlockSize, events.PartialBlock: FindingBlockSize, events.ForeignTenant: FindingForeignTenant,
	events.BadPayload: FindingUnusable, events.BadFrames: FindingUnusable, events.Storm: FindingStorm,
}

// explains reports whether another finding of severity error says already why nothing counts.
func (d *Doctor) explains(lost int) bool {
	reason, n := d.account.mostLost()
	return 2*n > lost && lost > d.account.taken && d.Findings.Has(ofFinding[reason])
}

// mostLost returns the reason for which most events were lost, and how many were.
func (a *account) mostLost() (reason events.Reason, n int) {
	for _, r := range slices.Sorted(maps.Keys(a.lost)) {
		if a.lost[r] > n {
			reason, n = r, a.lost[r]
		}
	}
	return reason, n
}

// causeOfNothing says why next to nothing counts, and what to do.
func (d *Doctor) causeOfNothing(h Holding, lost int) string {
	a := &d.account
	model := d.reg.Context.Deployment.Model
	switch {
	case a.taken+lost == 0:
		return fmt.Sprintf("none of its %s has the topic %q, and none that another source could have, so none is read: register the "+
			"publisher's own type, or sequence: own if its topics do not matter", spelling.Count(a.astray, "batch"), d.reg.Topic)
	case lost > a.taken:
		reason, n := a.mostLost()
		return fmt.Sprintf("%d of the last %s are left out as %s: %s", n, spelling.Count(a.taken+lost, "event"), reason,
			cmp.Or(d.adviceOnLoss(reason), "look the reason up among those of dropped events, in the page about states"))
	case h.Lacking > h.Blocks:
		return fmt.Sprintf("%s lack objects or shards, so no engine could use them: let all ranks of the engine announce theirs, or set "+
			"pool.completeness to any if one object is a whole block", spelling.Count(h.Lacking, "block"))
	case a.unpaired > a.bare:
		return fmt.Sprintf("%d of %s are known by their hash alone, because their events have another number of tokens than block_size "+
			"times their hashes: report the version of the engine", h.Untold, spelling.Count(h.Blocks, "block"))
	case a.early > a.bare:
		return fmt.Sprintf("%d of %s wait, because events about a medium below the device announced them without a salt, and the engine "+
			"has not announced them on its device, which would tell whether they have one: let the engine announce its own blocks, too, "+
			"or register its hash_profile", h.Untold, spelling.Count(h.Blocks, "block"))
	case d.reg.Pool:
		return fmt.Sprintf("%d of %s are known by their hash alone, and no engine of model %q has announced these hashes with tokens: "+
			"register its engines, under this model and block_size; give them all the same PYTHONHASHSEED; or register their "+
			"hash_profile", h.Untold, spelling.Count(h.Blocks, "block"), model)
	}
	return fmt.Sprintf("%d of %s are known by their hash alone, because their events have no token ids, and queries by tokens do not find "+
		"them: let the engine announce token_ids as they are, or register its hash_profile", h.Untold, spelling.Count(h.Blocks, "block"))
}

// adviceOnLoss says what to do about events that are left out for a reason, "" if there is nothing to say.
func (d *Doctor) adviceOnLoss(reason events.Reason) string {
	switch reason {
	case events.UnknownObject:
		return fmt.Sprintf("keys such as %q name no block in a form that is known; let the publisher add the block's hash "+
			"(seq_hashes), or report the key and what writes it", d.account.key)
	case events.AsideObject:
		return fmt.Sprintf("objects such as %q are no part of a block of the main KV cache", d.account.key)
	case events.ObjectConflict:
		return fmt.Sprintf("events of objects such as %q contradict their own key, or what was said of it before: report what writes them",
			d.account.key)
	case events.OtherGroup, events.GroupUnknown:
		return "all its blocks belong to attention groups that keep another part of a prompt than its beginning, such as sliding windows"
	case events.BadToken:
		return "their token ids are none, or above limits.max_token_id: let the engine announce token ids as they are, or raise the limit"
	case events.UnknownType, events.BadEvent, events.TooLarge, events.TooManyLookAheads:
		return "no known release of an engine sends such events: update Conductor, or report the version of the engine"
	case events.Foreign:
		return "they are about blocks elsewhere than with this engine: register what holds them, or owned: count for this one"
	case events.OverBudget:
		return "there is no memory for them: raise index.max_bytes or index.max_bytes_total"
	case events.ContextLimit:
		return "there are too many adapters and salts: raise limits.max_contexts"
	case events.OwnerLimit:
		return "the source names more ranks, groups, media, backends or models than one may have: split it into several"
	case events.OldAdapter:
		return "their lora_id is lower than one that the adapter had before, so they are taken for a version that the engine has " +
			"replaced: report the version of the engine"
	case events.RepeatedEvent:
		return "their event_id does not rise: let the publisher number its events, or leave the number out"
	case events.BlockSizeMismatch, events.PartialBlock:
		return "their block size does not fit the registered one: register the engine's block_size"
	}
	return ""
}
