package index

// RestoreStretch stores what a Stretch of another index says, for an owner of this one.
// local has the local hash of each block, nil where the client hash is 0. With a key the
// block before need not be known, and nothing has to come in order. A block that the owner
// holds already gains no copy. complete says that no block before it will become known.
//
// It goes through Store like an event, so that a snapshot may come in any order, twice, or
// next to events. Further names of a block are added one by one after it. Copies come last,
// as a removal that says how many are left: that sets the number, whatever it was before,
// where a second store would count one more each time the snapshot is read.
func (x *Index) RestoreStretch(o Owner, e *Stretch, local []uint64, complete bool) {
	// A block without tokens whose key is its engine hash waits under that hash. The hash
	// is no key then, and must not be stored as one, or the block would answer for a prompt
	// that has this key by chance.
	waits := local == nil && (e.Key == e.Engine[0] || e.Key == x.tree.identities.rootOf(e.Identity).seqOf(normal(e.Engine[0])))
	st := Store{
		Owner: o, Identity: e.Identity, Parent: e.Parent, HasParent: e.HasParent, Rootless: !e.Root,
		Engine: e.Engine, Local: local, Copies: CopySet,
		Key: e.Key, HasKey: e.HasKey && !waits, Complete: complete,
	}
	if local != nil {
		st.ClientHashes = func(Identity) []uint64 { return e.ClientHashes }
	}
	x.Store(&st)
	key := e.Key
	for i, engine := range e.Engine {
		if i > 0 {
			key = x.tree.scheme.Next(key, local[i])
		}
		for _, name := range e.More[i] {
			if addAlias(x, o, e.Identity, engine, name, key) {
				continue
			}
			more := Store{Owner: o, Identity: e.Identity, Rootless: true, Engine: []uint64{name}, Copies: CopySet, Key: key, HasKey: true}
			if local != nil {
				more.Local, more.ClientHashes = local[i:i+1], func(Identity) []uint64 { return e.ClientHashes[i : i+1] }
			}
			x.Store(&more)
		}
		if n := e.Copies[i]; n > 0 {
			x.Remove(o, []uint64{engine}, []int{n + 1}, CopySet)
		}
	}
}

// addAlias teaches an owner's source a further name of a block of a key that the owner
// holds under an engine hash. It reports false if the hash means no such block, and the
// caller then stores the block once more under the further name, which finds its place by
// the key.
func addAlias(x *Index, name Owner, id Identity, engine, more, key uint64) bool {
	x.lock()
	defer x.unlock()
	o := x.holders.owners[name]
	if o == nil {
		return true // it holds nothing
	}
	p := x.resolver.meaningOf(o.s, normal(engine))
	if p.isNone() || x.tree.keyOf(p) != x.tree.identities.rootOf(id).keyOf(key) || !x.tree.sets.hasOwner(x.tree.lines.setOf(p), o.id) ||
		x.resolver.isContested(o.s, normal(more)) {
		return false
	}
	x.holders.moveRaw(o.s, normal(more), p)
	x.resolver.learnMeaning(o.s, normal(more), p, 1)
	if o.s.room.used > 0 {
		w := storing{x: x, s: o.s, o: o, e: &Store{}}
		w.placeWaiting(normal(more), x.tree.cursorAt(x.resolver.meaningOf(o.s, normal(more))))
	}
	x.maintain(o.s)
	return true
}
