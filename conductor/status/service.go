package status

import (
	"cmp"
	"reflect"
	"strings"
	"time"

	"example.com/conductor/conductor/doctor"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/events"
	"example.com/conductor/events/stream"
)

// Service is the row of a source in GET /services.
//
// This struct and those below it are the only list of the fields. `make docs` writes openapi.yaml and the types of the Go
// client from them, where the comment above a field is its description, so it speaks to people who ask a server; what
// matters to code alone stands behind the field. The tags are
//
//	of     the field of Source that has the value, where its name is another one; "-" for a value that Source.Service
//	       computes
//	words  the values of a text that is one of a few, where the registration does not say them
//	json   what is left out
//
// The types decide the bytes in msgpack, and the order of the fields is that on the wire.
type Service struct {
	// Where the publisher sends its events; empty for clients that may not see endpoints, as ReplayEndpoint and
	// SnapshotEndpoint.
	Endpoint string
	// Where the publisher replays batches that were missed; empty if it does not.
	ReplayEndpoint string
	// Where the engine gives its whole cache state away; absent if it does not.
	SnapshotEndpoint string `json:",omitempty"`
	// Kind of the publisher.
	Type string
	// Name of the model.
	ModelName string `of:"Model"`
	// Adapter of the blocks whose events name none, empty for the base model.
	LoraName string `of:"Lora"`
	// Tenant that the blocks belong to.
	TenantID string `of:"Tenant"`
	// Name of the engine or the pool.
	InstanceID string `of:"Instance"`
	// Tokens in a block.
	BlockSize int
	// Data-parallel rank.
	DPRank int `of:"Rank"`
	// Salt of the blocks whose events carry none; for clients that may not see salts a text that stands for it.
	AdditionalSalt string `of:"Salt"`
	// Instances a pool is bound to; absent for all.
	Serves []string `json:",omitempty"`
	// Further names of the model in queries; absent without any.
	Aliases []string `json:",omitempty"`
	// Adapters that queries may name in the place of the model; absent without any.
	Adapters []string `json:",omitempty"`
	// Where the engine takes requests; absent where that is not known.
	Address string `json:",omitempty"`
	// What the engine does where one computes a prompt and another one generates (`prefill`, `decode`); absent for both.
	Role string `json:",omitempty"`
	// Whether a block that is stored twice leaves after as many removals as stores (`count`) or at the first removal
	// (`set`); absent if the setting stream.copies decides.
	Copies string `json:",omitempty"`
	// What it means if the engine stores a block that is on its device already: a reuse (`full`) or a further copy
	// (`incremental`); absent if the registration does not say.
	Reports string `json:",omitempty"`
	// The engine's drafter has the last block of each hit computed again: in groups with full attention (`drops_last_block`), with
	// sliding windows (`drops_in_windows`), or both (`drops_in_all_groups`); absent if it does not.
	Drafter string `json:",omitempty"`
	// Whether copies of the KV Cache Runner are left out (`drop`); absent if they count next to the engine's own.
	Owned string `json:",omitempty"`
	// What an AllBlocksCleared of the engine clears, if the registration says so: only its device (`device`) or all tiers
	// (`all`).
	Clear string `json:",omitempty"`
	// Tenants besides TenantID that events of the source may name; absent for none.
	MayAnnounce []string `json:",omitempty"`
	// How the engine computes the hashes that name its blocks; absent where that is not known.
	HashProfile *HashProfile `of:"-" json:",omitempty"`
	// What the publisher numbers: the batches of this source (`own`) or those of all its topics together (`shared`); absent
	// if it is what Type usually does.
	Sequence string `json:",omitempty"`
	// The engine publishes no events; absent for one that does.
	Events string `of:"Registration.Events" json:",omitempty"`
	// Blocks that the engine's cache has room for; only with Events.
	CapacityBlocks int `json:",omitempty"`
	// Expected blocks of the engine count as held; absent where they do not.
	Approximate string `json:",omitempty"`
	// Time to live of blocks on media that MediaTTL does not name; absent without one.
	TTL string `of:"-" json:",omitempty"`
	// Time to live of blocks by medium, 0s for ever; absent without one.
	MediaTTL map[string]string `of:"-" json:",omitempty"`

	// Who registered the source: the settings, a client, discovery (its engine was asked where it publishes), or another
	// replica, through the store. A source with `peer` is not registered here: it came with the blocks of a peer.
	Registered string `of:"By.Kind" words:"configuration|client|discovery|replica|peer"`
	// Name of the client's credentials, URL that was asked, or id of the replica; empty if there is none, and for clients
	// that may not see endpoints.
	RegisteredBy string `of:"By.Name"`
	// When it was registered first. A restart keeps it with snapshot.dir.
	RegisteredAt time.Time `of:"-"`

	// How far the answers about the source can be trusted.
	State stream.State
	// Why the state is what it is.
	Reason string
	// Lifetimes of the publisher seen so far.
	Epoch uint64
	// Last applied batch; null before the first.
	LastSeq *uint64
	// Memberships; a block on two tiers counts twice.
	Blocks int
	// Attention groups that the engine has announced, by rank and number; absent if each rank has one, and that has full
	// attention.
	Groups []ServiceGroup `of:"-" json:",omitempty"`
	// Blocks that wait for a parent which is not known yet.
	Orphans int
	// Only of a pool: objects that are bound to a block; other objects of the block may be missing.
	Objects *int `of:"-" json:",omitempty"`
	// Since the last batch; null before the first.
	AgeMs *int64 `of:"-"`
	// Where the blocks come from: a snapshot of the engine, the server's own snapshot, a peer, what another replica left in
	// the store, the engine's replays, what it has published since the connection, or, of an engine with events none, what
	// routers have reported.
	HistoryFrom string `words:"engine_snapshot|snapshot|peer|shelf|replay|live|reports"`
	// Requests for snapshots of the engine; only of a source with a snapshot endpoint.
	EngineSnapshots *EngineSnapshots `of:"-" json:",omitempty"`
	// Holes found in the sequence of batches.
	Gaps uint64
	// Applied batches that came from a replay.
	Replayed uint64
	// Restarts of the publisher noticed.
	Restarts uint64
	// Replays that began after the batch asked for.
	Overruns uint64
	// Batches that came twice.
	Duplicates uint64
	// Connections after the first.
	Reconnects uint64
	// Messages, events and hashes skipped.
	Dropped uint64 `of:"-"`
	// Dropped by reason.
	DroppedBy map[events.Reason]uint64 `of:"Dropped"`
	// Last failure of the connection, of decoding, or of applying; it stays until the next.
	LastError string
	// What the doctor found about the source, at most one of each code.
	Findings []ServiceFinding `of:"-"`
	// How good the expectations of the instance were, in tokens and over all its ranks; absent while no router has reported
	// a prompt for it (`POST /routed`), and of pools.
	Expected *ServiceExpectations `of:"-" json:",omitempty"`
}

