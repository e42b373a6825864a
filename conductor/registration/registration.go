package registration

import (
	"cmp"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

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

// Check returns a *FieldError if no registration can have the key, because a name is too long or not UTF-8.
func (k Key) Check() error {
	var bad faults
	r := Registration{Instance: k.Instance, Tenant: k.Tenant}
	if r.checkTexts(&bad); len(bad) > 0 {
		return bad[0]
	}
	return nil
}

// AllRanks is the rank in the name of engines that tell their ranks when they are asked. No source has it.
const AllRanks = -1

// IsInstanceOf reports whether instance is name, or NAME@ADDRESS: one of several addresses of a host name whose engines are asked under
// that name.
func IsInstanceOf(instance, name string) bool {
	rest, begins := strings.CutPrefix(instance, name)
	if !begins || rest == "" {
		return begins
	}
	_, err := netip.ParseAddr(rest[1:])
	return rest[0] == '@' && err == nil
}

// String returns instance|tenant|rank, the form clients see.
func (k Key) String() string { return k.Instance + "|" + k.Tenant + "|" + strconv.Itoa(k.Rank) }

// Registration describes one source: where it publishes and what its blocks are. The zero value of a field is the
// rule that most sources need.
//
// This is the only list of the fields. The comment above a field is its description in openapi.yaml and
// docs/settings.md, so it speaks to the people who register engines; what matters to code alone stands behind the field.
// The tags say how the field is written and which values it may have: see fields.go. json has the names in the
// registry that replicas share.
type Registration struct {
	// Where the engine publishes its events (ZMQ PUB): tcp://host:port, tcp://[::1]:port or ipc://path. With
	// bind:tcp://*:port the engine connects to Conductor instead, publishes under the topic kv@instance_id@modelname,
	// and its batches name dp_rank. push: is for type LMCache, if its instances send their events to POST
	// /lmcache/events.
	Endpoint string `json:"endpoint,omitempty" required:"yes" bytes:"1024"`

	// Where the engine replays batches that Conductor missed (ZMQ ROUTER). Give it whenever the engine has one: without
	// it, a lost batch leaves the source partial until the engine clears its cache or restarts.
	ReplayEndpoint string `json:"replay_endpoint,omitempty" bytes:"1024"`

	// Where the engine gives its whole cache state away (ZMQ ROUTER), so that a late start or a lost batch does no
	// harm. Conductor asks it before it asks for a replay. Copies are counted then, so copies set is refused (400). Not
	// for types Mooncake and LMCache.
	SnapshotEndpoint string `json:"snapshot_endpoint,omitempty" bytes:"1024"`

	// What publishes: vLLM, SGLang, Mooncake, LMCache, or Standard for other publishers of standardized events; in
	// upper or lower case. Mooncake and LMCache are pools, whose blocks count for the instances of other sources.
	Type string `json:"type,omitempty" required:"yes" words:"vLLM|SGLang|Mooncake|Standard|LMCache" bytes:"256"`

	// Name of the model, as queries give it. Also accepted as `model` and `model_name`.
	Model string `json:"modelname,omitempty" required:"yes" also:"model|model_name" bytes:"256"`

	// Adapter of the blocks whose events name none. Leave it out unless the engine serves a single adapter without
	// naming it.
	Lora string `json:"lora_name,omitempty" bytes:"256"` // "" for the base model

	// Tenant that the blocks belong to. Only its queries find them.
	Tenant string `json:"tenant_id,omitempty" default:"default" bytes:"256"` // "" until Normalize fills the default in

	// Name of the engine, by which answers and routers call it. All ranks of an engine have the same one.
	Instance string `json:"instance_id" required:"yes" bytes:"256"`

	// Tokens in a block, as the engine cuts prompts. With auto, or if you leave it out with discover, Conductor learns
	// it from the engine or its first events; until then the engine is in no answer.
	BlockSize int `json:"block_size" required:"yes" min:"1" auto:"yes"` // 0 while it is not known

	// Data-parallel rank; 0 for an engine that has only one. Engines add it to the ports of their tcp endpoints. You
	// may leave it out with discover, events none, or endpoint push:.
	Rank int `json:"dp_rank" required:"yes" min:"0"`

	// Salt of the blocks whose events carry none. Only queries with the same `cache_salt` find them.
	Salt string `json:"additionalsalt,omitempty" also:"additional_salt" bytes:"256"`

	// How long a block stays after it was last announced, such as 10m. Set it for a publisher that announces no
	// removals, to the time that blocks stay there: a longer one promises blocks that are gone, a shorter one makes
	// answers too short. A block goes after at least half of the time, and at most all of it. An object gives single
	// media their own time, such as {"STORAGE": "1h"}; with "0s" blocks stay until they are removed.
	TTL time.Duration `json:"ttl_ns,omitempty" name:"ttl"`
	// MediaTTL has the times of single media, by names that tiers.ParseMedium knows. It is a part of ttl.
	MediaTTL map[string]time.Duration `json:"media_ttl_ns,omitempty" name:"-"`

	// Instances that can use the blocks of a pool (type Mooncake or LMCache), such as those on the node of its daemon.
	// When absent, all instances of the deployment.
	Serves []string `json:"serves,omitempty" items:"4096" bytes:"256"` // sorted

	// Further names of the model, such as those after the first of vLLM's `--served-model-name`: a query of the tenant
	// for one of them is a query for the model. With discover the engine tells them. You can register again with other
	// aliases; the blocks stay.
	Aliases []string `json:"aliases,omitempty" items:"64" bytes:"256" since:"3" live:"yes"` // sorted, without Model

	// Adapters (LoRA) that requests call by a name of their own in the place of the model, as vLLM lists them in
	// /v1/models: a query for one of them as `model` is a query for the model with that `lora_name`. With discover a vLLM
	// tells them. You can register again with other adapters; the blocks stay, unless discover is set. Not for pools.
	Adapters []string `json:"adapters,omitempty" items:"1024" bytes:"256" since:"4" live:"yes"` // sorted

	// Where the engine takes requests: the base URL of its HTTP server, such as http://10.0.0.7:8000. Routers that ask
	// for it find it in their answers. With discover it is the URL that Conductor asks. You can register again with
	// another address; the blocks stay, unless discover is set. Not for pools.
	Address string `json:"address,omitempty" bytes:"1024" since:"4" live:"yes"`

	// What the engine does where one engine computes the prompt and another one generates: prefill or decode. Routers that
	// ask for it find it in GET /instances; answers do not change. You can register again with another role; the blocks
	// stay, unless discover is set. Not for pools.
	Role string `json:"role,omitempty" words:"prefill|decode" since:"4" live:"yes"`

	// What it means if a block is stored twice. With count it leaves after as many removals as stores, with set at the
	// first removal: choose set for a publisher that repeats stores but not removals. When absent, the setting
	// stream.copies decides. Not for pools.
	Copies string `json:"copies,omitempty" words:"count|set"`

	// What it means if the engine stores a block that is on its device already. Set full if its requests use
	// kv_cache_report_mode full: it is then a reuse, and no further copy. With incremental it is a further copy. When
	// absent, it counts as a copy until the engine's events show that it cannot be one (finding copies_grow). Not for
	// pools.
	Reports string `json:"reports,omitempty" words:"incremental|full" since:"3"`

	// Set drops_last_block if the engine has a drafter (EAGLE, MTP) for which it computes the last block of each hit again:
	// vLLM before 0.33, and later with a KV connector or disable_lookahead_block_hashes. Answers are then a block shorter.
	// For a model with sliding windows, set drops_in_windows if the drafter's layers have one, and drops_in_all_groups for
	// a vLLM that does not tell the drafter's layers apart, such as 0.24. Leave it out if the engine's events have
	// lookahead_token_ids. Not for pools.
	Drafter string `json:"drafter,omitempty" words:"drops_last_block|drops_in_windows|drops_in_all_groups" since:"3"`

	// What to do with copies of the KV Cache Runner (ownership kvcr): count keeps them next to the engine's own, drop
	// leaves their events out. Not for pools.
	Owned string `json:"owned,omitempty" words:"count|drop" default:"count"` // "" is count

	// What an AllBlocksCleared of the engine clears: all tiers, or only its device. Leave it out for vLLM: its device is
	// then cleared at once, and each lower tier once the engine stores a block there again that it should still have.
	// Set all if every reset of your engine resets its connector too, and device if none does. Types other than vLLM
	// clear all by default. Not for pools.
	Clear string `json:"clear,omitempty" words:"all|device"` // "" is as JudgesResets says for vLLM, else all

	// Further tenants that the events of the source may name. Only the configuration file can set it: over HTTP a
	// tenant here is refused (400), and a source of the file keeps the tenants that it has.
	MayAnnounce []string `json:"may_announce,omitempty"` // sorted, without Tenant

	// What the publisher numbers: own is the batches of this source, shared is those of all its topics together. With
	// shared, the source is the topic kv@instance_id@modelname, and a batch of another topic only moves the watermark.
	// The default is shared for type LMCache, and own for all others.
	Sequence string `json:"sequence,omitempty" words:"own|shared"` // "" is the default of the type

	// Set none for an engine that publishes no KV events, such as llama.cpp, TGI, or vLLM with events off. Conductor
	// then connects to nothing, and expects the engine to hold what routers report, so leave out the endpoints,
	// discover and all fields about events. type says how its blocks are hashed: Standard for an engine without a type
	// of its own. Not for pools.
	Events string `json:"events,omitempty" words:"none" since:"3"`

	// How many blocks the engine's cache has room for; required with events none, and refused otherwise. Beyond it
	// Conductor takes the least recently used blocks for evicted. If it is less than the engine has, answers are too
	// short; if it is more, they promise blocks that are gone.
	CapacityBlocks int `json:"capacity_blocks,omitempty" min:"1" since:"3"`

	// With count, the blocks that an engine with events none is expected to hold count in the lengths of its rows, as
	// if it had announced them on its device. Without it these lengths are 0, and expected alone has the blocks.
	Approximate string `json:"approximate,omitempty" words:"count" since:"3"`

	// How the engine computes the hashes that name its blocks. It is needed where blocks come without their tokens,
	// which is usual for pools and lower tiers. All engines of a tenant, model, block size and adapter have the same
	// one; another is refused (409).
	Profile HashProfile `json:"hash_profile,omitzero"` // the zero value is not known
}

// Unique returns the key as a text that no other key has: names may have any character, so String is not unique.
func (k Key) Unique() string {
	return strconv.Quote(k.Instance) + " " + strconv.Quote(k.Tenant) + " " + strconv.Itoa(k.Rank)
}

// Compare orders keys by their fields.
func (k Key) Compare(other Key) int {
	return cmp.Or(strings.Compare(k.Instance, other.Instance), strings.Compare(k.Tenant, other.Tenant), cmp.Compare(k.Rank, other.Rank))
}

// Key returns the identity of the source.
func (r Registration) Key() Key { return Key{Instance: r.Instance, Tenant: r.Tenant, Rank: r.Rank} }

// InstanceKey returns the key that all ranks of the engine share: it has AllRanks.
func (r *Registration) InstanceKey() Key {
	return Key{Instance: r.Instance, Tenant: r.Tenant, Rank: AllRanks}
}

// IsPool reports whether the source holds blocks for other instances and is no
// routable instance itself.
func (r *Registration) IsPool() bool { return r.Type == TypeMooncake || r.Type == TypeLMCache }

// CanRestore reports whether the publisher can bring back what was dropped.
func (r *Registration) CanRestore() bool { return r.ReplayEndpoint != "" || r.SnapshotEndpoint != "" }

// canonicalWord returns the spelling that a field has for one of its words.
func canonicalWord(field, s string) (string, bool) {
	for _, word := range Named(field).Words {
		if strings.EqualFold(s, word) {
			return word, true
		}
	}
	return "", false
}

// faults collects what is wrong with a registration.
type faults []*invalid.FieldError

func (f *faults) add(field, reason, format string, args ...any) {
	*f = append(*f, invalid.Field(field, reason, format, args...))
}

// addElement adds a fault of one element of a list.
func (f *faults) addElement(field string, i int, reason, format string, args ...any) {
	f.add(field, reason, format, args...)
	(*f)[len(*f)-1].Index = i
}

// Normalize fills defaults and canonical spellings. It returns a *FieldError for the first bad field. With anyEndpoint it
// takes endpoints as they are: one that can never work makes a source that has failed.
func (r *Registration) Normalize(anyEndpoint bool) error {
	if all := r.Validate(anyEndpoint); len(all) > 0 {
		return all[0]
	}
	return nil
}

// Validate does what Normalize does, and returns every bad field instead of the first.
func (r *Registration) Validate(anyEndpoint bool) []*invalid.FieldError {
	var bad faults
	r.Tenant = cmp.Or(r.Tenant, scope.DefaultTenant)
	for i := range Table {
		f := &Table[i]
		text, isText := f.Of(r).(*string)
		switch {
		case !isText || !f.Required || *text != "" || len(f.Index) > 1: // resolveProfile looks at the fields of a profile
		case f.Name == "endpoint" && r.Events != "":
		case f.Words != nil:
			bad.add(f.Name, "missing", "%s is required: one of %s", f.Name, strings.Join(f.Words, ", "))
		default:
			bad.add(f.Name, "missing", "%s is required", f.Name)
		}
	}
	r.checkTexts(&bad)
	if typ, ok := canonicalWord("type", r.Type); ok {
		r.Type = typ
	} else if r.Type != "" {
		bad.add("type", "invalid_value", "type must be vLLM, SGLang, Mooncake, Standard or LMCache, got %q", r.Type)
	}
	if r.BlockSize <= 0 {
		bad.add("block_size", "out_of_range", "block_size must be greater than zero, got %d", r.BlockSize)
	}
	if r.Rank < 0 {
		bad.add("dp_rank", "out_of_range", "dp_rank must not be negative, got %d", r.Rank)
	}
	r.normalizeEvents(&bad)
	r.normalizeTTL(&bad)
	r.normalizeLists(&bad)
	checkAddress(r, &bad)
	r.normalizePolicies(&bad)
	r.normalizeSequence(&bad)
	checkTopic(r, &bad)
	r.resolveProfile(&bad)
	if !anyEndpoint && !r.IsPushed() && !r.IsApproximate() {
		r.checkEndpoints(&bad)
	}
	return bad
}

// checkTexts finds texts and lists that are too long, and texts that are not UTF-8: they are in every list and metric of the
// server. Names that differ in bytes that are not UTF-8 would be one name in JSON.
func (r *Registration) checkTexts(bad *faults) {
	for i := range Table {
		f := &Table[i]
		switch v := f.Of(r).(type) {
		case *string:
			switch {
			case f.MaxBytes > 0 && len(*v) > f.MaxBytes:
				bad.add(f.Name, "out_of_range", "%s must have at most %d bytes, got %d", f.Name, f.MaxBytes, len(*v))
			case len(f.Index) == 1 && !utf8.ValidString(*v): // resolveProfile looks at the fields of a profile
				bad.add(f.Name, "invalid_value", "%s must be UTF-8", f.Name)
			}
		case *[]string:
			if f.MaxItems > 0 && len(*v) > f.MaxItems {
				bad.add(f.Name, "out_of_range", "%s must have at most %d names, got %d", f.Name, f.MaxItems, len(*v))
				continue
			}
			bad.checkNames(f, *v)
		}
	}
}

// checkNames adds the first element of a list that is empty or too long.
func (f *faults) checkNames(of *Field, names []string) {
	empty := "have an empty name"
	switch of.Name {
	case "serves":
		empty = "name an empty instance"
	case "may_announce":
		empty = "name an empty tenant"
	}
	for i, name := range names {
		switch {
		case name == "":
			f.addElement(of.Name, i, "invalid_value", "%s must not %s", of.Name, empty)
			return
		case of.MaxBytes > 0 && len(name) > of.MaxBytes:
			f.addElement(of.Name, i, "out_of_range", "%s must have names of at most %d bytes, got %d", of.Name, of.MaxBytes, len(name))
			return
		case !utf8.ValidString(name):
			f.addElement(of.Name, i, "invalid_value", "%s must be UTF-8", of.Name)
			return
		}
	}
}

// normalizeLists sorts the lists of names, each name once, and drops those that mean nothing.
func (r *Registration) normalizeLists(bad *faults) {
	if len(r.Serves) > 0 && !r.IsPool() {
		bad.add("serves", "invalid_value", "serves is for types %s and %s: blocks of an engine are its own", TypeMooncake, TypeLMCache)
	}
	for _, f := range []struct {
		name  string
		given bool
	}{{"aliases", len(r.Aliases) > 0}, {"adapters", len(r.Adapters) > 0}, {"address", r.Address != ""}} {
		if f.given && r.IsPool() {
			bad.add(f.name, "invalid_value", "%s is for engines, not for type %s", f.name, r.Type)
		}
	}
	for _, list := range []struct {
		names *[]string
		own   string
	}{{&r.Serves, ""}, {&r.Aliases, r.Model}, {&r.Adapters, r.Model}, {&r.MayAnnounce, r.Tenant}} {
		names := slices.Compact(slices.Sorted(slices.Values(*list.names)))
		names = slices.DeleteFunc(names, func(name string) bool { return name == list.own })
		if *list.names = names; len(names) == 0 {
			*list.names = nil
		}
	}
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
