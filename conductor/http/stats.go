package http

import (
	"errors"

	"github.com/gin-gonic/gin"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/access"
	"example.com/conductor/conductor/body"
)

// errNotWatched is the answer of a server that collects nothing for operators.
var errNotWatched = errors.New("this server collects nothing for a page")

// maxTopSources bounds the parameter top of /admin/stats.
const maxTopSources = 1_000_000

// stats shows how the fleet is: GET /admin/stats?top=N.
func (a *api) stats(g *gin.Context) (any, error) {
	top, err := topOf(g, 0, maxTopSources)
	if err != nil {
		return nil, err
	}
	if a.opts.Watch == nil {
		return nil, errNotWatched
	}
	return file{jsonDocument, a.opts.Watch.Document(access.View(a.conductor, g).Tenants(), top)}, nil
}

// jsonDocument is the media type of documents that are encoded already.
const jsonDocument = "application/json; charset=utf-8"

// recentQueries shows the queries that /admin/live has shown lately: GET /admin/queries.
func (a *api) recentQueries(g *gin.Context) (any, error) {
	if a.opts.Watch == nil {
		return nil, errNotWatched
	}
	return file{jsonDocument, a.opts.Watch.Queries(access.View(a.conductor, g).Tenants())}, nil
}

// explained reads the prompt that an explanation is about: that of the body, or that of a recent
// query, whose other fields count where the body does not say them.
func (a *api) explained(f *fields, r *body.Request) conductor.Query {
	id := f.text("recent")
	if id == "" {
		return f.prompt(r, a.tokens)
	}
	for _, name := range []string{"token_ids", "token_ids_b64"} {
		if f.has(name) {
			f.fail(conductor.Invalid(name, "conflict", "recent and %s exclude each other", name))
		}
	}
	var q conductor.Query
	known := false
	if a.opts.Watch != nil {
		q, known = a.opts.Watch.Recent(f.view.Tenants(), id)
	}
	if !known {
		f.fail(conductor.Invalid("recent", "invalid_value", "recent names no query that is kept, got %.64q", id))
		return q
	}
	if f.has("model", "modelname", "model_name") {
		q.Model = f.required("model", "modelname", "model_name")
	}
	if f.has("block_size") {
		q.BlockSize = f.blockSize()
	}
	for _, other := range []struct {
		name string
		to   *string
	}{{"tenant_id", &q.Tenant}, {"lora_name", &q.Lora}, {"cache_salt", &q.Salt}} {
		if text := f.optional(other.name); text != nil {
			*other.to = *text
		}
	}
	q.Instance = f.optional("instance_id")
	return q
}
