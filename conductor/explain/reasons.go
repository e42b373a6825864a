package explain

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"example.com/conductor/conductor/doctor"
	"example.com/conductor/conductor/ingest"
	"example.com/conductor/conductor/inspect"
	"example.com/conductor/conductor/lmcache"
	"example.com/conductor/events"
	"example.com/conductor/events/stream"
	"example.com/conductor/index/hash"
	"example.com/conductor/spelling"
	"example.com/conductor/tiers"
)

// causes returns why a source lacks a block as one rank, the most useful reason first.
func (e *explaining) causes(k holderKey, block int, st stream.Status) (all []inspect.Cause) {
	s := k.source
	if s.Registration.IsApproximate() {
		return []inspect.Cause{{Reason: inspect.NoEvents, Certain: true,
			Text: fmt.Sprintf("The engine of %s publishes no events: what it holds is expected, by what routers report, and never known.",
				s.Registration.Key())}}
	}
	past := s.LookBack(e.at.Deployment, k.rank, e.constant(), e.chains, block)
	lost, emptied, shards := lostBlock(&past, block), emptiedCauses(s, &past), missingShards(s, e, block)

	waiting, tokenless := e.waiting(s, block)
	all = slices.Concat(e.endsOfHits(k, block), lost, e.refused(s, block), shards, e.chunksInPart(k, block), waiting)
	known := len(all) > 0
	all = append(all, e.heldElsewhere(s, block*e.query.BlockSize)...)
	all = slices.Concat(all, emptied, e.sourceCauses(s, st), tokenless)
	if !slices.ContainsFunc(e.chains, func(c *hash.Chain) bool { return block < c.Len() }) {
		return append(all, inspect.Cause{Reason: inspect.PromptEnds, Certain: true,
			Text: fmt.Sprintf("The engines hash block %d together with tokens behind it, and the prompt ends before those.", block)})
	}
	if known {
		return all
	}
	c := inspect.Cause{Reason: inspect.NeverAnnounced, Certain: st.State == stream.Synced && !past.Forgotten && len(emptied) == 0 &&
		len(tokenless) == 0 &&
		past.Remembered,
		Text: fmt.Sprintf("Conductor knows of no event of %s in epoch %d that announced block %d.", s.Registration.Key(), st.Epoch, block)}
	switch {
	case !past.Remembered:
		c.Text += " Removals are not remembered."
	case past.Forgotten:
		c.Text += fmt.Sprintf(" Removals up to sequence %d are forgotten, so the block may have left before.", past.Since)
	}
	return append(all, c)
}

// refused returns the bounds that kept a block out.
func (e *explaining) refused(s *ingest.Source, block int) (all []inspect.Cause) {
	dropped := s.Drops(s.Member.Status())
	if d := e.deployment; d != nil && dropped[events.OverBudget] > 0 {
		for _, c := range e.chains {
			if block < c.Len() && d.Index.Inspect().WasRefused(e.identity.Constant, c.At(block)) {
				return append(all, inspect.Cause{Reason: inspect.Refused, Certain: true,
					Text: fmt.Sprintf("The index refused block %d: index.max_bytes or index.max_bytes_total is reached.", block)})
			}
		}
	}
	if n := dropped[events.ContextLimit]; n > 0 && (e.deployment == nil || e.deployment.Names.Find(e.at.Variant) == nil) {
		all = append(all, inspect.Cause{Reason: inspect.Refused,
			Text: fmt.Sprintf("The deployment has as many adapters and salts as limits.max_contexts allows: %s of others %s refused.",
				spelling.Count(n, "block"), spelling.Agree(n, "was", "were"))})
	}
	return all
}

// constant returns that of the identity asked for.
func (e *explaining) constant() uint64 {
	if e.identity == nil {
		return 0
	}
	return e.identity.Constant
}

// waiting returns which blocks of the prompt wait for their parent, and whether blocks of the
// source wait for tokens.
func (e *explaining) waiting(s *ingest.Source, block int) (parents, tokens []inspect.Cause) {
	number, entered := s.NumberIn(e.deployment)
	if !entered {
		return nil, nil
	}
	x := e.deployment.Index
	for _, c := range e.chains {
		at := x.Inspect().WaitingAmong(number, c.Locals(c.Len())[:c.Len()])
		if at = slices.DeleteFunc(at, func(i int) bool { return i < block }); len(at) > 0 {
			parents = append(parents, waitingCause(at, block))
			break
		}
	}
	if raw := x.Inspect().CountTokenless(number); raw > 0 {
		tokens = append(tokens, inspect.Cause{Reason: inspect.TokensUnknown,
			Text: fmt.Sprintf("The source holds %s that %s announced by hash alone, and %s until an engine announces the hash with tokens.",
				spelling.Count(raw, "block"), spelling.Agree(raw, "was", "were"), spelling.Agree(raw, "waits", "wait"))})
	}
	return parents, tokens
}

