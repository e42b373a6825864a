package wire

import (
	"slices"

	"example.com/conductor/events"
)

// vLLM with a drafter that reads ahead hashes each block together with the L tokens
// behind it, and publishes those tokens for each block:
//
//	token_ids            t0 .. tb-1 | tb .. t2b-1
//	lookahead_token_ids  [[tb .. tb+L-1], [t2b .. t2b+L-1]]
//	Event.Tokens         t0 .. tb-1 | tb .. t2b-1 | t2b .. t2b+L-1       Event.Ahead = L

// readAhead notes the offset of the look-ahead tokens: a list of one list a block, or
// nil. Their number is checked when the blocks and their tokens are known.
func (f *form) readAhead(c *cursor) events.Reason {
	f.ahead = 0
	at := c.i
	switch k, n := c.readHeader(); k {
	case kNil:
		return ""
	case kArray:
		if n > 0 {
			f.ahead = at
		}
		c.i = at
		return c.skipValue()
	}
	return events.BadEvent
}

// applyLookAhead sets the look-ahead of a stored event from the list at an offset. It drops
// an event whose lists differ in length or contradict its tokens. An event that leaves
// blocks out has tokens that pair with none; it loses them and counts by its hashes. The
// cursor ends anywhere in the event.
func (d *decoder) applyLookAhead(ev *events.Event, at int) events.Reason {
	d.in.i, d.in.beyond = at, false
	if _, n := d.in.readHeader(); int(n) != len(ev.Hashes) || ev.Bigram {
		return events.BadEvent
	}
	tokens, blocks := ev.Tokens, len(ev.Hashes)
	dense := len(tokens) == blocks*ev.BlockSize
	var room, before [events.MaxAhead]uint32
	for i := range blocks {
		before = room
		k, n := d.in.readHeader()
		if k != kArray || i > 0 && int(n) != ev.Ahead {
			return events.BadEvent
		}
		if n > events.MaxAhead {
			return events.TooLarge
		}
		ev.Ahead = int(n)
		ahead := room[:n]
		for j := range ahead {
			t, ok := d.in.readToken()
			switch {
			case d.in.beyond:
				return events.BadToken
			case !ok:
				return events.BadEvent
			}
			ahead[j] = t
		}
		if !dense {
			continue
		}
		if behind := tokens[(i+1)*ev.BlockSize:]; !haveSamePrefix(behind, ahead) ||
			i > 0 && !haveSamePrefix(before[min(ev.BlockSize, int(n)):n], ahead) {
			return events.BadEvent
		}
	}
	if ev.Ahead == 0 || len(tokens) == 0 {
		return ""
	}
	if ev.Tokens = nil; dense {
		ev.Tokens = d.tokens.takeElements(len(tokens)+ev.Ahead, d.siblings, d.in.bytesLeft())
		copy(ev.Tokens[copy(ev.Tokens, tokens):], room[:ev.Ahead])
	}
	return ""
}

// haveSamePrefix reports whether two lists are equal as far as both go.
func haveSamePrefix(a, b []uint32) bool {
	n := min(len(a), len(b))
	return slices.Equal(a[:n], b[:n])
}
