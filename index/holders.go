package index

// holders are the sources and owners of an index. Its methods give blocks to owners and take them away.
type holders struct {
	tree    *tree
	names   *nameMap
	finder  *finder
	bounds  *bounds
	sources []*source // by Source; nil is dropped
	owners  []*owner  // by Owner; nil is dropped
	used    int       // internal ids in use, with retired ones
}
