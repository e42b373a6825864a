package client

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
)

// Registration is a publisher to follow: the body of POST /register, see openapi.yaml. With Discover
// the engine tells endpoints, ranks, type, model and block size.
type Registration struct {
	// URL of the engine's HTTP server, in place of the endpoints.
	Discover string `json:"discover,omitempty"`

	// registration: written by make docs

	// Where the engine publishes its events (ZMQ PUB): tcp://host:port, tcp://[::1]:port or ipc://path.
	// With bind:tcp://*:port the engine connects to Conductor instead, publishes under the topic
	// kv@instance_id@modelname, and its batches name dp_rank. push: is for type LMCache, if its instances
	// send their events to POST /lmcache/events.
	Endpoint string `json:"endpoint,omitempty"`

	// Where the engine replays batches that Conductor missed (ZMQ ROUTER). Give it whenever the engine has
	// one: without it, a lost batch leaves the source partial until the engine clears its cache or
	// restarts.
	ReplayEndpoint string `json:"replay_endpoint,omitempty"`

	// Where the engine gives its whole cache state away (ZMQ ROUTER), so that a late start or a lost batch
	// does no harm. Conductor asks it before it asks for a replay. Copies are counted then, so copies set
	// is refused (400). Not for types Mooncake and LMCache.
	SnapshotEndpoint string `json:"snapshot_endpoint,omitempty"`

	// What publishes: vLLM, SGLang, Mooncake, LMCache, or Standard for other publishers of standardized
	// events; in upper or lower case. Mooncake and LMCache are pools, whose blocks count for the instances
	// of other sources.
	Type string `json:"type,omitempty"`

	// Name of the model, as queries give it. Also accepted as `model` and `model_name`.
	Model string `json:"modelname,omitempty"`

	// Adapter of the blocks whose events name none. Leave it out unless the engine serves a single adapter
	// without naming it.
	Adapter string `json:"lora_name,omitempty"`

	// Tenant that the blocks belong to. Only its queries find them.
	Tenant string `json:"tenant_id,omitempty"`

	// Name of the engine, by which answers and routers call it. All ranks of an engine have the same one.
	Instance string `json:"instance_id"`

	// Tokens in a block, as the engine cuts prompts. With auto, or if you leave it out with discover,
	// Conductor learns it from the engine or its first events; until then the engine is in no answer.
	BlockSize int `json:"block_size,omitempty"`

	// Data-parallel rank; 0 for an engine that has only one. Engines add it to the ports of their tcp
	// endpoints. You may leave it out with discover, events none, or endpoint push:.
	Rank int `json:"dp_rank"`

	// Salt of the blocks whose events carry none. Only queries with the same `cache_salt` find them.
	Salt string `json:"additionalsalt,omitempty"`

	// How long a block stays after it was last announced, such as 10m. Set it for a publisher that
	// announces no removals, to the time that blocks stay there: a longer one promises blocks that are
	// gone, a shorter one makes answers too short. A block goes after at least half of the time, and at
	// most all of it. An object gives single media their own time, such as {"STORAGE": "1h"}; with "0s"
	// blocks stay until they are removed.
	TTL any `json:"ttl,omitempty"`

	// Instances that can use the blocks of a pool (type Mooncake or LMCache), such as those on the node of
	// its daemon. When absent, all instances of the deployment.
	Serves []string `json:"serves,omitempty"`

	// Further names of the model, such as those after the first of vLLM's `--served-model-name`: a query
	// of the tenant for one of them is a query for the model. With discover the engine tells them. You can
	// register again with other aliases; the blocks stay.
	Aliases []string `json:"aliases,omitempty"`

	// Adapters (LoRA) that requests call by a name of their own in the place of the model, as vLLM lists
	// them in /v1/models: a query for one of them as `model` is a query for the model with that
	// `lora_name`. With discover a vLLM tells them. You can register again with other adapters; the blocks
	// stay, unless discover is set. Not for pools.
	Adapters []string `json:"adapters,omitempty"`

	// Where the engine takes requests: the base URL of its HTTP server, such as http://10.0.0.7:8000.
	// Routers that ask for it find it in their answers. With discover it is the URL that Conductor asks.
	// You can register again with another address; the blocks stay, unless discover is set. Not for pools.
	Address string `json:"address,omitempty"`

	// What the engine does where one engine computes the prompt and another one generates: prefill or
	// decode. Routers that ask for it find it in GET /instances; answers do not change. You can register
	// again with another role; the blocks stay, unless discover is set. Not for pools.
	Role string `json:"role,omitempty"`

	// What it means if a block is stored twice. With count it leaves after as many removals as stores,
	// with set at the first removal: choose set for a publisher that repeats stores but not removals. When
	// absent, the setting stream.copies decides. Not for pools.
	Copies string `json:"copies,omitempty"`

	// What it means if the engine stores a block that is on its device already. Set full if its requests
	// use kv_cache_report_mode full: it is then a reuse, and no further copy. With incremental it is a
	// further copy. When absent, it counts as a copy until the engine's events show that it cannot be one
	// (finding copies_grow). Not for pools.
	Reports string `json:"reports,omitempty"`

	// Set drops_last_block if the engine has a drafter (EAGLE, MTP) for which it computes the last block
	// of each hit again: vLLM before 0.33, and later with a KV connector or
	// disable_lookahead_block_hashes. Answers are then a block shorter. For a model with sliding windows,
	// set drops_in_windows if the drafter's layers have one, and drops_in_all_groups for a vLLM that does
	// not tell the drafter's layers apart, such as 0.24. Leave it out if the engine's events have
	// lookahead_token_ids. Not for pools.
	Drafter string `json:"drafter,omitempty"`

	// What to do with copies of the KV Cache Runner (ownership kvcr): count keeps them next to the
	// engine's own, drop leaves their events out. Not for pools.
	Owned string `json:"owned,omitempty"`

	// What an AllBlocksCleared of the engine clears: all tiers, or only its device. Leave it out for vLLM:
	// its device is then cleared at once, and each lower tier once the engine stores a block there again
	// that it should still have. Set all if every reset of your engine resets its connector too, and
	// device if none does. Types other than vLLM clear all by default. Not for pools.
	Clear string `json:"clear,omitempty"`

	// What the publisher numbers: own is the batches of this source, shared is those of all its topics
	// together. With shared, the source is the topic kv@instance_id@modelname, and a batch of another
	// topic only moves the watermark. The default is shared for type LMCache, and own for all others.
	Sequence string `json:"sequence,omitempty"`

	// Set none for an engine that publishes no KV events, such as llama.cpp, TGI, or vLLM with events off.
	// Conductor then connects to nothing, and expects the engine to hold what routers report, so leave out
	// the endpoints, discover and all fields about events. type says how its blocks are hashed: Standard
	// for an engine without a type of its own. Not for pools.
	Events string `json:"events,omitempty"`

	// How many blocks the engine's cache has room for; required with events none, and refused otherwise.
	// Beyond it Conductor takes the least recently used blocks for evicted. If it is less than the engine
	// has, answers are too short; if it is more, they promise blocks that are gone.
	CapacityBlocks int `json:"capacity_blocks,omitempty"`

	// With count, the blocks that an engine with events none is expected to hold count in the lengths of
	// its rows, as if it had announced them on its device. Without it these lengths are 0, and expected
	// alone has the blocks.
	Approximate string `json:"approximate,omitempty"`

	// How the engine computes the hashes that name its blocks. It is needed where blocks come without
	// their tokens, which is usual for pools and lower tiers. All engines of a tenant, model, block size
	// and adapter have the same one; another is refused (409).
	HashProfile *HashProfile `json:"hash_profile,omitempty"`

	// end of registration

	// Register the same instance, tenant and rank with other fields. Without it that is refused (409).
	Replace bool `json:"replace,omitempty"`
}

