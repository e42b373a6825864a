package image

import (
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"

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
		w.Text(fieldSpec, fmt.Sprintf("%d %d %d %d %d %s", g.Rank, g.Group, g.Window, g.Block, g.Unit, g.Kind))
	}
	for _, v := range m.Versions {
		w.Text(fieldVersion, fmt.Sprintf("%d %d %d %s", v.Rank, v.Lowest, v.Highest, v.Lora))
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
	// Versions are the versions of adapters that its ranks have.
	Versions []Adapter
}

// Adapter is the version of an adapter that a rank of a source has.
type Adapter struct {
	Rank            int32
	Lora            string
	Lowest, Highest uint64 // lora_ids under which the rank has announced the version
}

// readSpec reads "rank group window block unit kind". The kind is any text.
func readSpec(text string) (g normalize.Spec, err error) {
	part := strings.SplitN(text, " ", 6)
	if len(part) < 6 {
		return g, fmt.Errorf("an attention group is %q", text)
	}
	g.Kind = part[5]
	_, err = fmt.Sscanf(strings.Join(part[:5], " "), "%d %d %d %d %d", &g.Rank, &g.Group, &g.Window, &g.Block, &g.Unit)
	return g, err
}

// readAdapter reads "rank lowest highest name".
func readAdapter(text string) (a Adapter, err error) {
	part := strings.SplitN(text, " ", 4)
	if len(part) < 4 {
		return a, fmt.Errorf("the version of an adapter is %q", text)
	}
	rank, err := strconv.ParseInt(part[0], 10, 32)
	if err == nil {
		a.Lowest, err = strconv.ParseUint(part[1], 10, 64)
	}
	if err == nil {
		a.Highest, err = strconv.ParseUint(part[2], 10, 64)
	}
	a.Rank, a.Lora = int32(rank), part[3]
	return a, err
}
