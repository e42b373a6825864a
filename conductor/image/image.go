package image

import (
	"encoding/hex"
	"maps"
	"slices"
	"strconv"
	"time"

	"example.com/conductor/conductor/names"
	"example.com/conductor/conductor/normalize"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/events/tape"
)

// Head is what an image of all holdings says before the chunks of its deployments. Blocks of pools
// are in no image: their objects are not, which alone say when blocks go.
type Head struct {
	HashSeed    uint64
	Sources     []Source // of pools without a mark; without an instance if left out
	Deployments []Deployment
	// Paused is how long events waited for the moment of the image.
	Paused time.Duration
}

// Deployment is a deployment of an image.
type Deployment struct {
	scope.Shard
	BlockSize int            // tokens
	Groups    map[int]string // kinds of attention groups, as far as engines have said them
	// Secret is what constants are made from. Identities are the adapters and salts with blocks, by the
	// numbers of the chunks, without the base model.
	Secret     names.Secret
	Identities map[uint32]scope.Variant
	Holders    []Holder // by the numbers of the chunks
}

// Holder is an owner of blocks in a deployment of an image. Its Objects is never set: pools are in no image.
type Holder struct {
	Source int // place in Head.Sources
	normalize.Owner
	// Older are blocks of the period before, where the source has a time to live. Unverified are
	// those of a source without a mark.
	Older, Unverified bool
}

// Sealed reports whether the secret of a deployment is not known. Then only what has no constant in
// its keys and names can be brought back.
func (d *Deployment) Sealed() bool { return d.Secret == names.Secret{} }

// Fields returns the deployment as a snapshot keeps it, without its identities and holders.
func (d *Deployment) Fields() []tape.Field {
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

// AppendFields appends the holder as a snapshot keeps it.
func (h *Holder) AppendFields(to []tape.Field) []tape.Field {
	w := registration.FieldWriter(to)
	w.Number(fieldOwner, int64(h.Source))
	w.Number("dp_rank", int64(h.Rank))
	w.Text(fieldMedium, h.Medium)
	w.Number(fieldGroupIndex, int64(h.Group))
	w.Text(fieldBackend, h.Backend)
	w.Flag(fieldOwned, h.Owned)
	w.Number(fieldChunk, int64(h.Chunk))
	w.Flag(fieldListed, h.Listed)
	w.Flag(fieldOlder, h.Older)
	w.Flag(fieldUnverified, h.Unverified)
	return w
}
