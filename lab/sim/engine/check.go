package engine

import (
	"fmt"

	"example.com/conductor/lab/sim/truth"
)

// Check walks everything and returns the first broken invariant.
func (e *Engine) Check() error {
	copies, free := 0, 0
	for id, head := range e.device.by {
		for b := head; b != nil; b = b.twin {
			copies++
			if b.id != id {
				return fmt.Errorf("block %d is filed under %d", b.id, id)
			}
			if b.users == 0 {
				free++
			}
		}
	}
	switch {
	case copies != e.device.used:
		return fmt.Errorf("device counts %d copies and holds %d", e.device.used, copies)
	case copies > e.device.capacity:
		return fmt.Errorf("device holds %d of at most %d blocks", copies, e.device.capacity)
	case free != e.device.free.Len():
		return fmt.Errorf("free list has %d blocks and %d are unused", e.device.free.Len(), free)
	case e.Busy() == 0 && free != copies:
		return fmt.Errorf("%d blocks are pinned and nothing runs", copies-free)
	}
	for _, l := range e.lower {
		if len(l.by) > l.capacity || len(l.by) != l.lru.Len() {
			return fmt.Errorf("lower tier holds %d blocks, lists %d, capacity %d", len(l.by), l.lru.Len(), l.capacity)
		}
	}
	var err error
	seen := 0
	e.Tree.Each(e.Index, func(id truth.ID, held truth.Tier) {
		var have truth.Tier
		if e.device.by[id] != nil {
			have |= truth.Device
			seen++
		}
		for _, l := range e.lower {
			if l.by[id] != nil {
				have |= l.tier
				seen++
			}
		}
		if have != held && err == nil {
			err = fmt.Errorf("block %d: the tree says %v, the engine %v", id, held, have)
		}
	})
	if n := len(e.device.by) + len(e.lower[0].by) + len(e.lower[1].by); err == nil && seen != n {
		err = fmt.Errorf("the tree knows %d of %d blocks", seen, n)
	}
	return err
}
