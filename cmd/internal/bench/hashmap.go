package bench

import "sync"

// mapShards is a power of two well above the number of cores.
const mapShards = 64

// hashMap is the baseline everybody writes first: a Go map from sequence hash to
// the owners that hold the block, in shards with a lock each. It needs no parent
// and no local hash. A query walks the chain block by block.
type hashMap struct {
	traits
	shards [mapShards]mapShard
}

type mapShard struct {
	mu sync.RWMutex
	by map[uint64]owners
	_  [32]byte // a cache line to itself
}

func newHashMap(t traits) *hashMap {
	m := &hashMap{traits: t}
	for i := range m.shards {
		m.shards[i].by = map[uint64]owners{}
	}
	return m
}

func (m *hashMap) shard(seq uint64) *mapShard { return &m.shards[seq>>(64-6)] }

func (m *hashMap) Store(owner uint32, _ uint64, _ bool, names, _ []uint64) {
	for _, seq := range names {
		s := m.shard(seq)
		if m.shared {
			s.mu.Lock()
		}
		o := s.by[seq]
		o.add(owner)
		s.by[seq] = o
		if m.shared {
			s.mu.Unlock()
		}
	}
}

func (m *hashMap) Remove(owner uint32, names []uint64) {
	for _, seq := range names {
		s := m.shard(seq)
		if m.shared {
			s.mu.Lock()
		}
		o := s.by[seq]
		o.remove(owner)
		if len(o.list) == 0 {
			delete(s.by, seq)
		} else {
			s.by[seq] = o
		}
		if m.shared {
			s.mu.Unlock()
		}
	}
}

func (m *hashMap) Depths(seq, _ []uint64, dst []Depth) []Depth {
	at, live := len(dst), 0
	for i, key := range seq {
		s := m.shard(key)
		if m.shared {
			s.mu.RLock()
		}
		o := s.by[key]
		switch {
		case i == 0:
			dst = enter(dst, &o)
			live = len(dst) - at
		case m.closed && len(o.list) == live: // nobody left, and nobody can join
		default:
			live = drain(dst[at:], live, &o, i)
		}
		if m.shared {
			s.mu.RUnlock()
		}
		if live == 0 {
			return dst
		}
	}
	settle(dst[at:], live, len(seq))
	return dst
}
