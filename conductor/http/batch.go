package http

import (
	"bytes"
	"encoding/json"
	"slices"

	"github.com/gin-gonic/gin"

	"kvconductor/conductor"
)

// What a batch may say: queries, and what counts for those that do not say it.
var batchFields = append(shape{{name: "queries", kind: objects, of: queryFields}},
	of("model", "modelname", "model_name", "block_size", "tenant_id", "lora_name", "cache_salt", "min_matched", "top")...)

// queryBatch answers for several prompts, in their order: POST /query_batch. What is
// wrong with one is its answer, and no other's.
func (a *api) queryBatch(g *gin.Context) (any, error) { return a.work(g, batchFields, a.batch) }

// batch answers the queries of a batch.
func (a *api) batch(f *fields, r *request) (any, error) {
	if err := a.checkBatch(f, r); err != nil {
		return nil, err
	}
	f.body = append(slices.Clip(f.body), f.spare...)
	b := newBuffer()
	b.text = append(b.text, `{"answers":[`...)
	for i := range r.items {
		if i > 0 {
			b.text = append(b.text, ',')
		}
		q, err := a.readItem(f, r, i)
		if err != nil {
			b.text = appendError(b.text, err)
			continue
		}
		a.conductor.Answer(&q, func(ans *conductor.Answer) { b.text = appendAnswer(b.text, ans) })
	}
	b.text = append(b.text, ']', '}')
	return b, nil
}

// checkBatch refuses what is wrong with a batch as a whole.
func (a *api) checkBatch(f *fields, r *request) error {
	name, m := f.member("queries")
	switch {
	case m == nil:
		return conductor.Invalid(name, "missing", "%s is required", name)
	case !m.read:
		return conductor.Invalid(name, "not_array", "%s must be an array", name)
	case m.list.n > maxItems:
		return conductor.Invalid(name, "out_of_range", "%s has %d elements, at most %d are allowed", name, m.list.n, maxItems)
	}
	total := 0
	for i := range r.members {
		switch m := &r.members[i]; {
		case m.name == "token_ids":
			total += m.list.n
		case m.name == "token_ids_b64" && m.raw[0] == '"':
			total += len(bytes.TrimRight(unquoted(m.raw), "=")) * 3 / 16
		}
	}
	if total > a.opts.MaxTokens {
		return conductor.Invalid(name, "out_of_range", "%s have %d tokens together, limits.max_tokens allows %d", name, total, a.opts.MaxTokens)
	}
	return nil
}

// readItem reads one query of a batch.
func (a *api) readItem(batch *fields, r *request, i int) (q conductor.Query, err error) {
	it := &r.items[i]
	switch {
	case !it.object:
		return q, &conductor.FieldError{Field: "queries", Index: i, Reason: "invalid_type", Message: "queries element must be an object"}
	case it.twice != "":
		return q, duplicate(it.twice)
	}
	f := fields{body: r.members[it.from:it.to], spare: batch.body, shape: queryFields, detail: batch.detail}
	lists := len(r.tokens)
	q = f.query(r, a.tokens)
	r.tokens = r.tokens[:lists] // what base64 has added is read before the next is
	return q, f.err
}

// appendError writes what is wrong with one query of a batch.
func appendError(dst []byte, err error) []byte {
	_, body := describe(err)
	text, err := json.Marshal(body)
	if err != nil {
		panic("BUG: an error cannot be encoded: " + err.Error())
	}
	return append(dst, text...)
}
