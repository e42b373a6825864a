package conductor

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"example.com/conductor/conductor/doctor"
	"example.com/conductor/conductor/names"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/events/zmq"
)

// DefaultTenant is the tenant of registrations and queries that name none.
const DefaultTenant = "default"

// Publisher types a registration may name, in their canonical spelling. The
// type never decides how events are decoded; Mooncake and LMCache make the source a pool.
const (
	TypeVLLM     = "vLLM"
	TypeSGLang   = "SGLang"
	TypeMooncake = "Mooncake"
	TypeStandard = "Standard"
	TypeLMCache  = "LMCache" // see shared.go
)

// Key identifies a source.
type Key struct {
	Instance string
	Tenant   string
	Rank     int
}

// String returns instance|tenant|rank, the form clients see.
func (k Key) String() string { return k.Instance + "|" + k.Tenant + "|" + strconv.Itoa(k.Rank) }

// Registration describes one source: where it publishes and what its blocks are.
type Registration struct {
	Endpoint       string
	ReplayEndpoint string
	// SnapshotEndpoint is where the engine gives its whole state away, "" if it does not.
	SnapshotEndpoint string
	Type             string
	Model            string
	Lora             string
	Tenant           string
	Instance         string
	BlockSize        int // tokens per block
	Rank             int // data-parallel rank, used where events name none
	Salt             string
	// TTL is how long a block stays after it was last announced, for publishers
	// that announce no removals; 0 is for ever.
	TTL time.Duration
	// MediaTTL is that of single media, by names that tiers.Parse knows.
	MediaTTL map[string]time.Duration
	// Serves names the instances a pool is bound to, sorted; none is all of them.
	Serves []string
	// Aliases are further names under which the engine serves Model, sorted: see aliases.go.
	Aliases []string
	// Copies, Reports, Owned, Clear and MayAnnounce rule what events of the source do: see
	// policy.go.
	Copies      string
	Reports     string
	Owned       string
	Clear       string
	MayAnnounce []string // tenants, sorted
	// Profile says how the engine names its blocks, for those that come without
	// tokens; the zero value is not known. All engines of a context have one.
	Profile HashProfile
	// Sequence says what the publisher numbers, "" is the rule of its type: see shared.go.
	Sequence string
	// Events, CapacityBlocks and Approximate are for engines that publish no events: see unpublished.go.
	Events         string
	CapacityBlocks int
	Approximate    string
}

// compare orders keys by their fields.
func (k Key) compare(other Key) int {
	return cmp.Or(strings.Compare(k.Instance, other.Instance), strings.Compare(k.Tenant, other.Tenant), cmp.Compare(k.Rank, other.Rank))
}

// Key returns the identity of the source.
func (r Registration) Key() Key { return Key{Instance: r.Instance, Tenant: r.Tenant, Rank: r.Rank} }

// pool reports whether the source holds blocks for other instances and is no
// routable instance itself.
func (r Registration) pool() bool { return r.Type == TypeMooncake || r.Type == TypeLMCache }

// restores reports whether the publisher can bring back what was dropped.
func (r *Registration) restores() bool { return r.ReplayEndpoint != "" || r.SnapshotEndpoint != "" }

// Pool is pool for others.
func (r Registration) Pool() bool { return r.pool() }

// Errors a caller branches on.
var (
	// ErrClosed: the Conductor is shutting down.
	ErrClosed = errors.New("conductor is shutting down")
	// ErrNotFound: no source is registered under the key.
	ErrNotFound = errors.New("service not found")
	// ErrPast: a Replay alone changes this Conductor.
	ErrPast = errors.New("this is a recorded past; sources come from the journal alone")
	// ErrTooManySources: limits.max_sources is reached.
	ErrTooManySources = errors.New("too many registered sources")
)

// FieldError is bad input that names its field. Reason is one of missing,
// invalid_type, invalid_value, out_of_range, conflict, unknown_field.
type FieldError struct {
	Field   string
	Index   int // element of an array field, -1 when the field itself is wrong
	Reason  string
	Message string
}

func (e *FieldError) Error() string { return e.Message }

// Invalid returns a FieldError for a whole field.
func Invalid(field, reason, format string, args ...any) *FieldError {
	return &FieldError{Field: field, Index: -1, Reason: reason, Message: fmt.Sprintf(format, args...)}
}

// ConflictError says that the key is taken by a registration that differs.
type ConflictError struct {
	Key   Key
	Field string // the first field that differs, by its wire name
	Have  string
	Want  string
}

func (e *ConflictError) Error() string {
	return fmt.Sprintf("%s is registered with another %s: have %q, got %q", e.Key, e.Field, e.Have, e.Want)
}

// canonicalType returns the canonical spelling of a publisher type.
func canonicalType(s string) (string, bool) {
	for _, t := range []string{TypeVLLM, TypeSGLang, TypeMooncake, TypeStandard, TypeLMCache} {
		if strings.EqualFold(s, t) {
			return t, true
		}
	}
	return "", false
}

