package tape

import (
	"encoding/binary"
	"fmt"
	"time"
)

// Kind says what a Record is.
type Kind uint8

const (
	Settings     Kind = iota + 1 // Fields: what the server was told
	Registered                   // Fields: the registration, and its printed key
	Begin                        // end of a segment's opening; Seq sources stand in it
	Batch                        // applied; Payload is what the engine sent
	Undecodable                  // refused; Payload is what the engine sent, or the beginning of what was too large
	Reset                        // blocks of the source dropped, Epoch begins; Payload is the reason
	State                        // Fields: FieldState, FieldReason
	Aged                         // half of a time to live is over; Seq is that time in ns, 0 in older files
	Lost                         // Seq records of the source are missing
	Unregistered                 // the source is gone
	Idle                         // batches without events were applied, up to Seq
)

// String returns the word that docs/journal.md uses.
func (k Kind) String() string {
	names := [...]string{
		"none", "settings", "registered", "begin", "batch", "undecodable", "reset", "state", "aged", "lost",
		"unregistered", "idle",
	}
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
	At  Position
	// AfterDamage: bytes between the record before and this one could not be read.
	AfterDamage bool
}

// Position is where a record begins.
type Position struct {
	Segment uint64
	Offset  int64
}

// AppendFields encodes fields.
func AppendFields(dst []byte, fields ...Field) []byte {
	for _, f := range fields {
		for _, s := range [...]string{f.Name, f.Value} {
			dst = binary.AppendUvarint(dst, uint64(len(s)))
			dst = append(dst, s...)
		}
	}
	return dst
}

// Fields decodes the payload of a Settings, Registered or State record.
func (r *Record) Fields() ([]Field, error) {
	var out []Field
	b := r.Payload
	text := func() (string, bool) {
		n, used := binary.Uvarint(b)
		if used <= 0 || n > uint64(len(b)-used) {
			return "", false
		}
		s := string(b[used : used+int(n)])
		b = b[used+int(n):]
		return s, true
	}
	for len(b) > 0 {
		name, ok := text()
		value, ok2 := text()
		if !ok || !ok2 {
			return nil, fmt.Errorf("fields of a record of kind %q are cut off", r.Kind)
		}
		out = append(out, Field{name, value})
	}
	return out, nil
}

// Value returns the value of a field, "" if there is none of the name.
func Value(fields []Field, name string) string {
	for _, f := range fields {
		if f.Name == name {
			return f.Value
		}
	}
	return ""
}
