package conductor_test

import (
	"fmt"
	"hash/fnv"
	"strings"
	"testing"

	"example.com/conductor/events/payload"
	"example.com/conductor/events/stream/streamtest"
)

// some returns all cases. Under the race detector, which takes ten times as long, and with -short it
// returns the first n of them: make test runs this package once more without the detector.
func some[T any](n int, cases ...T) []T {
	if payload.PoisonsReleased || testing.Short() {
		return cases[:n]
	}
	return cases
}

// times returns n rounds, or a fifth of them under the race detector and with -short; see some.
func times(n int) int {
	if payload.PoisonsReleased || testing.Short() {
		return n / 5
	}
	return n
}

// publish publishes events of a rank as one batch. The batch reaches subscribers if live,
// and replays if kept.
func publish(p *streamtest.Publisher, rank int, events []any, live, kept bool) {
	switch batch := streamtest.EncodeBatch(float64(p.NextSequence())+0.5, rank, events...); {
	case live && kept:
		p.Publish(batch)
	case live:
		p.PublishOnce(batch)
	case kept:
		p.PublishToRing(batch)
	default:
		p.SkipSequence()
	}
}

// tokensOf returns the tokens of one block: its name and its position in the
// block decide them, so equal names are equal blocks.
func tokensOf(name string, blockSize int) []uint32 {
	h := fnv.New32a()
	h.Write([]byte(name))
	base := h.Sum32() % 100_000
	tokens := make([]uint32, blockSize)
	for i := range tokens {
		tokens[i] = base + uint32(i)
	}
	return tokens
}

// promptOf returns the tokens of a path such as a/b/c.
func promptOf(path string, blockSize int) []uint32 {
	var tokens []uint32
	for _, name := range strings.Split(path, "/") {
		if name != "" {
			tokens = append(tokens, tokensOf(name, blockSize)...)
		}
	}
	return tokens
}

// engineHash is the publisher's own hash of the last block of a path: each
// endpoint hashes with its own seed, as engines do.
func engineHash(endpoint, path string) uint64 {
	h := fnv.New64a()
	fmt.Fprintf(h, "%s|%s", endpoint, path)
	return h.Sum64()
}
