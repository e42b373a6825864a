// Package tape keeps the one record of what was applied: the raw payloads of all sources, in
// order, and what else decides what an index holds. The newest batches of each source stay in
// memory, up to a bound, and all goes to the disk if there is a directory. Users know the record
// as the journal: settings, metrics, files and messages call it so.
//
//	Recorder.Batch, Reset, … --record--> memory of the source: part, part … (the oldest goes)
//	 (ingest, never waits)    |
//	                          +--entry--> queue --> writer --> segment --> segment …
//	                                    (bounded)  (one goroutine)            ^
//	                                                                          | the oldest goes
//	Recorder.Read: batches of one source, from its memory or else from the disk
//	Reader --Record--> who rebuilds an index        Locate: where a batch is
//
// docs/journal.md is the format and what it promises. Every segment opens with
// the registrations at that place, so it can be read without those before it.
//
// Invariants:
//
//  1. Records of one source are in the order of the calls. A hole
//     between two of them is followed by a Lost record, or by an opening whose
//     watermark shows it.
//  2. Segments together never take more than Options.MaxBytes.
//  3. No call of a Recorder waits for the disk, and no error of the disk reaches it.
//  4. A record is read as it was written, or not at all.
//
// Concurrency: methods of Tape and Recorder are safe from any goroutine; a nil
// Tape hands out nil Recorders, whose methods do nothing. Tape.mu guards the
// queue and is never held while a file is touched; the memory of a source has a lock of its
// own, which is locked after it. The writer goroutine owns the files. A Reader is used by one goroutine.
//
// A Tape with a key seals payloads (seal.go). Memory and excerpts are plain: they go to
// clients, not to the disk.
//
// Cost: a record is one read of the clock, one lock and 80 bytes in the queue for the caller, and
// one lock, copy and checksum if it stays in memory; one copy, one checksum and a share of a
// write for the writer.
package tape

import "time"

// Kind says what a Record is.
type Kind uint8

const (
	Settings     Kind = iota + 1 // Fields: what the server was told
	Registered                   // Fields: the registration, Key its printed key
	Begin                        // end of a segment's opening; Seq sources stand in it
	Batch                        // applied; Payload is what the engine sent
	Undecodable                  // refused; Payload is what the engine sent, or the beginning of what was too large
	Reset                        // blocks of the source dropped, Epoch begins; Payload is the reason
	State                        // Fields: FieldState, FieldReason
	Aged                         // half of a time to live is over; Seq is that time in ns, 0 in older journals
	Lost                         // Seq records of the source are missing
	Unregistered                 // the source is gone
	Idle                         // batches without events were applied, up to Seq
)

// String returns the word docs/journal.md uses.
func (k Kind) String() string {
	names := [...]string{"none", "settings", "registered", "begin", "batch", "undecodable", "reset", "state", "aged", "lost", "unregistered", "idle"}
	if int(k) < len(names) {
		return names[k]
	}
	return "unknown"
}

// Flags of a Record.
const (
	Standing = 1 << iota // registered before this segment
	HasSeq               // of a standing source: Seq is its watermark
	Replayed             // of a batch: it came from a replay of the publisher
)

// Names of fields that this package writes itself.
const (
	FieldSource = "source" // of Registered: the printed key
	FieldState  = "state"  // of State
	FieldReason = "reason" // of State
)

// Field is a named value of a setting or a registration.
type Field struct{ Name, Value string }

// Record is one thing that happened.
type Record struct {
	Kind    Kind
	Flags   uint8
	Source  uint32 // number of the registration within a run
	Time    time.Time
	Epoch   uint64
	Seq     uint64
	Payload []byte // may alias the segment; never written to again

	Run uint64 // the server's life
	At  Place
	// AfterDamage: bytes between the record before and this one could not be read.
	AfterDamage bool
}

// Place is where a record begins.
type Place struct {
	Segment uint64
	Offset  int64
}
