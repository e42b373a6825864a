package master

import (
	"fmt"

	"example.com/conductor/lab/sim/truth"
)

// Check walks everything and returns the first broken invariant.
func (m *Master) Check() error {
	counts, families := [2]int{}, make([]int, len(m.Families))
	whole := make([]map[truth.ID]truth.Tier, len(m.Families))
	for i := range whole {
		whole[i] = map[truth.ID]truth.Tier{}
	}
	for at, b := range m.blocks {
		if b.name != at {
			return fmt.Errorf("block %v is filed under %v", b.name, at)
		}
		for tier := host; tier <= disk; tier++ {
			n := b.on(tier)
			counts[tier] += n
			families[b.family] += n
			if n == Shards {
				whole[b.family][b.id] |= tierOf[tier]
			}
		}
	}
	for tier := host; tier <= disk; tier++ {
		l := &m.tiers[tier]
		if l.Len() != counts[tier] || l.Len() > l.capacity {
			return fmt.Errorf("%v lists %d objects of %d, capacity %d", tierOf[tier], l.Len(), counts[tier], l.capacity)
		}
		for at := l.Front(); at != nil; at = at.Next() {
			o := at.Value.(*object)
			if o.tier != tier || &o.block.objects[o.shard] != o {
				return fmt.Errorf("object %d of block %d is listed on %v", o.shard, o.block.id, tierOf[tier])
			}
		}
	}
	var err error
	for i, n := range families {
		if n != m.objects[i] {
			return fmt.Errorf("family %d counts %d objects and has %d", i, m.objects[i], n)
		}
		m.Tree.Each(m.First+i, func(id truth.ID, held truth.Tier) {
			if whole[i][id] != held && err == nil {
				err = fmt.Errorf("block %d of family %d: the tree says %v, the pool %v", id, i, held, whole[i][id])
			}
			delete(whole[i], id)
		})
		if len(whole[i]) > 0 && err == nil {
			err = fmt.Errorf("the tree lacks %d blocks of family %d", len(whole[i]), i)
		}
	}
	return err
}
