package http_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	nethttp "net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/vmihailenco/msgpack/v5"

	"example.com/conductor/bounds"
	"example.com/conductor/internal/must"
)

// newRoutedServer returns a server with two ranks of an instance and another instance. None of them is synced. Its clock
// stands still: no report ends.
func newRoutedServer(t *testing.T) *server {
	now := time.Now()
	s := newServerAt(t, func() time.Time { return now })
	for i, name := range []string{"a", "a", "b"} {
		s.do("POST", "/register",
			fmt.Sprintf(`{"endpoint":"ipc:///%s%d","type":"vLLM","modelname":"m","instance_id":%q,"block_size":4,"dp_rank":%d,`+
				`"aliases":["n"]}`, name, i, name, i%2))
	}
	return s
}

const eight = "1,2,3,4,5,6,7,8"

// expected returns what a query answers of instance a: longest_matched, expected, and that by rank.
func (s *server) expected(tokens string) string {
	s.t.Helper()
	rec := s.do("POST", "/query?expected=1", `{"model":"m","block_size":4,"token_ids":[`+tokens+`],"instance_id":"a"}`)
	var got struct {
		Default map[string]struct {
			Longest  *int `json:"longest_matched"`
			Expected *int
			Ranks    map[string]struct{ Expected *int } `json:"rank_matches"`
		}
	}
	must.Succeed(s.t, json.Unmarshal(rec.Body.Bytes(), &got))
	row := got.Default["a"]
	return fmt.Sprint(*row.Longest, *row.Expected, *row.Ranks["0"].Expected, *row.Ranks["1"].Expected)
}

