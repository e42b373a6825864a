package relay

import (
	"bytes"
	"iter"
	"maps"
	"math"
	"slices"

	"example.com/conductor/events"
	"example.com/conductor/events/wire"
	"example.com/conductor/tiers"
)

const (
	// maxEvents is how many events a batch of a dump has at most.
	maxEvents = 16384
	// Kept events are looked through once they have doubled, but not below this many bytes.
	minCompaction = 1 << 20
	// The memory of a held block in past.held, about.
	holdingBytes = 48
)

// past is what the engine held after the newest batch that the tape's memory has evicted: the log compaction of a
// message broker, with events for messages.
//
//	evicted batch --> held: block in a place --> copies
//	            +---> kept: the events that stored blocks, whole and as the engine sent them, oldest first
//
// An event is kept as long as a follower needs it: because the engine still holds one of its blocks, or because it has
// the tokens of a block above one, or of a block that is held elsewhere by its hash alone. Removals are not kept. A dump
// is what a compaction leaves, with removals made up that take back what the kept events store too much.
//
// Invariants:
//
//  1. A follower of a dump that counts copies, or knows presence alone, holds what one holds that heard all batches:
//     as many copies, and the block if its last event stored it.
//  2. The last copies + absent events that stored a held block are kept, and before them events that say what it and the
//     blocks above it are.
//
// Cost: a batch is decoded twice, whole and by events. A compaction, and so a dump, decodes each kept event once.
// Compactions run when the kept events have doubled, so an event takes part in two of them on average. Relay.mu guards
// it; events that a dump returned do not change.
type past struct {
	held   map[blockKey]holding
	places []place // by number; an engine has few
	kept   [][]byte
	bytes  int64 // of kept
	after  int64 // bytes after the last compaction
	dead   int   // blocks of kept that are not held, at the last compaction
	// doubtful: a payload was no batch, or an event is of a form that cannot be replayed. Ends with a clear of
	// everything.
	doubtful bool

	size  int        // tokens of a block of the last event that has tokens, 0 before the first
	end   uint64     // the number behind the last batch, 0 before the first
	frame wire.Frame // of the last batch with events
	one   []byte     // memory of decodeAlone
}

// place is where blocks lie, as followers tell places apart.
type place struct {
	medium string // canonical
	group  int
	owned  bool
}

// blockKey is a block in a place.
type blockKey struct {
	hash  uint64
	place uint32
}

// holding is what is known of a block in a place that has copies. copies + absent stores lead to it: one for each copy, and
// one that a removal takes back.
type holding struct {
	copies int32
	absent int32 // 1 if the last event removed the block, and copies are left; else 0
}

func newPast() *past { return &past{held: make(map[blockKey]holding)} }

// clone returns a past that later batches do not change.
func (p *past) clone() *past {
	c := *p
	c.held, c.places, c.one = maps.Clone(p.held), slices.Clip(p.places), nil
	return &c
}

// applyBatch changes the past as a batch of the engine says.
func (p *past) applyBatch(payload []byte) {
	frame, raws, ok := wire.CutBatch(payload)
	b, err := wire.Decode(payload, wire.DefaultLimits)
	if err != nil || !ok {
		p.doubtful = true
		return
	}
	wire.ReleaseBatch(&b)
	if len(raws) > 0 {
		p.frame = frame
	}
	for _, raw := range raws { // one that cannot be read alone is left out, as followers do
		p.decodeAlone(raw, func(e *events.Event) { p.applyEvent(e, raw) })
	}
	if p.bytes > max(2*p.after, minCompaction) {
		p.compact()
	}
}

// decodeAlone decodes an event. It calls visit unless the event cannot be read.
func (p *past) decodeAlone(raw []byte, visit func(*events.Event)) {
	p.one = append(append(p.one[:0], 0x92, 0, 0x91), raw...)
	b, err := wire.Decode(p.one, wire.DefaultLimits)
	if err == nil && len(b.Events) == 1 {
		visit(&b.Events[0])
	}
	wire.ReleaseBatch(&b)
}

// applyEvent applies one event, which was decoded from raw.
func (p *past) applyEvent(ev *events.Event, raw []byte) {
	switch {
	case ev.Envelope: // its blocks are removed by another name than the hash
		p.doubtful = true
	case ev.Kind == events.Moved:
		p.applyMove(ev, raw)
	case ev.Kind == events.Stored:
		if len(ev.Tokens) > 0 {
			p.size = ev.BlockSize
		}
		p.kept = append(p.kept, bytes.Clone(raw))
		p.bytes += int64(len(raw))
		at := p.placeOf(ev)
		for _, hash := range ev.Hashes {
			h := p.held[blockKey{hash, at}]
			if h.copies == 0 || !ev.Owned {
				h.copies++
			}
			p.held[blockKey{hash, at}] = holding{copies: h.copies}
		}
	case ev.Kind == events.Removed:
		at := p.placeOf(ev)
		for i, hash := range ev.Hashes {
			h := p.held[blockKey{hash, at}]
			if ev.Remaining != nil {
				h = holding{copies: min(h.copies, int32(min(ev.Remaining[i], math.MaxInt32)))}
			} else {
				h = holding{copies: h.copies - 1, absent: 1}
			}
			if h.copies > 0 {
				p.held[blockKey{hash, at}] = h
			} else {
				delete(p.held, blockKey{hash, at})
			}
		}
	case ev.Medium == "" && !ev.Owned: // everything is cleared
		*p = past{held: make(map[blockKey]holding), places: p.places, size: p.size, end: p.end, frame: p.frame, one: p.one}
	default:
		medium := tiers.ParseMedium(ev.Medium).Name
		maps.DeleteFunc(p.held, func(k blockKey, _ holding) bool {
			at := &p.places[k.place]
			return (ev.Medium == "" || at.medium == medium) && (at.owned || !ev.Owned)
		})
	}
}

