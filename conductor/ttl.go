package conductor

import (
	"time"

	"kvconductor/tiers"
)

// age lets blocks of a source expire that never announces removals. A block is
// held by the generation it was last announced in; every half time to live the
// older of two generations is cleared. So a block goes between half and once the
// time to live after its last announcement, without a timestamp per block. What a pool
// has bound by object ages with the objects, in the same two generations.
func (s *source) age() {
	tick := time.NewTicker(s.reg.TTL / 2)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			s.guard(s.rotate)
		case <-s.done:
			return
		}
	}
}

// rotate clears the older generation and begins a new one.
func (s *source) rotate() {
	s.journal.Aged()
	for _, ns := range s.spaces {
		for key, h := range ns.owners {
			if key.objects {
				continue
			}
			next := *h
			if h.hasOld {
				ns.context.index.Clear(h.old)
			} else {
				next.old = s.newOwner(ns, key, tiers.Parse(key.medium))
			}
			next.current, next.old, next.hasOld = next.old, h.current, true
			s.mu.Lock()
			*h = next
			s.mu.Unlock()
		}
	}
	if s.shelf != nil {
		s.shelf.age(func(string) bool { return true })
		s.objects.Store(int64(len(s.shelf.objects)))
	}
	s.seeded = false // what was recovered without a mark is gone with the older generation
	s.quitEmpty()
}
