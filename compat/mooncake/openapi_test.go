package mooncake

import (
	"encoding/binary"
	"encoding/json"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"

	"example.com/conductor/internal/apitest"

	"example.com/conductor/internal/must"
)

// TestQueriesAreDescribed holds queries in msgpack and their answers, in both codecs,
// against openapi.yaml.
func TestQueriesAreDescribed(t *testing.T) {
	doc := apitest.Load(t)
	described := func(path string) (body, answer, plain *openapi3.Schema) {
		op := doc.OpenAPI.Paths.Find(path).Post
		content := op.Responses.Status(200).Value.Content
		anyOf := content.Get(msgpackType).Schema.Value.AnyOf
		if len(anyOf) != 2 || anyOf[1].Value != content.Get(jsonType).Schema.Value {
			t.Fatalf("%s: not one of both dialects' answers in msgpack", path)
		}
		return op.RequestBody.Value.Content.Get(msgpackType).Schema.Value, anyOf[0].Value, anyOf[1].Value
	}
	inBubble(t, func(t *testing.T, s *testServer) {
		for rank := range 2 {
			if rec := send(s.mixed, "POST", "/register", packed(t, source("a", rank)), "Content-Type", msgpackType); rec.Code != 200 {
				t.Fatal(rec.Code, unpacked(rec.Body.Bytes()))
			}
		}
		f := func(path string, fields map[string]any, right bool) {
			t.Helper()
			fields["model"], fields["block_size"] = "m", blockSize
			body, answer, plain := described(path)
			raw := packed(t, fields)
			rec := send(s.mixed, "POST", path, raw, "Content-Type", msgpackType)
			if right != (rec.Code == 200) {
				t.Fatalf("%s %v: %d %v", path, fields, rec.Code, unpacked(rec.Body.Bytes()))
			}
			for name, v := range fields {
				if bin, ok := v.([]byte); ok {
					fields[name] = string(bin)
				}
			}
			if err := body.VisitJSON(plainly(t, fields)); right != (err == nil) {
				t.Errorf("%s %v: %d, but the document says %v", path, fields, rec.Code, err)
			}
			if !right {
				return
			}
			inJSON := send(s.mixed, "POST", path, raw, "Content-Type", msgpackType, "Accept", jsonType)
			for _, got := range []any{unpacked(rec.Body.Bytes()), unpackedJSON(t, inJSON.Body.Bytes())} {
				if err := answer.VisitJSON(plainly(t, got)); err != nil {
					t.Errorf("%s %v: %v: %v", path, fields, got, err)
				}
				if plain.VisitJSON(plainly(t, got)) == nil {
					t.Errorf("%s %v: %v passes for an answer of the published dialect", path, fields, got)
				}
			}
		}
		bin := binary.LittleEndian.AppendUint32(nil, 7)
		f("/query", map[string]any{"token_ids": bin}, true)
		f("/query", map[string]any{"token_ids": []int{1, -2}, "instance_id": "a", "tenant_id": "default", "lora_name": "",
			"cache_salt": nil}, true)
		f("/query", map[string]any{"token_ids": []int{1 << 31}}, false)
		f("/query", map[string]any{"token_ids": []string{"1"}}, false)
		f("/query", map[string]any{"token_ids": nil}, false)
		f("/query", map[string]any{}, false)
		f("/query", map[string]any{"token_ids": []int{}, "tenant_id": nil}, false)
		f("/query_by_hash", map[string]any{"seq_hashes": append(bin, bin...)}, true)
		f("/query_by_hash", map[string]any{"seq_hashes": []int{-1, 5}}, true)
		f("/query_by_hash", map[string]any{"seq_hashes": 5}, false)
	})
}

// plainly is a value as encoding/json decodes it.
func plainly(t *testing.T, v any) any {
	t.Helper()
	text, err := json.Marshal(v)
	must.Succeed(t, err)
	return unpackedJSON(t, text)
}

func unpackedJSON(t *testing.T, text []byte) (v any) {
	t.Helper()
	if err := json.Unmarshal(text, &v); err != nil {
		t.Fatalf("%q: %v", text, err)
	}
	return v
}
