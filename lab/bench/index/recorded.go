package index

import (
	"errors"
	"fmt"
	"slices"

	"example.com/conductor/index/hash"
	"example.com/conductor/lab/bench/streams"
)

// openStream makes a stream of a recording: one operation for each prompt, and one for each
// event, or for those that the server joins when it decodes a batch (events/wire). Sources are
// the engines. Each has an owner for the device and one for every other medium of the recording.
func openStream(path string, apart bool) (*Stream, error) {
	// Engines announce a block once for each copy, so copies count, as they do in the server by default.
	r := recording{s: &Stream{counted: true}, apart: apart, media: []string{""}, seq: map[uint64]uint64{}}
	n := 0
	for rec, err := range streams.ReadRecords(path) {
		if err != nil {
			return nil, err
		}
		if err := r.addRecord(&rec); err != nil {
			return nil, fmt.Errorf("%s: record %d: %w", path, n, err)
		}
		n++
	}
	s := r.s
	if len(s.ops) == 0 {
		return nil, fmt.Errorf("%s: no operations", path)
	}
	s.tiers = len(r.media)
	s.owners = max(1, r.engines) * s.tiers
	for i := range s.ops {
		if o := &s.ops[i]; o.kind != query {
			o.owner = o.owner/mostMedia*uint32(s.tiers) + o.owner%mostMedia
		}
	}
	s.load = len(s.ops)
	return s, nil
}

// mostMedia is how many media a recording may have, and while it is read, the owners of an engine.
const mostMedia = 8

// recording is a recording as it is read.
type recording struct {
	s       *Stream
	apart   bool // each event is an operation
	single  bool // each event of the last operation has one block, and the next event is of its batch
	engines int
	media   []string          // by tier
	seq     map[uint64]uint64 // canonical hash of each engine hash so far
	bare    [mostMedia]bool   // by tier: its blocks are announced by their hashes alone
}

func (r *recording) addRecord(rec *streams.Record) error {
	if rec.Engine < 0 {
		if n := len(rec.Prompt); n > 0 {
			from := r.appendChain(0, false, rec.Prompt)
			r.s.ops = append(r.s.ops, op{kind: query, from: from, to: from + uint32(n)})
		}
		return nil
	}
	r.engines = max(r.engines, rec.Engine+1)
	r.single = false
	for i := range rec.Events {
		if err := r.addEvent(rec.Engine, &rec.Events[i]); err != nil {
			return fmt.Errorf("event %d: %w", i, err)
		}
	}
	return nil
}

func (r *recording) addEvent(engine int, e *streams.Event) error {
	if e.Group > 0 {
		return errors.New("it is of a second group of blocks, of which an index alone knows nothing; bench ingest replays it")
	}
	tier := slices.Index(r.media, e.Medium)
	if tier < 0 {
		if tier = len(r.media); tier == mostMedia {
			return fmt.Errorf("medium %q is one more than the %d that a recording may have", e.Medium, mostMedia)
		}
		r.media = append(r.media, e.Medium)
	}
	o := op{kind: store, owner: uint32(engine*mostMedia + tier)}
	s := r.s
	switch {
	case e.Removed:
		o.kind, o.bare = remove, r.bare[tier]
		o.from = uint32(len(s.gone))
		for _, h := range e.Hashes {
			k, ok := r.seq[h]
			if !ok {
				return fmt.Errorf("block %x is removed, but no event stored it", h)
			}
			s.gone = append(s.gone, k)
		}
		o.to = uint32(len(s.gone))
	case len(e.Locals) == 0:
		r.bare[tier], o.bare = true, true
		o.from = uint32(len(s.seq))
		for _, h := range e.Hashes {
			k, ok := r.seq[h]
			if !ok {
				return fmt.Errorf("block %x is stored by its hash alone, but no event told its tokens", h)
			}
			s.seq, s.local = append(s.seq, k), append(s.local, 0)
		}
		o.to = uint32(len(s.seq))
	default:
		if e.HasParent {
			k, ok := r.seq[e.Parent]
			if !ok {
				return fmt.Errorf("block %x is the parent of a block, but no event stored it", e.Parent)
			}
			o.hasParent, o.parent = true, k
		}
		o.from = r.appendChain(o.parent, o.hasParent, e.Locals)
		o.to = uint32(len(s.seq))
		for i, h := range e.Hashes {
			k := s.seq[int(o.from)+i]
			if was, ok := r.seq[h]; ok && was != k {
				return fmt.Errorf("hash %x names two different blocks", h)
			}
			r.seq[h] = k
		}
	}
	o.name = o.from
	if !r.joinEvent(&o) {
		s.ops = append(s.ops, o)
		r.single = o.to-o.from == 1
	}
	return nil
}

// joinEvent adds an event to the operation before it, if the decoder joins the two: removals of one
// block on one medium, stores of one block with tokens, each the parent of the next, and stores of
// one block by its hash alone. These are the rules of events/wire (join.go); a test compares the two.
func (r *recording) joinEvent(o *op) bool {
	s := r.s
	if r.apart || !r.single || o.to-o.from != 1 {
		return false
	}
	was := &s.ops[len(s.ops)-1]
	if was.kind != o.kind || was.owner != o.owner || was.hasParent != o.hasParent || was.bare != o.bare {
		return false
	}
	if o.kind == store && !o.bare && (!o.hasParent || o.parent != s.seq[was.to-1]) {
		return false
	}
	was.to = o.to
	return true
}

// appendChain appends blocks that follow a parent, if there is one, and returns where they begin.
func (r *recording) appendChain(parent uint64, hasParent bool, locals []uint64) (from uint32) {
	from = uint32(len(r.s.seq))
	for _, l := range locals {
		k := l
		if hasParent {
			k = hash.DefaultScheme().Next(parent, l)
		}
		r.s.seq, r.s.local = append(r.s.seq, k), append(r.s.local, l)
		parent, hasParent = k, true
	}
	return from
}
