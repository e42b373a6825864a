package http

import (
	"cmp"
	"errors"
	"strconv"

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

// explained reads the prompt that an explanation is about: that of the body, that of a recent query,
// whose other fields count where the body does not say them, or a prefix that recent queries begin with.
func (a *api) explained(f *fields, r *body.Request) conductor.Query {
	id, prefix := f.text("recent"), f.text("prefix")
	if id == "" && prefix == "" {
		return f.prompt(r, a.tokens)
	}
	given := "recent"
	if id == "" {
		given = "prefix"
	}
	for _, name := range []string{"prefix", "token_ids", "token_ids_b64"} {
		if name != given && f.has(name) {
			f.fail(conductor.Invalid(name, "conflict", "%s and %s exclude each other", given, name))
		}
	}
	if given == "prefix" {
		return a.beginning(f, r, prefix)
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

// beginning reads a question about a prefix that /admin/prefixes names. The tokens are those of the newest query that
// is kept and begins with it, and so is the salt, unless the body has another.
func (a *api) beginning(f *fields, r *body.Request, name string) conductor.Query {
	q := f.prompt(r, func(*fields, *body.Request) given { return given{} })
	key, err := strconv.ParseUint(name, 16, 64)
	if err != nil {
		f.fail(conductor.Invalid("prefix", "invalid_value", "prefix must be 1 to 16 hexadecimal digits, got %.64q", name))
	}
	if f.err != nil {
		return q
	}
	if a.opts.Watch != nil {
		for _, kept := range a.opts.Watch.Kept(f.view.Tenants()) {
			if n := f.view.BeginsWith(&kept, &q, key); n > 0 {
				q.Tokens, q.Salt = kept.Tokens[:n*q.BlockSize], cmp.Or(q.Salt, kept.Salt)
				return q
			}
		}
	}
	f.fail(conductor.Invalid("prefix", "invalid_value", "no recent query begins with the prefix %.16s: queries are kept for five minutes, and only while a page follows them", name))
	return q
}