// EngineSnapshots are the requests for snapshots of the engine, of a source that has a snapshot endpoint.
type EngineSnapshots struct {
	// How far the requests have come. After failed there is another request where it would help.
	State string `of:"SnapshotState" words:"waiting|applying|applied|failed"`
	// Memberships of the source behind the last snapshot.
	Blocks int `of:"SnapshotBlocks"`
	// Snapshots that were applied.
	Applied uint64 `of:"Snapshots"`
	// Requests without a snapshot by reason; null without any.
	Failed map[string]uint64 `of:"SnapshotFailures"`
	// Why the last request failed; empty after a snapshot.
	Reason string `of:"SnapshotReason"`
}

// ServiceGroup is an attention group of a rank.
type ServiceGroup struct {
	// Data-parallel rank.
	DPRank int `of:"Rank"`
	// Number of the group in the engine's events.
	Group int `of:"Number"`
	// Kind of the layers, such as full_attention, sliding_window or mamba; empty if no event has named it.
	Kind string
	// Tokens of the sliding window; 0 without one.
	Window int
	// Tokens in a block of the group; 0 if no event has said it.
	BlockSize int `least:"0"`
	// Memberships of the group, in blocks of the registered size.
	Blocks int
}

// ServiceFinding is one finding of the doctor about a source.
type ServiceFinding struct {
	// Name of the finding, as in docs/findings.md.
	Code string
	// `error`: answers are wrong or lack something, and an operator must act. `warning`: answers are limited, or will be.
	// `info`: there is nothing to do.
	Severity doctor.Severity `words:"error|warning|info"`
	// The observation, the registration, the remedy.
	Message string
	// When it was found.
	Since time.Time
}

// ServiceExpectations is how good the expectations of an instance were, in tokens.
type ServiceExpectations struct {
	// Reports since the instance was registered.
	Prompts uint64
	// Tokens of those prompts that the instance did not have: the sum of confirmed, expired, taken back, dropped, evicted
	// and pending.
	Tokens uint64 `of:"Expected"`
	// Announced by the engine in time.
	Confirmed uint64
	// Not announced in time: wasted.
	Expired uint64
	// Taken back by the router, with DELETE /routed/{id}.
	TakenBack uint64
	// Dropped because the engine restarted, was cleared or left, or for want of room.
	Dropped uint64
	// Evicted from an engine with `events: none`, for want of room or because its `ttl` was over.
	Evicted uint64
	// Expected now.
	Pending uint64
	// Part of the tokens confirmed and expired that were confirmed; null while there are none, as always of an engine with
	// `events: none`.
	ConfirmedShare *float64 `of:"-"`
	// How long half of the blocks took from the report to the event, of late; null while none has come.
	DelayP50Seconds *float64 `of:"-"`
	// The same for 90 % of the blocks.
	DelayP90Seconds *float64 `of:"-"`
	// The same for 99 % of the blocks.
	DelayP99Seconds *float64 `of:"-"`
	// How long a report without ttl lasts now, at the rank with the longest; of an engine with `events: none` the `ttl` of
	// its registration, null without one.
	TTLSeconds *float64 `of:"-"`
}