// applyMove applies an event that moves blocks as followers do: as one that stores them, which is made up and kept, and
// one that removes them. A group that no other event has named is none.
func (p *past) applyMove(ev *events.Event, raw []byte) {
	if tiers.ParseMedium(ev.From) == tiers.ParseMedium(ev.Medium) {
		return
	}
	if !slices.ContainsFunc(p.places, func(at place) bool { return at.group == ev.Group }) {
		ev.Group = -1
	}
	store := wire.EncodeStore(raw, ev, p.size)
	if store == nil {
		p.doubtful = true
		return
	}
	stored, removed := ev.Apart()
	p.applyEvent(&stored, store)
	p.applyEvent(&removed, raw)
}

// encodeClears returns events that clear the usual media and those there have been: a follower may leave what is below the device
// without a word about the medium.
func (p *past) encodeClears(f wire.Frame) [][]byte {
	media := []string{"", tiers.NameHost, tiers.NameDisk, tiers.NameExternal}
	for i := range p.places {
		if medium := p.places[i].medium; medium != tiers.NameDevice && !slices.Contains(media, medium) {
			media = append(media, medium)
		}
	}
	all := make([][]byte, 0, len(media))
	for _, medium := range media {
		all = append(all, f.EncodeClear(medium))
	}
	return all
}

// placeOf returns the number of an event's place.
func (p *past) placeOf(ev *events.Event) uint32 {
	at := place{tiers.ParseMedium(ev.Medium).Name, max(ev.Group, 0), ev.Owned}
	number := slices.Index(p.places, at)
	if number < 0 {
		number = len(p.places)
		p.places = append(p.places, at)
	}
	return uint32(number)
}

// compact drops the events that no follower needs any more. It returns those that are left, with removals that take back
// what they store too much: together with a clear before them they are a dump.
//
// It goes from the newest event to the oldest. So when it meets a block that no later event tells of, it knows whether it
// needs the event, and where a removal goes if it keeps the event for another block.
func (p *past) compact() (dump [][]byte) {
	type due struct {
		left   int32 // stores that must be kept and were not met yet
		absent bool  // none was met yet, and a removal follows the last one
		oldest int32 // the place in newest of the last one met, from 1
	}
	wanted := make(map[blockKey]due, len(p.held))
	for k, h := range p.held {
		wanted[k] = due{left: h.copies + h.absent, absent: h.absent > 0}
	}
	untold := make(map[uint64]bool)      // blocks whose tokens a later event needs
	var newest [][]byte                  // the events to keep, the newest first
	removals := make(map[int32][][]byte) // events right before those of newest, by place; at 0 behind all of them
	p.bytes, p.dead = 0, 0
	for _, raw := range slices.Backward(p.kept) {
		p.decodeAlone(raw, func(ev *events.Event) {
			at, tells, needed := p.placeOf(ev), len(ev.Tokens) > 0, false
			for _, hash := range ev.Hashes {
				needed = needed || wanted[blockKey{hash, at}].left > 0 || tells && untold[hash]
			}
			if !needed {
				return
			}
			newest = append(newest, raw)
			p.bytes += int64(len(raw))
			surplus := make(map[int32][]int) // blocks to take back, by place of the removal
			for i, hash := range ev.Hashes {
				d := wanted[blockKey{hash, at}]
				if d.left == 0 || d.absent {
					// The stores of a block that is held count from the oldest one wanted on, so those before must not.
					// If none is held, all are taken back at the end: until then, blocks below need it.
					surplus[d.oldest] = append(surplus[d.oldest], i)
				}
				if d.left > 0 {
					wanted[blockKey{hash, at}] = due{left: d.left - 1, oldest: int32(len(newest))}
				} else {
					p.dead++
				}
				if tells {
					delete(untold, hash)
				} else {
					untold[hash] = true
				}
			}
			for place, blocks := range surplus {
				if removal := wire.EncodeRemoval(raw, ev, blocks); removal != nil {
					removals[place] = append(removals[place], removal)
				} else {
					p.doubtful = true
				}
			}
			if ev.HasParent {
				untold[ev.Parent] = true
			}
		})
	}
	p.kept = make([][]byte, 0, len(newest))
	for place := len(newest); place > 0; place-- {
		p.kept = append(p.kept, newest[place-1])
		dump = append(append(dump, removals[int32(place)]...), newest[place-1])
	}
	p.after = p.bytes
	return append(dump, removals[0]...)
}

// packDump yields the batches of a dump: one that clears, unless something is missing, and then others of about limit bytes.
func (p *past) packDump(dump [][]byte, limit int) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		// A clear would end the follower's doubt.
		if !p.doubtful && !yield(p.frame.Wrap(p.encodeClears(p.frame)...)) {
			return
		}
		for begin, end := 0, 0; begin < len(dump); begin = end {
			for size := 0; end < len(dump) && end-begin < maxEvents && size < limit; end++ {
				size += len(dump[end])
			}
			if !yield(p.frame.Wrap(dump[begin:end]...)) {
				return
			}
		}
	}
}
