package mooncake

import (
	"bytes"
	"encoding/json"
	"errors"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"example.com/conductor/conductor/body"
)

// oracle reads an object with encoding/json, numbers as they are read: 0 for one
// that is not an integer of 64 bits.
func oracle(src []byte, more bool) (v map[string]any, ok bool) {
	d := json.NewDecoder(bytes.NewReader(src))
	d.UseNumber()
	if !utf8.Valid(src) || !more && !json.Valid(src) || d.Decode(&v) != nil || v == nil {
		return nil, false
	}
	return integers(v).(map[string]any), true
}

func integers(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for name := range v {
			v[name] = integers(v[name])
		}
	case []any:
		for i := range v {
			v[i] = integers(v[i])
		}
	case json.Number:
		if n, err := strconv.ParseUint(v.String(), 10, 64); err == nil {
			return n
		}
		n, err := strconv.ParseInt(v.String(), 10, 64)
		if err != nil {
			n = 0
		}
		return n
	}
	return v
}

// measure returns how deep the first value is nested, and the most fields an object of
// it has, each time they are given.
func measure(src []byte) (deepest, most int) {
	d := json.NewDecoder(bytes.NewReader(src))
	var fields []int // of those that are open; twice as many tokens in an object
	for {
		t, err := d.Token()
		if err != nil {
			return deepest, most
		}
		if n := len(fields); n > 0 && t != json.Delim('}') && t != json.Delim(']') {
			fields[n-1]++
		}
		switch t {
		case json.Delim('{'), json.Delim('['):
			fields = append(fields, 0)
			deepest = max(deepest, len(fields))
		case json.Delim('}'):
			most = max(most, fields[len(fields)-1]/2)
			fields = fields[:len(fields)-1]
		case json.Delim(']'):
			fields = fields[:len(fields)-1]
		}
		if len(fields) == 0 {
			return deepest, most
		}
	}
}

// compareRead holds the fields that are read of a body against the oracle.
func compareRead(t *testing.T, src []byte, more bool) {
	t.Helper()
	d, r := &handlers{cfg: Config{MaxTokens: 1 << 10}}, &body.Request{Src: src}
	shape := append(slices.Clone(byTokens.shape), byHashes.shape...)
	f, err := d.parse(r, shape, more)
	var why *failure
	errors.As(err, &why)
	want, ok := oracle(src, more)
	deepest, most := measure(src)
	malformed := why != nil && (why.text == "Invalid JSON object" || why.text == "Invalid JSON")
	switch {
	case !ok || deepest > maxDepth && most <= maxFields:
		if !malformed {
			t.Fatalf("%.300q: %v, want malformed", src, err)
		}
		return
	case most > maxFields:
		if err == nil || deepest <= maxDepth && malformed {
			t.Fatalf("%.300q: %v, want too many fields", src, err)
		}
		return
	case err != nil:
		t.Fatalf("%.300q: %v", src, err)
	}
	compareEntries(t, r, f.members, want)
}

func compareEntries(t *testing.T, r *body.Request, entries []body.Member, want map[string]any) {
	t.Helper()
	names := slices.Sorted(maps.Keys(want))
	if len(entries) != len(names) {
		t.Fatalf("%.300q: %d fields, want %q", r.Src, len(entries), names)
	}
	for i := range names {
		e := &entries[i]
		if e.Name != names[i] {
			t.Fatalf("%.300q: field %d is %q, want %q", r.Src, i, e.Name, names[i])
		}
		kind := body.JSON.Type(e.Raw)
		n, small := body.JSON.Int(e.Raw)
		right := false
		switch v := want[e.Name].(type) {
		case nil:
			right = kind == body.Null
		case bool:
			right = kind == body.Boolean
		case string:
			right = kind == body.Text && string(body.JSON.Text(e.Raw)) == v
		case uint64:
			right = kind == body.Integer && small == (v <= math.MaxInt64) && uint64(n) == v
		case int64:
			right = kind == body.Integer && small && n == v || v == 0 && kind == body.Float
		case []any:
			right = kind == body.Array && compareList(r, e, v)
		case map[string]any:
			if right = kind == body.Object; right {
				members, _, err := new(body.Request).ScanText(e.Raw, nil, body.Options{Every: maxFields})
				if err != nil {
					t.Fatal(err)
				}
				sortFields(members)
				compareEntries(t, r, members, v)
			}
		}
		if !right {
			t.Fatalf("%.300q: %s is %q, want %v", r.Src, e.Name, e.Raw, want[e.Name])
		}
	}
}

