// Package http serves the Conductor dialect: JSON over HTTP, as Mooncake
// Conductor's published page describes it, with additive fields of our own.
//
//	request --> handler(*gin.Context) (any, error) --> wrap --> status and body in a codec
//
// A handler decodes, makes one call on *conductor.Conductor and returns a value
// or an error. Queries are answered within a place of the Admission.
// wrap alone decides status codes and error bodies. Every error body is
// {"error", "reason"[, "field"][, "index"][, "known"]}.
//
// New makes an engine with what every listener has (readiness, metrics, the API
// description, administration). Dialect offers the dialect's own paths, /health among
// them, because dialects differ in its answer.
package http

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"runtime/debug"
	"strconv"
	"strings"

	"github.com/gin-gonic/gin"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"github.com/vmihailenco/msgpack/v5"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/body"
	"example.com/conductor/conductor/cluster"
	"example.com/conductor/conductor/discovery"
	"example.com/conductor/conductor/docs"
	"example.com/conductor/conductor/fleet"
	"example.com/conductor/conductor/server"
	"example.com/conductor/conductor/ui"
	"example.com/conductor/conductor/watch"
	"example.com/conductor/history/peer"
)

// Options configures the HTTP room.
type Options struct {
	// MaxBody bounds a request body in bytes (limits.max_body).
	MaxBody int64
	// MaxTokens bounds the tokens, or hashes, of one query (limits.max_tokens).
	MaxTokens int
	// Admission bounds the queries at once; nil is no bound.
	Admission *server.Admission
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
	// Discovery asks engines where they publish; nil has none.
	Discovery *discovery.Manager
	// Fleet is the registry that replicas share; nil is none.
	Fleet *fleet.Registry
	// Cluster shares shards with other replicas; nil shares none.
	Cluster *cluster.Cluster
	// Calls answers calls of gRPC that other replicas send on; nil answers none.
	Calls gin.HandlerFunc
	// Version is reported by /health.
	Version string
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
	r.Use(server.KeepValues, a.recovery)
	r.Use(opts.Use...)
	if opts.Guard != nil {
		r.Use(opts.Guard)
	}
	r.Use(server.Decoded(opts.MaxBody), opts.Budget.Bound)
	r.Use(func(g *gin.Context) {
		if isList(g) {
			opts.Lists.Bound(g)
		}
	})
	server.Dialects{{Refuse: noRoute}}.MountRoot(r)
	r.GET("/ready", inJSON(a.ready))
	if opts.Home {
		r.GET("/", a.home)
	}
	r.GET("/metrics", gin.WrapH(metrics(opts.Gatherer)))
	r.GET("/openapi.yaml", func(g *gin.Context) { g.Data(http.StatusOK, "application/yaml", opts.OpenAPI) })
	r.GET("/debug/pprof/:profile", inJSON(a.profile))
	a.mountAdmin(r.Group("/admin"))
	if opts.Calls == nil {
		opts.Calls = inJSON(func(*gin.Context) (any, error) { return nil, errNoShards })
	}
	r.POST("/grpc/:service/:method", opts.Calls)
	if opts.Page != nil {
		for _, method := range []string{http.MethodGet, http.MethodHead} {
			r.Handle(method, ui.Root, a.page)
			r.Handle(method, ui.Root+"/*file", a.page)
		}
	}
	if opts.Docs != nil {
		for _, method := range []string{http.MethodGet, http.MethodHead} {
			r.Handle(method, docs.Root+"*page", a.document)
		}
	}
	return r
}

// document serves the pages of the documents: GET /docs/*page.
func (a *api) document(g *gin.Context) {
	if !a.opts.Docs.Serve(g.Writer, g.Request, strings.TrimPrefix(g.Param("page"), "/")) {
		noRoute(g, body.JSON, &server.Refusal{Status: http.StatusNotFound, Reason: "not_found", Text: "no such page: " + g.Request.URL.Path + "; " + docs.Root + " leads to all pages"})
	}
}

