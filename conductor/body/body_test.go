package body

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"example.com/conductor/conductor/prompt"
	"example.com/conductor/internal/must"
)

var (
	testInner = Shape{{Name: "tokens", Kind: Tokens(Token)}, {Name: "x"}}
	testShape = append(Shape{{Name: "tokens", Kind: Tokens(Token)}, {Name: "hashes", Kind: Hashes(Hash)},
		{Name: "list", Kind: Objects(testInner)}}, Of("a", "b")...)
)

// show lists members: name, text, elements, first bad element.
func show(members []Member) string {
	var all []string
	for _, m := range members {
		text := fmt.Sprintf("%s=%s", m.Name, m.Raw)
		if m.Read {
			text += fmt.Sprintf("/%d", m.List.N)
			if m.List.Bad >= 0 {
				text += fmt.Sprintf("!%d=%s", m.List.Bad, m.List.Text)
			}
		}
		if m.Twice {
			text += " twice"
		}
		all = append(all, text)
	}
	return strings.Join(all, " ")
}

func TestScanMembers(t *testing.T) {
	f := func(src string, opts Options, want string, fault Error) {
		t.Helper()
		r := &Request{Src: []byte(src)}
		members, _, err := r.Scan(testShape, opts)
		if err == nil {
			err = &Error{}
		}
		if got := show(members); got != want || *err != fault {
			t.Errorf("%s\n got %q, %+v\nwant %q, %+v", src, got, *err, want, fault)
		}
		for _, m := range members {
			if !bytes.HasPrefix(r.Src[m.At:], m.Raw) {
				t.Errorf("%s: %s is not at %d", src, m.Name, m.At)
			}
		}
	}
	def := Options{Limit: 9}
	f(`{}`, def, "", Error{})
	f(` { "b" : [ 1 ] , "z" : 7, "a":null,"tokens":[1, 2] } `, def, "b=[ 1 ] a=null tokens=[1, 2]/2", Error{})
	f(`{"tokens":[1,-2,[3],4],"hashes":[-1,1.5]}`, def, "tokens=[1,-2,[3],4]/4!1=-2 hashes=[-1,1.5]/2!1=1.5", Error{})
	f(`{"a":1,"b":2,"a":3,"a":4,"\u0061":5}`, def, "a=1 b=2 a=3 twice", Error{})
	f(`{"tokens":"x","hashes":{}}`, def, `tokens="x" hashes={}`, Error{})

	// The field that holds the fault is the last.
	f(``, def, "", Error{Index: -1, Reason: Syntax})
	f(`[]`, def, "", Error{Index: -1, Reason: Syntax})
	f(`{"a":1,"b":x}`, def, "a=1 b=", Error{Field: "b", Index: -1, Reason: Syntax, Offset: 11})
	f(`{"tokens":[1,[`, def, "tokens=[1,[/2!1=[", Error{Field: "tokens", Index: 1, Reason: Syntax, Offset: 14})
	f(`{"tokens":[1,2`, def, "tokens=[1,2/2", Error{Field: "tokens", Index: 1, Reason: Syntax, Offset: 14})
	f(`{"a":01}`, def, "a=0", Error{Field: "a", Index: -1, Reason: Syntax, Offset: 6})
	f(`{"a":1} x`, def, "a=1", Error{Index: -1, Reason: Syntax, Offset: 8})
	f(`{"z":[1,}`, def, "", Error{Index: -1, Reason: Syntax, Offset: 8})
	f(`{"list":[{},{"x":1,"tokens":[1,2,x`, def, "list=[{},{\"x\":1,\"tokens\":[1,2,/1", Error{
		Field: "list", Index: 1, Within: "tokens[2]", Reason: Syntax, Offset: 33,
	})

	f(`{"a":1} x`, Options{Tail: true}, "a=1", Error{})
	f(`{"z":[1,}`, Options{Unknown: true}, "", Error{Field: "z", Index: -1, Reason: Syntax, Offset: 8})
	f(`{"a":[[1]]}`, Options{Depth: 3}, "a=[[1]]", Error{})
	f(`{"a":[[1]]}`, Options{Depth: 2}, "a=[", Error{Field: "a", Index: -1, Reason: Syntax, Offset: 6})
	never := func([]byte) bool { return false }
	f(`{"a":1,"z":2}`, Options{Name: never}, "a=1", Error{})
	f(`{"a":1,"\u007a":2}`, Options{Name: never}, "a=1", Error{Index: -1, Reason: Syntax, Offset: 14})

	every := Options{Limit: 9, Every: 3}
	f(`{"z":1,"a":2,"z":[3]}`, every, "a=2 z=[3]", Error{})
	f(`{"z":1,"a":2,"z":3,"b":4}`, every, "a=2 z=3 b=4", Error{Index: -1, Reason: TooMany, Offset: 25})
	f(`{"tokens":[1,2],"tokens":[3]}`, every, "tokens=[3]/1", Error{})
}

