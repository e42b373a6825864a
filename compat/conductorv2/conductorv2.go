// Package conductorv2 serves the msgpack dialect of Mooncake Conductor, the one its
// clients of August 2026 and later speak. Decisions are those of docs/semantics.md.
//
//	body --parse--> entries --> one call on *conductor.Conductor --> msgpack
//
// What differs from the JSON dialect: requests are strict, a field nobody knows is an
// error; answers have the root "instances" and the cascade of rank_matches alone, so
// that longest_matched is how far the best rank reaches; instances that are not
// registered have no row; another key's endpoint is taken.
//
// Where more is accepted than the reference does: type may be SGLang or Standard;
// hash_profile may be left out or nil; publishers that connect to us share an endpoint.
// /query_by_hash and /health are additions. Where less: text in a registration is
// UTF-8; a block size is at most 2^31-1.
//
// A null cache_group and one of 0 are the same here. No registration is ever found
// half removed or quarantined, so the reference's words for that are not said.
//
// Concurrency: a Dialect is safe for concurrent use and has no state of its own.
package conductorv2

import (
	"net/http"
	"path"
	"strings"

	"github.com/gin-gonic/gin"

	"kvconductor/conductor"
)

// ContentType is that of every body of the dialect.
const ContentType = "application/msgpack"

// Config is what a Dialect is made of.
type Config struct {
	Conductor *conductor.Conductor
	// MaxBody bounds a request body in bytes (limits.max_body).
	MaxBody int64
	// MaxTokens bounds the tokens, or hashes, of one query (limits.max_tokens).
	MaxTokens int
	// Version is reported by /health.
	Version string
}

// Dialect is one server of the dialect, on however many listeners.
type Dialect struct {
	cfg       Config
	conductor *conductor.Conductor
	endpoints []endpoint
}

// endpoint is one path of the dialect.
type endpoint struct {
	method, path string
	handle       gin.HandlerFunc
}

// New returns a Dialect. It starts nothing.
func New(cfg Config) *Dialect {
	d := &Dialect{cfg: cfg, conductor: cfg.Conductor}
	d.endpoints = []endpoint{
		{http.MethodPost, "/register", d.body(d.register)},
		{http.MethodPost, "/unregister", d.body(d.unregister)},
		{http.MethodPost, "/query", d.body(d.query)},
		{http.MethodPost, "/query_by_hash", d.body(d.queryByHash)},
		{http.MethodGet, "/services", d.services},
		{http.MethodGet, "/global_view", d.globalView},
		{http.MethodGet, "/health", d.health},
	}
	return d
}

// Mount adds the dialect to r: a listener's root or a prefix of it.
func (d *Dialect) Mount(r gin.IRouter) {
	for _, e := range d.endpoints {
		r.Handle(e.method, e.path, e.handle)
	}
}

// MountRoot mounts the dialect at the root of a listener and answers there in msgpack
// where no endpoint fits. GET where POST is meant, or the other way round, is 405, any
// other method 404.
func (d *Dialect) MountRoot(r *gin.Engine) {
	d.Mount(r)
	r.RedirectTrailingSlash = false
	r.NoRoute(noRoute)
	r.NoMethod(noMethod)
}

func noRoute(g *gin.Context) {
	refuse(g, &failure{status: http.StatusNotFound, text: "no such path: " + g.Request.URL.Path})
}

func noMethod(g *gin.Context) {
	switch g.Request.Method {
	case http.MethodGet, http.MethodPost:
		refuse(g, &failure{status: http.StatusMethodNotAllowed, text: "Method not allowed"})
	default:
		noRoute(g)
	}
}

// Negotiate runs before the handlers of the JSON dialect, which has the same paths,
// and answers for it whoever speaks msgpack: by Content-Type, and where there is no
// body also by Accept.
func (d *Dialect) Negotiate(g *gin.Context) {
	if !wanted(g) {
		return
	}
	name := "/" + path.Base(g.FullPath())
	for _, e := range d.endpoints {
		if e.method == g.Request.Method && e.path == name {
			e.handle(g)
			g.Abort()
			return
		}
	}
}

// NegotiateErrors is Negotiate where no endpoint fits, for the whole of a listener.
func (d *Dialect) NegotiateErrors(g *gin.Context) {
	if g.FullPath() != "" || !wanted(g) {
		return
	}
	if g.Writer.Status() == http.StatusMethodNotAllowed {
		noMethod(g)
	} else {
		noRoute(g)
	}
	g.Abort()
}

// wanted reports whether a request wants this dialect.
func wanted(g *gin.Context) bool {
	return speaks(g.GetHeader("Content-Type")) || g.Request.Method == http.MethodGet && speaks(g.GetHeader("Accept"))
}

// speaks reports whether a header names the dialect's media type, among others or
// with parameters.
func speaks(header string) bool { return strings.Contains(header, ContentType) }
