// Package replay rebuilds the Conductor that wrote a tape, record by record, so that operators can ask a past as they ask
// the present.
//
//	Take --Record--> ingest.RecordedFeed --Step--> ingest.Source, which applies it as it would a live one
//	                      ^                              |
//	                      +----------- applied ----------+
//
// One step is under way at a time, in the order of the tape, so the outcome is the same every time. A Replay is used by one
// goroutine; its Conductor answers any number of them meanwhile. What the tape lacks (records that were lost, or written
// before it begins) makes the sources concerned partial, with the reason.
package replay