// TestScanStoresNumbers holds where lists go, and that a list longer than the limit takes
// no more room.
func TestScanStoresNumbers(t *testing.T) {
	r := &Request{Src: []byte(`{"tokens":[1,2,3],"hashes":[-1,7],"list":[{"tokens":[4,5]},7,{"tokens":[]}]}`)}
	members, _, err := r.Scan(testShape, Options{Limit: 9})
	if err != nil || !slices.Equal(r.Tokens, []uint32{1, 2, 3, 4, 5}) || !slices.Equal(r.Hashes, []uint64{1<<64 - 1, 7}) {
		t.Fatal(err, r.Tokens, r.Hashes)
	}
	if l := members[0].List; l.From != 0 || l.To != 3 {
		t.Errorf("%+v", l)
	}
	var items []string
	for _, it := range r.Items {
		items = append(items, fmt.Sprintf("%t %s", it.Object, show(r.Members[it.From:it.To])))
	}
	if got := strings.Join(items, "; "); got != "true tokens=[4,5]/2; false ; true tokens=[]/0" {
		t.Errorf("%s", got)
	}
	r.Src = []byte(`{"hashes":[` + strings.Repeat("1,", 1<<16) + `1]}`)
	members, _, err = r.Scan(testShape, Options{Limit: 9})
	if err != nil || members[0].List.N != 1<<16+1 || cap(r.Hashes) > 4*leastRoom {
		t.Errorf("%v: room for %d hashes", err, cap(r.Hashes))
	}
	r.Src = []byte(`{"list":[` + strings.Repeat("{},", MaxItems) + `{}]}`)
	if members, _, err = r.Scan(testShape, Options{}); err != nil || members[0].List.N != MaxItems+1 || len(r.Items) != MaxItems {
		t.Errorf("%v: %d items", err, len(r.Items))
	}
}

// FuzzScan holds that Scan accepts what encoding/json does, and finds the same fields.
func FuzzScan(f *testing.F) {
	for _, src := range []string{`{"a":1,"b":[2],"tokens":[1,2],"a":3}`, `{"list":[{"x":1}]}`, `{"a":01}`, `{"a"`, `{} `, `[`,
		"{\"\xff\":1}", `{"\u0061":null}`} {
		f.Add([]byte(src))
	}
	f.Fuzz(func(t *testing.T, src []byte) {
		r := &Request{Src: src}
		members, end, err := r.Scan(nil, Options{Every: 1 << 20})
		at, valid := prompt.Skip(src, prompt.Space(src, 0), prompt.MaxDepth) // held against encoding/json there
		valid = valid && prompt.Space(src, at) == len(src) && src[prompt.Space(src, 0)] == '{'
		if (err == nil) != valid || err == nil && end != at {
			t.Fatalf("%q: %v, ends at %d, want %t, %d", src, err, end, valid, at)
		}
		if err != nil {
			return
		}
		var want map[string]json.RawMessage
		must.Succeed(t, json.Unmarshal(src, &want))
		got := make(map[string]json.RawMessage)
		for _, m := range members {
			got[m.Name] = m.Raw
		}
		pairs := make(map[string]json.RawMessage)
		for name, raw := range Pairs(bytes.TrimSpace(src)) {
			pairs[name] = raw
		}
		for _, all := range []map[string]json.RawMessage{got, pairs} {
			if !maps.EqualFunc(all, want, func(a, b json.RawMessage) bool { return bytes.Equal(a, b) }) {
				t.Fatalf("%q: %s, want %s", src, all, want)
			}
		}
	})
}

