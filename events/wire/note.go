package wire

import (
	"fmt"

	"example.com/conductor/spelling"
)

// describeEvent says what an event that was skipped looks like, for an operator to
// tell an engine's version by.
func describeEvent(event []byte) string {
	c := cursor{b: event, maxDepth: depthCap}
	k, n := c.readHeader()
	switch k {
	case kArray:
		if n == 0 {
			return "an empty array"
		}
		tag, ok := c.readShortText()
		if !ok {
			return fmt.Sprintf("an array of %s without a tag", spelling.Count(n, "element"))
		}
		return fmt.Sprintf("%q as an array of %s", tag, spelling.Count(n, "element"))
	case kMap:
		for range n {
			key, ok := c.readShortText()
			if !ok {
				break
			}
			if key == "type" || key == "event_type" {
				if tag, ok := c.readShortText(); ok {
					return fmt.Sprintf("%q as a map of %s", tag, spelling.Count(n, "key"))
				}
				break
			}
			c.skipValues(1)
		}
		return fmt.Sprintf("a map of %s without a type", spelling.Count(n, "key"))
	}
	return "not an event but " + k.String()
}

// readShortText reads a str, at most 64 bytes of it.
func (c *cursor) readShortText() (string, bool) {
	k, n := c.readHeader()
	if k != kStr {
		return "", false
	}
	p := c.readBytes(n)
	return string(p[:min(len(p), 64)]), true
}

// findUnknownType returns the type of an event that is of none known here.
func findUnknownType(event []byte) string {
	c := cursor{b: event, maxDepth: depthCap}
	k, n := c.readHeader()
	if k == kArray {
		tag, _ := c.readShortText()
		return tag
	}
	for range n {
		key, _ := c.readShortText()
		at := c.i
		tag, ok := c.readShortText()
		unknown := key == "type" && kindOfTag([]byte(tag)) == unknownKind ||
			key == "event_type" && kindOfEventType([]byte(tag)) == unknownKind
		if ok && unknown {
			return tag
		}
		c.i = at
		c.skipValues(1)
	}
	return ""
}