// normalize fills defaults and canonical spellings, or names the first bad field.
// Endpoints are looked at unless any will do.
func (r *Registration) normalize(anyEndpoint bool) error {
	r.Tenant = cmp.Or(r.Tenant, DefaultTenant)
	required := []struct{ field, value string }{
		{"endpoint", r.Endpoint}, {"type", r.Type}, {"modelname", r.Model}, {"instance_id", r.Instance},
	}
	for _, f := range required {
		if f.value == "" && (f.field != "endpoint" || r.Events == "") {
			return Invalid(f.field, "invalid_value", "%s must not be empty", f.field)
		}
	}
	if err := r.bounded(); err != nil {
		return err
	}
	typ, ok := canonicalType(r.Type)
	if !ok {
		return Invalid("type", "invalid_value", "type must be vLLM, SGLang, Mooncake, Standard or LMCache, got %q", r.Type)
	}
	r.Type = typ
	if r.BlockSize <= 0 {
		return Invalid("block_size", "out_of_range", "block_size must be greater than zero, got %d", r.BlockSize)
	}
	if r.Rank < 0 {
		return Invalid("dp_rank", "out_of_range", "dp_rank must not be negative, got %d", r.Rank)
	}
	if err := r.normalizeEvents(); err != nil {
		return err
	}
	if err := r.normalizeTTL(); err != nil {
		return err
	}
	if err := r.normalizeServes(); err != nil {
		return err
	}
	if err := r.normalizeAliases(); err != nil {
		return err
	}
	if err := r.normalizePolicies(); err != nil {
		return err
	}
	if err := r.normalizeSequence(); err != nil {
		return err
	}
	if err := r.resolve(); err != nil || anyEndpoint || r.pushed() || r.approximate() {
		return err
	}
	if err := zmq.CheckLiveEndpoint(r.Endpoint); err != nil {
		return Invalid("endpoint", "invalid_value", "endpoint: %v", err)
	}
	for _, f := range r.dialed() {
		if f.endpoint == "" {
			continue
		}
		if err := zmq.CheckEndpoint(f.endpoint); err != nil {
			return Invalid(f.field, "invalid_value", "%s: %v", f.field, err)
		}
	}
	return nil
}

// Check returns the first bad field of the registration, whatever its endpoints are.
func (r Registration) Check() error { return r.normalize(true) }

// fieldEndpoint is an endpoint under the wire name of its field.
type fieldEndpoint struct{ field, endpoint string }

// dialed returns the endpoints that are asked, and never bound.
func (r *Registration) dialed() []fieldEndpoint {
	return []fieldEndpoint{{"replay_endpoint", r.ReplayEndpoint}, {"snapshot_endpoint", r.SnapshotEndpoint}}
}

// Texts of a registration are in every list and metric of the server.
const (
	maxName     = 256 // bytes
	maxEndpoint = 1024
	maxServed   = 4096 // instances of a pool
)

// registrationText is a text of a registration under the wire name of its field.
type registrationText struct {
	field string
	value *string
	most  int // bytes, 0 where the words are known
}

// texts returns the texts of the registration.
func (r *Registration) texts() [21]registrationText {
	p := &r.Profile
	return [...]registrationText{
		{"endpoint", &r.Endpoint, maxEndpoint}, {"replay_endpoint", &r.ReplayEndpoint, maxEndpoint},
		{"snapshot_endpoint", &r.SnapshotEndpoint, maxEndpoint},
		{"type", &r.Type, maxName}, {"modelname", &r.Model, maxName}, {"lora_name", &r.Lora, maxName},
		{"tenant_id", &r.Tenant, maxName}, {"instance_id", &r.Instance, maxName}, {FieldSalt, &r.Salt, maxName},
		{"copies", &r.Copies, 0}, {"reports", &r.Reports, 0}, {"owned", &r.Owned, 0}, {"clear", &r.Clear, 0}, {"sequence", &r.Sequence, 0},
		{"events", &r.Events, 0}, {"approximate", &r.Approximate, 0},
		{"hash_profile.strategy", &p.Strategy, 0}, {"hash_profile.algorithm", &p.Algorithm, 0},
		{"hash_profile.python_hash_seed", &p.PythonHashSeed, 0},
		{"hash_profile.index_projection", &p.IndexProjection, 0}, {"hash_profile.extra_keys", &p.ExtraKeys, 0},
	}
}

// bounded names the first text that is too long.
func (r *Registration) bounded() error {
	for _, t := range r.texts() {
		if t.most > 0 && len(*t.value) > t.most {
			return Invalid(t.field, "out_of_range", "%s must have at most %d bytes, got %d", t.field, t.most, len(*t.value))
		}
	}
	if len(r.Serves) > maxServed {
		return Invalid("serves", "out_of_range", "serves must name at most %d instances, got %d", maxServed, len(r.Serves))
	}
	return nil
}

