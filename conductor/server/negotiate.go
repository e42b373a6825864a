package server

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/gin-gonic/gin"

	"example.com/conductor/conductor/body"
)

// Handler answers a request. codec is the one that its client asks for.
type Handler func(g *gin.Context, codec body.Codec)

// Route is one path of a dialect.
type Route struct {
	Method, Path string
	Handle       Handler
	// Packed says that Handle reads bodies in msgpack as well, so that those are not for the dialect of msgpack.
	Packed bool
}

// Dialect is what a dialect offers in one codec.
type Dialect struct {
	// Name is the value of the parameter dialect that asks for it. Without a name it is
	// asked for by the media type of its codec.
	Name string
	// Codec is that of requests, and of answers unless Accept prefers another.
	Codec  body.Codec
	Routes []Route
	// Refuse words an error of the server.
	Refuse func(*gin.Context, body.Codec, *Refusal)
}

func (d Dialect) named() bool { return d.Name != "" }

// Refusal is an error with a status of its own, such as why no route of a dialect answers.
type Refusal struct {
	Status              int
	Reason, Field, Text string // Field may be empty
}

// Error implements error.
func (r *Refusal) Error() string { return r.Text }

// Dialects are those of one path. The first answers unless a request asks for another:
//
//	Content-Type          dialect  Accept                 answer
//	application/json      -        -, json, */*           first dialect, JSON
//	application/json      -        msgpack                first dialect, msgpack
//	application/json      NAME     -, json, */*, msgpack  dialect NAME, JSON or msgpack
//	application/msgpack   any      -, msgpack, */*        dialect of msgpack, msgpack
//	application/msgpack   any      json                   dialect of msgpack, JSON
//	any, of a GET         any      msgpack                dialect of msgpack, msgpack
//
// application/x-msgpack and application/vnd.msgpack are read as application/msgpack, in both headers.
//
// A route of the first dialect that is Packed keeps bodies in msgpack to itself if the dialect of msgpack
// lacks the route:
//
//	application/msgpack   any      -, msgpack, */*        first dialect, msgpack
//	application/msgpack   any      json                   first dialect, JSON
//
// A dialect that lacks the route lets the first one answer, in its own codec.
type Dialects []Dialect

// Mount adds the routes of the first dialect to r.
func (t Dialects) Mount(r gin.IRouter) {
	for _, route := range t[0].Routes {
		r.Handle(route.Method, route.Path, t.handlerOf(route))
	}
}

// MountRoot adds the routes to the root of a listener, and answers there where no route
// fits.
func (t Dialects) MountRoot(r *gin.Engine) {
	t.Mount(r)
	r.RedirectTrailingSlash = false
	routes := sync.OnceValue(r.Routes) // all are there when the first request comes
	r.NoRoute(func(g *gin.Context) {
		text := "no such path: " + g.Request.URL.Path
		if near := similarRoute(g.Request.Method, g.Request.URL.Path, routes()); near != "" {
			text += "; did you mean " + near + "?"
		}
		t.refuseRequest(g, &Refusal{Status: http.StatusNotFound, Reason: "not_found", Text: text})
	})
	r.NoMethod(func(g *gin.Context) {
		t.refuseRequest(g, &Refusal{Status: http.StatusMethodNotAllowed, Reason: "method_not_allowed", Text: "Method not allowed"})
	})
}

// refuseRequest answers with an error, in the words of the dialect that a request asks for.
func (t Dialects) refuseRequest(g *gin.Context, why *Refusal) {
	i, codec := t.chooseDialect(g.Request, dialectParameter(g))
	t[max(i, 0)].Refuse(g, codec, why)
}

