package index

// NoSource asks for no source's own names.
const NoSource = ^Source(0)

// Known is what an index knows of an engine hash.
type Known struct {
	// Key is what the hash stands for among the sources of the index, a canonical sequence hash of
	// an identity. Both are valid if Named.
	Key      uint64
	Identity Identity

	Named bool // as Means reports
	Own   bool // the hash means something to the source that asks, as Knows reports
	Raw   bool // the source has a block under the hash itself, whose key it does not know
}

// Ask appends to dst what the index knows of each of some engine hashes, at one moment. To
// NoSource, Own is Named. Hashes of neighbouring blocks cost one look-up in all.
func (x *Index) Ask(src Source, engine []uint64, dst []Known) []Known {
	if src != NoSource {
		if all, ok := x.askTogether(src, engine, dst); ok {
			return all
		}
	}
	x.lock()
	defer x.unlock()
	a := asking{x: x}
	if src != NoSource {
		a.s = x.sources[src]
	}
	for _, h := range engine {
		h = normal(h)
		var k Known
		if x.isContested(a.s, h) {
			a.at = place{}
		} else {
			k = a.named(h)
		}
		switch {
		case src == NoSource:
			k.Own = k.Named
		case a.s != nil:
			k.Raw = !x.heldRaw(a.s, h).isNone()
			k.Own = k.Named || a.s.private.len() > 0 && !x.meaning(a.s, h).isNone() || k.Raw
		}
		dst = append(dst, k)
	}
	return dst
}

// askTogether is Ask next to events of other sources. It reports false if all lanes have to be
// locked.
func (x *Index) askTogether(src Source, engine []uint64, dst []Known) (all []Known, ok bool) {
	l := x.laneOf(src)
	l.mu.Lock()
	defer l.mu.Unlock()
	a := asking{x: x, s: x.sources[src]}
	if a.s == nil || !x.calm(a.s) {
		return dst, false
	}
	defer x.release(l)
	for _, h := range engine {
		k := a.named(normal(h))
		if k.Own = k.Named; !k.Named {
			return dst, false
		}
		dst = append(dst, k)
	}
	return dst, !l.clash
}

// asking is a call of Ask in progress.
type asking struct {
	x    *Index
	s    *source
	at   place  // of the hash before, none if no source has taught it
	key  uint64 // of that block
	of   root   // of that block
	dead uint64 // blocks of that piece without an owner
}

// named returns what an engine hash stands for.
func (a *asking) named(engine uint64) Known {
	x := a.x
	if x.nextName(a.at, engine, a.dead) {
		a.at.at++
		a.key = x.follow(a.key, a.of.constant, x.at(a.at.piece).local()[a.at.at])
		return a.known()
	}
	if x.alone {
		a.at, _ = x.seek(a.s, engine)
	} else {
		a.at = x.holdNamed(a.s, engine, nil)
	}
	if a.at.isNone() {
		return Known{}
	}
	r := x.at(a.at.piece)
	a.key, a.of, a.dead = x.key(a.at), r.root(), x.deadOf(r)
	return a.known()
}

// known returns the answer about the block at hand.
func (a *asking) known() Known {
	return Known{Key: a.of.seq(a.key), Identity: a.of.id, Named: true}
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

// Begins looks for tokens at the beginning of prompts under some identities, given by their constants. It
// returns the place in constants of the identity under which there are all of the blocks, with an owner
// or as ghosts, and reports whether it is exactly one.
func (x *Index) Begins(constants, local []uint64) (at int, once bool) {
	x.lock()
	defer x.unlock()
	for i, constant := range constants {
		if !x.begins(constant, local) {
			continue
		}
		if once {
			return 0, false
		}
		at, once = i, true
	}
	return at, once
}

// begins reports whether all blocks of a prompt are there under an identity.
func (x *Index) begins(constant uint64, local []uint64) bool {
	key := normal(local[0] ^ constant)
	for i := 0; ; {
		p := x.cleaned(cursor{kind: atBlock, at: x.headOf(key), key: key}).at
		if p.isNone() {
			return false
		}
		r := x.at(p.piece)
		gone := x.deadOf(r)
		n := uint32(0)
		for ; n < r.len() && i < len(local); n++ {
			if r.local()[n] != local[i] {
				break
			}
			if gone>>n&1 != 0 {
				return false
			}
			if i++; i < len(local) {
				key = x.follow(key, constant, local[i])
			}
		}
		switch {
		case i == len(local):
			return true
		case n == 0:
			return false
		}
	}
}
