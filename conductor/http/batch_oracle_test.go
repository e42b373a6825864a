package http

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"example.com/conductor/conductor/body"
	"example.com/conductor/conductor/invalid"
	"example.com/conductor/conductor/match"
	"example.com/conductor/conductor/reply"
)

// asked has the fields of one query of a batch.
type asked struct {
	query match.Query
	err   error
}

// oracleBatch reads a batch with encoding/json alone.
func oracleBatch(raw []byte, limit int) ([]asked, error) {
	b, err := readOracle(raw)
	if err != nil {
		return nil, err
	}
	if name := givenTwice(raw, batchFields); name != "" {
		return nil, duplicateField(name)
	}
	_, list := b.field("queries")
	var items []json.RawMessage
	switch {
	case list == nil:
		return nil, invalid.Field("queries", "missing", "queries is required")
	case json.Unmarshal(list, &items) != nil:
		return nil, invalid.Field("queries", "not_array", "queries must be an array")
	case len(items) > 256:
		return nil, &invalid.FieldError{
			Field: "queries", Index: 256, Reason: "out_of_range",
			Message: fmt.Sprintf("queries has %d elements, at most 256 are allowed", len(items)),
		}
	}
	total := 0
	for _, item := range items {
		total += oracleTokens(item)
	}
	if total > limit {
		return nil, invalid.Field("queries", "out_of_range", "queries have %d tokens together, limits.max_tokens allows %d", total,
			limit)
	}
	all := []asked{}
	for i, item := range items {
		if item[0] != '{' {
			all = append(all, asked{err: &invalid.FieldError{
				Field: "queries", Index: i, Reason: "invalid_type", Message: "queries element must be an object",
			}})
			continue
		}
		if name := givenTwice(item, queryFields); name != "" {
			all = append(all, asked{err: duplicateField(name)})
			continue
		}
		var own oracleBody
		if err := json.Unmarshal(item, &own); err != nil {
			return nil, err
		}
		for _, names := range [][]string{{"model", "modelname", "model_name"}, {"block_size"}, {"tenant_id"}, {"lora_name"}, {"cache_salt"},
			{"min_matched"}, {"top"}, {"expected"}} {
			if _, v := own.field(names...); v == nil {
				name, v := b.field(names...)
				own[name] = v
			}
		}
		q, err := own.query(false, limit)
		all = append(all, asked{q, err})
	}
	return all, nil
}

// oracleTokens counts the tokens of one query, of fields that are there twice the first.
func oracleTokens(item []byte) (n int) {
	d := json.NewDecoder(bytes.NewReader(item))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return 0
	}
	seen := map[string]bool{}
	for d.More() {
		t, err := d.Token()
		var value json.RawMessage
		if err != nil || d.Decode(&value) != nil {
			return n
		}
		name := t.(string)
		var list []json.RawMessage
		var text string
		switch {
		case seen[name]:
		case name == "token_ids" && value[0] == '[' && json.Unmarshal(value, &list) == nil:
			n += len(list)
		case name == "token_ids_b64" && value[0] == '"' && json.Unmarshal(value, &text) == nil:
			n += len(strings.TrimRight(text, "=")) * 3 / 16
		}
		seen[name] = true
	}
	return n
}

func fastBatch(r *body.Request, raw []byte, limit int) ([]asked, error) {
	a := api{opts: Options{MaxTokens: limit}}
	r.Src, r.Members, r.Items, r.Tokens, r.Hashes = append(r.Src[:0], raw...), r.Members[:0], r.Items[:0], r.Tokens[:0], r.Hashes[:0]
	f, err := scanBody(r, body.JSON, batchFields, limit)
	if err == nil {
		err = a.checkBatch(&f, r, "queries")
	}
	if err != nil {
		return nil, err
	}
	all := []asked{}
	for i := range r.Items {
		q, err := a.readItem(&f, r, i)
		q.Tokens = slices.Clone(q.Tokens) // the next one may use the buffer
		all = append(all, asked{q, err})
	}
	return all, nil
}

// compareBatch compares the fields of a batch with the oracle.
func compareBatch(t *testing.T, raw []byte, limit int) {
	t.Helper()
	r := &body.Request{Tokens: make([]uint32, 3, 5)}
	got, gotErr := fastBatch(r, raw, limit)
	want, wantErr := oracleBatch(raw, limit)
	same := func(what string, got, want error) {
		t.Helper()
		if (got == nil) != (want == nil) {
			t.Fatalf("%.300q: %s: error %v, want %v", raw, what, got, want)
		}
		if got == nil {
			return
		}
		status, body := reply.DescribeError(got)
		wantStatus, wantBody := reply.DescribeError(want)
		if body.Reason == "invalid_json" { // the oracle does not tell where
			body.Field, body.Index = "", nil
			body.Error, _, _ = strings.Cut(body.Error, ", in ")
		}
		if status != wantStatus || !reflect.DeepEqual(body, wantBody) {
			t.Fatalf("%.300q: %s: %d %+v, want %d %+v", raw, what, status, body, wantStatus, wantBody)
		}
	}
	same("batch", gotErr, wantErr)
	if len(got) != len(want) {
		t.Fatalf("%.300q: %d queries, want %d", raw, len(got), len(want))
	}
	for i := range got {
		same(fmt.Sprint("query ", i), got[i].err, want[i].err)
		if got[i].err != nil {
			continue
		}
		if !slices.Equal(got[i].query.Tokens, want[i].query.Tokens) {
			t.Fatalf("%.300q: query %d: %d, want %d", raw, i, got[i].query.Tokens, want[i].query.Tokens)
		}
		got[i].query.Tokens, want[i].query.Tokens = nil, nil
		if !reflect.DeepEqual(got[i].query, want[i].query) {
			t.Fatalf("%.300q: query %d: %+v, want %+v", raw, i, got[i].query, want[i].query)
		}
	}
	if gotErr == nil && !(json.Valid(raw) && utf8.Valid(raw)) {
		t.Fatalf("%.300q is read", raw)
	}
}

