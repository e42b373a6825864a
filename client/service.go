package client

import (
	"context"
	"net/http"
	"time"
)

// Services returns the sources that the credentials may see.
func (c *Client) Services(ctx context.Context) ([]Service, error) {
	var answer struct{ Services []Service }
	err := c.do(ctx, http.MethodGet, "/conductor/v1/services", nil, &answer)
	return answer.Services, err
}

// services: written by make docs

// Service is one source of GET /services.
type Service struct {
	// Where the publisher sends its events; empty for clients that may not see endpoints, as
	// ReplayEndpoint and SnapshotEndpoint.
	Endpoint string
	// Where the publisher replays batches that were missed; empty if it does not.
	ReplayEndpoint string
	// Where the engine gives its whole cache state away; absent if it does not.
	SnapshotEndpoint string
	// Kind of the publisher.
	Type string
	// Name of the model.
	ModelName string
	// Adapter of the blocks whose events name none, empty for the base model.
	LoraName string
	// Tenant that the blocks belong to.
	TenantID string
	// Name of the engine or the pool.
	InstanceID string
	// Tokens in a block.
	BlockSize int
	// Data-parallel rank.
	DPRank int
	// Salt of the blocks whose events carry none; for clients that may not see salts a text that stands
	// for it.
	AdditionalSalt string
	// Instances a pool is bound to; absent for all.
	Serves []string
	// Further names of the model in queries; absent without any.
	Aliases []string
	// Adapters that queries may name in the place of the model; absent without any.
	Adapters []string
	// Where the engine takes requests; absent where that is not known.
	Address string
	// What the engine does where one computes a prompt and another one generates (`prefill`, `decode`);
	// absent for both.
	Role string
	// Whether a block that is stored twice leaves after as many removals as stores (`count`) or at the
	// first removal (`set`); absent if the setting stream.copies decides.
	Copies string
	// What it means if the engine stores a block that is on its device already: a reuse (`full`) or a
	// further copy (`incremental`); absent if the registration does not say.
	Reports string
	// The engine's drafter has the last block of each hit computed again: in groups with full attention
	// (`drops_last_block`), with sliding windows (`drops_in_windows`), or both (`drops_in_all_groups`);
	// absent if it does not.
	Drafter string
	// Whether copies of the KV Cache Runner are left out (`drop`); absent if they count next to the
	// engine's own.
	Owned string
	// What an AllBlocksCleared of the engine clears, if the registration says so: only its device
	// (`device`) or all tiers (`all`).
	Clear string
	// Tenants besides TenantID that events of the source may name; absent for none.
	MayAnnounce []string
	// How the engine computes the hashes that name its blocks; absent where that is not known.
	HashProfile *HashProfile
	// What the publisher numbers: the batches of this source (`own`) or those of all its topics together
	// (`shared`); absent if it is what Type usually does.
	Sequence string
	// The engine publishes no events; absent for one that does.
	Events string
	// Blocks that the engine's cache has room for; only with Events.
	CapacityBlocks int
	// Expected blocks of the engine count as held; absent where they do not.
	Approximate string
	// Time to live of blocks on media that MediaTTL does not name; absent without one.
	TTL string
	// Time to live of blocks by medium, 0s for ever; absent without one.
	MediaTTL map[string]string
	// Who registered the source: the settings, a client, discovery (its engine was asked where it
	// publishes), or another replica, through the store. A source with `peer` is not registered here: it
	// came with the blocks of a peer.
	Registered string
	// Name of the client's credentials, URL that was asked, or id of the replica; empty if there is none,
	// and for clients that may not see endpoints.
	RegisteredBy string
	// When it was registered first. A restart keeps it with snapshot.dir.
	RegisteredAt time.Time
	// How far the answers about the source can be trusted.
	State string
	// Why the state is what it is.
	Reason string
	// Lifetimes of the publisher seen so far.
	Epoch uint64
	// Last applied batch; null before the first.
	LastSeq *uint64
	// Memberships; a block on two tiers counts twice.
	Blocks int
	// Attention groups that the engine has announced, by rank and number; absent if each rank has one, and
	// that has full attention.
	Groups []ServiceGroup
	// Blocks that wait for a parent which is not known yet.
	Orphans int
	// Only of a pool: objects that are bound to a block; other objects of the block may be missing.
	Objects *int
	// Since the last batch; null before the first.
	AgeMs *int64
	// Where the blocks come from: a snapshot of the engine, the server's own snapshot, a peer, what
	// another replica left in the store, the engine's replays, what it has published since the connection,
	// or, of an engine with events none, what routers have reported.
	HistoryFrom string
	// Requests for snapshots of the engine; only of a source with a snapshot endpoint.
	EngineSnapshots *EngineSnapshots
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
	Dropped uint64
	// Dropped by reason.
	DroppedBy map[string]uint64
	// Last failure of the connection, of decoding, or of applying; it stays until the next.
	LastError string
	// What the doctor found about the source, at most one of each code.
	Findings []ServiceFinding
	// How good the expectations of the instance were, in tokens and over all its ranks; absent while no
	// router has reported a prompt for it (`POST /routed`), and of pools.
	Expected *ServiceExpectations
}

// EngineSnapshots are the requests for snapshots of an engine.
type EngineSnapshots struct {
	// How far the requests have come. After failed there is another request where it would help.
	State string
	// Memberships of the source behind the last snapshot.
	Blocks int
	// Snapshots that were applied.
	Applied uint64
	// Requests without a snapshot by reason; null without any.
	Failed map[string]uint64
	// Why the last request failed; empty after a snapshot.
	Reason string
}

// ServiceGroup is an attention group of a rank.
type ServiceGroup struct {
	// Data-parallel rank.
	DPRank int
	// Number of the group in the engine's events.
	Group int
	// Kind of the layers, such as full_attention, sliding_window or mamba; empty if no event has named it.
	Kind string
	// Tokens of the sliding window; 0 without one.
	Window int
	// Tokens in a block of the group; 0 if no event has said it.
	BlockSize int
	// Memberships of the group, in blocks of the registered size.
	Blocks int
}

// ServiceFinding is what the doctor of the server found about a source.
type ServiceFinding struct {
	// Name of the finding, as in docs/findings.md.
	Code string
	// `error`: answers are wrong or lack something, and an operator must act. `warning`: answers are
	// limited, or will be. `info`: there is nothing to do.
	Severity string
	// The observation, the registration, the remedy.
	Message string
	// When it was found.
	Since time.Time
}

// ServiceExpectations is how good the expectations of an instance were, in tokens.
type ServiceExpectations struct {
	// Reports since the instance was registered.
	Prompts uint64
	// Tokens of those prompts that the instance did not have: the sum of confirmed, expired, taken back,
	// dropped, evicted and pending.
	Tokens uint64
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
	// Part of the tokens confirmed and expired that were confirmed; null while there are none, as always
	// of an engine with `events: none`.
	ConfirmedShare *float64
	// How long half of the blocks took from the report to the event, of late; null while none has come.
	DelayP50Seconds *float64
	// The same for 90 % of the blocks.
	DelayP90Seconds *float64
	// The same for 99 % of the blocks.
	DelayP99Seconds *float64
	// How long a report without ttl lasts now, at the rank with the longest; of an engine with `events:
	// none` the `ttl` of its registration, null without one.
	TTLSeconds *float64
}

// end of services
