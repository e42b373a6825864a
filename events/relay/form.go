package relay

import "slices"

// slot says what a field of an event is to the tree.
type slot byte

const (
	shared   slot = iota // the same for all blocks of the event, kept as it is
	hashes               // one element a block
	parent               // the hash above the first block
	tokens               // a number of elements a block
	perBlock             // one element a block
	left                 // left out
)

// slotOf returns the slot of a field that may be split. n is the number of blocks.
func slotOf(key []byte, at int, v []byte, n int) slot {
	if key == nil {
		switch k, elements, _ := header(v); {
		case at == 1:
			return hashes
		case at == 2:
			return parent
		case at == 3:
			return tokens
		case at >= 8 && k == list && elements == n:
			return perBlock
		}
		return shared
	}
	switch string(word(key)) {
	case "block_hashes":
		return hashes
	case "parent_block_hash":
		return parent
	case "token_ids":
		return tokens
	case "lookahead_token_ids", "extra_keys", "mm_keys", "block_mm_infos", "namespaced_block_hashes":
		if k, elements, _ := header(v); k == list && elements == n {
			return perBlock
		}
	}
	return shared
}

// slotOfRemoval is slotOf for a removal.
func slotOfRemoval(key []byte, at int, v []byte, _ int) slot {
	switch {
	case key == nil && at == 1, string(word(key)) == "block_hashes":
		return hashes
	case string(word(key)) == "remaining_copy_counts":
		return left
	}
	return shared
}

// form is an event without what differs from block to block.
type form struct {
	text   string // the fields in order: slot, key, and the values that all share
	fields int
	pairs  bool
}

// spread is an event whose fields are apart.
type spread struct {
	form   []byte // form.text
	fields int
	pairs  bool

	hashes, tokens offsets
	parent         []byte // nil if the event has none
	linked         bool   // tokens of a block tell of those of the next
	perBlock       []offsets
	parts          [][]byte // memory to use again
}

// offsets are the elements of a list: where each begins, and the end of the last.
type offsets struct {
	v  []byte
	at []int
}

func (o *offsets) len() int { return max(0, len(o.at)-1) }

// part returns the elements from i to before j.
func (o *offsets) part(i, j int) []byte { return o.v[o.at[i]:o.at[j]] }

// read finds the elements of a list. Anything else has none.
func (o *offsets) read(v []byte) bool {
	o.v, o.at = v, o.at[:0]
	k, n, size := header(v)
	if k != list {
		return size > 0
	}
	at := size
	for ; n > 0; n-- {
		o.at = append(o.at, at)
		if v[at] <= 0x7f {
			at++
			continue
		}
		e, _ := value(v[at:])
		if e == nil {
			return false
		}
		at += len(e)
	}
	o.at = append(o.at, at)
	return true
}

// read spreads an event of n blocks. It reports whether the event can be split into blocks
// and put together again.
func (s *spread) read(raw []byte, n int, slotOf func(key []byte, at int, v []byte, n int) slot) bool {
	k, _, _ := header(raw)
	var ok bool
	if s.parts, ok = elements(raw, s.parts[:0]); !ok {
		return false
	}
	s.form, s.fields, s.pairs, s.parent, s.linked = s.form[:0], 0, k == pairs, nil, false
	s.hashes.at, s.tokens.at, s.perBlock = s.hashes.at[:0], s.tokens.at[:0], s.perBlock[:0]
	var seen [left + 1]int
	step := 1
	if s.pairs {
		step = 2
	}
	for i := 0; i < len(s.parts); i += step {
		var key []byte
		v := s.parts[i+step-1]
		if s.pairs {
			key = s.parts[i]
		}
		what := slotOf(key, i, v, n)
		if what == left {
			continue
		}
		seen[what]++
		s.field(what, key, v)
		ok := true
		switch what {
		case hashes:
			ok = s.hashes.read(v)
		case tokens:
			ok = s.tokens.read(v)
			if s.tokens.len() > 0 {
				k, _, _ := header(s.tokens.part(0, 1))
				s.linked = s.linked || k == list // pairs
			}
		case parent:
			if v[0] != null[0] {
				s.parent = v
			}
		case perBlock:
			s.perBlock = slices.Grow(s.perBlock, 1)[:len(s.perBlock)+1]
			ok = s.perBlock[len(s.perBlock)-1].read(v)
			s.linked = s.linked || string(word(key)) == "lookahead_token_ids"
		}
		if !ok {
			return false
		}
	}
	if s.pairs && seen[parent] == 0 && seen[tokens] > 0 {
		s.field(parent, appendWord(nil, "parent_block_hash"), nil)
	}
	return seen[hashes] == 1 && seen[parent] <= 1 && seen[tokens] <= 1 && s.hashes.len() == n
}

// field appends a field to the form.
func (s *spread) field(what slot, key, v []byte) {
	s.fields++
	s.form = append(append(s.form, byte(what)), key...)
	if what == shared {
		s.form = append(s.form, v...)
	}
}

// fill is what takes the slots of a form. A nil list is a msgpack nil.
type fill struct {
	blocks   int
	hashes   []byte // elements, as are all lists here
	parent   []byte
	tokens   []byte
	nTokens  int
	perBlock [][]byte
}

// event puts an event together.
func (f *fill) event(dst []byte, as *form) []byte {
	if as.pairs {
		dst = appendPairs(dst, as.fields)
	} else {
		dst = appendList(dst, as.fields)
	}
	lists := f.perBlock
	for rest := []byte(as.text); len(rest) > 0; {
		what := slot(rest[0])
		rest = rest[1:]
		if as.pairs {
			var key []byte
			key, rest = value(rest)
			dst = append(dst, key...)
		}
		switch what {
		case shared:
			var v []byte
			v, rest = value(rest)
			dst = append(dst, v...)
		case hashes:
			dst = append(appendList(dst, f.blocks), f.hashes...)
		case parent:
			if f.parent == nil {
				dst = append(dst, null...)
			}
			dst = append(dst, f.parent...)
		case tokens:
			dst = append(appendList(dst, f.nTokens), f.tokens...)
		case perBlock:
			dst = append(appendList(dst, f.blocks), lists[0]...)
			lists = lists[1:]
		}
	}
	return dst
}
