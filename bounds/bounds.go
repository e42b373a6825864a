// Package bounds limits what clients take of this server, and shares it between them.
//
//	Slots   how many at once    Enter --> Leave       queries, lists, dumps, replays, watches
//	Bytes   how much memory     Reserve --> Release   bodies and answers in flight
//	Rates   how much a second   Spend                 requests, bytes, changes, wrong credentials, lines of the log
//
// A Flow names whose share is taken: a tenant, a client or an address. A bound knows nothing else of it. What a bound
// refuses it refuses with ErrFull, or with ErrShare where the flow alone is the reason; the caller words it for its
// client, and counts it. Nothing else here waits but Slots.Enter.
//
// Invariants:
//
//  1. Slots: no more users are inside than there are slots, unless SetMost has taken slots away.
//  2. Bytes: a flow never holds more than remains free for all others.
//  3. Rates: at most maxKeys keys are remembered; one that is forgotten has its whole burst again.
//
// Concurrency: all methods are safe for concurrent use; each type has one lock, which nothing is called under. Cost: a
// free slot and a reservation are a lookup in a map and no allocation; a waiting user costs a channel.
//
// golang.org/x/sync/semaphore would do for Slots but for the shares: it serves the user that has waited longest, so a flow with
// a thousand requests would let one with a single request wait for all of them. Rates is golang.org/x/time/rate by key.
//
// The messages of engines have a bound of their own, events/payload, which does not refuse: it stops reading.
package bounds

import (
	"errors"
	"fmt"
)

var (
	// ErrFull says that all there is has been taken.
	ErrFull = errors.New("the bound is reached")
	// ErrShare says that one flow has all that it may have. It is an ErrFull.
	ErrShare = fmt.Errorf("%w by one flow alone", ErrFull)
)

// Flow is whose share of a bound is taken.
type Flow struct {
	Name string
	// Weight is how many shares the flow has; below 1 it has one.
	Weight int
}
