package main

import "time"

// fixed are values that are no settings, because no operator knows better ones. They are variables for the tests
// of whole processes alone, which cannot wait as long or send as much (TestMain).
var fixed = struct {
	// SilentAfter is how long a source may send no events, while queries ask for its model, before that is the
	// finding silent; 0 is the default of package conductor.
	SilentAfter time.Duration
	// CompareEvery is the pause between comparisons of blocks with peers. Differences are rare, and a second
	// comparison confirms them.
	CompareEvery time.Duration
	// ReadTimeout is the time in which an HTTP request must have arrived: limits.max_body at 5 Mbit/s.
	ReadTimeout time.Duration
	// Connections is how many connections all listeners have open: 10,000 that only half exist still leave room
	// for routers.
	Connections int
	// Watches is how many calls of Watch and RoutedStream may be open. Each asks at most ten times a second, which
	// together takes a quarter of a CPU.
	Watches int
}{
	CompareEvery: time.Minute, ReadTimeout: 30 * time.Second, Connections: 16_384, Watches: 1024,
}
