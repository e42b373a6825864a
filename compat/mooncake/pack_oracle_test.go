package mooncake

import (
	"bytes"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/vmihailenco/msgpack/v5"
)

// oracle reads an object with encoding/json, numbers as they are packed: 0 for what is
// no integer of 64 bits.
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

// comparePacked holds what is packed of a body against the oracle.
func comparePacked(t *testing.T, src []byte, more bool) {
	t.Helper()
	got, err := packJSON(nil, src, more)
	want, ok := oracle(src, more)
	deepest, most := measure(src)
	switch {
	case !ok || deepest > maxDepth && most <= maxFields:
		if !errors.Is(err, errMalformed) {
			t.Fatalf("%.300q: %v, want %v", src, err, errMalformed)
		}
		return
	case most > maxFields:
		if err == nil || deepest <= maxDepth && !errors.Is(err, errFields) {
			t.Fatalf("%.300q: %v, want %v", src, err, errFields)
		}
		return
	case err != nil:
		t.Fatalf("%.300q: %v", src, err)
	}
	var v any
	d := msgpack.NewDecoder(bytes.NewReader(got))
	d.UseLooseInterfaceDecoding(true)
	if err := d.Decode(&v); err != nil || d.Buffered().(*bytes.Reader).Len() != 0 {
		t.Fatalf("%.300q: %x: %v", src, got, err)
	}
	text, err := json.Marshal(v)
	wantText, wantErr := json.Marshal(want)
	if err != nil || wantErr != nil || !bytes.Equal(text, wantText) {
		t.Fatalf("%.300q: %.300s %v, want %.300s %v", src, text, err, wantText, wantErr)
	}
	if names := slices.Sorted(maps.Keys(want)); len(names) > 0 {
		r := new(exchange)
		if err := r.parsePacked(got); err != nil || len(r.entries) != len(names) {
			t.Fatalf("%.300q: %d fields, want %q: %v", src, len(r.entries), names, err)
		}
		for i := range names {
			if r.entries[i].name != names[i] {
				t.Fatalf("%.300q: field %d is %q, want %q", src, i, r.entries[i].name, names[i])
			}
		}
	}
}

// packBodies are objects that are odd in one place.
func packBodies() []string {
	all := []string{
		``, ` `, `{`, `{}`, `[]`, `null`, `{} {}`, `{}x`, "{}\xff", "\xef\xbb\xbf{}", `{"a":1,"a":[2],"\u0061":{"b":3}}`, `{"b":1,"a":2,"":3}`, `{"\ud800":1,"\udc00":2}`,
		`{"a":` + strings.Repeat("[", 63) + strings.Repeat("]", 63) + `}`, `{"a":` + strings.Repeat("[", 64) + strings.Repeat("]", 64) + `}`,
		`{"a":` + strings.Repeat("[", 10_000) + strings.Repeat("]", 10_000) + `}`,
		`{"a":{` + strings.Repeat(`"a":1,`, 64) + `"a":1}}`, `{"a":{` + strings.Repeat(`"a":1,`, 63) + `"a":2}}`, `{` + strings.Repeat(`"a":1,`, 64) + `"b":2}`,
	}
	for _, v := range []string{
		"0", "-0", "7", "1234567", "12345678", "4294967296", "18446744073709551615", "18446744073709551616", "-9223372036854775808", "-9223372036854775809", "99999999999999999999999999999",
		"1.0", "1e3", "1E-3", "-1.5", "01", "+1", ".5", "1.", "-", "1e", "NaN", "nul", "null", "true", "false", `"1"`, `"\u00e9\n\""`, `"\x"`, "\"\x01\"", "\"\xff\"", `"`, "[1]", "[[]]", `{"b":1}`, "x", "", " 7", "7 ", "\n7\t", "٣",
	} {
		all = append(all, `{"a":`+v+`}`, `{"a":[`+v+`]}`, `{"a":[1,`+v+`,3]}`, `{"a":[123456, `+v+`, 234567,`+strings.Repeat("345678,", 70)+v+`]}`, `{"a":[1,2],"b":`+v+`,"a":3}`)
	}
	return all
}

func TestBodiesArePackedAsTheOracleReadsThem(t *testing.T) {
	for _, body := range packBodies() {
		for _, more := range []bool{false, true} {
			comparePacked(t, []byte(body), more)
			for cut := range min(len(body), 60) {
				comparePacked(t, []byte(body[:cut]), more)
			}
		}
	}
}

func FuzzPackOracle(f *testing.F) {
	for _, body := range packBodies() {
		f.Add([]byte(body), true)
		f.Add([]byte(body), false)
	}
	f.Fuzz(func(t *testing.T, src []byte, more bool) { comparePacked(t, src, more) })
}
