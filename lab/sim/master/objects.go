package master

import "container/list"

// object is one part of a block.
type object struct {
	block *block
	shard int
	tier  int8
	place *list.Element // on the tier
}

// lru is the objects of one tier, the least recently used first.
type lru struct {
	list.List
	capacity int
}

// write stores a missing object in host memory. The oldest object of a full host moves to
// disk, and the oldest of a full disk goes.
func (m *Master) write(b *block, shard int) {
	var gone *object
	old := m.makeRoom(host)
	if old != nil && m.Disk > 0 {
		gone = m.makeRoom(disk)
		m.come(old, disk)
	}
	m.come(&b.objects[shard], host)
	m.forget(gone)
	m.forget(old)
}

// makeRoom takes the oldest object off a tier that is full; nil if it is not.
func (m *Master) makeRoom(tier int8) *object {
	l := &m.tiers[tier]
	if l.Len() < l.capacity {
		return nil
	}
	old := l.Front().Value.(*object)
	m.leave(old)
	return old
}

// come puts an object on a tier, and leave takes it off: the event, the
// counters and the truth.
func (m *Master) come(o *object, tier int8) {
	b := o.block
	o.tier = tier
	o.place = m.tiers[tier].PushBack(o)
	m.objects[b.family]++
	m.stats.Stored[tier]++
	m.announce(o, false)
	if b.on(tier) == Shards {
		m.Tree.Set(b.id, m.First+b.family, tierOf[tier])
	}
}

func (m *Master) leave(o *object) {
	b, tier := o.block, o.tier
	if b.on(tier) == Shards {
		m.Tree.Unset(b.id, m.First+b.family, tierOf[tier])
	}
	m.announce(o, true)
	m.stats.Removed[tier]++
	m.objects[b.family]--
	m.tiers[tier].Remove(o.place)
	o.tier = nowhere
}

// forget lets go of the block of an object that left, if nothing of it is left
// and nothing of it is on its way.
func (m *Master) forget(o *object) {
	if o != nil && o.block.on(nowhere) == Shards {
		delete(m.blocks, o.block.name)
		m.Tree.Unpin(o.block.id)
	}
}

func (m *Master) announce(o *object, removed bool) {
	ev := m.Families[o.block.family].event(o.block.digest, o.shard)
	ev.Removed, ev.Tier = removed, tierOf[o.tier]
	m.events = append(m.events, ev)
}
