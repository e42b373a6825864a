// Package feedback compares answers with what instances found. A router or an engine reports of a request how many tokens
// an answer promised and how many were there; the table keeps both by instance and medium, as a moving average of about 50
// reports and as totals since the start.
//
//	Report --Add--> Table --> precision, recall; a finding and a resync if they are too low    feedback.go
//	                  |---> a finding if the last block of each hit is missing                 drops.go
//	                  |---> Totals, for people                                                 totals.go
//	                  |---> series, for Prometheus                                             metrics.go
//
// Invariants: what was reported of an instance that has left goes with the next call of Totals. An instance has reports of at
// most 8 media, because clients name them.
//
// All methods are safe for concurrent use. Add costs one lock and no look at an index; each 20th report of an instance goes through
// the owners of its deployment. It calls Options.Resync under that lock, so Resync must not call the table.
package feedback
