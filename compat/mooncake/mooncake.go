// Package mooncake serves the dialect of Mooncake Conductor's second server, in
// msgpack, as its clients of August 2026 and later speak it, or in JSON, as those of
// July did. The rules are those of docs/semantics.md.
//
//	msgpack or JSON --body.Scan--> members --> one call on *conductor.Conductor --> body.Encoder
//
// What differs from the published dialect: requests are strict, an unknown field is an
// error; answers have the root "instances" and the cascade of rank_matches alone, so
// that longest_matched is how far the best rank reaches; instances that are not
// registered have no row; another key's endpoint is taken.
//
// Where more is accepted than the reference does: type may be SGLang or Standard;
// hash_profile may be left out or nil; publishers that connect to us share an endpoint.
// /query_by_hash, /health and answers in the codec that Accept names are additions. So are
// the older names of the media type of msgpack, a byte order mark in front of JSON, and
// words about bodies that look like something else.
// Where less: text in a registration is UTF-8; a block size is at most 2^31-1.
//
// A null cache_group and one of 0 are the same here. No registration is ever found
// half removed or quarantined, so the reference's words for that are not said. A
// context's hash profile goes with its last registration.
//
// In JSON the same is said but for what docs/semantics.md lists; errors of the operation
// are lines of text. The lenient reader that /register had also took comments and
// trailing commas, ours does not.
//
// Concurrency: handlers are safe for concurrent use and have no state of their own.
package mooncake

import (
	"net/http"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/body"
	"example.com/conductor/conductor/server"
)

// Config is what a Dialect is made of.
type Config struct {
	Conductor *conductor.Conductor
	// MaxBody bounds a request body in bytes (limits.max_body).
	MaxBody int64
	// MaxTokens bounds the tokens, or hashes, of one query (limits.max_tokens).
	MaxTokens int
	// Admission bounds the queries at once; nil is no bound.
	Admission *server.Admission
	// Version is reported by /health.
	Version string
	// Codec is that of requests.
	Codec body.Codec
	// Alone says that no other dialect reads bodies at its paths, in another codec.
	Alone bool
}

// handlers answer requests.
type handlers struct {
	cfg       Config
	conductor *conductor.Conductor
}

// New returns the dialect in a codec. In JSON the parameter dialect names it "v2". It
// starts nothing.
func New(cfg Config) server.Dialect {
	d := &handlers{cfg: cfg, conductor: cfg.Conductor}
	offer := server.Dialect{Codec: cfg.Codec, Refuse: d.refused, Routes: []server.Route{
		{Method: http.MethodPost, Path: "/register", Handle: d.body(registerFields, d.register)},
		{Method: http.MethodPost, Path: "/unregister", Handle: d.body(keyFields, d.unregister)},
		{Method: http.MethodPost, Path: "/query", Handle: d.queryBody(byTokens)},
		{Method: http.MethodPost, Path: "/query_by_hash", Handle: d.queryBody(byHashes)},
		{Method: http.MethodGet, Path: "/services", Handle: d.services},
		{Method: http.MethodGet, Path: "/global_view", Handle: d.globalView},
		{Method: http.MethodGet, Path: "/health", Handle: d.health},
	}}
	if cfg.Codec == body.JSON {
		offer.Name = "v2"
	}
	return offer
}
