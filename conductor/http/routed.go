package http

import (
	"cmp"
	"errors"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gin-gonic/gin"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/access"
	"example.com/conductor/conductor/body"
	"example.com/conductor/conductor/forward"
	"example.com/conductor/conductor/invalid"
	"example.com/conductor/conductor/match"
	"example.com/conductor/conductor/reply"
	"example.com/conductor/conductor/server"
	"example.com/conductor/conductor/stage"
	"example.com/conductor/conductor/status"
)

// What a report of a router may say: a prompt and its target, or a list of them. The other fields of a query have
// no effect, so that a router may send the body of its query with a target added.
var (
	reportFields = append(slices.Concat(ofHashes, body.Shape{{Name: "token_ids", Kind: body.Tokens(body.Token)}, {Name: "token_ids_b64"}},
		body.Of("model", "modelname", "model_name", "block_size", "tenant_id", "lora_name", "cache_salt", "instance_id", "dp_rank", "ttl",
			"request_id", "answer_id")),
		body.Field{Name: "min_matched", Kind: body.Ignored}, body.Field{Name: "top", Kind: body.Ignored},
		body.Field{Name: "expected", Kind: body.Ignored}, body.Field{Name: "lora_id", Kind: body.Ignored})
	routedFields = append(body.Shape{{Name: "prompts", Kind: body.Objects(reportFields)}}, reportFields...)
)

// notShared are the fields of a report that cannot count for all prompts of a list.
var notShared = [...]string{"token_ids", "token_ids_b64", "seq_hashes", "block_hash", "block_hashes", "request_id", "answer_id"}

// promptNames are the fields that have a prompt.
var promptNames = [...]string{"token_ids", "token_ids_b64", "seq_hashes", "block_hash", "block_hashes"}

// maxSeconds bounds a ttl in seconds, far beyond what a report may have, so that it fits into a time.Duration.
const maxSeconds = 1e9

// eitherCodec is what a report and a question for candidates may be written in.
var eitherCodec = []body.Codec{body.JSON, body.Msgpack}

// eitherHandler is queryHandler for a body in either codec.
func (a *api) eitherHandler(s body.Shape, answer func(*fields, *body.Request) error) server.Handler {
	return func(g *gin.Context, codec body.Codec) {
		in := body.JSON
		if server.Speaks(g.GetHeader("Content-Type"), body.Msgpack) {
			in = body.Msgpack
		}
		a.answerWithin(g, in, codec, s, answer, eitherCodec...)
	}
}

// takeBack takes a report back: DELETE /routed/ID?tenant_id=TENANT.
func (a *api) takeBack(g *gin.Context) (any, error) {
	return reply.NoContent{}, access.View(a.conductor, g).TakeBack(g.Query("tenant_id"), strings.TrimPrefix(g.Param("id"), "/"))
}

// routed notes where the prompt of a body goes, or those of a list: POST /routed. It writes nothing unless there is something to say.
func (a *api) routed(f *fields, r *body.Request) error {
	if f.has("prompts") {
		return a.routedList(f, r)
	}
	var x match.Routed
	if err := a.readRouted(f, r, &x); err != nil {
		return err
	}
	unsynced, err := f.view.Routed(&x)
	if err != nil {
		return err
	}
	if len(unsynced) == 0 && len(f.warnings) == 0 {
		return nil
	}
	r.Map(1)
	writeWarnings(&r.Encoder, append(f.warnings, server.Unsynced(unsynced).Warnings()...))
	r.EndMap()
	return nil
}

// readRouted reads a report of a prompt, or of the answer that a router got for one, into x.
func (a *api) readRouted(f *fields, r *body.Request, x *match.Routed) error {
	*x = match.Routed{Rank: match.AnyRank}
	if f.has("answer_id") {
		x.AnswerID, x.Tenant, x.Target = f.id("answer_id"), f.name("tenant_id"), f.text("instance_id")
		if prompt, m := f.member(promptNames[:]...); m != nil {
			f.keepError(invalid.Field(prompt, "conflict", "answer_id and %s are both given", prompt))
		}
	} else {
		if x.Query = f.prompt(r, a.readEither(f)); x.Instance != nil {
			x.Target, x.Instance = *x.Instance, nil
		}
	}
	if f.has("dp_rank") {
		x.Rank = f.integer("dp_rank", 0)
	}
	x.TTL = f.ttl()
	if f.has("request_id") {
		x.RequestID = f.id("request_id")
	}
	return f.err
}

// ttl reads how long blocks are expected: a text with a unit, or seconds. Absent and null are 0.
func (f *fields) ttl() time.Duration {
	name, raw := f.field("ttl")
	if raw == nil {
		return 0
	}
	d, text := time.Duration(0), f.codec.Type(raw) == body.Text
	if text {
		var err error
		if d, err = time.ParseDuration(string(f.codec.Text(raw))); err != nil {
			f.keepError(invalid.Field(name, "invalid_value", "%s must be a time such as 2s, or a number of seconds, got %.40q", name,
				f.codec.Text(raw)))
			return 0
		}
	} else if seconds, ok := f.codec.Number(raw); ok && !math.IsNaN(seconds) {
		d = time.Duration(min(max(seconds, -maxSeconds), maxSeconds) * float64(time.Second))
	} else {
		f.keepError(invalid.Field(name, "invalid_type", "%s must be a time such as \"2s\", or a number of seconds", name))
		return 0
	}
	if d == 0 {
		f.keepError(invalid.Field(name, "out_of_range", "%s must be more than 0; left out, it is learned", name))
	}
	return d
}

