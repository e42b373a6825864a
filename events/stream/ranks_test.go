package stream

import (
	"strings"
	"testing"

	"example.com/conductor/events"
)

// decodeRanked is decodeText of batches that name a rank: 1 with an x, 2 with a y, none with a z, else 0.
func decodeRanked(p []byte) (events.Batch, error) {
	b, err := decodeText(p)
	b.Rank = 0
	switch {
	case strings.Contains(string(p), "x"):
		b.Rank = 1
	case strings.Contains(string(p), "y"):
		b.Rank = 2
	case strings.Contains(string(p), "z"):
		b.Rank = -1
	}
	return b, err
}

// TestClearsOfRanks requires that a clear of one rank does not make up for what is missing of the others that come over the same
// socket.
func TestClearsOfRanks(t *testing.T) {
	f := cases(t, machineConfig{decode: decodeRanked})
	f("up 57 58c", "57 58 =synced")
	f("up 57x 58xc", "57 58 =synced")
	f("up 57 58x 59c", "57 58 59 =partial:history_unknown")
	f("up 57 58x 59c 60xc", "57 58 59 60 =synced")
	f("up 57 58x 59c 60xc 61", "57 58 59 60 61 =synced")
	// A gap between the clears is missing of the rank that was cleared before, too.
	f("up 57 58x 59c 61xc", "57 58 59 61 =partial:gap_unrecoverable")
	f("up 57 58x 59c down up 60xc", "57 58 59 60 =partial:history_unknown")
	f("up 57 58x 59c 61xc 62c", "57 58 59 61 62 =synced")
	// A rank that shows up behind the clear of another was not cleared by it.
	f("up 57 58c 59x", "57 58 59 =partial:history_unknown")
	f("up 57 58c 59x 60xc", "57 58 59 60 =synced")
	f("up 57 58c 59xc 60y", "57 58 59 60 =partial:history_unknown")
	// What names no rank is of the registered one. Ranks of a pool mean nothing.
	f("up 57 58z 59c", "57 58 59 =synced")
	f("up 57 58x 59zc 60xc", "57 58 59 60 =synced")
	// The blocks of a snapshot are of several ranks.
	f("have5+01?history_unknown up 6c", "6 =partial:history_unknown")
	f("have5+01?history_unknown up 6c 7xc", "6 7 =synced")
	f("have5+0?history_unknown up 6c", "6 =synced")
	f("have5+01 up 6 down up 7c", "6 7 =synced")
	f = cases(t, machineConfig{decode: decodeRanked, rank: NoRanks})
	f("have5+01?history_unknown up 6c", "6 =synced")
	f("up 57 58x 59y 60zc", "57 58 59 60 =synced")
	f = cases(t, machineConfig{decode: decodeRanked})
	// The history of a new publisher is whole, and so is it of all ranks.
	f("up 0 1x 2c 3y", "0 1 2 3 =synced")
}
