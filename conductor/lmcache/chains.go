package lmcache

import (
	"encoding/binary"

	"github.com/zeebo/blake3"
)

// Releases of LMCache report where a chunk begins, and not which chunk is before it. The hash
// tells: it is BLAKE3 over the digest of the chunk before and the tokens, each a u32,
// big-endian. So a parent is one of the chunks that end where the chunk begins, and only one
// of them has the hash. With another hash algorithm of LMCache none fits.

const (
	// maxLinks bounds the chunks of a model that are known as parents, some 200 bytes each.
	maxLinks = 1 << 18
	// maxTrials bounds the hashes that the parents in one batch may cost: 64 ms.
	maxTrials = 1 << 16
)

// link is a chunk in its prompt. Salts do not enter the hashes of LMCache.
type link struct {
	parent string // "" for the first
	end    int    // position behind its last token
}

// chains knows the chunks of one model.
type chains struct {
	links  map[string]link
	ends   map[int]map[string]struct{} // by link.end
	oldest []string                    // in the order in which they came; from next on
	next   int
	buf    []byte
	bytes  int64 // of the hashes

	attachments *attachments
}

func newChains() *chains {
	return &chains{links: make(map[string]link), ends: make(map[int]map[string]struct{}), attachments: newAttachments()}
}

// findParent returns the parent of a chunk with tokens, "" for the first of a prompt. It reports
// false if the parent is not known. before is the entry before it in the batch, nil if there is
// none. trials is what hashes may still cost.
func (c *chains) findParent(e, before *Entry, trials *int) (parent string, known bool) {
	if at, is := c.links[e.Hash]; is {
		return at.parent, true
	}
	switch {
	case e.Parent != "":
		parent, known = e.Parent, true
	case e.Offset == 0:
		known = true
	case e.Offset > 0:
		parent, known = c.searchParent(e, before, trials)
	}
	end := e.Offset
	if end < 0 && known { // a position follows from the parent's
		end = c.links[parent].end
	}
	if known && (parent == "" || end > 0) {
		c.addLink(e.Hash, link{parent, end + len(e.Tokens)})
	}
	return parent, known
}

// searchParent finds the chunk whose digest, with the tokens of e, makes the digest of e.
func (c *chains) searchParent(e, before *Entry, trials *int) (string, bool) {
	if before != nil && c.links[before.Hash].end == e.Offset && c.isParent(before.Hash, e, trials) {
		return before.Hash, true
	}
	for parent := range c.ends[e.Offset] {
		if *trials == 0 {
			break
		}
		if c.isParent(parent, e, trials) {
			return parent, true
		}
	}
	return "", false
}

// isParent reports whether a chunk is the parent of e, at the cost of one trial. It reports false if none is left.
func (c *chains) isParent(parent string, e *Entry, trials *int) bool {
	if *trials == 0 {
		return false
	}
	*trials--
	c.buf = append(c.buf[:0], parent...)
	for _, t := range e.Tokens {
		c.buf = binary.BigEndian.AppendUint32(c.buf, t)
	}
	sum := blake3.Sum256(c.buf)
	return string(sum[:]) == e.Hash
}

// addLink adds a chunk. If there are maxLinks already, the oldest leaves.
func (c *chains) addLink(hash string, at link) {
	if len(c.links) >= maxLinks {
		old := c.oldest[c.next]
		end := c.links[old].end
		c.bytes -= int64(len(old))
		delete(c.links, old)
		if delete(c.ends[end], old); len(c.ends[end]) == 0 {
			delete(c.ends, end)
		}
		c.oldest[c.next] = hash
		c.next = (c.next + 1) % maxLinks
	} else {
		c.oldest = append(c.oldest, hash)
	}
	c.bytes += int64(len(hash))
	c.links[hash] = at
	if c.ends[at.end] == nil {
		c.ends[at.end] = make(map[string]struct{})
	}
	c.ends[at.end][hash] = struct{}{}
}