// HashProfile is how an engine computes the hashes that name its blocks.
type HashProfile struct {
	// hash_profile: written by make docs

	// sglang_bigram is SGLang with EAGLE.
	Strategy string `json:"strategy,omitempty"`

	// vLLM's --prefix-caching-hash-algo; sha256_raw for SGLang.
	Algorithm string `json:"algorithm,omitempty"`

	// The engine's PYTHONHASHSEED, as it is written: 0 is not 00. vllm-none-hash is that of newer vLLM
	// where it is not set; "0" for SGLang.
	PythonHashSeed string `json:"python_hash_seed,omitempty"`

	// low64_be for vLLM, first64_be for SGLang.
	IndexProjection string `json:"index_projection,omitempty"`

	// The root that follows, in lower-case hexadecimal digits; given, it must be that.
	RootDigest string `json:"root_digest,omitempty"`

	// How adapter and salt enter a block of vLLM: as they are (untagged, the default) or with their
	// domain.
	ExtraKeys string `json:"extra_keys,omitempty"`

	// end of hash_profile
}

// Register starts a source. The same registration twice is a success.
func (c *Client) Register(ctx context.Context, r Registration) error {
	return c.do(ctx, http.MethodPost, "/conductor/v1/register", r, new(json.RawMessage))
}

// Unregister ends a source and drops its blocks. One that is not there is an *Error with status 404.
func (c *Client) Unregister(ctx context.Context, instance, tenant string, rank int) error {
	body := map[string]any{"instance_id": instance, "dp_rank": rank}
	if tenant != "" {
		body["tenant_id"] = tenant
	}
	return c.do(ctx, http.MethodPost, "/conductor/v1/unregister", body, new(json.RawMessage))
}

// Ready reports whether routers may rely on the answers.
func (c *Client) Ready(ctx context.Context) (bool, error) {
	err := c.once(ctx, jsonCodec, http.MethodGet, "/ready", nil, new(json.RawMessage))
	var refused *Error
	if errors.As(err, &refused) && refused.Status == http.StatusServiceUnavailable {
		return false, nil
	}
	return err == nil, err
}

// Feedback reports how many tokens of a prompt an answer promised of an instance, and how many it
// found.
func (c *Client) Feedback(ctx context.Context, instance, tenant, medium string, matched, cached int) error {
	body := map[string]any{"instance_id": instance, "matched_tokens": matched, "cached_tokens": cached}
	if tenant != "" {
		body["tenant_id"] = tenant
	}
	if medium != "" {
		body["medium"] = medium
	}
	return c.do(ctx, http.MethodPost, "/conductor/v1/feedback", body, new(json.RawMessage))
}
