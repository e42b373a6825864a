package main

import "time"

// fixed are values that are no settings, because no operator knows better ones. They are variables for the tests
// of whole processes alone, which cannot wait as long or send as much (TestMain).
var fixed = struct {
	// SilentAfter is how long a source may send no events, while queries ask for its model, before that is the
	// finding silent; 0 is the default of package conductor.
	SilentAfter time.Duration
}{}
