package index

import "math"

// RemoveResult counts blocks.
type RemoveResult struct {
	Removed int // the owner no longer holds them
	Copies  int // a copy went or was corrected, the block stays
	Unknown int // the owner did not hold them
}

// Remove applies a removed event. remaining[i], where given and not negative, is
// the number of copies left of engine[i] and overrides the policy. A retired owner
// holds nothing.
func (x *Index) Remove(name Owner, engine []uint64, remaining []int, policy CopyPolicy) RemoveResult {
	var res RemoveResult
	x.gate.RLock()
	o := x.owners[name]
	if o == nil {
		x.gate.RUnlock()
		res.Unknown = len(engine)
		return res
	}
	s := o.s
	s.mu.Lock()
	r := take{hand: x.hand(s), o: o, policy: policy, res: &res}
	r.all(engine, remaining)
	r.done()
	s.mu.Unlock()
	x.gate.RUnlock()
	x.tend()
	return res
}

// take is a removal in progress.
type take struct {
	hand
	o      *owner
	policy CopyPolicy
	res    *RemoveResult
}

func (r *take) all(engine []uint64, remaining []int) {
	r.s.suspects = r.s.suspects[:0]
	named := len(r.a.buckets) > 0 || r.s.private.len() > 0
	for i, e := range engine {
		if i%ahead == 0 {
			r.advance(engine, i, named, !r.g.ids.isOpen(r.o.id))
		}
		e = normal(e)
		left := -1
		if i < len(remaining) {
			left = remaining[i]
		}
		key, known := e, false
		if named {
			if k, ok := r.meaning(e); ok {
				key, known = k, true
				if r.s.raw && !r.holds(r.o, k) && r.holds(r.o, e) {
					key, known = e, false // stored before others taught what it means
				}
			}
		}
		r.one(e, key, known, left)
	}
	r.reconsider()
}

// one removes a block. left is the number of copies that stay, below zero unknown.
func (r *take) one(engine, key uint64, known bool, left int) {
	if r.o.copies.len() > 0 || left > 0 {
		if !r.holds(r.o, key) {
			r.res.Unknown++
			return
		}
		if left < 0 && r.policy == CopyCount {
			if more := r.o.copies.ref(key); more != nil {
				left = int(*more)
			}
		}
		if left > 0 {
			r.o.setCopies(key, left)
			r.res.Copies++
			return
		}
	}
	held, suspect := r.part(r.o, key)
	if !held {
		r.res.Unknown++
		return
	}
	r.gone = linkTo(key)
	if suspect != 0 {
		r.s.suspects = append(r.s.suspects, suspect)
	} else if len(r.s.suspects) > 0 {
		// The owner is open by now, so that part does not look: it may leave a child.
		if s := r.t.find(key); s != nil {
			r.s.suspects = append(r.s.suspects, r.t.number(s))
		}
	}
	r.res.Removed++
	if !known && r.s.raw {
		r.o.raw = max(r.o.raw-1, 0)
	}
	if r.s.room.used > 0 {
		r.forget(engine)
	}
}

// reconsider closes an owner again that lost parents before their children, but in
// one event.
func (r *take) reconsider() {
	if len(r.s.suspects) == 0 || !r.g.ids.isOpen(r.o.id) {
		return
	}
	for _, n := range r.s.suspects {
		if r.g.holdsChild(r.t.at(n), r.o.id) {
			return
		}
	}
	r.g.ids.setClosed(r.o.id)
}

// setCopies says how many copies of a held block there are, at least one.
func (o *owner) setCopies(key uint64, n int) {
	if n == 1 {
		o.copies.remove(key)
		return
	}
	*o.copies.insert(key) = uint32(min(n-1, math.MaxInt32))
}
