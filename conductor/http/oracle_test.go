package http

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"example.com/conductor/conductor/body"
	"example.com/conductor/conductor/invalid"
	"example.com/conductor/conductor/match"
	"example.com/conductor/conductor/reply"
	"example.com/conductor/internal/must"
)

// The oracle reads queries with encoding/json alone: every field as text first, lists
// of numbers twice. It is slow and it is plain.

type oracleBody map[string]json.RawMessage

func readOracle(raw []byte) (oracleBody, error) {
	bad := func(text string) (oracleBody, error) {
		if looks := body.Looks(raw, body.JSON); looks != "" {
			text = "request body is not JSON: " + looks
		}
		return nil, invalidJSON(text)
	}
	if !utf8.Valid(raw) {
		return bad("request body is not valid UTF-8")
	}
	trimmed := bytes.TrimLeft(raw, " \t\r\n")
	if len(trimmed) == 0 {
		return nil, invalidJSON("request body is empty, a JSON object is expected")
	}
	if trimmed[0] != '{' {
		if json.Valid(raw) {
			return nil, invalidJSON("request body must be a JSON object")
		}
	}
	var b oracleBody
	if err := json.Unmarshal(raw, &b); err != nil {
		text := "Invalid JSON object: " + err.Error()
		if strings.HasSuffix(text, "'{' after top-level value") {
			text += "; one object is expected, so send each in a request of its own"
		}
		return bad(text)
	}
	return b, nil
}

type oracleFields struct {
	body oracleBody
	err  error
}

func (f *oracleFields) fail(err error) {
	if f.err == nil {
		f.err = err
	}
}

// field returns the first of several spellings that is present and not null.
func (b oracleBody) field(names ...string) (string, json.RawMessage) {
	for _, name := range names {
		if raw, ok := b[name]; ok && string(raw) != "null" {
			return name, raw
		}
	}
	return names[0], nil
}

// text reads a string; absent and null are "". Further names are aliases.
func (f *oracleFields) text(names ...string) string {
	v := f.optional(names...)
	if v == nil {
		return ""
	}
	return *v
}

// optional reads a string and keeps absent apart from "".
func (f *oracleFields) optional(names ...string) *string {
	name, raw := f.body.field(names...)
	if raw == nil {
		return nil
	}
	var v string
	if raw[0] != '"' || json.Unmarshal(raw, &v) != nil {
		f.fail(invalid.Field(name, "invalid_type", "%s must be a string", name))
		return nil
	}
	return &v
}

// required reads a non-empty string.
func (f *oracleFields) required(names ...string) string {
	name, raw := f.body.field(names...)
	if raw == nil {
		f.fail(invalid.Field(name, "missing", "%s is required", name))
		return ""
	}
	v := f.optional(names...)
	if v != nil && *v == "" {
		f.fail(invalid.Field(name, "invalid_value", "%s must not be empty", name))
	}
	if v == nil {
		return ""
	}
	return *v
}

// integer reads a required integer within [low, high].
func (f *oracleFields) integer(name string, low, high int64) int {
	_, raw := f.body.field(name)
	if raw == nil {
		f.fail(invalid.Field(name, "missing", "%s is required", name))
		return 0
	}
	v, err := strconv.ParseInt(string(raw), 10, 64)
	if err != nil {
		if errors.Is(err, strconv.ErrRange) {
			f.fail(oracleOutOfRange(name, raw, low, high))
		} else {
			f.fail(invalid.Field(name, "invalid_type", "%s must be an integer", name))
		}
		return 0
	}
	if v < low || v > high {
		f.fail(oracleOutOfRange(name, raw, low, high))
		return 0
	}
	return int(v)
}

func oracleOutOfRange(name string, raw []byte, low, high int64) error {
	return invalid.Field(name, "out_of_range", "%s must be in %d..%d, got %.32s", name, low, high, raw)
}

