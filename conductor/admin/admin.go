// Package admin serves what every listener has besides a dialect: readiness, metrics, the description of the API, the
// operator's page, the documents, profiles, and /admin, which operators and other replicas use.
//
//	request --> recovery, Use, Guard --> decoding, Budget --> handler --> conductor/reply --> status and body
//
// New makes the engine of a listener with these middlewares and paths. A dialect mounts its own paths on it, /health
// among them, because dialects differ in its answer.
//
// A handler here makes one call on conductor.View, as the client may see it, and turns the result into rows whose fields
// openapi.yaml lists. It keeps no state between requests. Answers that grow with the fleet take a place of Lists; live
// streams and snapshots are bounded by the watch.Hub and the peer.Spool.
package admin

import (
	"net/http"
	"runtime/debug"
	"strings"

	"github.com/gin-gonic/gin"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/body"
	"example.com/conductor/conductor/cluster"
	"example.com/conductor/conductor/docs"
	conductorhttp "example.com/conductor/conductor/http"
	"example.com/conductor/conductor/reply"
	"example.com/conductor/conductor/server"
	"example.com/conductor/conductor/ui"
	"example.com/conductor/conductor/watch"
	"example.com/conductor/history/peer"
)

// Options configures the engine of a listener.
type Options struct {
	// Dialect configures the Conductor dialect. What it bounds is bounded here too, and its registries answer here as well.
	Dialect conductorhttp.Options
	// Snapshots are taken for peers; nil takes none.
	Snapshots *peer.Spool
	// Progress tells how far a recovery has come; nil is never under way.
	Progress func() conductor.Progress
	// Draining says that the server is about to leave; nil is never.
	Draining func() bool
	// Watch collects for operators; nil collects nothing.
	Watch *watch.Hub
	// Again reports whether the client of a request may still make it; nil is always.
	Again func(*gin.Context) bool
	// Reload reads the settings again; nil has none.
	Reload func(dryRun bool) Reload
	// Settings returns the name of the settings file, "" without one, and the settings in use; nil has none.
	Settings func() (string, []Setting)
	// Cluster shares shards with other replicas; nil shares none.
	Cluster *cluster.Cluster
	// Calls answers calls of gRPC that other replicas send on; nil answers none.
	Calls gin.HandlerFunc
	// OpenAPI is the document served at /openapi.yaml.
	OpenAPI []byte
	// Page serves /ui; nil serves none.
	Page *ui.Page
	// Home serves /, which leads to the page.
	Home bool
	// Docs serves /docs/; nil serves none.
	Docs *docs.Site
	// Gatherer feeds /metrics.
	Gatherer prometheus.Gatherer
	// Guard checks every request; nil lets each pass as that of an operator.
	Guard gin.HandlerFunc
	// Budget bounds the bytes of bodies and answers in flight; nil is no bound.
	Budget *server.Budget
	// Lists bounds how many long answers are made at once; nil is no bound.
	Lists *server.Lists
	// Use runs around every request, inside the recovery from panics.
	Use []gin.HandlerFunc
	Log zerolog.Logger
}

// api is the state handlers share.
type api struct {
	conductor *conductor.Conductor
	opts      Options
}

