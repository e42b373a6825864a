package dynamo

import "time"

// Options configures the dialect.
type Options struct {
	// AccessLog takes a line a request; nil is none (dynamo.access_log).
	AccessLog *AccessLog
	// TraceIDHeader names the header that is copied into it (dynamo.trace_id_header).
	TraceIDHeader string
	// TestEndpoints adds POST /test/pause_listener and /test/resume_listener
	// (dynamo.test_endpoints).
	TestEndpoints bool
	// Peers are base URLs of indexers to recover from at the start, in the order
	// in which they are asked; one may end with a slash (dynamo.peers).
	Peers []string
	// MinInitialWorkers is how many instances there must be before the listener is
	// bound (dynamo.min_initial_workers).
	MinInitialWorkers int
	// RecoveredTTL is how long blocks recovered from a peer stay for workers that
	// nobody registers; 0 is for ever (dynamo.recovered_ttl).
	RecoveredTTL time.Duration
	// Dump keeps the local hash of every block, 8 bytes each; without it GET /dump
	// and recovery have nothing to give (dynamo.dump).
	Dump bool
}
