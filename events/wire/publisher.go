package wire

import "example.com/conductor/events"

// PublisherIDOf returns the publisher id of a batch: its fourth element, if that is a bin
// of 16 bytes. It returns zero for any other payload. known is the id of an earlier
// batch, or zero. A batch of four elements that ends in known is not walked through;
// one of fewer elements costs one comparison.
func PublisherIDOf(payload []byte, known events.PublisherID) (id events.PublisherID) {
	c := cursor{b: payload, maxDepth: depthCap}
	k, n := c.readHeader()
	if k != kArray || n < 4 {
		return id
	}
	if n == 4 { // the id is last, behind its header of two bytes
		tail := payload[max(0, len(payload)-len(id)-2):]
		if len(tail) < len(id)+2 || tail[0] != 0xc4 || int(tail[1]) != len(id) {
			return id
		}
		if id = events.PublisherID(tail[2:]); id == known {
			return id
		}
		id = events.PublisherID{}
	}
	c.skipValues(3)
	if k, n := c.readHeader(); k == kBin && n == uint64(len(id)) {
		copy(id[:], c.readBytes(n))
	}
	return id
}
