// Package mooncake serves the dialect of Mooncake Conductor's second server, in
// msgpack, as its clients of August 2026 and later speak it, or in JSON, as those of
// July did. The rules are those of docs/semantics.md.
//
//	msgpack --parsePacked--> entries --> one call on *conductor.Conductor --> msgpack
//	JSON    --parseJSON------^                                                   |
//	                                                                       appendJSON--> JSON
//
// What differs from the published dialect: requests are strict, an unknown field is an
// error; answers have the root "instances" and the cascade of rank_matches alone, so
// that longest_matched is how far the best rank reaches; instances that are not
// registered have no row; another key's endpoint is taken.
//
// Where more is accepted than the reference does: type may be SGLang or Standard;
// hash_profile may be left out or nil; publishers that connect to us share an endpoint.
// /query_by_hash, /health and answers in the codec that Accept names are additions.
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
// Concurrency: a Dialect is safe for concurrent use and has no state of its own.
package mooncake

import (
	"net/http"
	"path"

	"github.com/gin-gonic/gin"

	"kvconductor/conductor"
	"kvconductor/conductor/server"
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
	// Form is what the dialect is written in.
	Form Form
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
		{http.MethodPost, "/register", d.body(d.register, true)},
		{http.MethodPost, "/unregister", d.body(d.unregister, true)},
		{http.MethodPost, "/query", d.queryBody(d.query)},
		{http.MethodPost, "/query_by_hash", d.queryBody(d.queryByHash)},
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

// MountRoot mounts the dialect at the root of a listener and answers there in its form
// where no endpoint fits. GET where POST is meant, or the other way round, is 405, any
// other method 404.
func (d *Dialect) MountRoot(r *gin.Engine) {
	d.Mount(r)
	r.RedirectTrailingSlash = false
	r.NoRoute(d.noRoute)
	r.NoMethod(d.noMethod)
}

func (d *Dialect) noRoute(g *gin.Context) {
	d.refuse(g, &failure{status: http.StatusNotFound, text: "no such path: " + g.Request.URL.Path})
}

func (d *Dialect) noMethod(g *gin.Context) {
	switch g.Request.Method {
	case http.MethodGet, http.MethodPost:
		d.refuse(g, &failure{status: http.StatusMethodNotAllowed, text: "Method not allowed"})
	default:
		d.noRoute(g)
	}
}

// Negotiate runs before the handlers of the published dialect, which has the same
// paths, and answers for it whoever wants this one in this form. Where both forms are
// offered msgpack is asked first, because a body of its type is no JSON; it packs what
// the published dialect answers to those who want that in msgpack.
func (d *Dialect) Negotiate(g *gin.Context) {
	if !d.cfg.Form.wanted(g) {
		switch other := dialectOf(g); {
		case d.cfg.Form == JSON && other != "":
			d.refuse(g, bad("dialect", "invalid_value", "dialect must be v2, got %q", other))
			g.Abort()
		case d.cfg.Form == Msgpack && other == "" && codec(g.Request.Header, JSON) == Msgpack:
			transcode(g)
		}
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
	if d.cfg.Form == Msgpack && g.Request.Method == http.MethodPost {
		d.refuse(g, &failure{status: http.StatusBadRequest, text: name + " is not in this dialect: Content-Type must be " + jsonType, reason: "unsupported_content_type"})
		g.Abort()
	}
}

// NegotiateErrors is Negotiate where no endpoint fits, for the whole of a listener.
func (d *Dialect) NegotiateErrors(g *gin.Context) {
	if g.FullPath() != "" || !d.cfg.Form.wanted(g) {
		return
	}
	if g.Writer.Status() == http.StatusMethodNotAllowed {
		d.noMethod(g)
	} else {
		d.noRoute(g)
	}
	g.Abort()
}
