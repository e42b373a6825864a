package index

// Compact takes retired owners out of all pieces and gives memory back.
func (x *Index) Compact() {
	x.lock()
	defer x.unlock()
	x.compact()
	x.evictAll()
}

// Waiting returns how many blocks of a source wait for their parent.
func (x *Index) Waiting(src Source) int {
	h := x.Holdings()
	return h.WaitingOf(src)
}
