package registration

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"example.com/conductor/conductor/invalid"
	"example.com/conductor/conductor/scope"
)

// Publisher types a registration may name, in their canonical spelling. The
// type never decides how events are decoded; Mooncake and LMCache make the source a pool.
const (
	TypeVLLM     = "vLLM"
	TypeSGLang   = "SGLang"
	TypeMooncake = "Mooncake"
	TypeStandard = "Standard"
	TypeLMCache  = "LMCache" // see endpoints.go
)

// Key identifies a source.
type Key struct {
	Instance string
	Tenant   string
	Rank     int
}

// String returns instance|tenant|rank, the form clients see.
func (k Key) String() string { return k.Instance + "|" + k.Tenant + "|" + strconv.Itoa(k.Rank) }

// Registration describes one source: where it publishes and what its blocks are. The zero value of a field is the
// rule that most sources need. Everything that reads, writes or compares registrations goes by the table in
// fields.go, which has the name of each field; the tags are those of the registry that replicas share.
type Registration struct {
	// Endpoint is the PUB socket of the engine, "push:" for a publisher that calls us, or "bind:tcp://..." where
	// engines connect to us.
	Endpoint string `json:"endpoint,omitempty"`
	// ReplayEndpoint is the socket that replays batches, "" if there is none.
	ReplayEndpoint string `json:"replay_endpoint,omitempty"`
	// SnapshotEndpoint is where the engine gives its whole state away, "" if it does not.
	SnapshotEndpoint string `json:"snapshot_endpoint,omitempty"`
	Type             string `json:"type,omitempty"` // one of the constants above
	Model            string `json:"modelname,omitempty"`
	Lora             string `json:"lora_name,omitempty"` // adapter, "" for the base model
	Tenant           string `json:"tenant_id,omitempty"` // "" is DefaultTenant until Normalize
	Instance         string `json:"instance_id"`         // the name that answers give; several ranks may share it
	BlockSize        int    `json:"block_size"`          // tokens a block
	Rank             int    `json:"dp_rank"`             // data-parallel rank, used where events name none
	Salt             string `json:"additionalsalt,omitempty"`
	// TTL is how long a block stays after it was last announced, for publishers that announce no removals; 0 is for
	// ever.
	TTL time.Duration `json:"ttl_ns,omitempty"`
	// MediaTTL is that of single media, by names that tiers.Parse knows.
	MediaTTL map[string]time.Duration `json:"media_ttl_ns,omitempty"`
	// Serves names the instances that a pool is bound to, sorted; none is all of them.
	Serves []string `json:"serves,omitempty"`
	// Aliases are further names under which the engine serves Model, sorted: see aliases.go.
	Aliases []string `json:"aliases,omitempty"`
	// Copies, Reports, Owned, Clear and MayAnnounce rule what events of the source do: see policy.go.
	Copies      string   `json:"copies,omitempty"`
	Reports     string   `json:"reports,omitempty"`
	Owned       string   `json:"owned,omitempty"`
	Clear       string   `json:"clear,omitempty"`
	MayAnnounce []string `json:"may_announce,omitempty"` // tenants, sorted
	// Profile says how the engine names its blocks, for those that come without tokens; the zero value is not known.
	// All engines of a context have one.
	Profile HashProfile `json:"hash_profile,omitzero"`
	// Sequence says what the publisher numbers, "" is the rule of its type: see endpoints.go.
	Sequence string `json:"sequence,omitempty"`
	// Events, CapacityBlocks and Approximate are for engines that publish no events: see unpublished.go.
	Events         string `json:"events,omitempty"`
	CapacityBlocks int    `json:"capacity_blocks,omitempty"`
	Approximate    string `json:"approximate,omitempty"`
}

// Compare orders keys by their fields.
func (k Key) Compare(other Key) int {
	return cmp.Or(strings.Compare(k.Instance, other.Instance), strings.Compare(k.Tenant, other.Tenant), cmp.Compare(k.Rank, other.Rank))
}

// Key returns the identity of the source.
func (r Registration) Key() Key { return Key{Instance: r.Instance, Tenant: r.Tenant, Rank: r.Rank} }

// IsPool reports whether the source holds blocks for other instances and is no
// routable instance itself.
func (r *Registration) IsPool() bool { return r.Type == TypeMooncake || r.Type == TypeLMCache }

// CanRestore reports whether the publisher can bring back what was dropped.
func (r *Registration) CanRestore() bool { return r.ReplayEndpoint != "" || r.SnapshotEndpoint != "" }

