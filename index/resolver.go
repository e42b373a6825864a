package index

// resolver says what an engine hash means to a source. Where an event says so, it moves the blocks that
// waited for it.
type resolver struct {
	tree     *tree
	names    *nameMap
	finder   *finder
	bounds   *bounds
	holders  *holders
	contests contests
}
