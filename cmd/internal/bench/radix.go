package bench

import "sync"

// radix is the tree Dynamo's router began with: a node for each block, children
// by local hash, the owners at the node, and for each worker a table from the
// publisher's hash to its node, so that parents and removals are found without a
// walk. One lock, for the original is owned by one thread.
//
// Unlike the original a node without owners and children leaves the tree, so that
// memory can be compared.
type radix struct {
	traits
	mu     sync.RWMutex
	root   radixNode
	lookup []map[uint64]*radixNode // by worker
	lost   int                     // blocks behind an unknown parent
}

type radixNode struct {
	parent *radixNode
	local  uint64
	owners owners
	only   *radixNode            // the child, while there is one
	more   map[uint64]*radixNode // children, from the second on
}

func newRadix(t traits, workers int) *radix {
	r := &radix{traits: t, lookup: make([]map[uint64]*radixNode, workers)}
	for i := range r.lookup {
		r.lookup[i] = map[uint64]*radixNode{}
	}
	return r
}

func (n *radixNode) child(local uint64) *radixNode {
	if n.only != nil && n.only.local == local {
		return n.only
	}
	return n.more[local]
}

func (n *radixNode) adopt(c *radixNode) {
	c.parent = n
	switch {
	case n.more != nil:
		n.more[c.local] = c
	case n.only == nil:
		n.only = c
	default:
		n.more = map[uint64]*radixNode{n.only.local: n.only, c.local: c}
		n.only = nil
	}
}

// prune takes nodes of no use out of the tree, upwards.
func (n *radixNode) prune() {
	for n.parent != nil && len(n.owners.list) == 0 && n.only == nil && len(n.more) == 0 {
		if p := n.parent; p.only == n {
			p.only = nil
		} else {
			delete(p.more, n.local)
		}
		n = n.parent
	}
}

func (r *radix) Store(owner uint32, parent uint64, hasParent bool, names, local []uint64) {
	if r.shared {
		r.mu.Lock()
		defer r.mu.Unlock()
	}
	lookup := r.lookup[int(owner)/r.tiers]
	n := &r.root
	if hasParent {
		if n = lookup[parent]; n == nil {
			r.lost += len(names)
			return
		}
	}
	for i, l := range local {
		c := n.child(l)
		if c == nil {
			c = &radixNode{local: l}
			n.adopt(c)
		}
		c.owners.add(owner)
		lookup[names[i]] = c
		n = c
	}
}

func (r *radix) Remove(owner uint32, names []uint64) {
	if r.shared {
		r.mu.Lock()
		defer r.mu.Unlock()
	}
	worker := int(owner) / r.tiers
	for _, name := range names {
		n := r.lookup[worker][name]
		if n == nil {
			continue
		}
		n.owners.remove(owner)
		if !n.owners.any(uint32(worker*r.tiers), r.tiers) {
			delete(r.lookup[worker], name)
		}
		n.prune()
	}
}

func (r *radix) Depths(_, local []uint64, dst []Depth) []Depth {
	if r.shared {
		r.mu.RLock()
		defer r.mu.RUnlock()
	}
	at, live := len(dst), 0
	n := &r.root
	for i, l := range local {
		n = n.child(l)
		switch {
		case n == nil:
			settle(dst[at:], live, i)
			return dst
		case i == 0:
			dst = enter(dst, &n.owners)
			live = len(dst) - at
		case r.closed && len(n.owners.list) == live:
		default:
			live = drain(dst[at:], live, &n.owners, i)
		}
		if live == 0 {
			return dst
		}
	}
	settle(dst[at:], live, len(local))
	return dst
}
