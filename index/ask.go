package index

// NoSource asks for no source's own names.
const NoSource = ^Source(0)

// Known is what an index knows of an engine hash.
type Known struct {
	// Key is what the hash stands for among the sources of the index, valid if Named.
	Key   uint64
	Named bool // as Means reports
	Own   bool // the hash means something to the source that asks, as Knows reports
}

// Ask appends to dst what the index knows of each of some engine hashes, at one moment. To
// NoSource, Own is Named. Hashes of neighbouring blocks cost one look-up in all.
func (x *Index) Ask(src Source, engine []uint64, dst []Known) []Known {
	x.lock()
	defer x.unlock()
	var s *source
	if src != NoSource {
		s = x.sources[src]
	}
	var (
		at   place // of the hash before, none if no source has taught it
		key  uint64
		dead uint64 // blocks of that piece without an owner
	)
	for _, h := range engine {
		h = normal(h)
		var k Known
		if x.nextName(at, h, dead) {
			at.at++
			key = x.follow(key, x.at(at.piece).local()[at.at])
			k.Named = true
		} else if at, _ = x.seek(s, h); !at.isNone() {
			key, dead = x.key(at), x.deadOf(x.at(at.piece))
			k.Named = true
		}
		if k.Named {
			k.Key = plain(key)
		}
		switch {
		case src == NoSource:
			k.Own = k.Named
		case s != nil:
			k.Own = k.Named || s.private.len() > 0 && !x.meaning(s, h).isNone() || !x.heldRaw(s, h).isNone()
		}
		dst = append(dst, k)
	}
	return dst
}

// nextName reports whether an engine hash is the name of the block behind another one of
// the same piece. dead are the blocks of the piece without an owner.
func (x *Index) nextName(p place, engine, dead uint64) bool {
	if p.isNone() {
		return false
	}
	r := x.at(p.piece)
	return !r.loose() && p.at+1 < r.len() && r.engine()[p.at+1] == engine && dead>>(p.at+1)&1 == 0
}