// TestRoutedRequests reports prompts and takes them back. Each answer fits openapi.yaml.
func TestRoutedRequests(t *testing.T) {
	s := newRoutedServer(t)
	f := func(method, path, body string, status int, want string) {
		t.Helper()
		if rec := s.do(method, path, body); rec.Code != status || want != "" && !strings.Contains(rec.Body.String(), want) ||
			status == 204 && rec.Body.Len() > 0 {
			t.Errorf("%s %s %s: %d %s, want %d %s", method, path, body, rec.Code, rec.Body, status, want)
		}
	}
	check := func(tokens, want string) {
		t.Helper()
		if got := s.expected(tokens); got != want {
			t.Errorf("%s: %s, want %s", tokens, got, want)
		}
	}
	const warned = `a|default|1 is connecting: its events may not confirm the report`
	check(eight, "0 0 0 0")
	f("POST", "/routed", `{"model":"m","block_size":4,"token_ids":[1,2,3,4,5],"instance_id":"a","dp_rank":1,"request_id":"r"}`, 200,
		`{"warnings":["`+warned)
	check(eight, "0 4 0 4")
	f("POST", "/routed",
		`{"modelname":"n","block_size":4,"token_ids_b64":"AQAAAAIAAAADAAAABAAAAAUAAAAGAAAABwAAAAgAAAA=","instance_id":"a",`+
			`"request_id":"s","ttl":"1m","min_matched":4,"top":1,"expected":true,"lora_id":7}`, 200, warned)
	check(eight, "0 8 0 4")
	check(eight+",9,9,9,9", "0 8 0 4")
	f("DELETE", "/routed/s", "", 204, "")
	check(eight, "0 4 0 4")
	f("DELETE", "/routed/s", "", 404, `"reason":"not_found"`)
	f("DELETE", "/routed/", "", 400, `"reason":"missing","field":"request_id"`)
	f("DELETE", "/routed/r?tenant_id=other", "", 404, "")
	f("DELETE", "/routed/r?tenant_id=default", "", 204, "")
	check(eight, "0 0 0 0")
	f("POST", "/routed", `{"model":"m","block_size":4,"seq_hashes":[1,2],"instance_id":"a","dp_rank":null,"ttl":0.5}`, 200, "")
	if rec := s.do("POST", "/query_by_hash",
		`{"model":"m","block_size":4,"seq_hashes":[1,2],"instance_id":"a","expected":true}`); !strings.Contains(
		rec.Body.String(), `"expected":8`) {
		t.Errorf("by hash: %s", rec.Body)
	}

	const rest = `,"model":"m","block_size":4,"instance_id":"a","token_ids":[1,2,3,4]}`
	f("POST", "/routed", `{"model":"m","block_size":4,"instance_id":"c","token_ids":[1]}`, 404,
		`"reason":"not_found","field":"instance_id","known":["a","b"]`)
	f("POST", "/routed", `{"model":"m","block_size":4,"instance_id":"a","dp_rank":2,"token_ids":[1]}`, 404,
		`"field":"dp_rank","known":["0","1"]`)
	f("POST", "/routed", `{"model":"x","block_size":4,"instance_id":"a","token_ids":[1]}`, 404, `"field":"model","known":["m"]`)
	f("POST", "/routed", `{"model":"m","tenant_id":"t","block_size":4,"instance_id":"a","token_ids":[1]}`, 404,
		`"field":"model","known":[]`)
	f("POST", "/routed", `{"model":"m","block_size":8,"instance_id":"a","token_ids":[1]}`, 400,
		`"reason":"invalid_value","field":"block_size"`)
	f("POST", "/routed", `{"model":"m","block_size":4,"token_ids":[1]}`, 400, `"reason":"missing","field":"instance_id"`)
	f("POST", "/routed", `{"model":"m","block_size":4,"instance_id":"a"}`, 400, `"reason":"missing","field":"token_ids"`)
	f("POST", "/routed", `{"model":"m","block_size":4,"instance_id":"a","seq_hashes":[1],"hash":"md5"}`, 400,
		`"error":"hash must be one of canonical, engine, vllm, sglang, got \"md5\"","reason":"invalid_value","field":"hash"`)
	f("POST", "/routed", `{"model":"m","block_size":4,"instance_id":"a","token_ids":[1],"hash":"md5"}`, 400, `"field":"hash"`)
	f("POST", "/query_batch", `{"queries":[{"model":"m","block_size":4,"token_ids":[1],"hash":"md5"}]}`, 200, `"field":"hash"`)
	f("POST", "/routed", `{"model":"m","block_size":4,"instance_id":"a","seq_hashes":[1],"token_ids":[1]}`, 400,
		`"reason":"conflict","field":"seq_hashes"`)
	f("POST", "/routed", `{"model":"m","block_size":4,"instance_id":"a","token_ids":[1,-1]}`, 400, `"field":"token_ids","index":1`)
	f("POST", "/routed", `{"model":"m","block_size":4,"instance_id":"a","token_ids":[`+strings.Repeat("1,", 64)+`1]}`, 400,
		`"reason":"out_of_range","field":"token_ids","index":64`)
	f("POST", "/routed", `{"dp_rank":-1`+rest, 400, `"reason":"out_of_range","field":"dp_rank"`)
	f("POST", "/routed", `{"dp_rank":"0"`+rest, 400, `"reason":"invalid_type","field":"dp_rank"`)
	for ttl, reason := range map[string]string{`"8760h"`: "out_of_range", "31536000": "out_of_range", "1e300": "out_of_range",
		"1e999": "out_of_range", "0": "out_of_range", `"0s"`: "out_of_range",
		"-1": "out_of_range", `"-2s"`: "out_of_range", `"500us"`: "out_of_range", `"601s"`: "out_of_range", `"soon"`: "invalid_value",
		`""`: "invalid_value", "true": "invalid_type", "[1]": "invalid_type", "{}": "invalid_type"} {
		f("POST", "/routed", `{"ttl":`+ttl+rest, 400, `"reason":"`+reason+`","field":"ttl"`)
	}
	for _, ttl := range []string{"0.001", "600", `"1ms"`, `"10m"`, "null", `"90s"`} {
		f("POST", "/routed", `{"ttl":`+ttl+rest, 200, "")
	}
	f("POST", "/routed", `{"request_id":""`+rest, 400, `"field":"request_id"`)
	f("POST", "/routed", `{"request_id":7`+rest, 400, `"reason":"invalid_type","field":"request_id"`)
	f("POST", "/routed", `{"request_id":"`+strings.Repeat("x", 129)+`"`+rest, 400, `"reason":"out_of_range","field":"request_id"`)
	f("POST", "/routed", `{"model":"m"`+rest, 400, `"reason":"duplicate","field":"model"`)
	f("POST", "/routed", `{"rank":1`+rest, 200, "")
	f("POST", "/routed?strict=1", `{"dp_rnk":1`+rest, 400,
		`"error":"unknown field dp_rnk; did you mean dp_rank?","reason":"unknown_field","field":"dp_rnk"`)
	f("POST", "/routed?detail=1", `{"dp_rnk":1`+rest, 200,
		`{"warnings":["unknown field dp_rnk; did you mean dp_rank?","a|default|0 is connecting`)
	f("POST", "/routed?strict=maybe", `{}`, 400, `"field":"strict"`)
	f("POST", "/routed", `[`, 400, `"reason":"invalid_json"`)
	f("POST", "/routed", strings.Repeat(" ", 4097), 413, "")
	if rec := s.send("POST", "/routed", "{}", "br"); rec.Code != 415 {
		t.Errorf("another coding: %d", rec.Code)
	}
	must.Succeed(t, s.slots.Enter(t.Context(), bounds.Flow{}))
	f("POST", "/routed", `{"ttl":1`+rest, 503, `"reason":"busy"`)
	s.slots.Leave(bounds.Flow{})
	f("POST", "/routed", `{"request_id":"a b/c?"`+rest, 200, "")
	req := httptest.NewRequest("DELETE", "/routed/a%20b%2Fc%3F", nil)
	rec := httptest.NewRecorder()
	if s.engine.ServeHTTP(rec, req); rec.Code != 204 {
		t.Errorf("an id with a slash: %d %s", rec.Code, rec.Body)
	}
}

