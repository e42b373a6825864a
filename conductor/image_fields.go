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
	"example.com/conductor/conductor/registration"
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

// Fields returns the source as a snapshot keeps it.
func (m *SourceMark) Fields() []tape.Field { return m.AppendFields(nil) }

// AppendFields appends the source as a snapshot keeps it.
func (m *SourceMark) AppendFields(to []tape.Field) []tape.Field {
	w := registration.FieldWriter(m.Registration.AppendFields(to, m.Static))
	m.By.WriteTo(&w)
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
	return w
}

// SourceMarkOf reads what SourceMark.AppendFields wrote.
func SourceMarkOf(fields []tape.Field) (m SourceMark, err error) {
	r := registration.FieldReader{Fields: fields}
	if m.Registration, m.Static, err = registration.FromFields(fields); err != nil {
		return m, err
	}
	m.By.ReadFrom(&r)
	if r.Text(fieldSeq) != "" {
		m.Mark = &Mark{Seq: r.Unsigned(fieldSeq), Print: r.Unsigned(fieldPrint), Missing: r.Text(fieldMissing)}
		if id := r.Text(fieldID); hex.DecodedLen(len(id)) == len(m.Mark.ID) {
			_, err := hex.Decode(m.Mark.ID[:], []byte(id))
			r.KeepError(fieldID, err)
		}
	}
	m.Parts = int(r.Number(fieldParts, 32))
	m.ZeroHash, m.FullReports = r.Flag(fieldZeroHash), r.Flag(fieldFull)
	for _, f := range fields {
		if f.Name == fieldLookAhead {
			n, err := strconv.Atoi(f.Value)
			r.KeepError(f.Name, err)
			m.LookAheads = append(m.LookAheads, n)
		} else if f.Name == fieldAdapter {
			m.Adapters = append(m.Adapters, f.Value)
		}
	}
	return m, r.Err
}

// Fields returns the deployment as a snapshot keeps it, without its identities and holders.
func (d *ImageDeployment) Fields() []tape.Field {
	var w registration.FieldWriter
	w.Text("tenant_id", d.Tenant)
	w.Text("modelname", d.Model)
	w.Number("block_size", int64(d.BlockSize))
	for _, group := range slices.Sorted(maps.Keys(d.Groups)) {
		w.Text(fieldGroup+strconv.Itoa(group), d.Groups[group])
	}
	secret := fieldSecret
	for _, v := range d.Identities {
		if v.Salt != "" {
			secret = FieldSaltedSecret
		}
	}
	w.Text(secret, hex.EncodeToString(d.Secret[:]))
	return w
}

const (

	// FieldSaltedSecret is the name of the field that has the secret of a deployment with salts. Who
	// knows it can try salts until one fits the keys of a snapshot.
	FieldSaltedSecret = "salted_secret"
)

// ImageDeploymentOf reads what ImageDeployment.Fields wrote.
func ImageDeploymentOf(fields []tape.Field) (d ImageDeployment, err error) {
	r := registration.FieldReader{Fields: fields}
	d.Shard = scope.Shard{Tenant: r.Text("tenant_id"), Model: r.Text("modelname")}
	d.BlockSize = int(r.Number("block_size", 32))
	d.Identities = make(map[uint32]scope.Variant)
	if secret := cmp.Or(r.Text(fieldSecret), r.Text(FieldSaltedSecret)); hex.DecodedLen(len(secret)) == len(d.Secret) {
		_, err := hex.Decode(d.Secret[:], []byte(secret))
		r.KeepError(fieldSecret, err)
	}
	for _, f := range fields {
		if group, ok := strings.CutPrefix(f.Name, fieldGroup); ok {
			n, err := strconv.Atoi(group)
			r.KeepError(f.Name, err)
			if d.Groups == nil {
				d.Groups = make(map[int]string)
			}
			d.Groups[n] = f.Value
		}
	}
	if r.Err == nil && (d.Tenant == "" || d.Model == "" || d.BlockSize <= 0) {
		r.Err = fmt.Errorf("a deployment of tenant %q, model %q and block size %d", d.Tenant, d.Model, d.BlockSize)
	}
	return d, r.Err
}

// IdentityFields returns an adapter and salt of a deployment as a snapshot keeps them.
func IdentityFields(number uint32, v scope.Variant) []tape.Field {
	var w registration.FieldWriter
	w.Number(fieldNumber, int64(number))
	w.Text("lora_name", v.Lora)
	w.Text(registration.FieldSalt, v.Salt)
	return w
}

// IdentityOf reads what IdentityFields wrote.
func IdentityOf(fields []tape.Field) (number uint32, v scope.Variant, err error) {
	r := registration.FieldReader{Fields: fields}
	n := r.Number(fieldNumber, 33)
	v = scope.Variant{Lora: r.Text("lora_name"), Salt: r.Text(registration.FieldSalt)}
	if r.Err == nil && (n <= 0 || n > 1<<32-1 || v == (scope.Variant{})) {
		r.Err = fmt.Errorf("identity %d has no adapter and no salt, or no number", n)
	}
	return uint32(n), v, r.Err
}

// AppendFields appends the holder as a snapshot keeps it.
func (h *ImageHolder) AppendFields(to []tape.Field) []tape.Field {
	w := registration.FieldWriter(to)
	w.Number(fieldOwner, int64(h.Source))
	w.Number("dp_rank", int64(h.Rank))
	w.Text(fieldMedium, h.Medium)
	w.Number(fieldGroupIndex, int64(h.Group))
	w.Text(fieldBackend, h.Backend)
	w.Flag(fieldOwned, h.Owned)
	w.Number(fieldChunk, int64(h.Chunk))
	w.Flag(fieldOlder, h.Older)
	w.Flag(fieldUnverified, h.Unverified)
	return w
}

// ImageHolderOf reads what ImageHolder.AppendFields wrote.
func ImageHolderOf(fields []tape.Field) (h ImageHolder, err error) {
	r := registration.FieldReader{Fields: fields}
	h = ImageHolder{
		Source: int(r.Number(fieldOwner, 32)), Older: r.Flag(fieldOlder), Unverified: r.Flag(fieldUnverified),
		Owner: normalize.Owner{
			Rank: int32(r.Number("dp_rank", 32)), Medium: r.Text(fieldMedium), Group: int(r.Number(fieldGroupIndex, 32)),
			Backend: r.Text(fieldBackend), Owned: r.Flag(fieldOwned), Chunk: min(max(int(r.Number(fieldChunk, 32)), 0), normalize.MaxParts),
		},
	}
	return h, r.Err
}