// waitingCause says that blocks of the prompt wait, from position at[0] on.
func waitingCause(at []int, block int) inspect.Cause {
	if at[0] == block {
		return inspect.Cause{Reason: inspect.ParentUnknown, Certain: len(at) > 1,
			Text: fmt.Sprintf("Block %d is announced and waits: no event has announced the parent that it names.", block)}
	}
	return inspect.Cause{Reason: inspect.ParentUnknown, Certain: len(at) > 1,
		Text: fmt.Sprintf("Block %d is announced and waits for the blocks before it. The event that announced block %d is missing.", at[0],
			block)}
}

// chunksInPart returns the chunks of a holder which the prompt leaves behind a block.
func (e *explaining) chunksInPart(k holderKey, block int) (all []inspect.Cause) {
	for _, c := range e.inPart[k] {
		if c.from <= block && block < c.to {
			n, which := c.to-c.from, fmt.Sprintf("block %d", c.from)
			if n > 1 {
				which = fmt.Sprintf("blocks %d to %d", c.from, c.to-1)
			}
			all = append(all, inspect.Cause{Reason: inspect.ChunkInPart, Certain: true,
				Text: fmt.Sprintf("%s has %s in a block of %d registered blocks (%d tokens), which is used whole or not at all: the "+
					"prompt shares %d of them, so %s not count.",
					c.medium.Name, which, c.size, c.size*e.query.BlockSize, n, spelling.Agree(n, "it does", "they do"))})
		}
	}
	return all
}

// endsOfHits returns which attention groups of a rank end its hit before a block, and what else does although the rank holds the
// block.
func (e *explaining) endsOfHits(k holderKey, block int) (all []inspect.Cause) {
	for _, h := range e.hits[k] {
		if h.Blocks != block {
			continue
		}
		if h.Group >= 0 {
			all = append(all, inspect.Cause{Reason: inspect.AttentionGroup, Certain: true, Text: e.groupEnds(h)})
			continue
		}
		if h.Refused > 0 {
			all = append(all, inspect.Cause{Reason: inspect.ChunkInPart, Certain: true,
				Text: fmt.Sprintf("%s has blocks up to %d, but that is less than a chunk behind block %d, and an engine that loads chunks "+
					"of several of its blocks loads at least one.", h.medium.Name, h.Refused, h.Blocks)})
			continue
		}
		if rest := h.Most % h.cache.Step; rest > 0 {
			all = append(all, inspect.Cause{Reason: inspect.ChunkInPart, Certain: true,
				Text: fmt.Sprintf("The engine takes multiples of %s (%d tokens) of its attention groups on %s, and has %d more.",
					spelling.Count(h.cache.Step, "registered block"), h.cache.Step*e.query.BlockSize, h.medium.Name, rest)})
		}
		if h.cache.FullDrops() {
			all = append(all, inspect.Cause{Reason: inspect.DrafterBlock, Certain: true,
				Text: fmt.Sprintf("The registration says that the engine's drafter has the last block of each hit computed again "+
					"(drafter: %s).", k.source.Registration.Drafter)})
		}
	}
	return all
}

// groupEnds says which group ends a hit.
func (e *explaining) groupEnds(h cacheHit) string {
	g := h.cache.Groups[h.Group]
	from := fmt.Sprintf("Full attention has blocks up to %d on %s", h.Most, h.medium.Name)
	if !h.cache.HasFull() {
		from = fmt.Sprintf("The attention groups have blocks up to %d on %s", h.Most, h.medium.Name)
	}
	if g.Need == tiers.NeedState {
		return fmt.Sprintf("%s, but attention group %d (state-space layers) has no state behind block %d, nor between it and block %d.",
			from, g.Number, h.Refused, h.Blocks)
	}
	drafter := ""
	if g.Drops {
		drafter = fmt.Sprintf(" The drafter needs %s behind it too.", spelling.Count(g.Block, "block"))
	}
	return fmt.Sprintf("%s, but the window of attention group %d (%s, %d tokens) has gone before block %d, and before every block "+
		"behind %d.%s",
		from, g.Number, spelling.Count(g.Window, "block"), g.Window*e.query.BlockSize, h.Refused, h.Blocks, drafter)
}