// TestRoutedLists holds that a fault of one prompt of a list changes no other.
func TestRoutedLists(t *testing.T) {
	s := newRoutedServer(t)
	f := func(body string, status int, want string) {
		t.Helper()
		if rec := s.do("POST", "/routed", body); rec.Code != status || rec.Body.String() != want {
			t.Errorf("%.200s: %d\n got %s\nwant %s", body, rec.Code, rec.Body, want)
		}
	}
	const warned = `"warnings":["a|default|0 is connecting: its events may not confirm the report"`
	f(`{"prompts":[{"token_ids":[1,2,3,4]},{"token_ids":[1,2,3,4,5,6,7,8],"dp_rank":0},{"token_ids":[1,"x"]},7,
		{"token_ids":[1],"dp_rank":9},{"token_ids_b64":"AQAAAA==","tenant_id":"t"},
		{"seq_hashes":[1],"instance_id":"b","dp_rank":0,"request_id":"b"}],
		"model":"m","block_size":4,"instance_id":"a","dp_rank":1,"hash":"engine"}`, 200,
		`{"kept":3,"errors":[{"prompt":2,"error":"token_ids element must be a token id in 0..4294967295","reason":"invalid_type",`+
			`"field":"token_ids","index":1},`+
			`{"prompt":3,"error":"prompts element must be an object","reason":"invalid_type","field":"prompts","index":3},`+
			`{"prompt":4,"error":"no rank \"9\" is registered","reason":"not_found","field":"dp_rank","known":["0","1"]},`+
			`{"prompt":5,"error":"no model \"m\" is registered","reason":"not_found","field":"model","known":[]}],`+
			`"warnings":["a|default|1 is connecting: its events may not confirm the report","a|default|0 is connecting: its events may `+
			`not confirm the report","b|default|0 is connecting: its events may not confirm the report"]}`)
	if got := s.expected(eight); got != "0 8 8 4" {
		t.Errorf("%s", got)
	}
	f(`{"prompts":[]}`, 204, "")
	f(`{"prompts":[{}]}`, 200, `{"kept":0,"errors":[{"prompt":0,"error":"model is required","reason":"missing","field":"model"}]}`)
	f(`{"prompts":[{"token_ids":[1,2,3,4]}],"model":"m","block_size":4,"instance_id":"a","dp_rank":0,"ttl":2}`, 200,
		`{"kept":1,`+warned+`]}`)
	f(`{"prompts":{}}`, 400, `{"error":"prompts must be an array","reason":"not_array","field":"prompts"}`)
	f(`{"prompts":null,"model":"m"}`, 400, `{"error":"block_size is required","reason":"missing","field":"block_size"}`)
	for _, name := range []string{"token_ids", "token_ids_b64", "seq_hashes", "block_hash", "block_hashes", "request_id"} {
		f(`{"prompts":[],"`+name+`":[1]}`, 400, `{"error":"`+name+` and prompts are both given","reason":"conflict","field":"`+name+`"}`)
	}
	f(`{"prompts":[`+strings.Repeat("{},", 256)+`{}]}`, 400,
		`{"error":"prompts has 257 elements, at most 256 are allowed","reason":"out_of_range","field":"prompts","index":256}`)
	forty := `{"token_ids":[1` + strings.Repeat(",1", 39) + `]}`
	f(`{"prompts":[`+forty+`,`+forty+`]}`, 400,
		`{"error":"prompts have 80 tokens together, limits.max_tokens allows 64","reason":"out_of_range","field":"prompts"}`)
	rec := s.do("POST", "/routed?strict=1", `{"prompts":[{},{"tokens":1}]}`)
	if rec.Code != 400 || !strings.Contains(rec.Body.String(), `"field":"prompts[1].tokens"`) {
		t.Errorf("strict: %d %s", rec.Code, rec.Body)
	}
}