// blockSize reads the required block_size, in tokens.
func (f *oracleFields) blockSize() int { return f.integer("block_size", 1, math.MaxInt32) }

// atLeast reads an integer; absent and null are 0.
func (f *oracleFields) atLeast(name string, low int64) int {
	if _, raw := f.body.field(name); raw == nil {
		return 0
	}
	return f.integer(name, low, math.MaxInt32)
}

// boolean reads true or false; absent and null are false.
func (f *oracleFields) boolean(name string) (v bool) {
	if _, raw := f.body.field(name); raw != nil && json.Unmarshal(raw, &v) != nil {
		f.fail(invalid.Field(name, "invalid_type", "%s must be true or false", name))
	}
	return v
}

// tokens reads the required array of token ids, each a u32.
func (f *oracleFields) tokens(limit int) []uint32 {
	name, raw := f.body.field("token_ids")
	if raw == nil {
		f.fail(invalid.Field(name, "missing", "%s is required", name))
		return nil
	}
	var list []uint32
	if raw[0] != '[' || json.Unmarshal(raw, &list) != nil || oracleHoldsNull(raw) {
		f.fail(oracleBadElement(name, raw, func(text string) (reason, want string) {
			if _, err := strconv.ParseUint(text, 10, 32); err == nil {
				return "", ""
			}
			return oracleNumberReason(text), "a token id in 0..4294967295"
		}))
		return nil
	}
	if len(list) > limit {
		f.fail(oracleTooMany(name, len(list), limit))
		return nil
	}
	return list
}

// hashKind reads whose hashes a query has; absent, null and "" are canonical ones.
func (f *oracleFields) hashKind(name string) match.HashKind {
	kinds := map[string]match.HashKind{
		"": match.CanonicalHashes, "canonical": match.CanonicalHashes, "engine": match.EngineHashes, "vllm": match.VLLMHashes,
		"sglang": match.SGLangHashes,
	}
	kind, ok := kinds[f.text(name)]
	if !ok {
		f.fail(invalid.Field(name, "invalid_value", "%s must be one of canonical, engine, vllm, sglang, got %.32q", name, f.text(name)))
	}
	return kind
}

// hashes reads an array of 64-bit hashes under any of its names. Negative
// numbers are taken as two's complement, the way some engines print hashes.
// Several names at once must agree.
func (f *oracleFields) hashes(limit int, names ...string) []uint64 {
	var found []uint64
	var from string
	for _, name := range names {
		_, raw := f.body.field(name)
		if raw == nil {
			continue
		}
		list, err := oracleParseHashes(name, raw, limit)
		if err != nil {
			f.fail(err)
			return nil
		}
		if from != "" && !slices.Equal(found, list) {
			f.fail(invalid.Field(name, "conflict", "%s and %s are both given and differ", from, name))
			return nil
		}
		found, from = list, name
	}
	if from == "" {
		f.fail(invalid.Field(names[0], "missing", "%s is required", names[0]))
	}
	return found
}

func oracleParseHashes(name string, raw json.RawMessage, limit int) ([]uint64, error) {
	var numbers []json.Number
	if raw[0] != '[' || json.Unmarshal(raw, &numbers) != nil || oracleHoldsNull(raw) || bytes.IndexByte(raw, '"') >= 0 {
		return nil, oracleBadElement(name, raw, func(text string) (reason, want string) {
			if _, ok := oracleHashValue(text); ok {
				return "", ""
			}
			return oracleNumberReason(text), "a 64-bit integer"
		})
	}
	if len(numbers) > limit {
		return nil, oracleTooMany(name, len(numbers), limit)
	}
	list := make([]uint64, len(numbers))
	for i, n := range numbers {
		v, ok := oracleHashValue(n.String())
		if !ok {
			return nil, oracleBadNumber(name, i, oracleNumberReason(n.String()), "a 64-bit integer")
		}
		list[i] = v
	}
	return list, nil
}