// engineHashes returns the hashes by which engines name a block of the prompt.
func (e *explaining) engineHashes(block int) (all []uint64) {
	if d := e.deployment; d != nil {
		for _, c := range e.chains {
			for _, name := range d.Index.Inspect().NamesAt(e.identity.Constant, c, block) {
				d.Names.Folds(e.at.Variant, func(fold uint64) bool {
					all = append(all, name^fold)
					return true
				})
			}
		}
	}
	if d := e.deployment; d != nil {
		digests := e.Matcher.Digests(d, e.query)
		for i := range digests {
			if block < digests[i].Len() {
				all = append(all, digests[i].At(block))
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// sourceCauses returns what the state of a source says of all its blocks.
func (e *explaining) sourceCauses(s *ingest.Source, st stream.Status) (all []inspect.Cause) {
	since := ""
	if !st.LastBatchAt.IsZero() {
		since = fmt.Sprintf(" Its last batch came %s ago.", max(e.Now().Sub(st.LastBatchAt), 0).Round(time.Millisecond))
	}
	switch st.State {
	case stream.Partial:
		all = append(all, inspect.Cause{Reason: inspect.SourcePartial,
			Text: fmt.Sprintf("The history of the source is incomplete (%s): events that announced the block may be missing.", st.Reason)})
	case stream.Stale, stream.Connecting, stream.Paused, stream.Failed:
		all = append(all, inspect.Cause{Reason: inspect.SourceStale, Text: fmt.Sprintf("The source is %s, so nothing of it arrives.%s",
			st.State, since)})
	}
	switch {
	case s.AtGate():
		all = append(all, inspect.Cause{Reason: inspect.SourceBehind,
			Text: fmt.Sprintf("The server is recovering: %s %s.", spelling.Count(st.Queued, "batch"),
				spelling.Agree(st.Queued, "waits", "wait"))})
	case st.State == stream.Replaying || st.Queued > 0:
		all = append(all, inspect.Cause{Reason: inspect.SourceBehind, Text: fmt.Sprintf("The source is %s and %s %s to be applied.%s",
			st.State,
			spelling.Count(st.Queued, "batch"), spelling.Agree(st.Queued, "waits", "wait"), since)})
	}
	for _, f := range s.Member.Findings.List() {
		if f.Code == doctor.FindingBehind {
			all = append(all, inspect.Cause{Reason: inspect.SourceBehind, Text: "By the last comparison of replicas, " + f.Message + "."})
		}
	}
	if n := s.Drops(st)[events.OtherGroup]; n > 0 {
		all = append(all, inspect.Cause{Reason: inspect.GroupNotIndexed,
			Text: fmt.Sprintf("%s of the source %s to attention groups that are not indexed.",
				spelling.Count(n, "block"), spelling.Agree(n, "belongs", "belong"))})
	}
	return all
}

// lostBlock returns the removals that took a block of a rank, the last one first.
func lostBlock(past *ingest.Past, block int) (all []inspect.Cause) {
	for _, r := range past.Removals {
		all = append(all, inspect.Cause{Reason: inspect.Removed, Certain: true, Seq: &r.Seq,
			Text: fmt.Sprintf("The event at sequence %d removed block %d from %s.", r.Seq, block, r.Medium)})
	}
	slices.SortFunc(all, func(a, b inspect.Cause) int {
		return cmp.Or(cmp.Compare(*b.Seq, *a.Seq), strings.Compare(a.Text, b.Text))
	})
	return all
}

// emptiedCauses returns how a rank lost all of its blocks at once.
func emptiedCauses(s *ingest.Source, past *ingest.Past) (all []inspect.Cause) {
	for _, p := range past.Emptied {
		if p.Cause == inspect.Cleared {
			all = append(all, inspect.Cause{Reason: inspect.Cleared, Seq: &p.Seq,
				Text: fmt.Sprintf("The event at sequence %d cleared %s from %s. The block was not announced there since.", p.Seq,
					spelling.Count(p.Blocks, "block"), p.Medium)})
			continue
		}
		all = append(all, inspect.Cause{Reason: inspect.Expired,
			Text: fmt.Sprintf("%s expired on %s at %s. A block expires there %s after its last announcement.",
				spelling.Count(p.Blocks, "block"), p.Medium, p.At.UTC().Format(time.RFC3339), s.Registration.TTLOn(p.Medium))})
	}
	slices.SortFunc(all, func(a, b inspect.Cause) int { return strings.Compare(a.Text, b.Text) })
	return all
}

// missingShards returns which objects of a block a pool lacks, those first that are surely of the prompt.
func missingShards(s *ingest.Source, e *explaining, block int) (all []inspect.Cause) {
	size := e.query.BlockSize
	var lacks []lmcache.Lack
	switch {
	case !s.Registration.IsPushed():
		lacks = s.LackingObjects(func() []uint64 { return e.engineHashes(block) })
	case s.Registration.Model == e.query.Model && s.Registration.BlockSize == size && s.Registration.Lora == e.query.Lora:
		lacks = s.LackingChunks(&lmcache.Prompt{
			Tokens: e.query.Tokens,
			Salted: func(salt string) bool { return cmp.Or(salt, s.Registration.Salt) == e.query.Salt },
			Named: func(end int, hash uint64) bool {
				return end >= size && end%size == 0 && slices.Contains(e.engineHashes(end/size-1), hash)
			},
		}, block*size, (block+1)*size)
	}
	for _, l := range lacks {
		all = append(all, inspect.Cause{Reason: inspect.ShardsMissing, Certain: l.Certain,
			Text: fmt.Sprintf("The pool has %d of %d objects of block %d on %s.", l.Have, l.Want, block, l.Medium)})
	}
	return all
}