// batchBodies are batches with good, bad and odd queries among each other.
func batchBodies() []string {
	all := []string{
		`{}`, `[]`, `{"queries":null}`, `{"queries":[]}`, `{"queries":[{}]}`, `{"queries":{}}`, `{"queries":[[]]}`,
		`{"queries":[{"queries":[{}]}]}`, `{"queries":[],"queries":null}`,
		`{"queri\u0065s":[{"token_ids":[1,2]}],"model":"m","block_size":4}`,
		`{"queries":[{"tok\u0065n_ids":[1],"token_ids":[2,3]}],"model":"m","block_size":4}`,
		`{"model":"m","block_size":4,"queries":[{"token_ids":[1,2,3]},{"token_ids":[4]},{"token_ids_b64":"AQAAAAIAAAA="},` +
			`{"token_ids":[]},{"token_ids_b64":""},{"token_ids_b64":"AQAAAA"}]}`,
		`{"model":"m","model":"m","queries":[]}`,
		`{"model":7,"queries":[{"model":"m","block_size":1,"token_ids":[1]},{"block_size":1,"token_ids":[1]}]}`,
		`{"modelname":"b","queries":[{"model_name":"a","block_size":1,"token_ids":[1]},{"model":null,"modelname":null,"block_size":1,` +
			`"token_ids":[1]}],"tenant_id":"t","lora_name":"l","cache_salt":"s","instance_id":"i","top":3,"min_matched":1}`,
		`{"queries":[` + strings.Repeat("{},", 255) + `{}]}`, `{"queries":[` + strings.Repeat("{},", 256) + `{}]}`, `{"queries":[` +
			strings.Repeat("{},", 256) + `x]}`,
		`{"queries":[` + strings.Repeat(`{"token_ids":[1,2,3],"model":"m","block_size":2},`,
			255) + `{"token_ids":[1],"model":"m","block_size":2}]}`,
		`{"queries":[{"token_ids":[1` + strings.Repeat(",123456", 2000) + `]},{"token_ids":[5]}]}`,
		`{"queries":` + strings.Repeat("[", 9999) + strings.Repeat("]", 9999) + `}`,
		`{"queries":[{"x":` + strings.Repeat("[", 9997) + strings.Repeat("]", 9997) + `}]}`, `{"queries":[{"x":` +
			strings.Repeat("[", 9998) + strings.Repeat("]", 9998) + `}]}`,
		`{"queries":[{"token_ids":` + strings.Repeat("[", 9997) + strings.Repeat("]", 9997) + `}],"model":"m","block_size":2}`,
	}
	for _, v := range oddValues {
		all = append(all, fmt.Sprintf(
			`{"model":"m","block_size":4,"queries":[{"token_ids":[1,2]},{"token_ids":[1,%s,3]},{"token_ids":[3, 4]}]}`, v),
			fmt.Sprintf(`{"queries":[{"token_ids":[1,2]},%s,{"token_ids":[5],"block_size":%s}],"model":"m","block_size":4}`, v, v),
			fmt.Sprintf(`{"queries":[{"token_ids":[1,2],"model":%s,"block_size":3},{"token_ids_b64":%s,"other":%s}],"model":"m",`+
				`"block_size":%s}`, v, v, v, v),
			fmt.Sprintf(`{"queries":%s}`, v))
	}
	return all
}

func TestBatchesAreReadAsTheOracleReadsThem(t *testing.T) {
	for _, body := range batchBodies() {
		for _, limit := range []int{2, 9, 1500, 1 << 12} {
			compareBatch(t, []byte(body), limit)
		}
		if len(body) > 200 {
			continue
		}
		for cut := range body {
			compareBatch(t, []byte(body[:cut]), 1<<12)
		}
	}
}

func FuzzBatchesOracle(f *testing.F) {
	for _, body := range batchBodies() {
		if len(body) < 1000 {
			f.Add([]byte(body), uint8(9))
		}
	}
	f.Fuzz(func(t *testing.T, raw []byte, limit uint8) { compareBatch(t, raw, int(limit)) })
}