// compareList reports whether a list holds the numbers of v, or which of them is none.
func compareList(r *body.Request, e *body.Member, v []any) bool {
	if e.List.N == 0 || !slices.Contains([]string{byTokens.name, byHashes.name}, e.Name) {
		return true
	}
	bad := slices.IndexFunc(v, func(v any) bool {
		n, signed := v.(int64)
		u, unsigned := v.(uint64)
		if e.Name == byTokens.name {
			return !signed && !unsigned || signed && n < math.MinInt32 || unsigned && u > math.MaxInt32
		}
		return !signed && !unsigned
	})
	got := e.List.Bad
	switch {
	case e.List.N != len(v):
		return false
	case got >= 0 && got != bad: // a float, which the oracle reads as 0
		return v[got] == int64(0) && (bad < 0 || got < bad)
	case got != bad:
		return false
	case got >= 0, e.List.N > 1<<10:
		return true
	}
	for i := range min(len(v), e.List.To-e.List.From) {
		var want, got uint64
		if n, ok := v[i].(int64); ok {
			want = uint64(n)
		} else {
			want = v[i].(uint64)
		}
		if e.Name == byTokens.name {
			got, want = uint64(r.Tokens[e.List.From+i]), uint64(uint32(want))
		} else {
			got = r.Hashes[e.List.From+i]
		}
		if got != want {
			return false
		}
	}
	return true
}

// packBodies are objects that are odd in one place.
func packBodies() []string {
	all := []string{
		``, ` `, `{`, `{}`, `[]`, `null`, `{} {}`, `{}x`, "{}\xff", "\xef\xbb\xbf{}", `{"a":1,"a":[2],"\u0061":{"b":3}}`,
		`{"b":1,"a":2,"":3}`, `{"\ud800":1,"\udc00":2}`,
		`{"a":` + strings.Repeat("[", 63) + strings.Repeat("]", 63) + `}`, `{"a":` + strings.Repeat("[", 64) + strings.Repeat("]", 64) +
			`}`,
		`{"a":` + strings.Repeat("[", 10_000) + strings.Repeat("]", 10_000) + `}`,
		`{"a":{` + strings.Repeat(`"a":1,`, 64) + `"a":1}}`, `{"a":{` + strings.Repeat(`"a":1,`, 63) + `"a":2}}`,
		`{` + strings.Repeat(`"a":1,`, 64) + `"b":2}`,
	}
	for _, v := range []string{
		"0", "-0", "7", "1234567", "12345678", "4294967296", "18446744073709551615", "18446744073709551616", "-9223372036854775808",
		"-9223372036854775809", "99999999999999999999999999999",
		"1.0", "1e3", "1E-3", "-1.5", "01", "+1", ".5", "1.", "-", "1e", "NaN", "nul", "null", "true", "false", `"1"`, `"\u00e9\n\""`,
		`"\x"`, "\"\x01\"", "\"\xff\"", `"`, "[1]", "[[]]", `{"b":1}`, "x", "", " 7", "7 ", "\n7\t", "٣",
	} {
		all = append(all, `{"a":`+v+`}`, `{"a":[`+v+`]}`, `{"a":[1,`+v+`,3]}`,
			`{"a":[123456, `+v+`, 234567,`+strings.Repeat("345678,", 70)+v+`]}`, `{"a":[1,2],"b":`+v+`,"a":3}`)
	}
	return all
}

func TestBodiesAreReadAsTheOracleReadsThem(t *testing.T) {
	for _, src := range packBodies() {
		for _, name := range []string{"a", byTokens.name, byHashes.name} {
			named := strings.ReplaceAll(src, `"a"`, `"`+name+`"`)
			for _, more := range []bool{false, true} {
				compareRead(t, []byte(named), more)
				for cut := range min(len(named), 60) {
					compareRead(t, []byte(named[:cut]), more)
				}
			}
		}
	}
}

func FuzzReadOracle(f *testing.F) {
	for _, body := range packBodies() {
		f.Add([]byte(body), true)
		f.Add([]byte(strings.ReplaceAll(body, `"a"`, `"token_ids"`)), false)
	}
	f.Fuzz(func(t *testing.T, src []byte, more bool) { compareRead(t, src, more) })
}
