package index

// What an engine hash means is shared, who uses it is not kept: engines with one
// hash function and seed use the same ones, others never do. So a source that
// announces a block under an engine hash which another has taught is of its
// family, and of several hashes with one key those that its family taught are its
// own. Names of different families lie in different places of a piece, so that a family
// is compared in one stretch. Snapshot names blocks as their holder does.

// family returns the source that stands for the family of another one.
func (x *Index) family(s Source) Source {
	for x.families[s] != s {
		s = x.families[s]
	}
	return s
}

// sameFamily reports whether a source is of the family of a teacher, given plus one.
func (x *Index) sameFamily(s Source, by uint32) bool {
	return by != 0 && (by == uint32(s)+1 || x.family(s) == x.family(Source(by-1)))
}

// joinFamily makes the families of a source and of a teacher, given plus one, the same. It
// reports false if they are not, and other lanes are at work.
func (x *Index) joinFamily(s Source, by uint32) bool {
	if by == 0 || x.sameFamily(s, by) {
		return true
	}
	if !x.alone {
		return false
	}
	to := x.family(Source(by - 1))
	for next := x.families[s]; next != s; s, next = next, x.families[next] {
		x.families[s] = to // shortens the way of later calls
	}
	x.families[s] = to
	return true
}
