package conductor

import (
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"kvconductor/events"
	"kvconductor/events/journal"
)

// Fields of sources, contexts and holders in a snapshot, by name: see docs/formats.md. Unknown
// names are passed over.
const (
	fieldSeq        = "mark.seq"
	fieldPrint      = "mark.print"
	fieldMissing    = "mark.missing"
	fieldID         = "mark.publisher_id"
	fieldParts      = "parts"
	fieldLookAhead  = "look_ahead"
	fieldGroup      = "group."
	fieldOwner      = "source"
	fieldMedium     = "medium"
	fieldGroupIndex = "group"
	fieldBackend    = "backend_id"
	fieldOwned      = "owned"
	fieldOlder      = "older"
	fieldUnverified = "unverified"
)

// fieldWriter makes a list of fields.
type fieldWriter []journal.Field

func (w *fieldWriter) text(name, value string) {
	if value != "" {
		*w = append(*w, journal.Field{Name: name, Value: value})
	}
}

func (w *fieldWriter) number(name string, v int64) {
	if v != 0 {
		w.text(name, strconv.FormatInt(v, 10))
	}
}

func (w *fieldWriter) flag(name string, on bool) {
	if on {
		w.text(name, "true")
	}
}

// fieldReader reads a list of fields. It keeps the first mistake.
type fieldReader struct {
	fields []journal.Field
	err    error
}

func (r *fieldReader) text(name string) string { return journal.Value(r.fields, name) }
func (r *fieldReader) flag(name string) bool   { return r.text(name) == "true" }

func (r *fieldReader) number(name string, bits int) int64 {
	v := r.text(name)
	if v == "" {
		return 0
	}
	n, err := strconv.ParseInt(v, 10, bits)
	r.note(name, err)
	return n
}

func (r *fieldReader) unsigned(name string) uint64 {
	n, err := strconv.ParseUint(r.text(name), 10, 64)
	r.note(name, err)
	return n
}

func (r *fieldReader) note(name string, err error) {
	if err != nil && r.err == nil {
		r.err = fmt.Errorf("field %s: %w", name, err)
	}
}

// Fields returns the source as a snapshot keeps it.
func (m *SourceMark) Fields() []journal.Field {
	w := fieldWriter(m.Registration.fields(m.Static))
	if m.Mark != nil {
		w.text(fieldSeq, strconv.FormatUint(m.Mark.Seq, 10))
		w.text(fieldPrint, strconv.FormatUint(m.Mark.Print, 10))
		w.text(fieldMissing, m.Mark.Missing)
		if m.Mark.ID != (events.PublisherID{}) {
			w.text(fieldID, hex.EncodeToString(m.Mark.ID[:]))
		}
	}
	w.number(fieldParts, int64(m.Parts))
	for _, ahead := range m.LookAheads {
		w.text(fieldLookAhead, strconv.Itoa(ahead))
	}
	return w
}

// SourceMarkOf reads what SourceMark.Fields wrote.
func SourceMarkOf(fields []journal.Field) (m SourceMark, err error) {
	r := fieldReader{fields: fields}
	if m.Registration, m.Static, err = registrationOf(fields); err != nil {
		return m, err
	}
	if r.text(fieldSeq) != "" {
		m.Mark = &Mark{Seq: r.unsigned(fieldSeq), Print: r.unsigned(fieldPrint), Missing: r.text(fieldMissing)}
		if id := r.text(fieldID); hex.DecodedLen(len(id)) == len(m.Mark.ID) {
			_, err := hex.Decode(m.Mark.ID[:], []byte(id))
			r.note(fieldID, err)
		}
	}
	m.Parts = int(r.number(fieldParts, 32))
	for _, f := range fields {
		if f.Name == fieldLookAhead {
			n, err := strconv.Atoi(f.Value)
			r.note(f.Name, err)
			m.LookAheads = append(m.LookAheads, n)
		}
	}
	return m, r.err
}

// Fields returns the context as a snapshot keeps it, without its holders.
func (c *ImageContext) Fields() []journal.Field {
	var w fieldWriter
	w.text("tenant_id", c.Tenant)
	w.text("modelname", c.Model)
	w.number("block_size", int64(c.BlockSize))
	w.text("lora_name", c.Lora)
	w.text(FieldSalt, c.Salt)
	for _, group := range slices.Sorted(maps.Keys(c.Groups)) {
		w.text(fieldGroup+strconv.Itoa(group), c.Groups[group])
	}
	return w
}

// FieldSalt is the name of the field that has a salt, of sources and contexts.
const FieldSalt = "additionalsalt"

// ImageContextOf reads what ImageContext.Fields wrote.
func ImageContextOf(fields []journal.Field) (c ImageContext, err error) {
	r := fieldReader{fields: fields}
	c.Partition = Partition{Tenant: r.text("tenant_id"), Model: r.text("modelname")}
	c.BlockSize, c.Lora, c.Salt = int(r.number("block_size", 32)), r.text("lora_name"), r.text(FieldSalt)
	for _, f := range fields {
		if group, ok := strings.CutPrefix(f.Name, fieldGroup); ok {
			n, err := strconv.Atoi(group)
			r.note(f.Name, err)
			if c.Groups == nil {
				c.Groups = make(map[int]string)
			}
			c.Groups[n] = f.Value
		}
	}
	if r.err == nil && (c.Tenant == "" || c.Model == "" || c.BlockSize <= 0) {
		r.err = fmt.Errorf("a context of tenant %q, model %q and block size %d", c.Tenant, c.Model, c.BlockSize)
	}
	return c, r.err
}

// Fields returns the holder as a snapshot keeps it.
func (h *ImageHolder) Fields() []journal.Field {
	var w fieldWriter
	w.number(fieldOwner, int64(h.Source))
	w.number("dp_rank", int64(h.Rank))
	w.text(fieldMedium, h.Medium)
	w.number(fieldGroupIndex, int64(h.Group))
	w.text(fieldBackend, h.Backend)
	w.flag(fieldOwned, h.Owned)
	w.flag(fieldOlder, h.Older)
	w.flag(fieldUnverified, h.Unverified)
	return w
}

// ImageHolderOf reads what ImageHolder.Fields wrote.
func ImageHolderOf(fields []journal.Field) (h ImageHolder, err error) {
	r := fieldReader{fields: fields}
	h = ImageHolder{
		Source: int(r.number(fieldOwner, 32)), Rank: int32(r.number("dp_rank", 32)), Medium: r.text(fieldMedium), Group: int(r.number(fieldGroupIndex, 32)),
		Backend: r.text(fieldBackend), Owned: r.flag(fieldOwned), Older: r.flag(fieldOlder), Unverified: r.flag(fieldUnverified),
	}
	return h, r.err
}