// routedRow says what became of a list of reports.
type routedRow struct {
	Kept     int           `json:"kept"`
	Errors   []routedError `json:"errors,omitempty"`
	Warnings []string      `json:"warnings,omitempty"`
}

// routedError is why one of them was not kept.
type routedError struct {
	Prompt int `json:"prompt"`
	reply.ErrorBody
}

// addError notes the error of a prompt.
func (row *routedRow) addError(prompt int, err error) {
	_, why := reply.DescribeError(err)
	row.Errors = append(row.Errors, routedError{prompt, why})
}

// addWarnings adds warnings that are not there yet.
func (row *routedRow) addWarnings(all []string) {
	for _, w := range all {
		if !slices.Contains(row.Warnings, w) {
			row.Warnings = append(row.Warnings, w)
		}
	}
}

// writeUnlessEmpty writes the row, unless all was kept without a warning.
func (row *routedRow) writeUnlessEmpty(r *body.Request) {
	if len(row.Errors)+len(row.Warnings) > 0 {
		r.Raw(reply.Encode(r.Codec, row))
	}
}

// routedList notes where the prompts of a list go. A fault of one does not change the others. It returns a
// *splitRouted if some go to shards of other replicas.
func (a *api) routedList(f *fields, r *body.Request) error {
	for _, name := range notShared {
		if f.has(name) {
			return invalid.Field(name, "conflict", "%s and prompts are both given", name)
		}
	}
	if err := a.checkBatch(f, r, "prompts"); err != nil {
		return err
	}
	away := splitRouted{split: split{codec: f.codec, list: "prompts", shared: f.body}}
	row := &away.row
	row.addWarnings(f.warnings)
	var unsynced server.Unsynced // of all prompts
	var item routedItem
	for i := range r.Items {
		f.clock.Enter(stage.Parse)
		of, err := a.keepItem(f, r, i, &item)
		if err == nil {
			row.Kept++
			unsynced.Add(of)
			continue
		}
		var unserved *conductor.UnservedError
		switch {
		case errors.As(err, &unserved) && f.forwarded && !f.view.Mirrored():
			return forward.ErrMisdirected // as a whole: the sender asks another replica
		case unserved != nil && len(unserved.Serving) > 0 && f.forwarder != nil:
			away.parts.Add(i, unserved)
		default:
			row.addError(i, err)
		}
	}
	row.addWarnings(unsynced.Warnings())
	if len(away.parts) > 0 {
		return &away
	}
	row.writeUnlessEmpty(r)
	return nil
}

// routedItem is one prompt of a list. A list uses one for all its prompts, because a new one for each would be most of what a
// short report allocates.
type routedItem struct {
	fields fields
	report match.Routed
}

// keepItem notes where one prompt of a list goes. It overwrites item.
func (a *api) keepItem(batch *fields, r *body.Request, i int, item *routedItem) (unsynced []status.SourceState, err error) {
	if item.fields, err = itemFieldsOf(batch, r, i, "prompts", reportFields); err != nil {
		return nil, err
	}
	lists := len(r.Tokens)
	err = a.readRouted(&item.fields, r, &item.report)
	r.Tokens = r.Tokens[:lists] // what base64 has added is read before the next is
	if err != nil {
		return nil, err
	}
	return batch.view.Routed(&item.report)
}

// splitRouted is a split of reports.
type splitRouted struct {
	split
	row routedRow
}

// joinAnswers adds what the other replicas say to the answer.
func (s *splitRouted) joinAnswers(g *gin.Context, r *body.Request) {
	var mu sync.Mutex
	s.askReplicas(g, func(p *forward.Part, answer []byte, err error) {
		part := routedRow{Kept: len(p.At)}
		if err == nil && len(answer) > 0 {
			part = routedRow{}
			err = decode(answer, r.Codec, &part)
		}
		if n := part.Kept + len(part.Errors); err == nil && n != len(p.At) {
			err = wrongNumber(n, p)
		}
		mu.Lock()
		defer mu.Unlock()
		if err != nil {
			for _, i := range p.At {
				s.row.addError(i, err)
			}
			return
		}
		for _, e := range part.Errors {
			e.Prompt = p.At[min(max(e.Prompt, 0), len(p.At)-1)]
			s.row.Errors = append(s.row.Errors, e)
		}
		s.row.Kept += part.Kept
		s.row.addWarnings(part.Warnings)
	})
	slices.SortFunc(s.row.Errors, func(a, b routedError) int { return cmp.Compare(a.Prompt, b.Prompt) })
	s.row.writeUnlessEmpty(r)
}