// page serves the files of the page: GET /ui, GET /ui/*file.
func (a *api) page(g *gin.Context) {
	name := strings.TrimPrefix(g.Param("file"), "/")
	switch {
	case name == "" && g.FullPath() != ui.Root:
		g.Redirect(http.StatusTemporaryRedirect, ui.Root) // addresses in the page are relative to /
	case !a.opts.Page.Serve(g.Writer, g.Request, name):
		noRoute(g, body.JSON, &server.Refusal{Status: http.StatusNotFound, Reason: "not_found", Text: "no such file: " + g.Request.URL.Path})
	}
}

// isList reports whether the answer of a request grows with the fleet and is made as a whole.
// Dumps and snapshots are sent in pieces and bounded by themselves.
func isList(g *gin.Context) bool {
	path := g.FullPath()
	return g.Request.Method == http.MethodGet && (strings.HasSuffix(path, "/services") || strings.HasSuffix(path, "/workers") ||
		strings.HasSuffix(path, "/global_view") || path == "/metrics" || path == "/admin/digest" || path == "/admin/events" ||
		path == "/admin/stats" || path == "/admin/prefixes" || path == "/admin/drain" || path == "/admin/source" || path == "/admin/cluster")
}

// Dialect returns the Conductor dialect.
func Dialect(c *conductor.Conductor, opts Options) server.Dialect {
	a := &api{conductor: c, opts: opts}
	return server.Dialect{Refuse: noRoute, Routes: []server.Route{
		{Method: http.MethodPost, Path: "/register", Handle: wrap(a.register)},
		{Method: http.MethodPost, Path: "/unregister", Handle: wrap(a.unregister)},
		{Method: http.MethodPost, Path: "/query", Handle: a.query(queryFields, a.one(a.tokens))},
		{Method: http.MethodPost, Path: "/query_by_hash", Handle: a.query(hashFields, a.one(a.hashes))},
		{Method: http.MethodPost, Path: "/query_batch", Handle: a.query(batchFields, a.batch)},
		{Method: http.MethodPost, Path: "/routed", Handle: a.report, Packed: true},
		{Method: http.MethodDelete, Path: "/routed/*id", Handle: wrap(a.takeBack), Packed: true},
		{Method: http.MethodPost, Path: "/feedback", Handle: wrap(a.feedback)},
		{Method: http.MethodPost, Path: "/lmcache/events", Handle: wrap(a.lmcacheEvents)},
		{Method: http.MethodGet, Path: "/services", Handle: wrap(a.services)},
		{Method: http.MethodGet, Path: "/global_view", Handle: wrap(a.globalView)},
		{Method: http.MethodGet, Path: "/health", Handle: wrap(a.health)},
	}}
}

// Mount adds the Conductor dialect alone to r: a listener's root or a prefix of it.
func Mount(r gin.IRouter, c *conductor.Conductor, opts Options) {
	server.Dialects{Dialect(c, opts)}.Mount(r)
}

// handler is what an endpoint is but that of a query: a result to encode, or an error.
type handler func(*gin.Context) (any, error)

// answered is a result with a status of its own.
type answered struct {
	status int
	body   any
}

// done is a result without a body.
type done struct{}

// forwarded is a result that another replica has sent.
type forwarded struct{}

// file is a result in a form of its own.
type file struct {
	contentType string
	bytes       []byte
}

// errorBody is the one shape of errors.
type errorBody struct {
	Error  string `json:"error"`
	Reason string `json:"reason"`
	Field  string `json:"field,omitempty"`
	Index  *int   `json:"index,omitempty"`
	// Known are the names that the tenant has in place of an unknown one.
	Known *[]string `json:"known,omitempty"`
}

// wrap runs a handler and encodes what it returns.
func wrap(h handler) server.Handler {
	return func(g *gin.Context, codec body.Codec) {
		result, err := h(g)
		if err != nil {
			refuse(g, codec, err)
			return
		}
		switch v := result.(type) {
		case forwarded:
		case done:
			g.Status(http.StatusNoContent)
		case answered:
			respond(g, codec, v.status, v.body)
		case file:
			server.Send(g, http.StatusOK, v.contentType, v.bytes)
		default:
			respond(g, codec, http.StatusOK, v)
		}
	}
}

