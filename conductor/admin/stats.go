package admin

import (
	"net/http"

	"github.com/gin-gonic/gin"

	"example.com/conductor/conductor/access"
	"example.com/conductor/conductor/reply"
	"example.com/conductor/conductor/server"
)

// errNotWatched is the answer of a server that collects nothing for operators.
var errNotWatched error = &server.Refusal{Status: http.StatusNotFound, Reason: "disabled", Text: "this server collects nothing for a page"}

// maxTopSources bounds the parameter top of /admin/stats.
const maxTopSources = 1_000_000

// stats shows how the fleet is: GET /admin/stats?top=N&model=NAME.
func (a *api) stats(g *gin.Context) (any, error) {
	top, err := topOf(g, 0, maxTopSources)
	if err != nil {
		return nil, err
	}
	if a.opts.Watch == nil {
		return nil, errNotWatched
	}
	document := a.opts.Watch.Document(access.View(a.conductor, g).Tenants(), top, g.Query("model"))
	return reply.File{ContentType: jsonDocument, Bytes: document}, nil
}

// jsonDocument is the media type of documents that are encoded already.
const jsonDocument = "application/json; charset=utf-8"

// recentQueries shows the queries that /admin/live has shown lately: GET /admin/queries.
func (a *api) recentQueries(g *gin.Context) (any, error) {
	if a.opts.Watch == nil {
		return nil, errNotWatched
	}
	return reply.File{ContentType: jsonDocument, Bytes: a.opts.Watch.Queries(access.View(a.conductor, g).Tenants())}, nil
}
