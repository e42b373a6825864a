package wire

import (
	"fmt"

	"example.com/conductor/spelling"
)

// describe says what an event that was skipped looks like, for an operator to
// tell an engine's version by.
func describe(event []byte) string {
	c := cursor{b: event, maxDepth: depthCap}
	k, n := c.head()
	switch k {
	case kArray:
		if n == 0 {
			return "an empty array"
		}
		tag, ok := c.text()
		if !ok {
			return fmt.Sprintf("an array of %s without a tag", spelling.Count(n, "element"))
		}
		return fmt.Sprintf("%q as an array of %s", tag, spelling.Count(n, "element"))
	case kMap:
		for range n {
			key, ok := c.text()
			if !ok {
				break
			}
			if key == "type" || key == "event_type" {
				if tag, ok := c.text(); ok {
					return fmt.Sprintf("%q as a map of %s", tag, spelling.Count(n, "key"))
				}
				break
			}
			c.skip(1)
		}
		return fmt.Sprintf("a map of %s without a type", spelling.Count(n, "key"))
	}
	return "not an event but " + k.String()
}

// text reads a str, at most 64 bytes of it.
func (c *cursor) text() (string, bool) {
	k, n := c.head()
	if k != kStr {
		return "", false
	}
	p := c.take(n)
	return string(p[:min(len(p), 64)]), true
}

// unknownType returns the type of an event that is of none known here.
func unknownType(event []byte) string {
	c := cursor{b: event, maxDepth: depthCap}
	k, n := c.head()
	if k == kArray {
		tag, _ := c.text()
		return tag
	}
	for range n {
		key, _ := c.text()
		at := c.i
		if tag, ok := c.text(); ok && (key == "type" && engineKind([]byte(tag)) == unknownKind || key == "event_type" && standardKind([]byte(tag)) == unknownKind) {
			return tag
		}
		c.i = at
		c.skip(1)
	}
	return ""
}
