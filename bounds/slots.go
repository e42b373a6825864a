package bounds

import (
	"context"
	"sync"
)

// Slots bounds how many users are inside at once. A user that gets no slot waits:
//
//	Enter --a slot is free--> inside --Leave--> the slot goes on, by shares
//	  |                         ^
//	  +--> waiting --a slot-----+
//
// A free slot goes to the flow that has the fewest slots for its weight. Of equal ones it goes
// to the flow that has had the fewest of late (turn), and there to the user that waits longest.
// So a flow has all slots while it is alone, and its share once others ask: of many slots to the
// next whole one, of one slot by turns.
type Slots struct {
	mu      sync.Mutex
	most    int              // guarded by mu
	each    int              // bound of one flow, 0 for none; guarded by mu
	inside  int              // guarded by mu
	waiting int              // guarded by mu
	turn    uint64           // that of the last user that entered; guarded by mu
	flows   map[string]*flow // with a user inside or waiting; guarded by mu
	spare   []*flow          // to be used again; guarded by mu
}

// flow has the users of one flow.
type flow struct {
	inside, weight int
	turn           uint64    // of its next user: start-time fair queueing
	queue          []*waiter // oldest first
}

// perSlot is how far a slot moves the turn of a flow of weight 1.
const perSlot = 1 << 20

// waiter is a user that waits.
type waiter struct {
	entered chan struct{} // closed when it has a slot
}

// NewSlots returns a bound that lets in most users at once, and at most each of one flow; if each is 0, one flow may have
// them all.
func NewSlots(most, each int) *Slots {
	return &Slots{most: most, each: each, flows: make(map[string]*flow)}
}

// SetMost replaces the number of slots, and that of one flow, 0 for no bound. Users that are inside stay.
func (p *Slots) SetMost(most, each int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.most, p.each = most, each
	p.admitWaiting()
}

// TryEnter takes a slot for a flow if one is free. Leave gives it back. It returns ErrFull if no slot is free, and
// ErrShare if one is, but the flow has all that it may have.
func (p *Slots) TryEnter(of Flow) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	f := p.flowOf(of)
	err := ErrFull
	if p.inside < p.most {
		if p.mayEnter(f) {
			p.giveTo(f)
			return nil
		}
		err = ErrShare
	}
	p.forget(of.Name, f)
	return err
}

// Enter takes a slot for a flow, and waits for one until ctx ends. It returns ErrFull if none came.
func (p *Slots) Enter(ctx context.Context, of Flow) error {
	if ctx.Err() != nil {
		return ErrFull
	}
	if p.TryEnter(of) == nil {
		return nil
	}
	w := &waiter{entered: make(chan struct{})}
	p.mu.Lock()
	f := p.flowOf(of)
	f.queue = append(f.queue, w)
	p.waiting++
	p.admitWaiting() // a slot may have come free meanwhile
	p.mu.Unlock()
	select {
	case <-w.entered:
		return nil
	case <-ctx.Done():
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	f = p.flows[of.Name]
	for i, other := range f.queue {
		if other == w {
			f.queue = append(f.queue[:i], f.queue[i+1:]...)
			p.waiting--
			p.forget(of.Name, f)
			return ErrFull
		}
	}
	return nil // a slot came at the last moment
}

// Leave gives the slot of a flow to the next user, or back.
func (p *Slots) Leave(of Flow) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f := p.flows[of.Name]
	f.inside--
	p.inside--
	p.admitWaiting()
	p.forget(of.Name, f)
}

// admitWaiting gives free slots to users that wait. p.mu is held.
func (p *Slots) admitWaiting() {
	for p.inside < p.most && p.waiting > 0 {
		f := p.nextFlow()
		if f == nil {
			return
		}
		w := f.queue[0]
		f.queue[0] = nil
		f.queue = f.queue[1:]
		p.waiting--
		p.giveTo(f)
		close(w.entered)
	}
}

// giveTo gives a flow a slot. p.mu is held.
func (p *Slots) giveTo(f *flow) {
	p.inside++
	f.inside++
	p.turn = max(p.turn, f.turn)
	f.turn = p.turn + perSlot/uint64(f.weight)
}

// nextFlow returns the flow that the next slot belongs to, nil if none may have it. p.mu is held.
func (p *Slots) nextFlow() (best *flow) {
	for _, f := range p.flows {
		if len(f.queue) > 0 && p.mayEnter(f) && (best == nil || f.before(best)) {
			best = f
		}
	}
	return best
}

// before reports whether a slot belongs to f rather than to g.
func (f *flow) before(g *flow) bool {
	if a, b := f.inside*g.weight, g.inside*f.weight; a != b {
		return a < b
	}
	return f.turn < g.turn
}

// mayEnter reports whether a flow may have one more slot. p.mu is held.
func (p *Slots) mayEnter(f *flow) bool { return p.each == 0 || f.inside < p.each }

// flowOf returns a flow. p.mu is held.
func (p *Slots) flowOf(of Flow) *flow {
	f := p.flows[of.Name]
	if f == nil {
		if last := len(p.spare) - 1; last >= 0 {
			f, p.spare = p.spare[last], p.spare[:last]
		} else {
			f = new(flow)
		}
		f.turn = p.turn
		p.flows[of.Name] = f
	}
	f.weight = max(of.Weight, 1)
	return f
}

// maxSpare bounds the flows that are kept to be used again.
const maxSpare = 64

// forget drops a flow without users. p.mu is held.
func (p *Slots) forget(name string, f *flow) {
	if f.inside > 0 || len(f.queue) > 0 {
		return
	}
	delete(p.flows, name)
	if len(p.spare) < maxSpare {
		f.queue = nil
		p.spare = append(p.spare, f)
	}
}

// Count returns how many users have a slot, and how many wait for one.
func (p *Slots) Count() (inside, waiting int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.inside, p.waiting
}
