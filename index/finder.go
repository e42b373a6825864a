package index

// finder finds the block that a source means by an engine hash where it most likely is, near what the source
// mentioned last, and gives names their entries where such a search would not lead.
type finder struct {
	tree  *tree
	names *nameMap
}
