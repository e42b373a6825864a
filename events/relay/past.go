package relay

import (
	"bytes"
	"iter"
	"maps"

	"github.com/vmihailenco/msgpack/v5"

	"example.com/conductor/events"
	"example.com/conductor/events/wire"
	"example.com/conductor/tiers"
)

const (
	// An event that removes blocks has at most this many, a batch of a dump this many events.
	maxRemovals = 2048
	maxEvents   = 16384
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
// replays the kept events and makes up the removals that lead from there to what is held.
//
// Invariants:
//
//  1. A follower of a dump that counts copies, or knows presence alone, holds what one holds that heard all batches:
//     as many copies, and the block if its last event stored it.
//  2. The last stores() events that stored a held block are kept, and before them events that say what it and the
//     blocks above it are.
//
// Cost: a batch is decoded once. A compaction decodes all kept events, and runs when they have doubled, so an event
// takes part in two of them on average. Relay.mu guards it; events that a dump returned do not change.
type past struct {
	held   map[blockKey]holding
	places map[place]uint32
	kept   [][]byte
	bytes  int64 // of kept
	after  int64 // bytes after the last compaction
	dead   int   // blocks of kept that are not held, at the last compaction
	// doubtful: a payload was no batch, or an event is of a form that cannot be replayed. Ends with a clear of
	// everything.
	doubtful bool

	any   bool // a batch was evicted, and base is its number
	base  uint64
	frame frame
	maps  bool   // events are msgpack maps, not arrays
	clear []byte // the newest event that cleared everything, nil before
	one   []byte // memory of decodeAlone
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

// holding is what is known of a block in a place that has copies.
type holding struct {
	copies int32
	absent bool // the last event removed the block, and copies are left
}

// stores returns how many stores lead to the holding: one for each copy, and one that a removal takes back.
func (h holding) stores() int32 {
	if h.absent {
		return h.copies + 1
	}
	return h.copies
}

func newPast() *past { return &past{held: make(map[blockKey]holding), places: make(map[place]uint32)} }

// PastStats is what a relay knows of the time before its tape's memory.
type PastStats struct {
	Blocks int    // that the engine held
	Kept   int    // that it held no more, in events that are kept; at the last compaction
	Bytes  int64  // of memory, estimated
	Doubt  string // why a dump is not offered as the whole, "" if it is
}

// clone returns a past that later batches do not change.
func (p *past) clone() *past {
	c := *p
	c.held, c.places, c.one = maps.Clone(p.held), maps.Clone(p.places), nil
	return &c
}

func (p *past) stats() PastStats {
	return PastStats{Blocks: len(p.held), Kept: p.dead, Bytes: p.bytes + int64(len(p.held)*holdingBytes+len(p.kept)*24)}
}

// applyBatch changes the past as a batch of the engine says.
func (p *past) applyBatch(payload []byte) {
	b, err := wire.Decode(payload, wire.DefaultLimits)
	if err != nil {
		p.doubtful = true
		return
	}
	defer wire.ReleaseBatch(&b)
	frame, raws, ok := splitBatch(payload)
	if !ok {
		p.doubtful = true
		return
	}
	p.frame = frame
	if len(raws) == b.Count() {
		for i := range b.Events {
			for e := range b.Events[i].Split() {
				p.applyEvent(e, raws[0])
				raws = raws[1:]
			}
		}
	} else { // the decoder left events out, as it does for followers
		for _, raw := range raws {
			p.decodeAlone(raw, func(e *events.Event) { p.applyEvent(e, raw) })
		}
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
	if err == nil {
		wire.ReleaseBatch(&b)
	}
}

// applyEvent applies one event, which was decoded from raw.
func (p *past) applyEvent(ev *events.Event, raw []byte) {
	if ev.Kind != events.Cleared {
		p.maps = isMap(raw[0])
	}
	switch {
	case ev.Envelope: // its blocks are removed by another name than the hash
		p.doubtful = true
	case ev.Kind == events.Stored:
		p.kept = append(p.kept, bytes.Clone(raw))
		p.bytes += int64(len(raw))
		at := p.placeOf(ev)
		for _, hash := range ev.Hashes {
			k := blockKey{hash, at}
			h := p.held[k]
			if h.copies == 0 || !ev.Owned {
				h.copies++
			}
			h.absent = false
			p.held[k] = h
		}
	case ev.Kind == events.Removed:
		at := p.placeOf(ev)
		for i, hash := range ev.Hashes {
			k := blockKey{hash, at}
			h, ok := p.held[k]
			switch {
			case !ok:
				continue
			case ev.Remaining != nil && ev.Remaining[i] > 0:
				h = holding{copies: min(h.copies, int32(min(ev.Remaining[i], 1<<30)))}
			case ev.Remaining == nil && h.copies > 1:
				h = holding{copies: h.copies - 1, absent: true}
			default:
				delete(p.held, k)
				continue
			}
			p.held[k] = h
		}
	case ev.Medium == "": // everything is cleared
		*p = past{held: make(map[blockKey]holding), places: p.places, any: p.any, base: p.base, frame: p.frame, maps: p.maps,
			clear: bytes.Clone(raw), one: p.one}
	default:
		medium := tiers.Parse(ev.Medium).Name
		cleared := make(map[uint32]bool)
		for at, number := range p.places {
			cleared[number] = at.medium == medium
		}
		for k := range p.held {
			if cleared[k.place] {
				delete(p.held, k)
			}
		}
	}
}

// placeOf returns the number of an event's place.
func (p *past) placeOf(ev *events.Event) uint32 {
	at := place{tiers.Parse(ev.Medium).Name, max(ev.Group, 0), ev.Owned}
	number, ok := p.places[at]
	if !ok {
		number = uint32(len(p.places))
		p.places[at] = number
	}
	return number
}

// compact drops the events that no follower needs any more.
func (p *past) compact() {
	missing := make(map[blockKey]int32, len(p.held)) // stores of a held block that must be kept and were not met yet
	for k, h := range p.held {
		missing[k] = h.stores()
	}
	untold := make(map[uint64]bool) // blocks whose tokens a later event needs
	var kept [][]byte               // the newest first
	p.bytes, p.dead = 0, 0
	for i := len(p.kept) - 1; i >= 0; i-- {
		p.decodeAlone(p.kept[i], func(ev *events.Event) {
			at, tells, needed := p.placeOf(ev), len(ev.Tokens) > 0, false
			for _, hash := range ev.Hashes {
				needed = needed || missing[blockKey{hash, at}] > 0 || tells && untold[hash]
			}
			if !needed {
				return
			}
			kept = append(kept, p.kept[i])
			p.bytes += int64(len(p.kept[i]))
			for _, hash := range ev.Hashes {
				k := blockKey{hash, at}
				if missing[k] > 0 {
					missing[k]--
				} else {
					p.dead++
				}
				if tells {
					delete(untold, hash)
				} else {
					untold[hash] = true
				}
			}
			if ev.HasParent {
				untold[ev.Parent] = true
			}
		})
	}
	p.kept = p.kept[:0:0]
	for i := len(kept) - 1; i >= 0; i-- {
		p.kept = append(p.kept, kept[i])
	}
	p.after = p.bytes
}

// dump returns events that lead a follower to what is held: one that clears, those that store, and those that remove
// what they stored too much.
func (p *past) dump() [][]byte {
	p.compact()
	toCome := make(map[blockKey]int32) // stores of a block in the rest of the dump
	for _, raw := range p.kept {
		p.decodeAlone(raw, func(ev *events.Event) {
			for _, hash := range ev.Hashes {
				toCome[blockKey{hash, p.placeOf(ev)}]++
			}
		})
	}
	all := [][]byte{p.clearEvent()}
	stored := make(map[blockKey]int32) // stores of a block so far that were not taken back
	var atEnd []removal
	for _, raw := range p.kept {
		p.decodeAlone(raw, func(ev *events.Event) {
			at, hashes := p.placeOf(ev), rawHashes(raw)
			if len(hashes) != len(ev.Hashes) {
				p.doubtful = true
				return
			}
			from := source{ev.Medium, ev.Group, ev.Owned}
			// From here on each store of a block that is held counts, so those before must not. Where none is held, all
			// are taken back at the end: until then, blocks below need it.
			var now []removal
			for i, hash := range ev.Hashes {
				if k := (blockKey{hash, at}); stored[k] > 0 && toCome[k] == p.held[k].stores() {
					now = append(now, removal{from, hashes[i], stored[k]})
					stored[k] = 0
				}
			}
			all = append(p.appendRemovals(all, now), raw)
			for i, hash := range ev.Hashes {
				k := blockKey{hash, at}
				if stored[k] == 0 || !ev.Owned {
					stored[k]++
				}
				if toCome[k]--; toCome[k] > 0 {
					continue
				}
				if h := p.held[k]; h.copies == 0 {
					atEnd = append(atEnd, removal{from, hashes[i], stored[k]})
				} else if h.absent {
					atEnd = append(atEnd, removal{from, hashes[i], 1})
				}
			}
		})
	}
	return p.appendRemovals(all, atEnd)
}

// source is a place as an event names it.
type source struct {
	medium string // raw, "" for none
	group  int    // -1 for none
	owned  bool
}

// removal takes some copies of a block away.
type removal struct {
	from   source
	hash   []byte // as the engine sent it
	copies int32
}

// appendRemovals appends events that remove blocks, each copy in an event of its own.
func (p *past) appendRemovals(all [][]byte, removals []removal) [][]byte {
	for copies := int32(1); len(removals) > 0; copies++ {
		bySource := make(map[source][][]byte)
		var order []source
		var rest []removal
		for _, r := range removals {
			if bySource[r.from] == nil {
				order = append(order, r.from)
			}
			bySource[r.from] = append(bySource[r.from], r.hash)
			if r.copies > copies {
				rest = append(rest, r)
			}
		}
		for _, from := range order {
			for hashes := bySource[from]; len(hashes) > 0; hashes = hashes[min(maxRemovals, len(hashes)):] {
				all = append(all, p.removalEvent(from, hashes[:min(maxRemovals, len(hashes))]))
			}
		}
		removals = rest
	}
	return all
}

// removalEvent returns an event that removes blocks, in the engine's form.
func (p *past) removalEvent(from source, hashes [][]byte) []byte {
	list := appendArrayHeader(nil, len(hashes))
	for _, h := range hashes {
		list = append(list, h...)
	}
	fields := []any{"BlockRemoved", msgpack.RawMessage(list)}
	if from.medium != "" || from.group >= 0 {
		fields = append(fields, wireMedium(from.medium))
	}
	if from.group >= 0 {
		fields = append(fields, from.group)
	}
	if !p.maps {
		return encodeEvent(fields)
	}
	object := map[string]any{"type": fields[0], "block_hashes": fields[1], "medium": wireMedium(from.medium)}
	if from.group >= 0 {
		object["group_idx"] = from.group
	}
	if from.owned {
		object["ownership"] = "kvcr"
	}
	return encodeEvent(object)
}

// wireMedium returns what an event says of a medium: nil for none.
func wireMedium(medium string) any {
	if medium == "" {
		return nil
	}
	return medium
}

// clearEvent returns an event that clears everything, in the engine's form.
func (p *past) clearEvent() []byte {
	const name = "AllBlocksCleared"
	switch {
	case p.clear != nil:
		return p.clear
	case p.maps:
		return encodeEvent(map[string]any{"type": name})
	}
	return encodeEvent([]any{name})
}

// clearBatch returns a batch that clears, in the form of another batch.
func clearBatch(like []byte) []byte {
	p := newPast()
	p.applyBatch(like)
	for b := range packBatches(p.frame, [][]byte{p.clearEvent()}, true, maxBatch) {
		return b
	}
	panic("BUG: no batch has an event that clears")
}

// packBatches yields events as batches of about limit bytes, the first event in a batch of its own if it is to be apart.
func packBatches(f frame, all [][]byte, apart bool, limit int) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for begin, end := 0, 0; begin < len(all); begin = end {
			size := 0
			for end < len(all) && end-begin < maxEvents && size < limit && !(apart && begin == 0 && end == 1) {
				size += len(all[end])
				end++
			}
			if !yield(f.wrapEvents(all[begin:end])) {
				return
			}
		}
	}
}