// canonicalType returns the canonical spelling of a publisher type.
func canonicalType(s string) (string, bool) {
	for _, t := range []string{TypeVLLM, TypeSGLang, TypeMooncake, TypeStandard, TypeLMCache} {
		if strings.EqualFold(s, t) {
			return t, true
		}
	}
	return "", false
}

// Normalize fills defaults and canonical spellings. It returns a *FieldError for the first bad field. With anyEndpoint it
// takes endpoints as they are: one that can never work makes a source that has failed.
func (r *Registration) Normalize(anyEndpoint bool) error {
	r.Tenant = cmp.Or(r.Tenant, scope.DefaultTenant)
	required := []struct{ field, value string }{
		{"endpoint", r.Endpoint}, {"type", r.Type}, {"modelname", r.Model}, {"instance_id", r.Instance},
	}
	for _, f := range required {
		if f.value == "" && (f.field != "endpoint" || r.Events == "") {
			return invalid.Field(f.field, "invalid_value", "%s must not be empty", f.field)
		}
	}
	if err := r.checkLengths(); err != nil {
		return err
	}
	typ, ok := canonicalType(r.Type)
	if !ok {
		return invalid.Field("type", "invalid_value", "type must be vLLM, SGLang, Mooncake, Standard or LMCache, got %q", r.Type)
	}
	r.Type = typ
	if r.BlockSize <= 0 {
		return invalid.Field("block_size", "out_of_range", "block_size must be greater than zero, got %d", r.BlockSize)
	}
	if r.Rank < 0 {
		return invalid.Field("dp_rank", "out_of_range", "dp_rank must not be negative, got %d", r.Rank)
	}
	for _, normalize := range []func() error{
		r.normalizeEvents, r.normalizeTTL, r.normalizeServes, r.normalizeAliases, r.normalizePolicies, r.normalizeSequence,
		r.resolveProfile,
	} {
		if err := normalize(); err != nil {
			return err
		}
	}
	if anyEndpoint || r.IsPushed() || r.IsApproximate() {
		return nil
	}
	return r.checkEndpoints()
}

// Texts of a registration are in every list and metric of the server.
const (
	maxName     = 256 // bytes
	maxEndpoint = 1024
	maxServed   = 4096 // instances of a pool
)

// checkLengths names the first text or list that is too long.
func (r *Registration) checkLengths() error {
	for i := range fields {
		f := &fields[i]
		if f.text != nil && f.maxBytes > 0 && len(*f.text(r)) > f.maxBytes {
			return invalid.Field(f.name, "out_of_range", "%s must have at most %d bytes, got %d", f.name, f.maxBytes, len(*f.text(r)))
		}
	}
	if len(r.Serves) > maxServed {
		return invalid.Field("serves", "out_of_range", "serves must name at most %d instances, got %d", maxServed, len(r.Serves))
	}
	return nil
}

// normalizeServes sorts the instances a pool serves.
func (r *Registration) normalizeServes() error {
	if len(r.Serves) == 0 {
		return nil
	}
	if !r.IsPool() {
		return invalid.Field("serves", "invalid_value", "serves is for types %s and %s: blocks of an engine are its own", TypeMooncake,
			TypeLMCache)
	}
	for i, name := range r.Serves {
		if name == "" {
			return &invalid.FieldError{Field: "serves", Index: i, Reason: "invalid_value",
				Message: "serves must not name an empty instance"}
		}
		if len(name) > maxName {
			return &invalid.FieldError{Field: "serves", Index: i, Reason: "out_of_range",
				Message: fmt.Sprintf("serves must have names of at most %d bytes, got %d", maxName, len(name))}
		}
	}
	r.Serves = slices.Compact(slices.Sorted(slices.Values(r.Serves)))
	return nil
}

// Deployment returns the deployment that the registration is for.
func (r *Registration) Deployment() scope.Deployment {
	return scope.Deployment{Tenant: cmp.Or(r.Tenant, scope.DefaultTenant), Model: r.Model, BlockSize: r.BlockSize}
}

// Context returns the context that the registration names.
func (r *Registration) Context() scope.Context {
	return scope.Context{Deployment: r.Deployment(), Variant: r.Variant()}
}

// Variant is the adapter and salt that the registration names.
func (r *Registration) Variant() scope.Variant { return scope.Variant{Lora: r.Lora, Salt: r.Salt} }

// SharesRowsWith reports whether blocks of two registrations count for the same rows.
func (r *Registration) SharesRowsWith(other *Registration) bool {
	return r.Deployment() == other.Deployment() && r.IsPool() == other.IsPool() && slices.Equal(r.Serves, other.Serves)
}
