// Package dynamo serves the HTTP dialect of NVIDIA Dynamo's standalone KV indexer,
// so that its routers, gateways and tests find what they expect. The rules are those of
// docs/semantics.md.
//
//	body --decode--> members --> one call on *conductor.Conductor --> JSON or plain text
//
//	Dynamo                         here
//	instance_id, u64               Key.Instance, its decimal text
//	routing_group, or tenant_id    Key.Tenant                       (rule ID-2)
//	(model, routing group)         scope.Shard, of any block sizes
//	worker                         the sources of one instance in a partition; pools are none
//	listener                       one source
//
// Both dialects answer for a source that either has registered.
//
// The reference's framework refuses a body before its service sees it, in plain
// text: decode.go. Everything the service itself refuses is {"error": text}.
//
// Where more is accepted than the reference does: instance_id may be any string,
// printed as a number again where it reads as one; modelname and additionalsalt are
// other names of model_name and additional_salt; block hashes may be unsigned.
// Where less: a block size of 0, which could never match anything; an empty model
// or instance; ranks above 2^31-1.
//
// Concurrency: a Dialect is safe for concurrent use. It holds its request metrics. Peers
// belong to the Replica, everything else to the Conductor.
package dynamo

import (
	"net/http"
	"slices"
	"strings"

	"github.com/gin-gonic/gin"
	"github.com/rs/zerolog"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/server"
	"example.com/conductor/history/peer"
)

// ModelKey is the key under which a handler leaves the model name of its request in the
// gin.Context. The access log reads it.
const ModelKey = "dynamo.model"

// Config is what a Dialect is made of.
type Config struct {
	Conductor *conductor.Conductor
	// MaxTokens bounds the tokens, or hashes, of one query (limits.max_tokens).
	MaxTokens int
	// Admission bounds the queries at once; nil is no bound.
	Admission *server.Admission
	// TestEndpoints mounts /test/pause_listener and /test/resume_listener.
	TestEndpoints bool
	// ReopenLogs reopens the access log for /reopen_logs; nil does nothing.
	ReopenLogs func() error
	// Replica has the peers; nil is one without peers.
	Replica *peer.Peers
	Log     zerolog.Logger
}

// Dialect is one server of the dialect, on however many listeners. It is a
// prometheus.Collector of the series Dynamo's indexer has.
type Dialect struct {
	cfg       Config
	conductor *conductor.Conductor
	replica   *peer.Peers
	metrics   requestMetrics
	dumps     *server.Admission // one slot is never that of a client that has all others
}

// New returns a Dialect. It starts nothing.
func New(cfg Config) *Dialect {
	if cfg.Replica == nil {
		cfg.Replica = peer.New(peer.Config{})
	}
	dumps := server.NewSharedAdmission(maxDumps, maxDumps-1, dumpWait)
	return &Dialect{cfg: cfg, conductor: cfg.Conductor, replica: cfg.Replica, metrics: newRequestMetrics(), dumps: dumps}
}

// Bounds of request bodies, in bytes.
const (
	maxQuery = 8 << 20
	maxBody  = 2 << 20
)

// endpoint is one path of the dialect.
type endpoint struct {
	method, path string
	handle       gin.HandlerFunc
}

func (d *Dialect) endpoints() []endpoint {
	all := []endpoint{
		{http.MethodPost, "/register", d.body(maxBody, d.register)},
		{http.MethodPost, "/unregister", d.body(maxBody, d.unregister)},
		{http.MethodGet, "/workers", d.workers},
		{http.MethodPost, "/query", d.queryBody(d.query)},
		{http.MethodPost, "/query_by_hash", d.queryBody(d.queryByHash)},
		{http.MethodPost, "/query_tiered_by_hash", d.queryBody(d.queryTieredByHash)},
		{http.MethodGet, "/dump", d.dump},
		{http.MethodPost, "/register_peer", d.body(maxBody, d.registerPeer)},
		{http.MethodPost, "/deregister_peer", d.body(maxBody, d.deregisterPeer)},
		{http.MethodGet, "/peers", d.listPeers},
		{http.MethodGet, "/health", func(g *gin.Context) { empty(g, http.StatusOK) }},
		{http.MethodPost, "/reopen_logs", d.reopenLogs},
	}
	if d.cfg.TestEndpoints {
		all = append(all,
			endpoint{http.MethodPost, "/test/pause_listener", d.body(maxBody, d.pauseListener)},
			endpoint{http.MethodPost, "/test/resume_listener", d.body(maxBody, d.resumeListener)})
	}
	return all
}

// Mount adds the dialect to r: a listener's root or a prefix of it. What GET
// answers, HEAD answers too.
func (d *Dialect) Mount(r gin.IRouter) {
	for _, e := range d.endpoints() {
		counted := d.count(e.path)
		r.Handle(e.method, e.path, counted, e.handle)
		if e.method == http.MethodGet {
			r.Handle(http.MethodHead, e.path, counted, e.handle)
		}
	}
}

// MountRoot mounts the dialect at the root of a listener and answers there as the
// reference's framework does where no endpoint fits: with a status and nothing else.
func (d *Dialect) MountRoot(r *gin.Engine) {
	d.Mount(r)
	r.RedirectTrailingSlash = false
	r.NoRoute(d.count("unknown"), func(g *gin.Context) { empty(g, http.StatusNotFound) })
	known := make(map[string]gin.HandlerFunc)
	for _, e := range d.endpoints() {
		known[e.path] = d.count(e.path)
	}
	r.NoMethod(
		func(g *gin.Context) {
			if counted := known[g.Request.URL.Path]; counted != nil {
				counted(g)
			}
		},
		func(g *gin.Context) {
			allowed := strings.Split(g.Writer.Header().Get("Allow"), ", ")
			slices.Sort(allowed)
			g.Header("Allow", strings.Join(allowed, ","))
			empty(g, http.StatusMethodNotAllowed)
		})
}

// reopenLogs reopens the access log after a rotation: POST /reopen_logs.
func (d *Dialect) reopenLogs(g *gin.Context) {
	if d.cfg.ReopenLogs != nil {
		if err := d.cfg.ReopenLogs(); err != nil {
			d.cfg.Log.Error().Err(err).Msg("the access log cannot be reopened")
			fail(g, err)
			return
		}
	}
	ok(g, http.StatusOK)
}