// TestRoutedInMsgpack sends each body in both codecs: the answers say the same, and have the same effect.
func TestRoutedInMsgpack(t *testing.T) {
	bodies := []string{
		`{"model":"m","block_size":4,"token_ids":[1,2,3,4,5],"instance_id":"a","dp_rank":1,"request_id":"r","ttl":"2s"}`,
		`{"model":"m","block_size":4,"token_ids":[1,2,3,4,4294967295,300,70000,8],"instance_id":"a","ttl":2.5}`,
		`{"model":"m","block_size":4,"token_ids_b64":"AQAAAAIAAAADAAAABAAAAAUAAAAGAAAABwAAAAgAAAA=","instance_id":"a","dp_rank":null,` +
			`"ttl":60,"other":{"a":[1]}}`,
		`{"model":"m","block_size":4,"seq_hashes":[-1,18446744073709551615],"block_hash":[-1,-1],"instance_id":"a","hash":"engine"}`,
		`{"model":"m","block_size":4,"seq_hashes":[1],"block_hash":[2],"instance_id":"a"}`,
		`{"prompts":[{"token_ids":[1,2,3,4]},{"token_ids":[1,2,3,4,5,6,7,8],"dp_rank":0},{"token_ids":[1,"x"]},7,{"token_ids":[1],` +
			`"dp_rank":9},{"token_ids_b64":"AQAAAA==","tenant_id":"t"},{"seq_hashes":[1],"instance_id":"b"}],"model":"m",` +
			`"block_size":4,"instance_id":"a","dp_rank":1}`,
		`{"prompts":[]}`, `{"prompts":{}}`, `{"prompts":[],"request_id":"x"}`, `{}`,
		`{"prompts":[` + strings.Repeat("{},", 256) + `{}]}`,
		`{"prompts":[{"token_ids":[1` + strings.Repeat(",1", 39) + `]},{"token_ids":[1` + strings.Repeat(",1", 39) + `]}]}`,
	}
	for _, v := range []string{"null", "true", "-1", "1.5", "1e300", `"x"`, `""`, "[]", "[1,null]", "[1,-1]", "[1,4294967296]", "[1,[2]]",
		"{}", "18446744073709551615", "9999999999"} {
		for _, name := range []string{"token_ids", "token_ids_b64", "seq_hashes", "hash", "model", "block_size", "tenant_id", "lora_name",
			"instance_id", "dp_rank", "ttl", "request_id", "prompts", "top", "other"} {
			fields := map[string]json.RawMessage{
				"model": json.RawMessage(`"m"`), "block_size": json.RawMessage("4"), "instance_id": json.RawMessage(`"a"`),
				"token_ids": json.RawMessage("[1,2,3,4]"),
			}
			if name == "seq_hashes" || name == "token_ids_b64" || name == "prompts" {
				delete(fields, "token_ids")
			}
			fields[name] = json.RawMessage(v)
			text, err := json.Marshal(fields)
			must.Succeed(t, err)
			bodies = append(bodies, string(text), `{"prompts":[`+string(text)+`]}`)
		}
	}
	inJSON, packed := newRoutedServer(t), newRoutedServer(t)
	var alike int
	for _, body := range bodies {
		for _, query := range []string{"", "?strict=1", "?detail=1"} {
			want := inJSON.do("POST", "/routed"+query, body)
			rec := packed.pack("/routed"+query, inMsgpack(t, body), "")
			if rec.Code != want.Code {
				t.Errorf("%.200s: %d %q, want %d %s", body, rec.Code, rec.Body, want.Code, want.Body)
				continue
			}
			if rec.Code == 204 {
				continue
			}
			var got, other any
			must.Succeed(t, msgpack.Unmarshal(rec.Body.Bytes(), &got))
			must.Succeed(t, json.Unmarshal(want.Body.Bytes(), &other))
			if a, b := fmt.Sprint(got), fmt.Sprint(other); a != b {
				t.Errorf("%.200s\n got %s\nwant %s", body, a, b)
			}
			alike++
		}
		if a, b := packed.expected(eight), inJSON.expected(eight); a != b {
			t.Fatalf("%s: expected %s, want %s", body, a, b)
		}
	}
	if alike < len(bodies) {
		t.Errorf("only %d answers were compared", alike)
	}
	s := newRoutedServer(t)
	little := []byte{1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0}
	bin := func(fields map[string]any) []byte {
		b, err := msgpack.Marshal(fields)
		must.Succeed(t, err)
		return b
	}
	report := map[string]any{"model": "m", "block_size": 4, "instance_id": "a", "dp_rank": 0, "token_ids": little}
	if rec := s.pack("/routed", bin(report), "application/json"); rec.Code != 200 ||
		!strings.HasPrefix(rec.Body.String(), `{"warnings":["a|default|0`) || s.expected(eight) != "0 4 4 0" {
		t.Errorf("a bin: %d %s %s", rec.Code, rec.Body, s.expected(eight))
	}
	report["token_ids"] = little[:7]
	if rec := s.pack("/routed", bin(report), "application/json"); rec.Code != 400 ||
		!strings.Contains(rec.Body.String(), "a multiple of 4 bytes") {
		t.Errorf("part of a number: %d %s", rec.Code, rec.Body)
	}
	for want, body := range map[string][]byte{
		`"Invalid msgpack object","reason":"invalid_msgpack"`: {0x81, 0xa1},
		`"Invalid msgpack object: bytes follow it"`:           append(bin(report), 1),
		`"request body must be a msgpack map"`:                {0x90}, `"the keys of a map must be strings"`: {0x81, 1, 1},
		`"model must be UTF-8","reason":"invalid_value","field":"model"`: bin(map[string]any{"model": "\xff"}),
	} {
		if rec := s.pack("/routed", body, "application/json"); rec.Code != 400 || !strings.Contains(rec.Body.String(), want) {
			t.Errorf("%q: %d %s, want %s", body, rec.Code, rec.Body, want)
		}
	}
	req := httptest.NewRequest("DELETE", "/routed/none", nil)
	req.Header.Set("Accept", "application/msgpack")
	rec := httptest.NewRecorder()
	s.engine.ServeHTTP(rec, req)
	var refusal struct {
		Reason string `json:"reason"`
	}
	if must.Succeed(t, decodeTagged(rec.Body.Bytes(), &refusal)); rec.Code != 404 || refusal.Reason != "not_found" {
		t.Errorf("%d %q %+v", rec.Code, rec.Body, refusal)
	}
}