// New returns an engine with the paths every listener has.
func New(c *conductor.Conductor, opts Options) *gin.Engine {
	gin.SetMode(gin.ReleaseMode)
	a := &api{conductor: c, opts: opts}
	r := gin.New()
	r.HandleMethodNotAllowed = true
	r.Use(server.KeepValues, a.recoverPanic)
	r.Use(opts.Use...)
	if opts.Guard != nil {
		r.Use(opts.Guard)
	}
	r.Use(server.Decoded(opts.Dialect.MaxBody), opts.Budget.Bound)
	r.Use(func(g *gin.Context) {
		if isList(g) {
			opts.Lists.Bound(g)
		}
	})
	server.Dialects{{Refuse: reply.RefuseRoute}}.MountRoot(r)

	r.GET("/ready", reply.InJSON(a.ready))
	if opts.Home {
		r.GET("/", a.home)
	}
	r.GET("/metrics", gin.WrapH(metricsHandler(opts.Gatherer)))
	r.GET("/openapi.yaml", func(g *gin.Context) { g.Data(http.StatusOK, "application/yaml", opts.OpenAPI) })
	r.GET("/debug/pprof/:profile", reply.InJSON(a.profile))

	r.GET("/admin/check", reply.InJSON(a.check))
	r.GET("/admin/events", reply.InJSON(a.events))
	r.GET("/admin/snapshot", a.snapshot)
	r.GET("/admin/digest", reply.InJSON(a.digest))
	r.GET("/admin/stats", reply.InJSON(a.stats))
	r.GET("/admin/source", reply.InJSON(a.source))
	r.GET("/admin/settings", reply.InJSON(a.settings))
	r.GET("/admin/live", a.live)
	r.GET("/admin/queries", reply.InJSON(a.recentQueries))
	r.GET("/admin/prefixes", reply.InJSON(a.popular))
	r.GET("/admin/drain", reply.InJSON(a.drain))
	r.GET("/admin/cluster", reply.InJSON(a.cluster))
	r.POST("/admin/reload", reply.InJSON(a.reload))
	r.POST("/admin/explain", a.explainHandler())

	if opts.Calls == nil {
		opts.Calls = reply.InJSON(func(*gin.Context) (any, error) { return nil, errNoShards })
	}
	r.POST("/grpc/:service/:method", opts.Calls)
	for _, method := range []string{http.MethodGet, http.MethodHead} {
		if opts.Page != nil {
			r.Handle(method, ui.Root, a.page)
			r.Handle(method, ui.Root+"/*file", a.page)
		}
		if opts.Docs != nil {
			r.Handle(method, docs.Root+"*page", a.document)
		}
	}
	return r
}

// isList reports whether the answer of a request grows with the fleet and is made as a whole.
// Dumps and snapshots are sent in pieces and bounded by themselves.
func isList(g *gin.Context) bool {
	if g.Request.Method != http.MethodGet {
		return false
	}
	switch path := g.FullPath(); path {
	case "/metrics", "/admin/digest", "/admin/events", "/admin/stats", "/admin/prefixes", "/admin/drain", "/admin/source", "/admin/cluster":
		return true
	default: // of any dialect, under any prefix
		return strings.HasSuffix(path, "/services") || strings.HasSuffix(path, "/workers") || strings.HasSuffix(path, "/global_view")
	}
}

// recoverPanic turns a panic into a 500 that costs one request. Of an answer that is
// partly sent it makes one that is cut off.
func (a *api) recoverPanic(g *gin.Context) {
	defer func() {
		if p := recover(); p != nil {
			if p == http.ErrAbortHandler {
				panic(p)
			}
			a.opts.Log.Error().Interface("panic", p).Str("path", g.Request.URL.Path).
				Str("stack", string(debug.Stack())).Msg("request failed")
			if g.Writer.Written() {
				panic(http.ErrAbortHandler)
			}
			g.AbortWithStatusJSON(http.StatusInternalServerError, reply.ErrorBody{Error: "internal error", Reason: "internal"})
		}
	}()
	g.Next()
}

// document serves the pages of the documents: GET /docs/*page.
func (a *api) document(g *gin.Context) {
	if !a.opts.Docs.Serve(g.Writer, g.Request, strings.TrimPrefix(g.Param("page"), "/")) {
		refuseUnknown(g, "no such page: "+g.Request.URL.Path+"; "+docs.Root+" leads to all pages")
	}
}

// page serves the files of the page: GET /ui, GET /ui/*file.
func (a *api) page(g *gin.Context) {
	name := strings.TrimPrefix(g.Param("file"), "/")
	switch {
	case name == "" && g.FullPath() != ui.Root:
		g.Redirect(http.StatusTemporaryRedirect, ui.Root) // addresses in the page are relative to /
	case !a.opts.Page.Serve(g.Writer, g.Request, name):
		refuseUnknown(g, "no such file: "+g.Request.URL.Path)
	}
}

// refuseUnknown answers that there is nothing of a name.
func refuseUnknown(g *gin.Context, text string) {
	reply.RefuseRoute(g, body.JSON, &server.Refusal{Status: http.StatusNotFound, Reason: "not_found", Text: text})
}

// check walks every index and reports broken invariants: GET /admin/check.
func (a *api) check(*gin.Context) (any, error) {
	errs := a.conductor.Check()
	if len(errs) == 0 {
		return gin.H{"ok": true, "errors": []string{}}, nil
	}
	texts := make([]string, len(errs))
	for i, err := range errs {
		texts[i] = err.Error()
	}
	return reply.Result{Status: http.StatusInternalServerError, Body: gin.H{"ok": false, "errors": texts}}, nil
}