func oracleHashValue(text string) (uint64, bool) {
	if v, err := strconv.ParseUint(text, 10, 64); err == nil {
		return v, true
	}
	v, err := strconv.ParseInt(text, 10, 64)
	return uint64(v), err == nil
}

// oracleHoldsNull reports whether an array of numbers contains null, which
// encoding/json reads as zero.
func oracleHoldsNull(raw json.RawMessage) bool {
	for _, ch := range raw {
		if ch == 'n' {
			return true
		}
	}
	return false
}

// oracleBadElement explains why raw is no array of numbers: it finds the first element
// that check gives a reason for.
func oracleBadElement(name string, raw json.RawMessage, check func(text string) (reason, want string)) error {
	var list []json.RawMessage
	if json.Unmarshal(raw, &list) != nil {
		return invalid.Field(name, "not_array", "%s must be an array", name)
	}
	for i, element := range list {
		if reason, want := check(string(element)); reason != "" {
			return oracleBadNumber(name, i, reason, want)
		}
	}
	return invalid.Field(name, "not_array", "%s must be an array of integers", name)
}

func oracleBadNumber(name string, i int, reason, want string) error {
	return &invalid.FieldError{Field: name, Index: i, Reason: reason, Message: name + " element must be " + want}
}

// oracleNumberReason tells a number that does not fit from a value that is not an integer.
func oracleNumberReason(text string) string {
	v, err := strconv.ParseFloat(text, 64)
	if err == nil && v == math.Trunc(v) && oracleIsDigits(text) {
		return "out_of_range"
	}
	return "invalid_type"
}

func oracleIsDigits(text string) bool {
	if text != "" && text[0] == '-' {
		text = text[1:]
	}
	for i := range len(text) {
		if text[i] < '0' || text[i] > '9' {
			return false
		}
	}
	return text != ""
}

func oracleTooMany(name string, got, limit int) error {
	return &invalid.FieldError{Field: name, Index: limit, Reason: "out_of_range",
		Message: fmt.Sprintf("%s has %d elements, limits.max_tokens allows %d", name, got, limit)}
}

// packed reads token_ids_b64 the long way.
func (f *oracleFields) packed(name string, raw json.RawMessage, limit int) []uint32 {
	text := f.optional(name)
	if text == nil {
		return nil
	}
	encoding := base64.RawStdEncoding.Strict()
	if strings.HasSuffix(*text, "=") {
		encoding = base64.StdEncoding.Strict()
	}
	words, err := encoding.DecodeString(*text)
	if err != nil || strings.ContainsAny(*text, "\r\n") {
		f.fail(invalid.Field(name, "invalid_value", "%s must be base64 of the standard alphabet", name))
		return nil
	}
	if len(words)%4 != 0 {
		f.fail(invalid.Field(name, "invalid_value", "%s must hold a multiple of 4 bytes", name))
		return nil
	}
	list := make([]uint32, len(words)/4)
	for i := range list {
		list[i] = binary.LittleEndian.Uint32(words[4*i:])
	}
	if len(list) > limit {
		f.fail(oracleTooMany(name, len(list), limit))
		return nil
	}
	return list
}

func askOracle(raw []byte, byHash bool, limit int) (q match.Query, err error) {
	b, err := readOracle(raw)
	if err != nil {
		return q, err
	}
	return b.query(byHash, limit)
}

func (b oracleBody) query(byHash bool, limit int) (q match.Query, err error) {
	f := oracleFields{body: b}
	q.Model, q.BlockSize = f.required("model", "modelname", "model_name"), f.blockSize()
	if byHash {
		q.ByHash, q.HashKind = true, f.hashKind("hash")
		q.Hashes = f.hashes(limit, "seq_hashes", "block_hash", "block_hashes")
	} else {
		_, list := b.field("token_ids")
		name, packed := b.field("token_ids_b64")
		switch {
		case packed == nil:
			q.Tokens = f.tokens(limit)
		case list != nil:
			f.fail(invalid.Field(name, "conflict", "token_ids and %s are both given", name))
		default:
			q.Tokens = f.packed(name, packed, limit)
		}
	}
	q.Tenant, q.Lora, q.Salt, q.Instance = f.text("tenant_id"), f.text("lora_name"), f.text("cache_salt"), f.optional("instance_id")
	q.MinMatched, q.Top, q.Expected = f.atLeast("min_matched", 0), f.atLeast("top", 1), f.boolean("expected")
	if f.err != nil {
		return match.Query{}, f.err
	}
	return q, nil
}

