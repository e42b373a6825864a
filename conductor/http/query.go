package http

import (
	"strconv"

	"github.com/gin-gonic/gin"

	"kvconductor/conductor"
)

// What a body may say; fields by other names are ignored.
var (
	promptFields = of("model", "modelname", "model_name", "block_size", "tenant_id", "lora_name", "cache_salt", "instance_id", "min_matched", "top")
	queryFields  = append(shape{{name: "token_ids", kind: tokens}, {name: "token_ids_b64"}}, promptFields...)
	hashFields   = append(shape{{name: "seq_hashes", kind: hashes}, {name: "block_hash", kind: hashes}, {name: "block_hashes", kind: hashes}}, promptFields...)
)

// query answers for a prompt given as tokens: POST /query.
func (a *api) query(g *gin.Context) (any, error) {
	return a.work(g, queryFields, func(f *fields, r *request) (any, error) { return a.one(f, r, a.tokens) })
}

func (a *api) tokens(f *fields, r *request, q *conductor.Query) {
	q.Tokens = f.tokens(r, a.opts.MaxTokens)
}

// queryByHash answers for a prompt given as canonical seq hashes: POST
// /query_by_hash. block_hash is the name earlier drafts used.
func (a *api) queryByHash(g *gin.Context) (any, error) {
	return a.work(g, hashFields, func(f *fields, r *request) (any, error) { return a.one(f, r, a.hashes) })
}

func (a *api) hashes(f *fields, r *request, q *conductor.Query) {
	q.ByHash = true
	q.Hashes = f.hashes(r, a.opts.MaxTokens, "seq_hashes", "block_hash", "block_hashes")
}

// promptReader reads a prompt into a query, which must not keep it.
type promptReader func(*fields, *request, *conductor.Query)

// work reads a request with a body of a shape and lets answer answer it when its turn
// has come.
func (a *api) work(g *gin.Context, s shape, answer func(*fields, *request) (any, error)) (any, error) {
	detail, err := flag(g, "detail")
	if err != nil {
		return nil, err
	}
	spare, err := limits(g)
	if err != nil {
		return nil, err
	}
	r := requests.Get().(*request)
	defer r.release()
	if err := a.admit(g, r); err != nil {
		return nil, err
	}
	defer a.conductor.Leave()
	f, err := r.scan(s, a.opts.MaxTokens)
	if err != nil {
		return nil, err
	}
	f.detail, f.spare = detail, spare
	return answer(&f, r)
}

// one answers a query.
func (a *api) one(f *fields, r *request, prompt promptReader) (any, error) {
	q := f.query(r, prompt)
	if f.err != nil {
		return nil, f.err
	}
	return a.answer(&q), nil
}

// admit reads a body and waits until it is the request's turn to be worked on. Without
// an error the caller leaves it.
func (a *api) admit(g *gin.Context, r *request) error {
	if err := a.readBytes(g, r); err != nil {
		return err
	}
	return a.conductor.Enter(g.Request.Context())
}

// query reads what both queries share, and the prompt.
func (f *fields) query(r *request, prompt promptReader) conductor.Query {
	q := conductor.Query{
		Model:     f.required("model", "modelname", "model_name"),
		BlockSize: f.blockSize(),
	}
	prompt(f, r, &q)
	q.Tenant = f.text("tenant_id")
	q.Lora = f.text("lora_name")
	q.Salt = f.text("cache_salt")
	q.Instance = f.optional("instance_id")
	q.MinMatched = f.atLeast("min_matched", 0)
	q.Top = f.atLeast("top", 1)
	q.Detail = f.detail
	return q
}

// limits are min_matched and top of the query string, which count where a body does not
// say them.
func limits(g *gin.Context) (spare body, err error) {
	if g.Request.URL.RawQuery == "" {
		return nil, nil
	}
	for _, limit := range [...]struct {
		name  string
		least int64
	}{{"min_matched", 0}, {"top", 1}} {
		text, given := g.GetQuery(limit.name)
		if !given {
			continue
		}
		if text == "null" {
			text = `"null"` // absent it is in a body alone
		}
		f := fields{body: body{{name: limit.name, raw: []byte(text)}}}
		if f.atLeast(limit.name, limit.least); f.err != nil {
			return nil, f.err
		}
		spare = append(spare, f.body[0])
	}
	return spare, nil
}

// flag reads a boolean of the query string; absent is false.
func flag(g *gin.Context, name string) (bool, error) {
	if g.Request.URL.RawQuery == "" {
		return false, nil // as a rule
	}
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