// handlerOf returns the handler of a route of the first dialect. A named dialect leaves the
// routes that it lacks to the first.
func (t Dialects) handlerOf(route Route) gin.HandlerFunc {
	by := make([]Handler, len(t))
	for i := range t {
		for _, r := range t[i].Routes {
			if r.Method == route.Method && r.Path == route.Path {
				by[i] = r.Handle
			}
		}
	}
	return func(g *gin.Context) {
		name := dialectParameter(g)
		switch i, codec := t.chooseDialect(g.Request, name); {
		case i < 0:
			named := slices.IndexFunc(t, Dialect.named)
			t[named].Refuse(g, codec, &Refusal{
				http.StatusBadRequest, "invalid_value", "dialect", fmt.Sprintf("dialect must be %s, got %q", t[named].Name, name),
			})
		case by[i] != nil:
			by[i](g, codec)
		case route.Packed && t[i].Codec == body.Msgpack:
			by[0](g, codec)
		case t[i].Name == "":
			t[i].Refuse(g, codec, &Refusal{http.StatusBadRequest, "unsupported_content_type", "",
				route.Path + " is not in this dialect: Content-Type must be " + t[0].Codec.ContentType()})
		default:
			by[0](g, t[0].Codec)
		}
	}
}

// dialectParameter returns the value of the query parameter dialect, which few requests have; "" without it.
func dialectParameter(g *gin.Context) string {
	if g.Request.URL.RawQuery == "" {
		return ""
	}
	return g.Query("dialect")
}

// chooseDialect returns the dialect that answers a request, -1 if none has the name, and the
// codec of the answer.
func (t Dialects) chooseDialect(r *http.Request, name string) (i int, codec body.Codec) {
	own := acceptedCodec(r.Header, t[0].Codec)
	if len(t) == 1 {
		return 0, own
	}
	contentType := r.Header.Get("Content-Type")
	for i := 1; i < len(t); i++ {
		if c := t[i].Codec; t[i].Name == "" && (Speaks(contentType, c) || r.Method == http.MethodGet && own == c) {
			return i, acceptedCodec(r.Header, c)
		}
	}
	if name != "" && slices.ContainsFunc(t, Dialect.named) {
		i = slices.IndexFunc(t, func(d Dialect) bool { return d.Name == name })
	}
	return i, own
}

// Speaks reports whether a header names a media type of a codec, among others or with
// parameters.
func Speaks(header string, c body.Codec) bool {
	header = strings.ToLower(header)
	return slices.ContainsFunc(c.ContentTypes(), func(name string) bool { return strings.Contains(header, name) })
}

// acceptedCodec returns the codec that Accept prefers, own if it prefers neither.
func acceptedCodec(header http.Header, own body.Codec) body.Codec {
	accept := header["Accept"]
	if len(accept) == 0 || len(accept) == 1 && accept[0] == "*/*" {
		return own
	}
	if other := body.Msgpack - own; Prefers(header, other.ContentTypes(), own.ContentTypes()) {
		return other
	}
	return own
}

// Prefers reports whether Accept prefers one media type to another. Each is given by all of its names.
func Prefers(header http.Header, one, other []string) bool {
	text := strings.Join(header["Accept"], ",")
	return qualityOf(text, one) > qualityOf(text, other)
}

// qualityOf returns the q parameter of the most specific range of an Accept header that
// holds a media type, given by all of its names: 0 if no range does.
func qualityOf(accept string, mediaType []string) (q float64) {
	family, _, _ := strings.Cut(mediaType[0], "/")
	best := -1
	for part := range strings.SplitSeq(accept, ",") {
		name, params, _ := strings.Cut(part, ";")
		at := -1
		switch name = strings.ToLower(strings.TrimSpace(name)); {
		case name == "*/*":
			at = 0
		case name == family+"/*":
			at = 1
		case slices.Contains(mediaType, name):
			at = 2
		}
		if at > best {
			best, q = at, qValue(params)
		}
	}
	return q
}

// qValue returns the q parameter of a media range: 1 if absent, 0 if invalid.
func qValue(params string) float64 {
	for p := range strings.SplitSeq(params, ";") {
		name, value, _ := strings.Cut(p, "=")
		if !strings.EqualFold(strings.TrimSpace(name), "q") {
			continue
		}
		if q, err := strconv.ParseFloat(strings.TrimSpace(value), 64); err == nil && q >= 0 && q <= 1 {
			return q
		}
		return 0
	}
	return 1
}
