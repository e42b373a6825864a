package http

import (
	"strconv"

	"github.com/gin-gonic/gin"

	"kvconductor/conductor"
)

// query answers for a prompt given as tokens: POST /query.
func (a *api) query(g *gin.Context) (any, error) {
	return a.ask(g, func(f *fields, q *conductor.Query) {
		q.Tokens = f.tokens(a.opts.MaxTokens)
	})
}

// queryByHash answers for a prompt given as canonical seq hashes: POST
// /query_by_hash. block_hash is the name earlier drafts used.
func (a *api) queryByHash(g *gin.Context) (any, error) {
	return a.ask(g, func(f *fields, q *conductor.Query) {
		q.ByHash = true
		q.Hashes = f.hashes(a.opts.MaxTokens, "seq_hashes", "block_hash", "block_hashes")
	})
}

// ask reads what both queries share, lets prompt read the rest, and answers.
func (a *api) ask(g *gin.Context, prompt func(*fields, *conductor.Query)) (any, error) {
	detail, err := flag(g, "detail")
	if err != nil {
		return nil, err
	}
	b, err := a.readBody(g)
	if err != nil {
		return nil, err
	}
	f := fields{body: b}
	q := conductor.Query{
		Model:     f.required("model", "modelname", "model_name"),
		BlockSize: f.blockSize(),
		Detail:    detail,
	}
	prompt(&f, &q)
	q.Tenant = f.text("tenant_id")
	q.Lora = f.text("lora_name")
	q.Salt = f.text("cache_salt")
	q.Instance = f.optional("instance_id")
	q.MinMatched = f.bound("min_matched", 0)
	q.Top = f.bound("top", 1)
	if f.err != nil {
		return nil, f.err
	}
	return a.answer(&q), nil
}

// flag reads a boolean of the query string; absent is false.
func flag(g *gin.Context, name string) (bool, error) {
	text, given := g.GetQuery(name)
	if !given || text == "" {
		return given, nil
	}
	v, err := strconv.ParseBool(text)
	if err != nil {
		return false, conductor.Invalid(name, "invalid_value", "%s must be 1 or 0, got %q", name, text)
	}
	return v, nil
}
