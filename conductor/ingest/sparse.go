package ingest

import (
	"slices"

	"example.com/conductor/conductor/names"
	"example.com/conductor/conductor/normalize"
	"example.com/conductor/index"
)

// A group with a sliding window keeps some blocks of a prompt, and its events have the tokens of all of them:
//
//	full attention   |------ D ------|------ H ------|------ L ------|     registered: 16 tokens, blocks of 64
//	sliding window   |   |   | C | D |   |   |   |   |   |   | K | L |     hashes C D K L, tokens of 12 blocks
//
// Which block a hash means is the same in all groups, so full attention tells where D and L are. It does not name C and K. But a
// window keeps runs of blocks that end where a block of every group ends, so C is just before D, and K just before L.
//
// With a drafter in the window each run has one block more, behind D or L, and an event may end inside a run. So hashes do not tell
// where such blocks are, and what the window holds is not known.

// namesAll reports whether a group with full attention names every block of a size in tokens, because its own are no larger.
func namesAll(specs []normalize.Spec, size int) bool {
	for i := range specs {
		if normalize.MainGroup(specs[i].Kind) && specs[i].Block > 0 && specs[i].Block <= size {
			return true
		}
	}
	return false
}

// announcesSize reports whether a group of a rank has said how large its blocks are.
func announcesSize(specs []normalize.Spec, group int) bool {
	return slices.ContainsFunc(specs, func(g normalize.Spec) bool { return g.Group == group && g.Block > 0 })
}

// putRuns stores blocks that a sliding window keeps. Where another group has announced the last block of a run, the blocks before it
// follow from that. All other blocks are stored by their hashes alone.
func (a *applier) putRuns(ns *namespace, c *normalize.Change, at names.Placing) (sum index.StoreResult) {
	rest, all := *c, c.Cut.Hashes
	rest.Runs = false
	put := func(hashes []uint64) {
		if len(hashes) == 0 {
			return
		}
		event := *c.Cut
		event.Hashes, rest.Cut = hashes, &event
		res := a.putHashes(ns, &rest, at)
		addResult(&sum, &res)
	}
	from := 0
	for i, h := range all {
		if !ns.Deployment.Index.ResolveHash(ns.Source, h^at.Fold).Named {
			continue
		}
		if run := all[from : i+1]; len(run) > 1 {
			if res, placed := a.putRun(ns, c, run, at); placed {
				addResult(&sum, &res)
				from = i + 1
				continue
			}
		}
		put(all[from : i+1])
		from = i + 1
	}
	put(all[from:])
	return sum
}

// putRun stores blocks that follow each other in a chain. It finds the chain by the last of them, and reports false if the index does
// not know the blocks before that one.
func (a *applier) putRun(ns *namespace, c *normalize.Change, run []uint64, at names.Placing) (res index.StoreResult, placed bool) {
	size := max(c.Chunk, 1)
	last := run[len(run)-1]
	locals, parent, begins, placed := ns.Deployment.Index.Inspect().ChainTo(ns.Source, last^at.Fold, len(run)*size)
	if !placed {
		return res, false
	}
	part, event := *c, *c.Cut
	event.Hashes = normalize.PartNames(run, size)
	event.Parent, event.HasParent, event.Ahead = parent^at.Fold, !begins, c.Event.Ahead
	part.Cut, part.Local, part.Parts, part.Owner.Chunk = &event, locals, size, 0
	if size > 1 {
		part.Owner.Chunk = size
		a.shared.catalog.LearnParts(c.Context.Deployment, size)
		a.normal.RaiseParts(size)
	}
	return a.put(ns, &part, at), true
}