func TestElements(t *testing.T) {
	f := func(src string, want ...string) {
		t.Helper()
		var got []string
		for raw := range Elements([]byte(src)) {
			got = append(got, string(raw))
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %q", src, got)
		}
	}
	f(`[]`)
	f(` [ ]`[1:])
	f(`[1 , "a]" ,[2,3], {"b":4} ]`, `1`, `"a]"`, `[2,3]`, `{"b":4}`)
}

func TestAppendString(t *testing.T) {
	for _, s := range []string{"", "plain ~", "\"\\/", "<&>", "\x00\n\x1f\x7f", "é\u2028😀", "\xff\xc0"} {
		for _, html := range []bool{false, true} {
			var want bytes.Buffer
			e := json.NewEncoder(&want)
			e.SetEscapeHTML(html)
			must.Succeed(t, e.Encode(s))
			text, bin := AppendString([]byte("x"), s, html), AppendString([]byte("x"), []byte(s), html)
			if string(text) != "x"+strings.TrimSuffix(want.String(), "\n") || !bytes.Equal(text, bin) {
				t.Errorf("%q: %s %s, want %s", s, text, bin, &want)
			}
		}
	}
}

func TestFillReadsWithinSize(t *testing.T) {
	f := func(read io.Reader, size int64, reason string) {
		t.Helper()
		q := httptest.NewRequest("POST", "/", read)
		q.ContentLength = size
		r := Get()
		defer r.Release()
		var got *Error
		if err := r.Fill(httptest.NewRecorder(), q, 10); errors.As(err, &got) != (reason != "") || got != nil && got.Reason != reason {
			t.Errorf("%d bytes: %v, want %s", size, err, reason)
		}
	}
	f(strings.NewReader("0123456789"), 10, "")
	f(strings.NewReader("0123456789"), -1, "")
	f(strings.NewReader("0123456789a"), -1, TooLarge)
	f(strings.NewReader(""), 11, TooLarge)
	f(iotest.ErrReader(fmt.Errorf("no br: %w", errors.ErrUnsupported)), -1, Unsupported)
	f(iotest.ErrReader(io.ErrUnexpectedEOF), -1, Unreadable)
	large := &Error{Reason: TooLarge, Err: &http.MaxBytesError{Limit: 10}}
	if text := large.Error(); text != "request body exceeds limits.max_body of 10 bytes" {
		t.Error(text)
	}
}

// TestResetDropsGiantBuffers holds that a giant body leaves no memory behind.
func TestResetDropsGiantBuffers(t *testing.T) {
	r := &Request{
		Src: make([]byte, prompt.KeepBytes+1), Tokens: make([]uint32, prompt.KeepNumbers+1), Hashes: make([]uint64, 5),
		Members: make([]Member, 1<<13),
	}
	if r.Reset(); r.Src != nil || r.Tokens != nil || r.Members != nil || cap(r.Hashes) != 5 || len(r.Hashes) != 0 {
		t.Errorf("%d bytes, %d tokens, %d hashes and %d members are kept", cap(r.Src), cap(r.Tokens), cap(r.Hashes), cap(r.Members))
	}
}

// TestListsOfHashesAreBounded holds that a list of objects stores no more hashes than two lists may have, but for the
// least room of each.
func TestListsOfHashesAreBounded(t *testing.T) {
	const limit, each = 4000, 3000
	of := Shape{{Name: "hashes", Kind: Hashes(Hash)}}
	one, packed := `{"hashes":[1`+strings.Repeat(",1", each-1)+`]},`, "\x81\xa6hashes\xdc\x0b\xb8"+strings.Repeat("\x01", each)
	for codec, src := range map[Codec]string{
		JSON:    `{"list":[` + strings.Repeat(one, 9) + `{}]}`,
		Msgpack: "\x81\xa4list\x99" + strings.Repeat(packed, 9),
	} {
		r := &Request{Src: []byte(src)}
		members, _, err := r.Scan(Shape{{Name: "list", Kind: Objects(of)}}, Options{Codec: codec, Limit: limit})
		if err != nil || members[0].List.N < 9 || len(r.Hashes) < 2*each || len(r.Hashes) > 2*limit+9*leastRoom {
			t.Errorf("codec %v: %v, %d hashes are stored", codec, err, len(r.Hashes))
		}
	}
}
