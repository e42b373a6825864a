package conductor

import (
	"cmp"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"example.com/conductor/conductor/normalize"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/events"
	"example.com/conductor/events/tape"
)

// Fields of sources, deployments and holders in a snapshot, by name: see docs/formats.md. Unknown
// names are passed over.
const (
	fieldSeq        = "mark.seq"
	fieldPrint      = "mark.print"
	fieldMissing    = "mark.missing"
	fieldID         = "mark.publisher_id"
	fieldParts      = "parts"
	fieldZeroHash   = "zero_hash"
	fieldFull       = "full_reports"
	fieldLookAhead  = "look_ahead"
	fieldAdapter    = "adapter"
	fieldGroup      = "group."
	fieldOwner      = "source"
	fieldMedium     = "medium"
	fieldGroupIndex = "group"
	fieldBackend    = "backend_id"
	fieldOwned      = "owned"
	fieldChunk      = "chunk"
	fieldOlder      = "older"
	fieldUnverified = "unverified"
	fieldSecret     = "secret"
	fieldNumber     = "number"
)

// fieldWriter makes a list of fields.
type fieldWriter []tape.Field

func (w *fieldWriter) text(name, value string) {
	if value != "" {
		*w = append(*w, tape.Field{Name: name, Value: value})
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
	fields []tape.Field
	err    error
}

func (r *fieldReader) text(name string) string { return tape.Value(r.fields, name) }
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
func (m *SourceMark) Fields() []tape.Field { return m.AppendFields(nil) }

// AppendFields appends the source as a snapshot keeps it.
func (m *SourceMark) AppendFields(to []tape.Field) []tape.Field {
	w := fieldWriter(m.appendFields(to, m.Static))
	m.By.write(&w)
	if m.Mark != nil {
		w.text(fieldSeq, strconv.FormatUint(m.Mark.Seq, 10))
		w.text(fieldPrint, strconv.FormatUint(m.Mark.Print, 10))
		w.text(fieldMissing, m.Mark.Missing)
		if m.Mark.ID != (events.PublisherID{}) {
			w.text(fieldID, hex.EncodeToString(m.Mark.ID[:]))
		}
	}
	w.number(fieldParts, int64(m.Parts))
	w.flag(fieldZeroHash, m.ZeroHash)
	w.flag(fieldFull, m.FullReports)
	for _, ahead := range m.LookAheads {
		w.text(fieldLookAhead, strconv.Itoa(ahead))
	}
	for _, lora := range m.Adapters {
		w.text(fieldAdapter, lora)
	}
	return w
}

// SourceMarkOf reads what SourceMark.AppendFields wrote.
func SourceMarkOf(fields []tape.Field) (m SourceMark, err error) {
	r := fieldReader{fields: fields}
	if m.Registration, m.Static, err = registrationOf(fields); err != nil {
		return m, err
	}
	m.By.read(&r)
	if r.text(fieldSeq) != "" {
		m.Mark = &Mark{Seq: r.unsigned(fieldSeq), Print: r.unsigned(fieldPrint), Missing: r.text(fieldMissing)}
		if id := r.text(fieldID); hex.DecodedLen(len(id)) == len(m.Mark.ID) {
			_, err := hex.Decode(m.Mark.ID[:], []byte(id))
			r.note(fieldID, err)
		}
	}
	m.Parts = int(r.number(fieldParts, 32))
	m.ZeroHash, m.FullReports = r.flag(fieldZeroHash), r.flag(fieldFull)
	for _, f := range fields {
		if f.Name == fieldLookAhead {
			n, err := strconv.Atoi(f.Value)
			r.note(f.Name, err)
			m.LookAheads = append(m.LookAheads, n)
		} else if f.Name == fieldAdapter {
			m.Adapters = append(m.Adapters, f.Value)
		}
	}
	return m, r.err
}

// Fields returns the deployment as a snapshot keeps it, without its identities and holders.
func (d *ImageDeployment) Fields() []tape.Field {
	var w fieldWriter
	w.text("tenant_id", d.Tenant)
	w.text("modelname", d.Model)
	w.number("block_size", int64(d.BlockSize))
	for _, group := range slices.Sorted(maps.Keys(d.Groups)) {
		w.text(fieldGroup+strconv.Itoa(group), d.Groups[group])
	}
	secret := fieldSecret
	for _, v := range d.Identities {
		if v.Salt != "" {
			secret = FieldSaltedSecret
		}
	}
	w.text(secret, hex.EncodeToString(d.Secret[:]))
	return w
}

const (
	// FieldSalt is the name of the field that has a salt, of sources and identities.
	FieldSalt = "additionalsalt"
	// FieldSaltedSecret is the name of the field that has the secret of a deployment with salts. Who
	// knows it can try salts until one fits the keys of a snapshot.
	FieldSaltedSecret = "salted_secret"
)

// ImageDeploymentOf reads what ImageDeployment.Fields wrote.
func ImageDeploymentOf(fields []tape.Field) (d ImageDeployment, err error) {
	r := fieldReader{fields: fields}
	d.Partition = Partition{Tenant: r.text("tenant_id"), Model: r.text("modelname")}
	d.BlockSize = int(r.number("block_size", 32))
	d.Identities = make(map[uint32]scope.Variant)
	if secret := cmp.Or(r.text(fieldSecret), r.text(FieldSaltedSecret)); hex.DecodedLen(len(secret)) == len(d.Secret) {
		_, err := hex.Decode(d.Secret[:], []byte(secret))
		r.note(fieldSecret, err)
	}
	for _, f := range fields {
		if group, ok := strings.CutPrefix(f.Name, fieldGroup); ok {
			n, err := strconv.Atoi(group)
			r.note(f.Name, err)
			if d.Groups == nil {
				d.Groups = make(map[int]string)
			}
			d.Groups[n] = f.Value
		}
	}
	if r.err == nil && (d.Tenant == "" || d.Model == "" || d.BlockSize <= 0) {
		r.err = fmt.Errorf("a deployment of tenant %q, model %q and block size %d", d.Tenant, d.Model, d.BlockSize)
	}
	return d, r.err
}

// IdentityFields returns an adapter and salt of a deployment as a snapshot keeps them.
func IdentityFields(number uint32, v scope.Variant) []tape.Field {
	var w fieldWriter
	w.number(fieldNumber, int64(number))
	w.text("lora_name", v.Lora)
	w.text(FieldSalt, v.Salt)
	return w
}

// IdentityOf reads what IdentityFields wrote.
func IdentityOf(fields []tape.Field) (number uint32, v scope.Variant, err error) {
	r := fieldReader{fields: fields}
	n := r.number(fieldNumber, 33)
	v = scope.Variant{Lora: r.text("lora_name"), Salt: r.text(FieldSalt)}
	if r.err == nil && (n <= 0 || n > 1<<32-1 || v == (scope.Variant{})) {
		r.err = fmt.Errorf("identity %d has no adapter and no salt, or no number", n)
	}
	return uint32(n), v, r.err
}

// AppendFields appends the holder as a snapshot keeps it.
func (h *ImageHolder) AppendFields(to []tape.Field) []tape.Field {
	w := fieldWriter(to)
	w.number(fieldOwner, int64(h.Source))
	w.number("dp_rank", int64(h.Rank))
	w.text(fieldMedium, h.Medium)
	w.number(fieldGroupIndex, int64(h.Group))
	w.text(fieldBackend, h.Backend)
	w.flag(fieldOwned, h.Owned)
	w.number(fieldChunk, int64(h.Chunk))
	w.flag(fieldOlder, h.Older)
	w.flag(fieldUnverified, h.Unverified)
	return w
}

// ImageHolderOf reads what ImageHolder.AppendFields wrote.
func ImageHolderOf(fields []tape.Field) (h ImageHolder, err error) {
	r := fieldReader{fields: fields}
	h = ImageHolder{
		Source: int(r.number(fieldOwner, 32)), Older: r.flag(fieldOlder), Unverified: r.flag(fieldUnverified),
		Owner: normalize.Owner{
			Rank: int32(r.number("dp_rank", 32)), Medium: r.text(fieldMedium), Group: int(r.number(fieldGroupIndex, 32)),
			Backend: r.text(fieldBackend), Owned: r.flag(fieldOwned), Chunk: min(max(int(r.number(fieldChunk, 32)), 0), normalize.MaxParts),
		},
	}
	return h, r.err
}
