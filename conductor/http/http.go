// Package http serves the Conductor dialect, which routers and engines use: JSON over HTTP, as Mooncake
// Conductor's published page describes it, with additive fields of our own.
//
//	query, report --> exchange: body, slot, fields --> conductor.View --> answer written within the slot
//	registration  --> body --> fields --> conductor.View --> conductor/reply --> status and body
//
// A handler reads its fields (fields.go), makes one call on conductor.View and returns a value or an error. Queries are
// answered within a slot of the Admission, which is free again before the answer is sent. What operators and other
// replicas use is conductor/admin.
//
// Concurrency: handlers keep no state between requests but pools of buffers. A query costs a fixed number of allocations,
// however long its prompt is; the other answers cost what encoding/json costs.
package http

import (
	"net/http"

	"github.com/gin-gonic/gin"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/body"
	"example.com/conductor/conductor/discovery"
	"example.com/conductor/conductor/membership"
	"example.com/conductor/conductor/reply"
	"example.com/conductor/conductor/server"
)

// Options configures the dialect.
type Options struct {
	// MaxBody bounds a request body in bytes (limits.max_body).
	MaxBody int64
	// MaxTokens bounds the tokens, or hashes, of one query (limits.max_tokens).
	MaxTokens int
	// Admission bounds the queries at once; nil is no bound.
	Admission *server.Admission
	// Discovery asks engines where they publish; nil has none.
	Discovery *discovery.Manager
	// Registry is the registry that replicas share; nil is none.
	Registry *membership.Registry
	// Watches are the open watches of instances; nil allows none.
	Watches *Watches
	// Again reports whether the client of a watch may still watch; nil never asks.
	Again func(*gin.Context) bool
	// Version is reported by /health.
	Version string
}

// api is the state handlers share.
type api struct {
	conductor *conductor.Conductor
	opts      Options
}

// Dialect returns the Conductor dialect.
func Dialect(c *conductor.Conductor, opts Options) server.Dialect {
	a := &api{conductor: c, opts: opts}
	return server.Dialect{Refuse: reply.RefuseRoute, Routes: []server.Route{
		{Method: http.MethodPost, Path: "/register", Handle: reply.Wrap(a.register)},
		{Method: http.MethodPost, Path: "/unregister", Handle: reply.Wrap(a.unregister)},
		{Method: http.MethodPost, Path: "/query", Handle: a.queryHandler(queryFields, a.answerOne(a.readTokens), body.Msgpack)},
		{Method: http.MethodPost, Path: "/query_by_hash", Handle: a.queryHandler(hashFields, a.answerOne(a.readHashes), body.Msgpack)},
		{Method: http.MethodPost, Path: "/query_batch", Handle: a.queryHandler(batchFields, a.answerBatch)},
		{Method: http.MethodPost, Path: "/candidates", Handle: a.eitherHandler(candidateFields, a.candidates), Packed: true},
		{Method: http.MethodPost, Path: "/routed", Handle: a.eitherHandler(routedFields, a.routed), Packed: true},
		{Method: http.MethodDelete, Path: "/routed/*id", Handle: reply.Wrap(a.takeBack), Packed: true},
		{Method: http.MethodPost, Path: "/feedback", Handle: reply.Wrap(a.feedback)},
		{Method: http.MethodPost, Path: "/lmcache/events", Handle: reply.Wrap(a.lmcacheEvents)},
		{Method: http.MethodGet, Path: "/services", Handle: reply.Wrap(a.services)},
		{Method: http.MethodGet, Path: "/instances", Handle: a.instances, Packed: true},
		{Method: http.MethodGet, Path: "/global_view", Handle: reply.Wrap(a.globalView)},
		{Method: http.MethodGet, Path: "/health", Handle: reply.Wrap(a.health)},
	}}
}

// Mount adds the Conductor dialect alone to r: a listener's root or a prefix of it.
func Mount(r gin.IRouter, c *conductor.Conductor, opts Options) {
	server.Dialects{Dialect(c, opts)}.Mount(r)
}
