package http

import (
	"cmp"
	"slices"
	"strconv"

	"github.com/gin-gonic/gin"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/body"
	"example.com/conductor/conductor/invalid"
	"example.com/conductor/conductor/match"
	"example.com/conductor/conductor/reply"
	"example.com/conductor/conductor/scope"
)

// explainFields is what a body may say: a query's fields but those that limit its rows, and recent or
// prefix in place of tokens.
var explainFields = append(body.Shape{
	{Name: "recent"}, {Name: "prefix"}, {Name: "token_ids", Kind: body.Tokens(body.Token)}, {Name: "token_ids_b64"},
},
	slices.DeleteFunc(slices.Clone(promptFields), func(f body.Field) bool {
		return f.Name == "min_matched" || f.Name == "top" ||
			f.Name == "expected"
	})...)

// RecentQueries are the queries that clients asked lately. A watch.Hub has them.
type RecentQueries interface {
	// Recent returns the query of an id if it is kept and a reader of tenants may see it.
	Recent(tenants scope.Tenants, id string) (match.Query, bool)
	// Kept returns the queries that a reader of tenants may see, the newest first.
	Kept(tenants scope.Tenants) []match.Query
}

// ExplainHandler returns a handler of bodies like those of /query whose prompt may be a recent query, or a prefix that
// recent queries begin with, in place of tokens. explain answers within a slot of the Admission; warnings are those
// about unknown fields. A nil recent has no queries.
func ExplainHandler(c *conductor.Conductor, opts Options, recent RecentQueries,
	explain func(v conductor.View, q *match.Query, warnings []string) (any, error)) gin.HandlerFunc {
	a := &api{conductor: c, opts: opts}
	answer := func(f *fields, r *body.Request) error {
		q := a.explained(f, r, recent)
		if f.err != nil {
			return f.err
		}
		row, err := explain(f.view, &q, f.warnings)
		if err == nil {
			r.Encoder.Raw(reply.Encode(body.JSON, row))
		}
		return err
	}
	return func(g *gin.Context) { a.answerWithin(g, body.JSON, body.JSON, explainFields, answer) }
}

// explained reads the prompt that an explanation is about: that of the body, that of a recent query,
// whose other fields count where the body does not say them, or a prefix that recent queries begin with.
func (a *api) explained(f *fields, r *body.Request, recent RecentQueries) match.Query {
	id, prefix := f.text("recent"), f.text("prefix")
	if id == "" && prefix == "" {
		return f.prompt(r, a.readTokens)
	}
	given := "recent"
	if id == "" {
		given = "prefix"
	}
	for _, name := range []string{"prefix", "token_ids", "token_ids_b64"} {
		if name != given && f.has(name) {
			f.keepError(invalid.Field(name, "conflict", "%s and %s exclude each other", given, name))
		}
	}
	if given == "prefix" {
		return queryOfPrefix(f, r, recent, prefix)
	}
	var q match.Query
	known := false
	if recent != nil {
		q, known = recent.Recent(f.view.Tenants(), id)
	}
	if !known {
		f.keepError(invalid.Field("recent", "invalid_value", "recent names no query that is kept, got %.64q", id))
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

// queryOfPrefix reads a question about a prefix that /admin/prefixes names. The tokens are those of the newest query that
// is kept and begins with it, and so is the salt, unless the body has another.
func queryOfPrefix(f *fields, r *body.Request, recent RecentQueries, name string) match.Query {
	q := f.prompt(r, func(*fields, *body.Request) given { return given{} })
	key, err := strconv.ParseUint(name, 16, 64)
	if err != nil {
		f.keepError(invalid.Field("prefix", "invalid_value", "prefix must be 1 to 16 hexadecimal digits, got %.64q", name))
	}
	if f.err != nil {
		return q
	}
	if recent != nil {
		for _, kept := range recent.Kept(f.view.Tenants()) {
			if n := f.view.Inspect().BeginsWith(&kept, &q, key); n > 0 {
				q.Tokens, q.Salt = kept.Tokens[:n*q.BlockSize], cmp.Or(q.Salt, kept.Salt)
				return q
			}
		}
	}
	f.keepError(invalid.Field("prefix", "invalid_value",
		"no recent query begins with the prefix %.16s: queries are kept for five minutes, and only while a page follows them", name))
	return q
}