// inJSON runs a handler for a path that every listener has.
func inJSON(h handler) gin.HandlerFunc {
	handle := wrap(h)
	return func(g *gin.Context) { handle(g, body.JSON) }
}

// respond sends a value that is not the answer of a query.
func respond(g *gin.Context, codec body.Codec, status int, v any) {
	text := encode(codec, v)
	if codec == body.JSON {
		server.Send(g, status, "application/json; charset=utf-8", text)
		return
	}
	g.Header("Content-Length", strconv.Itoa(len(text)))
	server.Send(g, status, codec.ContentType(), text)
}

// encode encodes a value by its tags for JSON.
func encode(codec body.Codec, v any) []byte {
	var b bytes.Buffer
	var err error
	if codec == body.JSON {
		err = json.NewEncoder(&b).Encode(v)
		b.Truncate(max(b.Len()-1, 0)) // the newline
	} else {
		e := msgpack.NewEncoder(&b)
		e.SetCustomStructTag("json")
		e.UseCompactInts(true)
		err = e.Encode(v)
	}
	if err != nil {
		panic("BUG: an answer cannot be encoded: " + err.Error())
	}
	return b.Bytes()
}

// refuse answers with an error.
func refuse(g *gin.Context, codec body.Codec, err error) {
	status, row := describe(err)
	respond(g, codec, status, row)
}

// noRoute answers where no route of the dialect does.
func noRoute(g *gin.Context, _ body.Codec, why *server.Refusal) {
	respond(g, body.JSON, why.Status, errorBody{Error: why.Text, Reason: why.Reason, Field: why.Field})
}

// describe maps an error to its status and body.
func describe(err error) (int, errorBody) {
	var (
		field    *conductor.FieldError
		conflict *conductor.ConflictError
		profile  *conductor.ProfileConflictError
		invalid  *body.Error
		unknown  *conductor.UnknownTargetError
	)
	status, reason := server.Status(err)
	row := errorBody{Error: err.Error(), Reason: reason}
	switch {
	case errors.Is(err, errNoFleet), errors.Is(err, errNoShards), errors.Is(err, errNotWatched), errors.Is(err, watch.ErrDisabled):
		status, row.Reason = http.StatusNotFound, "disabled"
	case errors.Is(err, watch.ErrBusy):
		status, row.Reason = http.StatusServiceUnavailable, "busy"
	case errors.Is(err, errRecovering):
		status, row.Reason = http.StatusServiceUnavailable, "recovering"
	case errors.As(err, &field):
		row.Error, row.Field = field.Message, field.Field
		if field.Index >= 0 {
			row.Index = &field.Index
		}
	case errors.As(err, &invalid):
		if row.Field = invalid.Field; invalid.Field != "" && invalid.Index >= 0 {
			row.Index = &invalid.Index
		}
		if reason == body.Unreadable {
			row.Reason = body.Syntax
		}
	case errors.As(err, &unknown):
		known := append([]string{}, unknown.Known...)
		return http.StatusNotFound, errorBody{Error: unknown.Error(), Reason: "not_found", Field: unknown.Field, Known: &known}
	case errors.As(err, &conflict):
		return http.StatusConflict, errorBody{Error: conflict.Error(), Reason: "conflict", Field: conflict.Field}
	case errors.As(err, &profile):
		return http.StatusConflict, errorBody{Error: profile.Error(), Reason: "conflict", Field: "hash_profile"}
	}
	return status, row
}

// recovery turns a panic into a 500 that costs one request. Of an answer that is
// partly sent it makes one that is cut off.
func (a *api) recovery(g *gin.Context) {
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
			g.AbortWithStatusJSON(http.StatusInternalServerError, errorBody{Error: "internal error", Reason: "internal"})
		}
	}()
	g.Next()
}
