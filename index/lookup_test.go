package index

// keyList is a chain of keys that are known.
type keyList []uint64

func (k keyList) Len() int        { return len(k) }
func (k keyList) At(i int) uint64 { return k[i] }

// matchKeys looks canonical sequence hashes up, those of the identity with a constant.
func (x *Index) matchKeys(constant uint64, seq []uint64, m *Match) {
	x.matchChain(constant, keyList(seq), m)
}

// matchChain looks a chain of the identity with a constant up.
func (x *Index) matchChain(constant uint64, c Chain, m *Match) {
	x.Match(Lookup{Constant: constant, Chain: c}, nil, m)
}

// matchNames looks engine hashes up, as names of blocks of the identity with a constant.
func (x *Index) matchNames(constant uint64, engine []uint64, m *Match) {
	x.Match(Lookup{Constant: constant, Names: engine}, nil, m)
}
