package index

// compactAll takes retired owners out of all pieces and gives memory back.
func (x *Index) compactAll() {
	x.lock()
	defer x.unlock()
	x.bounds.compactAll()
	x.bounds.evictInAllLanes()
}

// waiting returns how many blocks of a source wait for their parent.
func (x *Index) waiting(src Source) int {
	h := x.Holdings()
	return h.WaitingOf(src)
}
