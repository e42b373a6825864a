package image

import (
	"cmp"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"

	"example.com/conductor/conductor/normalize"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/events/stream"
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
	fieldSpec       = "attention_group"
	fieldVersion    = "adapter_version"
	fieldGivesWay   = "gives_way"
	fieldGroup      = "group."
	fieldOwner      = "source"
	fieldMedium     = "medium"
	fieldGroupIndex = "group"
	fieldBackend    = "backend_id"
	fieldOwned      = "owned"
	fieldChunk      = "chunk"
	fieldListed     = "listed"
	fieldOlder      = "older"
	fieldUnverified = "unverified"
	fieldSecret     = "secret"
	fieldNumber     = "number"
)

// ReadSource reads what Source.AppendFields wrote.
func ReadSource(fields []tape.Field) (m Source, err error) {
	r := registration.FieldReader{Fields: fields}
	if m.Registration, m.Static, err = registration.FromFields(fields); err != nil {
		return m, err
	}
	m.By.ReadFrom(&r)
	if r.Text(fieldSeq) != "" {
		m.Mark = &stream.Mark{Seq: r.Unsigned(fieldSeq), Print: r.Unsigned(fieldPrint), Missing: r.Text(fieldMissing)}
		if id := r.Text(fieldID); hex.DecodedLen(len(id)) == len(m.Mark.ID) {
			_, err := hex.Decode(m.Mark.ID[:], []byte(id))
			r.KeepError(fieldID, err)
		}
	}
	m.Parts = int(r.Number(fieldParts, 32))
	m.GivesWay = r.Flag(fieldGivesWay)
	m.ZeroHash, m.FullReports = r.Flag(fieldZeroHash), r.Flag(fieldFull)
	for _, f := range fields {
		switch f.Name {
		case fieldLookAhead:
			n, err := strconv.Atoi(f.Value)
			r.KeepError(f.Name, err)
			m.LookAheads = append(m.LookAheads, n)
		case fieldAdapter:
			m.Adapters = append(m.Adapters, f.Value)
		case fieldSpec:
			g, err := readSpec(f.Value)
			r.KeepError(f.Name, err)
			m.Groups = append(m.Groups, g)
		case fieldVersion:
			a, err := readAdapter(f.Value)
			r.KeepError(f.Name, err)
			m.Versions = append(m.Versions, a)
		}
	}
	return m, r.Err
}

const (

	// FieldSaltedSecret is the name of the field that has the secret of a deployment with salts. Who
	// knows it can try salts until one fits the keys of a snapshot.
	FieldSaltedSecret = "salted_secret"
)

// ReadDeployment reads what Deployment.Fields wrote.
func ReadDeployment(fields []tape.Field) (d Deployment, err error) {
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

// ReadIdentity reads what IdentityFields wrote.
func ReadIdentity(fields []tape.Field) (number uint32, v scope.Variant, err error) {
	r := registration.FieldReader{Fields: fields}
	n := r.Number(fieldNumber, 33)
	v = scope.Variant{Lora: r.Text("lora_name"), Salt: r.Text(registration.FieldSalt)}
	if r.Err == nil && (n <= 0 || n > 1<<32-1 || v == (scope.Variant{})) {
		r.Err = fmt.Errorf("identity %d has no adapter and no salt, or no number", n)
	}
	return uint32(n), v, r.Err
}

// ReadHolder reads what Holder.AppendFields wrote.
func ReadHolder(fields []tape.Field) (h Holder, err error) {
	r := registration.FieldReader{Fields: fields}
	h = Holder{
		Source: int(r.Number(fieldOwner, 32)), Older: r.Flag(fieldOlder), Unverified: r.Flag(fieldUnverified),
		Owner: normalize.Owner{
			Rank: int32(r.Number("dp_rank", 32)), Medium: r.Text(fieldMedium), Group: int(r.Number(fieldGroupIndex, 32)),
			Backend: r.Text(fieldBackend), Owned: r.Flag(fieldOwned), Chunk: min(max(int(r.Number(fieldChunk, 32)), 0), normalize.MaxParts),
			Listed: r.Flag(fieldListed),
		},
	}
	return h, r.Err
}