// givenTwice returns a field of a shape that is in an object more than once.
func givenTwice(raw []byte, s body.Shape) string {
	d := json.NewDecoder(bytes.NewReader(raw))
	seen := map[string]bool{}
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return ""
	}
	for d.More() {
		name, err := d.Token()
		var value json.RawMessage
		if err != nil || d.Decode(&value) != nil {
			return ""
		}
		if text := name.(string); seen[text] && s.Has(text) {
			return text
		}
		seen[name.(string)] = true
	}
	return ""
}

func askFast(r *body.Request, raw []byte, byHash bool, limit int) (match.Query, error) {
	a := api{opts: Options{MaxTokens: limit}}
	r.Src, r.Members, r.Items = append(r.Src[:0], raw...), r.Members[:0], r.Items[:0]
	r.Tokens, r.Hashes = r.Tokens[:0], r.Hashes[:0]
	s, prompt := queryFields, a.readTokens
	if byHash {
		s, prompt = hashFields, a.readHashes
	}
	f, err := scanBody(r, body.JSON, s, limit)
	if err != nil {
		return match.Query{}, err
	}
	q := f.query(r, prompt)
	if f.err != nil {
		return match.Query{}, f.err
	}
	return q, nil
}

// compare compares the fields of a body with the oracle.
func compare(t *testing.T, raw []byte, byHash bool, limit int) {
	t.Helper()
	// Buffers that others have used.
	r := &body.Request{Tokens: make([]uint32, 3, 5), Hashes: make([]uint64, 1, 9)}
	r.Reset()
	got, gotErr := askFast(r, raw, byHash, limit)
	want, wantErr := askOracle(raw, byHash, limit)
	s := queryFields
	if byHash {
		s = hashFields
	}
	if json.Valid(raw) && utf8.Valid(raw) {
		if name := givenTwice(raw, s); name != "" {
			wantErr = duplicateField(name)
		}
	}
	if (gotErr == nil) != (wantErr == nil) {
		t.Fatalf("%.300q: error %v, want %v", raw, gotErr, wantErr)
	}
	if gotErr != nil {
		status, body := reply.DescribeError(gotErr)
		wantStatus, wantBody := reply.DescribeError(wantErr)
		if body.Reason == "invalid_json" { // the oracle does not tell where
			body.Field, body.Index = "", nil
		}
		if status != wantStatus || !reflect.DeepEqual(body, wantBody) {
			t.Fatalf("%.300q: %d %+v, want %d %+v", raw, status, body, wantStatus, wantBody)
		}
		return
	}
	if !slices.Equal(got.Tokens, want.Tokens) || !slices.Equal(got.Hashes, want.Hashes) {
		t.Fatalf("%.300q: %d %d, want %d %d", raw, got.Tokens, got.Hashes, want.Tokens, want.Hashes)
	}
	got.Tokens, got.Hashes, want.Tokens, want.Hashes = nil, nil, nil, nil
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("%.300q: %+v, want %+v", raw, got, want)
	}
}