// HashProfile is registration.HashProfile under the names that it has in requests.
type HashProfile struct {
	Strategy        string `json:"strategy"`
	Algorithm       string `json:"algorithm"`
	PythonHashSeed  string `json:"python_hash_seed"`
	RootDigest      string `json:"root_digest"`
	IndexProjection string `json:"index_projection"`
	ExtraKeys       string `json:"extra_keys,omitempty"`
}

var (
	copyService      = copier[Service, Source]()
	copyGroup        = copier[ServiceGroup, Group]()
	copySnapshots    = copier[EngineSnapshots, Source]()
	copyExpectations = copier[ServiceExpectations, Expectations]()
	copyProfile      = copier[HashProfile, registration.HashProfile]()
)

// copier returns a function that copies to each field of a row the field that its tag of names. It panics if there is no
// such field of the same type, so a row with a field that nothing fills in does not start.
func copier[Row, From any]() func(*Row, *From) {
	row := reflect.TypeFor[Row]()
	from := make([][]int, row.NumField()) // indexes of fields; nil for a value that is computed
	for i := range from {
		field := row.Field(i)
		of, path := reflect.TypeFor[From](), cmp.Or(field.Tag.Get("of"), field.Name)
		if path == "-" {
			continue
		}
		for name := range strings.SplitSeq(path, ".") {
			f, _ := of.FieldByName(name)
			of, from[i] = f.Type, append(from[i], f.Index...)
		}
		if of != field.Type {
			panic("BUG: nothing fills in " + row.Name() + "." + field.Name)
		}
	}
	return func(to *Row, source *From) {
		row, values := reflect.ValueOf(to).Elem(), reflect.ValueOf(source).Elem()
		for i, index := range from {
			if index != nil {
				row.Field(i).Set(values.FieldByIndex(index))
			}
		}
	}
}

// Service returns the row of the source. It shares slices and maps with the source.
func (s *Source) Service() (row Service) {
	copyService(&row, s)
	if s.Profile != (registration.HashProfile{}) {
		row.HashProfile = new(HashProfile)
		copyProfile(row.HashProfile, &s.Profile)
	}
	if s.TTL > 0 {
		row.TTL = s.TTL.String()
	}
	for medium, ttl := range s.MediaTTL {
		if row.MediaTTL == nil {
			row.MediaTTL = make(map[string]string)
		}
		row.MediaTTL[medium] = ttl.String()
	}
	row.RegisteredAt = s.By.At.UTC()
	if s.Type == registration.TypeMooncake {
		row.Objects = &s.Objects
	}
	if s.Age >= 0 {
		ms := s.Age.Milliseconds()
		row.AgeMs = &ms
	}
	if s.AsksSnapshots {
		row.EngineSnapshots = new(EngineSnapshots)
		copySnapshots(row.EngineSnapshots, s)
	}
	for i := range s.Groups {
		row.Groups = append(row.Groups, ServiceGroup{})
		copyGroup(&row.Groups[i], &s.Groups[i])
	}
	row.Dropped = Sum(s.Dropped)
	row.Findings = make([]ServiceFinding, len(s.Findings))
	for i, f := range s.Findings {
		row.Findings[i] = ServiceFinding{f.Code, f.Severity(), f.Message, f.Since}
	}
	if s.Expected != nil {
		row.Expected = s.Expected.published()
	}
	return row
}

// published returns the expectations as Service has them.
func (e *Expectations) published() *ServiceExpectations {
	row := new(ServiceExpectations)
	copyExpectations(row, e)
	if share, known := e.Share(); known {
		row.ConfirmedShare = &share
	}
	seconds := func(d time.Duration) *float64 {
		if s := d.Seconds(); s > 0 {
			return &s
		}
		return nil
	}
	row.DelayP50Seconds, row.DelayP90Seconds, row.DelayP99Seconds = seconds(e.Delay[0]), seconds(e.Delay[1]), seconds(e.Delay[2])
	row.TTLSeconds = seconds(e.TTL)
	return row
}

// Sum adds up counts that are kept by reason.
func Sum[Reason ~string](counts map[Reason]uint64) (n uint64) {
	for _, by := range counts {
		n += by
	}
	return n
}
