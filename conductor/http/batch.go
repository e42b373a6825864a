package http

import (
	"bytes"
	"errors"
	"fmt"
	"slices"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/body"
	"example.com/conductor/conductor/forward"
	"example.com/conductor/conductor/invalid"
	"example.com/conductor/conductor/match"
	"example.com/conductor/conductor/reply"
	"example.com/conductor/conductor/stage"
)

// What a batch may say: queries by tokens or by hashes, and what counts for those that do not say
// it.
var (
	itemFields  = append(slices.Clone(ofHashes), queryFields...)
	batchFields = append(body.Shape{{Name: "queries", Kind: body.Objects(itemFields)}},
		body.Of("hash", "model", "modelname", "model_name", "block_size", "tenant_id", "lora_name", "cache_salt", "min_matched", "top",
			"expected")...)
)

// answerBatch answers for several prompts, in their order: POST /query_batch. A fault
// of one is its answer, and does not change the others. It returns a *splitBatch if other replicas
// answer some of them.
func (a *api) answerBatch(f *fields, r *body.Request) error {
	if err := a.checkBatch(f, r, "queries"); err != nil {
		return err
	}
	if len(r.Items) == 0 {
		if err := checkShared(f); err != nil {
			return err
		}
	}
	away := splitBatch{split: split{codec: f.codec, list: "queries", shared: f.body}}
	f.body = append(slices.Clip(f.body), f.spare...)
	e := &r.Encoder
	e.Map(1 + min(len(f.warnings), 1))
	e.Name("answers")
	e.List(len(r.Items))
	for i := range r.Items {
		f.clock.Enter(stage.Parse)
		q, err := a.readItem(f, r, i)
		if err == nil {
			err = f.view.Answer(&q, func(ans *match.Answer) { writeAnswer(e, ans, f.warningsOn(&q, nil)) })
		}
		f.clock.Enter(stage.Encode)
		var unserved *conductor.UnservedError
		switch {
		case errors.As(err, &unserved) && f.forwarded:
			return forward.ErrMisdirected // as a whole: the sender asks another replica
		case unserved != nil && len(unserved.Serving) > 0 && f.forwarder != nil:
			away.leaveGap(e, i, unserved)
		case err != nil:
			_, row := reply.DescribeError(err)
			e.Raw(reply.Encode(e.Codec, row))
		}
	}
	e.EndList()
	writeWarnings(e, f.warnings)
	e.EndMap()
	if len(away.parts) > 0 {
		return &away
	}
	return nil
}

// checkBatch checks the list called name: that it is there, its type, its length, and the tokens of all
// its elements together.
func (a *api) checkBatch(f *fields, r *body.Request, name string) error {
	_, m := f.member(name)
	switch {
	case m == nil:
		return invalid.Field(name, "missing", "%s is required", name)
	case !m.Read:
		return invalid.Field(name, "not_array", "%s must be an array", name)
	case m.List.N > body.MaxItems:
		return &invalid.FieldError{
			Field: name, Index: body.MaxItems, Reason: "out_of_range",
			Message: fmt.Sprintf("%s has %d elements, at most %d are allowed", name, m.List.N, body.MaxItems),
		}
	}
	total := 0
	for i := range r.Members {
		switch m := &r.Members[i]; {
		case m.Name == "token_ids" && !m.Twice:
			total += m.List.N
		case m.Name == "token_ids_b64" && !m.Twice && f.codec.Type(m.Raw) == body.Text:
			total += len(bytes.TrimRight(f.codec.Text(m.Raw), "=")) * 3 / 16
		case m.Read && m.Name != name && !m.Twice:
			total += m.List.N // of hashes
		}
	}
	if total > a.opts.MaxTokens {
		return invalid.Field(name, "out_of_range", "%s have %d tokens together, limits.max_tokens allows %d", name, total,
			a.opts.MaxTokens)
	}
	return nil
}

// checkShared checks the fields next to an empty list of queries. Where there are queries, each is read with
// them, and a fault is the answer to each query that they count for.
func checkShared(f *fields) error {
	shared := fields{codec: f.codec, body: f.body, shape: batchFields}
	if given, m := shared.member("model", "modelname", "model_name"); m != nil {
		shared.required(given)
	}
	if shared.has("block_size") {
		shared.blockSize()
	}
	for _, name := range [...]string{"tenant_id", "lora_name", "cache_salt"} {
		shared.text(name)
	}
	shared.atLeast("min_matched", 0)
	shared.atLeast("top", 1)
	shared.boolean("expected")
	if _, err := match.ParseHashKind("hash", shared.text("hash")); err != nil {
		shared.keepError(err)
	}
	return shared.err
}

// readItem reads one query of a batch.
func (a *api) readItem(batch *fields, r *body.Request, i int) (q match.Query, err error) {
	f, err := itemFieldsOf(batch, r, i, "queries", itemFields)
	if err != nil {
		return q, err
	}
	lists := len(r.Tokens)
	q = f.query(r, a.readEither(&f))
	r.Tokens = r.Tokens[:lists] // what base64 has added is read before the next is
	return q, f.err
}

// itemFieldsOf returns the fields of an element of a list of objects.
func itemFieldsOf(batch *fields, r *body.Request, i int, list string, shape body.Shape) (f fields, err error) {
	it := &r.Items[i]
	members := r.Members[it.From:it.To]
	switch {
	case !it.Object:
		return f, &invalid.FieldError{Field: list, Index: i, Reason: "invalid_type", Message: list + " element must be an object"}
	case body.Repeated(members) != "":
		return f, duplicateField(body.Repeated(members))
	}
	return fields{codec: batch.codec, body: members, spare: batch.body, shape: shape, detail: batch.detail, known: batch.known}, nil
}

// readEither returns the reader for a prompt that is given as tokens or as hashes. It is an error to give
// both.
func (a *api) readEither(f *fields) promptReader {
	given, m := f.member("seq_hashes", "block_hash", "block_hashes")
	if m == nil {
		if _, err := match.ParseHashKind("hash", f.text("hash")); err != nil {
			f.keepError(err)
		}
		return a.readTokens
	}
	for _, other := range [...]string{"token_ids", "token_ids_b64"} {
		if f.has(other) {
			f.keepError(invalid.Field(given, "conflict", "%s and %s are both given", other, given))
		}
	}
	return a.readHashes
}