// normalizeServes sorts the instances a pool serves.
func (r *Registration) normalizeServes() error {
	if len(r.Serves) == 0 {
		return nil
	}
	if !r.pool() {
		return Invalid("serves", "invalid_value", "serves is for types %s and %s: blocks of an engine are its own", TypeMooncake, TypeLMCache)
	}
	for i, name := range r.Serves {
		if name == "" {
			return &FieldError{Field: "serves", Index: i, Reason: "invalid_value", Message: "serves must not name an empty instance"}
		}
		if len(name) > maxName {
			return &FieldError{Field: "serves", Index: i, Reason: "out_of_range", Message: fmt.Sprintf("serves must have names of at most %d bytes, got %d", maxName, len(name))}
		}
	}
	r.Serves = slices.Compact(slices.Sorted(slices.Values(r.Serves)))
	return nil
}

// Difference is diff for registrations of engines that are asked, before stream.copies counts.
func (r Registration) Difference(want Registration) (field, have, got string) {
	return r.diff(want, "")
}

// diff names the first field in which want differs from the running r, by its
// wire name; "" when they are equal. copies is the word of stream.copies. Aliases are not compared: they
// change without a new source.
func (r Registration) diff(want Registration, copies string) (field, have, got string) {
	for _, f := range []struct{ name, have, got string }{
		{"events", r.Events, want.Events}, // first: another one comes with other endpoints
		{"endpoint", r.Endpoint, want.Endpoint},
		{"replay_endpoint", r.ReplayEndpoint, want.ReplayEndpoint},
		{"snapshot_endpoint", r.SnapshotEndpoint, want.SnapshotEndpoint},
		{"type", r.Type, want.Type},
		{"modelname", r.Model, want.Model},
		{"lora_name", r.Lora, want.Lora},
		{"block_size", fmt.Sprint(r.BlockSize), fmt.Sprint(want.BlockSize)},
		{"additionalsalt", r.Salt, want.Salt},
		{"ttl", r.ttlText(), want.ttlText()},
		{"serves", strings.Join(r.Serves, ", "), strings.Join(want.Serves, ", ")},
		{"copies", cmp.Or(r.Copies, copies), cmp.Or(want.Copies, copies)},
		{"reports", r.Reports, want.Reports},
		{"owned", cmp.Or(r.Owned, OwnedCount), cmp.Or(want.Owned, OwnedCount)},
		{"clear", cmp.Or(r.Clear, ClearAll), cmp.Or(want.Clear, ClearAll)},
		{"may_announce", strings.Join(r.MayAnnounce, ", "), strings.Join(want.MayAnnounce, ", ")},
		{"hash_profile", r.Profile.Summary(), want.Profile.Summary()},
		{"sequence", r.sequenceWord(), want.sequenceWord()},
		{"capacity_blocks", fmt.Sprint(r.CapacityBlocks), fmt.Sprint(want.CapacityBlocks)},
		{"approximate", r.Approximate, want.Approximate},
	} {
		if f.have != f.got {
			return f.name, f.have, f.got
		}
	}
	return "", "", ""
}

// Deployment returns the deployment that the registration is for.
func (r Registration) Deployment() scope.Deployment { return complete(r).deploymentKey() }

func (r Registration) deploymentKey() scope.Deployment {
	return scope.Deployment{Tenant: r.Tenant, Model: r.Model, BlockSize: r.BlockSize}
}

// context returns the context that the registration names.
func (r *Registration) context() scope.Context {
	return scope.Context{Deployment: r.deploymentKey(), Variant: r.variant()}
}

// hashes is how the source hashes.
func (r *Registration) hashes() names.Kind {
	switch {
	case r.pool():
		return names.Pool
	case r.Type == TypeSGLang:
		return names.Salting
	case r.Type == TypeStandard:
		return names.Standard
	}
	return names.Engine
}

// variant is the adapter and salt that the registration names.
func (r *Registration) variant() scope.Variant { return scope.Variant{Lora: r.Lora, Salt: r.Salt} }

// holdsFor reports whether blocks of two registrations count for the same rows.
func (r Registration) holdsFor(other Registration) bool {
	return r.deploymentKey() == other.deploymentKey() && r.pool() == other.pool() && slices.Equal(r.Serves, other.Serves)
}

// observed returns the registration as the doctor of its source needs it.
func (r *Registration) observed() doctor.Registered {
	return doctor.Registered{
		Key: r.Key().String(), Rank: r.Rank, Context: r.context(),
		Type: r.Type, SGLang: r.Type == TypeSGLang, Pool: r.pool(), Chunks: r.Type == TypeLMCache, Reports: r.Reports,
		Expiring: func(medium string) bool { return r.ttl(medium) > 0 },
	}
}

// publisher identifies where the events of a source come from.
type publisher struct {
	endpoint, instance, model string // the last two for shared sequences, and with rank for shared sockets
	rank                      int
}

// publisher returns where the events of the source come from.
func (r Registration) publisher() publisher {
	if r.shared() {
		return publisher{endpoint: r.Endpoint, instance: r.Instance, model: r.Model}
	}
	if !sharedSocket(r.Endpoint) && !r.pushed() {
		return publisher{endpoint: r.Endpoint}
	}
	return publisher{r.Endpoint, r.Instance, r.Model, r.Rank}
}

// sharedSocket reports whether several publishers deliver at an endpoint.
func sharedSocket(endpoint string) bool { return strings.HasPrefix(endpoint, "bind:") }
