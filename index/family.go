package index

// What an engine hash means is shared, who uses it is not kept: engines with one
// hash function and seed use the same ones, others never do. So a source that
// announces a block under an engine hash which another has taught is of its
// family, and of several hashes with one key those that its family taught are its
// own. Names of different families lie in different places of a piece, so that a family
// is compared in one stretch. Snapshot names blocks as their holder does.

// familyTable says which sources hash alike.
type familyTable struct {
	of []Source // by Source: one it is related to, itself if it stands for its family
}

// familyOf returns the source that stands for the family of another one.
func (f *familyTable) familyOf(s Source) Source {
	for f.of[s] != s {
		s = f.of[s]
	}
	return s
}

// sameFamily reports whether a source is of the family of a teacher, given plus one.
func (f *familyTable) sameFamily(s Source, by uint32) bool {
	return by != 0 && (by == uint32(s)+1 || f.familyOf(s) == f.familyOf(Source(by-1)))
}

// joinFamily makes the families of a source and of a teacher, given plus one, the same. It
// reports false if they are not, and other lanes are at work.
//
// All lanes are locked for it: another lane may be comparing names at this moment, by the
// old families. It happens once for two sources, and not for each block.
func (m *nameMap) joinFamily(s Source, by uint32) bool {
	if by == 0 || m.families.sameFamily(s, by) {
		return true
	}
	if !m.tree.lanes.alone {
		return false
	}
	to := m.families.familyOf(Source(by - 1))
	for next := m.families.of[s]; next != s; s, next = next, m.families.of[next] {
		m.families.of[s] = to // shortens the way of later calls
	}
	m.families.of[s] = to
	return true
}
