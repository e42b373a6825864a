package image

import (
	"encoding/hex"
	"fmt"
	"strconv"

	"example.com/conductor/conductor/normalize"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/events"
	"example.com/conductor/events/stream"
	"example.com/conductor/events/tape"
)

// LeftOut reports whether only the place of a source is there.
func (m *Source) LeftOut() bool { return m.Instance == "" }

// Fields returns the source as a snapshot keeps it.
func (m *Source) Fields() []tape.Field { return m.AppendFields(nil) }

// AppendFields appends the source as a snapshot keeps it.
func (m *Source) AppendFields(to []tape.Field) []tape.Field {
	w := registration.FieldWriter(m.Registration.AppendFields(to, m.Static))
	m.By.WriteTo(&w)
	w.Flag(fieldGivesWay, m.GivesWay)
	if m.Mark != nil {
		w.Text(fieldSeq, strconv.FormatUint(m.Mark.Seq, 10))
		w.Text(fieldPrint, strconv.FormatUint(m.Mark.Print, 10))
		w.Text(fieldMissing, m.Mark.Missing)
		if m.Mark.ID != (events.PublisherID{}) {
			w.Text(fieldID, hex.EncodeToString(m.Mark.ID[:]))
		}
	}
	w.Number(fieldParts, int64(m.Parts))
	w.Flag(fieldZeroHash, m.ZeroHash)
	w.Flag(fieldFull, m.FullReports)
	for _, ahead := range m.LookAheads {
		w.Text(fieldLookAhead, strconv.Itoa(ahead))
	}
	for _, lora := range m.Adapters {
		w.Text(fieldAdapter, lora)
	}
	for i := range m.Groups {
		g := &m.Groups[i]
		w.Text(fieldSpec, fmt.Sprintf("%d %d %s %d %d %d", g.Rank, g.Group, g.Kind, g.Window, g.Block, g.Unit))
	}
	return w
}

// Source is a source with all that a replica needs to go on behind its mark.
type Source struct {
	registration.Registration
	// Static says that the configuration names the source.
	Static bool
	// By is who registered it.
	By registration.Registrar
	// GivesWay lets registrations take its place where there are too many: see ingest.RegisterOptions.
	GivesWay bool
	// Mark is the batch applied last, nil before the first.
	Mark *stream.Mark
	// Parts is the most parts that one of its blocks had: see conductor/normalize/parts.go.
	Parts int
	// ZeroHash says that it has announced a block of hash 0: see normalize.Normalizer.
	ZeroHash bool
	// FullReports says that its stores and removals have shown that it announces blocks again which it reuses.
	FullReports bool
	// LookAheads are the look-aheads of its blocks in tokens, nil for 0 alone: see catalog/look_aheads.go.
	LookAheads []int
	// Adapters are those that the source has stored blocks of, without the registered one.
	Adapters []string
	// Groups are its attention groups, nil if each rank has one and it has full attention.
	Groups []normalize.Spec
}