// pack sends a body in msgpack.
func (s *server) pack(path string, packed []byte, accept string) *httptest.ResponseRecorder {
	req := httptest.NewRequest(nethttp.MethodPost, path, bytes.NewReader(packed))
	req.Header.Set("Content-Type", "application/msgpack")
	if accept != "" {
		req.Header.Set("Accept", accept)
	} else {
		req.Header.Set("Accept", "application/msgpack")
	}
	rec := httptest.NewRecorder()
	s.engine.ServeHTTP(rec, req)
	return rec
}

func decodeTagged(packed []byte, into any) error {
	d := msgpack.NewDecoder(bytes.NewReader(packed))
	d.SetCustomStructTag("json")
	return d.Decode(into)
}

// inMsgpack returns a JSON text in msgpack, with its fields in their order.
func inMsgpack(t *testing.T, text string) []byte {
	var b bytes.Buffer
	e := msgpack.NewEncoder(&b)
	e.UseCompactInts(true)
	var value func(raw json.RawMessage)
	value = func(raw json.RawMessage) {
		d := json.NewDecoder(bytes.NewReader(raw))
		d.UseNumber()
		switch raw[0] {
		case '{':
			var names []string
			var values []json.RawMessage
			d.Token()
			for d.More() {
				name, _ := d.Token()
				var v json.RawMessage
				must.Succeed(t, d.Decode(&v))
				names, values = append(names, name.(string)), append(values, v)
			}
			must.Succeed(t, e.EncodeMapLen(len(names)))
			for i := range names {
				must.Succeed(t, e.EncodeString(names[i]))
				value(values[i])
			}
		case '[':
			var all []json.RawMessage
			must.Succeed(t, json.Unmarshal(raw, &all))
			must.Succeed(t, e.EncodeArrayLen(len(all)))
			for _, v := range all {
				value(v)
			}
		default:
			var v any
			must.Succeed(t, d.Decode(&v))
			if n, ok := v.(json.Number); ok {
				if i, err := n.Int64(); err == nil {
					v = i
				} else if u, err := strconv.ParseUint(n.String(), 10, 64); err == nil {
					v = u
				} else {
					f, err := n.Float64()
					must.Succeed(t, err)
					v = f
				}
			}
			must.Succeed(t, e.Encode(v))
		}
	}
	value(json.RawMessage(text))
	return b.Bytes()
}
