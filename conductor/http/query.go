package http

import (
	"errors"
	"net/http"
	"slices"

	"github.com/gin-gonic/gin"

	"example.com/conductor/conductor/access"
	"example.com/conductor/conductor/body"
	"example.com/conductor/conductor/forward"
	"example.com/conductor/conductor/match"
	"example.com/conductor/conductor/reply"
	"example.com/conductor/conductor/server"
)

// What a body may say; fields by other names are ignored.
var (
	hashes       = body.Hashes(body.Hash)
	promptFields = append(body.Of("model", "modelname", "model_name", "block_size", "tenant_id", "lora_name", "cache_salt", "instance_id",
		"min_matched", "top"),
		body.Field{Name: "expected"}, body.Field{Name: "lora_id", Kind: body.Ignored})
	queryFields = append(body.Shape{{Name: "token_ids", Kind: body.Tokens(body.Token)}, {Name: "token_ids_b64"}}, promptFields...)
	ofHashes    = body.Shape{
		{Name: "seq_hashes", Kind: hashes}, {Name: "block_hash", Kind: hashes}, {Name: "block_hashes", Kind: hashes}, {Name: "hash"},
	}
	hashFields = append(slices.Clone(ofHashes), promptFields...)
)

// given is a prompt as match.Query has it.
type given struct {
	tokens []uint32
	hashes []uint64
	byHash bool
	kind   match.HashKind
}

// readTokens reads a prompt given as tokens: POST /query.
func (a *api) readTokens(f *fields, r *body.Request) given {
	return given{tokens: f.tokens(r, a.opts.MaxTokens)}
}

// readHashes reads a prompt given as hashes of a kind: POST /query_by_hash. block_hash is the name
// earlier drafts used.
func (a *api) readHashes(f *fields, r *body.Request) given {
	kind, err := match.ParseHashKind("hash", f.text("hash"))
	if err != nil {
		f.keepError(err)
	}
	return given{hashes: f.hashes(r, a.opts.MaxTokens, "seq_hashes", "block_hash", "block_hashes"), byHash: true, kind: kind}
}

// promptReader reads a prompt for a query, which must not keep it.
type promptReader func(*fields, *body.Request) given

// queryHandler returns the handler of a query with a body of a shape. answer writes the answer
// within a slot. also are the codecs of bodies that another dialect reads at the path.
func (a *api) queryHandler(s body.Shape, answer func(*fields, *body.Request) error, also ...body.Codec) server.Handler {
	return func(g *gin.Context, codec body.Codec) { a.answerWithin(g, body.JSON, codec, s, answer, also...) }
}

// answerWithin reads a body in codec in and answers in codec. If answer writes nothing, the status is 204.
func (a *api) answerWithin(g *gin.Context, in, codec body.Codec, s body.Shape, answer func(*fields, *body.Request) error,
	also ...body.Codec) {
	r := body.Get()
	defer r.Release()
	r.Codec, r.HTML = codec, true
	f := pooledFields.Get().(*fields)
	defer f.release()
	if err := a.readAndAnswer(g, in, r, f, s, answer, also...); err != nil && !completeAnswer(g, r, err) {
		return
	}
	if len(r.Out) == 0 {
		g.Status(http.StatusNoContent)
		return
	}
	server.SendAnswer(g, codec, r.Out)
}

// completeAnswer lets other replicas complete an answer if err says that they have the rest, and reports true. Else it
// sends the request on, or refuses it.
func completeAnswer(g *gin.Context, r *body.Request, err error) bool {
	var away elsewhere
	if errors.As(err, &away) {
		away.joinAnswers(g, r)
		return true
	}
	if err = forward.Send(g, r.Src, err); err != nil {
		reply.Refuse(g, r.Codec, err)
	}
	return false
}

// readAndAnswer reads a request with a body of a shape, in a codec, into f, and lets answer answer it when its turn
// has come.
func (a *api) readAndAnswer(g *gin.Context, in body.Codec, r *body.Request, f *fields, s body.Shape,
	answer func(*fields, *body.Request) error, also ...body.Codec) error {
	detail, err := reply.ReadFlag(g, "detail")
	if err != nil {
		return err
	}
	strict, err := reply.ReadFlag(g, "strict") // refuses unknown fields
	if err != nil {
		return err
	}
	spare, err := queryLimits(g)
	if err != nil {
		return err
	}
	if err := r.Fill(g.Writer, g.Request, a.opts.MaxBody); err != nil {
		return err
	}
	return a.opts.Admission.Do(g, func() error {
		read, err := scanBody(r, in, s, a.opts.MaxTokens, also...)
		if err != nil {
			return err
		}
		warnings, err := a.checkNames(r, in, s, strict, detail)
		if err != nil {
			return err
		}
		read.known = f.known
		*f = read
		f.detail, f.spare, f.warnings, f.view = detail, spare, warnings, access.View(a.conductor, g)
		f.clock, f.forwarder, f.forwarded = server.ClockOf(g), forward.Of(g), g.GetHeader(forward.ForwardedHeader) != ""
		return answer(f, r)
	})
}

// answerOne returns what answers a query.
func (a *api) answerOne(prompt promptReader) func(*fields, *body.Request) error {
	return func(f *fields, r *body.Request) error {
		q := f.query(r, prompt)
		if f.err != nil {
			return f.err
		}
		return f.view.Answer(&q, func(ans *match.Answer) { writeAnswer(&r.Encoder, ans, f.warningsOn(&q, f.warnings)) })
	}
}

// warningsOn adds a warning if nothing is registered for a query with details.
func (f *fields) warningsOn(q *match.Query, warnings []string) []string {
	if !q.Detail {
		return warnings
	}
	if why := f.view.Unregistered(q); why != "" {
		warnings = append(slices.Clip(warnings), why)
	}
	return warnings
}

// query reads what all queries share, and the prompt.
func (f *fields) query(r *body.Request, prompt promptReader) match.Query {
	q := f.prompt(r, prompt)
	q.MinMatched = f.atLeast("min_matched", 0)
	q.Top = f.atLeast("top", 1)
	q.Expected = f.boolean("expected")
	q.Detail = f.detail
	return q
}

// prompt reads a query without limits to its rows.
func (f *fields) prompt(r *body.Request, prompt promptReader) match.Query {
	return f.promptWithin(r, prompt, f.blockSize)
}

// promptWithin is prompt with a reader of the block size.
func (f *fields) promptWithin(r *body.Request, prompt promptReader, blockSize func() int) match.Query {
	q := match.Query{
		Model:     f.required("model", "modelname", "model_name"),
		BlockSize: blockSize(),
	}
	p := prompt(f, r)
	q.Tokens, q.Hashes, q.ByHash, q.HashKind = p.tokens, p.hashes, p.byHash, p.kind
	q.Tenant = f.name("tenant_id")
	q.Lora = f.name("lora_name")
	q.Salt = f.text("cache_salt")
	q.Instance = f.optional("instance_id")
	return q
}

// queryLimits are min_matched, top and expected of the query string, which count where a body does not
// say them.
func queryLimits(g *gin.Context) (spare []body.Member, err error) {
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
		f := fields{body: []body.Member{{Name: limit.name, Raw: []byte(text)}}}
		if f.atLeast(limit.name, limit.least); f.err != nil {
			return nil, f.err
		}
		spare = append(spare, f.body[0])
	}
	expected, err := reply.ReadFlag(g, "expected")
	if expected {
		spare = append(spare, body.Member{Name: "expected", Raw: []byte("true")})
	}
	return spare, err
}