// oddValues are elements and values that are read by more than one way, or by none.
var oddValues = []string{
	"0", "1", "9", "10", "123456", "1234567", "12345678", "123456789", "1234567890", "4294967295", "4294967296", "9999999999",
	"18446744073709551615", "18446744073709551616", "-9223372036854775808", "-9223372036854775809", "99999999999999999999999999",
	"-0", "-1", "1.0", "1.5", "1e3", "1E+3", "0.0", "-", "01", "00", "+1", ".5", "1.", "1e", "0x1", "1 2", "",
	"null", "true", "false", "nul", "n", `"1"`, `""`, `"`, `"\u0031"`, "\"\xff\"", "\"\x01\"", `"\x"`, `"\ud800"`, `"é"`,
	"[]", "[1]", "[[1]]", "{}", `{"a":1}`, "[", "]", "{", "}", ",", " 7", "7 ", "\n7", "\t 7\r\n", "  7", "٣", "NaN",
	"1" + strings.Repeat("0", 400),
}

func TestQueriesAreReadAsTheOracleReadsThem(t *testing.T) {
	f := func(body string) {
		t.Helper()
		for _, byHash := range []bool{false, true} {
			for _, limit := range []int{2, 1 << 12} {
				compare(t, []byte(body), byHash, limit)
			}
		}
	}
	const rest = `,"model":"m","block_size":16}`
	for _, name := range []string{"token_ids", "seq_hashes", "token_ids_b64", "hash", "modelname", "block_size", "min_matched", "top",
		"expected", "instance_id", "other"} {
		for _, v := range oddValues {
			f(fmt.Sprintf(`{"%s":%s}`, name, v))
			f(fmt.Sprintf(`{"%s":%s%s`, name, v, rest))
			f(fmt.Sprintf(`{"model":"m","block_size":16,"token_ids":[1,2],"seq_hashes":[1,2],"%s":%s}`, name, v))
			f(fmt.Sprintf(`{"model":"m","block_size":16,"tok\u0065n_ids":[1,2],"seq_hashes":[1,2], "%s" : %s }`, name, v))
			f(fmt.Sprintf(`{"%s":[%s]%s`, name, v, rest))
			for _, w := range []string{"123456", v} {
				for _, comma := range []string{",", ", "} {
					f(fmt.Sprintf(`{"%s":[%s%s%s]%s`, name, v, comma, w, rest))
					f(fmt.Sprintf(`{"%s":[1%s%s%s%s%s999999,1]%s`, name, comma, v, comma, w, comma, rest))
				}
			}
		}
	}
	for _, body := range []string{
		"", " ", "null", "[]", "[{}]", "1", `"x"`, "{}", " {} ", "{}{}", "{} x", "{", `{"`, `{"a`, `{"a"`, `{"a":`, `{"a":1`, `{"a":1,`,
		`{"a":1,}`, `{,}`, `{"a" 1}`, `{a:1}`,
		"\xff", "{\"\xff\":1}", "{\"model\":\"\xff\"" + rest, `{"token_ids":null,"token_ids_b64":null` + rest,
		`{"token_ids":[],"token_ids_b64":""` + rest,
		`{"token_ids":[1],"token_ids":[1]` + rest, `{"model":null,"token_ids":[]` + rest, `{"other":1,"other":2,"token_ids":[3]` + rest,
		`{"seq_hashes":[1,2],"block_hash":[1,2],"block_hashes":[1,3]` + rest, `{"seq_hashes":[-1],"block_hash":[18446744073709551615]` +
			rest,
		`{"seq_hashes":[1,1E3],"hash":[1E3]` + rest, `{"hash":"canonical","seq_hashes":[1]` + rest,
		`{"hash":"engine","seq_hashes":[1]` + rest, `{"hash":"vllm","block_hash":[1]` + rest,
		`{"hash":"sgl\u0061ng","seq_hashes":[1]` + rest, `{"hash":"VLLM","seq_hashes":[1e3]` + rest,
		`{"hash":"vllm","token_ids":[1],"seq_hashes":[1]` + rest,
		`{"block_hash":[1,2],"seq_hashes":[1,2,3]` + rest, `{"seq_hashes":[],"block_hash":null` + rest,
		strings.Repeat(`{"a":`, 10000) + "1" + strings.Repeat("}", 10000), strings.Repeat(`{"a":`, 10001) + "1" +
			strings.Repeat("}", 10001),
		`{"token_ids":` + strings.Repeat("[", 9999) + strings.Repeat("]", 9999) + rest, `{"token_ids":` + strings.Repeat("[", 10000) +
			strings.Repeat("]", 10000) + rest,
	} {
		f(body)
	}
	for _, text := range []string{"AQAAAA==", "AQAAAA", "AQAAAA=", "AQAAAAIAAAA", "AQAAAAIAAAA=", "AQA=", "AQ", "A", "=", "AQAAAB==",
		"AQ AA", "_____w", "/////w", `\/\/\/\/\/w`, `AQ\nAAAA`, `AQ\rAAAA`} {
		f(`{"token_ids_b64":"` + text + `"` + rest)
	}
}

// TestCutQueries cuts a body everywhere, and spoils every byte of it.
func TestCutQueries(t *testing.T) {
	for _, body := range []string{
		`{"model":"m\u00e9\n","block_size":16,"token_ids":[1, 22,333,4444444,55555555,4294967295] ,"lora_name":null,"x":{"a":[1.5e-3,` +
			`true]}}`,
		`{"block_hash":[1,18446744073709551615],"model":"m","block_size":16,"seq_hashes":[ 1 ,-1]}`,
	} {
		for i := range body {
			for _, byHash := range []bool{false, true} {
				compare(t, []byte(body[:i]), byHash, 8)
				for _, c := range []byte("0 ,]}\"\\-.en\x00\xff") {
					b := []byte(body)
					b[i] = c
					compare(t, b, byHash, 8)
				}
			}
		}
	}
}

func FuzzQueriesOracle(f *testing.F) {
	for _, v := range oddValues {
		f.Add([]byte(`{"model":"m","block_size":16,"token_ids":[1,`+v+`,3]}`), false, uint8(9))
		f.Add([]byte(`{"model":"m","block_size":16,"seq_hashes":[1, `+v+`],"block_hash":[`+v+`]}`), true, uint8(9))
	}
	f.Add([]byte(`{"model":"m","block_size":16,"token_ids_b64":"AQAAAAIAAAA="}`), false, uint8(9))
	f.Fuzz(func(t *testing.T, raw []byte, byHash bool, limit uint8) { compare(t, raw, byHash, int(limit)) })
}

// BenchmarkParse reads a query of 8,192 tokens of five or six digits, and the same with
// encoding/json.
func BenchmarkParse(b *testing.B) {
	const n = 8192
	list := make([]uint32, n)
	for i := range list {
		list[i] = 50_000 + uint32(i)*2654435761>>3%100_000
	}
	marshal := func(v map[string]any) []byte {
		v["model"], v["block_size"] = "meta-llama/Llama-3.1-8B-Instruct", 16
		raw, err := json.Marshal(v)
		must.Succeed(b, err)
		return raw
	}
	plain := marshal(map[string]any{"token_ids": list})
	packed := make([]byte, 4*n)
	for i, v := range list {
		binary.LittleEndian.PutUint32(packed[4*i:], v)
	}
	run := func(name string, raw []byte, ask func(raw []byte) (match.Query, error)) {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(raw)))
			for b.Loop() {
				if q, err := ask(raw); err != nil || len(q.Tokens) != n {
					b.Fatal(len(q.Tokens), err)
				}
			}
		})
	}
	fast := func(raw []byte) (match.Query, error) {
		r := body.Get()
		defer r.Release()
		return askFast(r, raw, false, n)
	}
	run("json", plain, fast)
	run("json-spaces", bytes.ReplaceAll(plain, []byte(","), []byte(", ")), fast)
	run("base64", marshal(map[string]any{"token_ids_b64": packed}), fast)
	run("encoding-json", plain, func(raw []byte) (match.Query, error) { return askOracle(raw, false, n) })
}
