package http

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"testing"

	"example.com/conductor/conductor/body"
	"example.com/conductor/conductor/invalid"
	"example.com/conductor/conductor/prompt"
	"example.com/conductor/conductor/reply"
	"example.com/conductor/internal/alloctest"
)

// ids is a body with n token ids, and more behind them.
func ids(n int, more string) []byte {
	return append(append([]byte(`{"model":"m","block_size":16,"token_ids":[1`), bytes.Repeat([]byte(",123456"), n-1)...), more+"]}"...)
}

// TestGiantPrompts holds that prompts beyond the limits are refused by name and take no
// more memory than the limits allow, and none afterwards.
func TestGiantPrompts(t *testing.T) {
	const n, limit = 10_000_000, 2 * prompt.KeepNumbers
	f := func(src []byte, reason, text string, index int) {
		t.Helper()
		r := &body.Request{Src: src}
		in, err := scanBody(r, body.JSON, queryFields, limit)
		if err == nil {
			in.tokens(r, limit)
			err = in.err
		}
		_, got := reply.DescribeError(err)
		if got.Reason != reason || got.Error != text || got.Field != "token_ids" || (index >= 0) != (got.Index != nil) || index >= 0 &&
			*got.Index != index {
			t.Errorf("%+v, want %s %q at %d", got, reason, text, index)
		}
		if most := limit * 3 / 2; cap(r.Tokens) > most {
			t.Errorf("room for %d tokens, the most is %d", cap(r.Tokens), most)
		}
		r.Reset()
		if r.Src != nil || r.Tokens != nil {
			t.Errorf("%d bytes and %d tokens are kept", cap(r.Src), cap(r.Tokens))
		}
	}
	f(ids(n, ""), "out_of_range", fmt.Sprintf("token_ids has %d elements, limits.max_tokens allows %d", n, limit), limit)
	// Longer than what buffers are kept for.
	const m = prompt.KeepNumbers + 1
	f(ids(m, ",-1"), "out_of_range", "token_ids element must be a token id in 0..4294967295", m)
	f(ids(m, ",[2]"), "invalid_type", "token_ids element must be a token id in 0..4294967295", m)
	f(ids(m, ",x"), "invalid_json", "Invalid JSON object: invalid character 'x' looking for beginning of value", m)
}

// TestQueriesAllocate holds that reading a prompt allocates the same, whatever its
// length, and that a usual one is read into what the last one left.
func TestQueriesAllocate(t *testing.T) {
	allocations := func(src []byte, byHash bool) float64 {
		r := &body.Request{Tokens: make([]uint32, 0, prompt.KeepNumbers), Hashes: make([]uint64, 0, prompt.KeepNumbers)}
		return alloctest.PerRun(20, func() {
			r.Src, r.Members, r.Tokens, r.Hashes = src, r.Members[:0], r.Tokens[:0], r.Hashes[:0]
			a := api{opts: Options{MaxTokens: 1 << 20}}
			s, read := queryFields, a.readTokens
			if byHash {
				s, read = hashFields, a.readHashes
			}
			f, err := scanBody(r, body.JSON, s, 1<<20)
			if q := f.query(r, read); errors.Join(err, f.err) != nil || len(q.Tokens)+len(q.Hashes) == 0 {
				t.Fatal(err, f.err, len(q.Tokens))
			}
		})
	}
	packed := func(n int) []byte {
		return []byte(`{"model":"m","block_size":16,"token_ids_b64":"` + base64.StdEncoding.EncodeToString(make([]byte, 4*n)) + `"}`)
	}
	hashed := func(n int) []byte { return bytes.Replace(ids(n, ""), []byte("token_ids"), []byte("seq_hashes"), 1) }
	for name, body := range map[string]func(n int) []byte{"tokens": func(n int) []byte { return ids(n, "") }, "base64": packed,
		"hashes": hashed} {
		short, long := allocations(body(16), name == "hashes"), allocations(body(65_536), name == "hashes")
		if long > short || short > 8 {
			t.Errorf("%s: %v allocations for a short prompt, %v for a long one", name, short, long)
		}
	}
}

// TestRequestsAreApart holds that what one request leaves in the buffers is not seen by
// the next.
func TestRequestsAreApart(t *testing.T) {
	r := new(body.Request)
	for i := range 100 {
		n := 1 + i*37%90
		q, err := askFast(r, ids(n, ""), false, 1000)
		if err != nil || len(q.Tokens) != n || q.Tenant != "" || q.Model != "m" {
			t.Fatalf("%d: %d tokens, %+v, %v", n, len(q.Tokens), q, err)
		}
		var field *invalid.FieldError
		if _, err := askFast(r, []byte(`{"tenant_id":"t","model":"n","block_size":16}`), false, 1000); !errors.As(err, &field) ||
			field.Field != "token_ids" {
			t.Fatal(err)
		}
	}
}

// TestStringArrayField holds arrays of strings against encoding/json.
func TestStringArrayField(t *testing.T) {
	f := func(raw string, index int) {
		t.Helper()
		r := &body.Request{Src: []byte(`{"serves":` + raw + `}`)}
		in, err := scanBody(r, body.JSON, registrationFields, 0)
		if err != nil {
			t.Fatal(raw, err)
		}
		got := in.texts("serves")
		var want []string
		if in.err == nil {
			if err := json.Unmarshal([]byte(raw), &want); err != nil || !slices.Equal(got, want) || (got == nil) != (want == nil) {
				t.Errorf("%s: %q, want %q, %v", raw, got, want, err)
			}
		}
		at := -2 // none is wrong
		if field := (*invalid.FieldError)(nil); errors.As(in.err, &field) {
			at = field.Index
		}
		if at != index {
			t.Errorf("%s: %v, want an error at %d", raw, in.err, index)
		}
	}
	const right, whole = -2, -1
	f(`null`, right)
	f(`[]`, right)
	f(" [ \n] ", right)
	f(`["a"]`, right)
	f(` [ "a" ,"", "\u00e9\n\ud800" ,"é"]`, right)
	f(`"a"`, whole)
	f(`{}`, whole)
	f(`7`, whole)
	f(`[1]`, 0)
	f(`["a",null,7]`, 1)
	f(`["a","b",["c"]]`, 2)
	f(`["a",{"b":"c"}]`, 1)
}

// TestProfileFaults compares the errors of invalid hash profiles: unknown fields first, of
// several the first by name, then repeated ones.
func TestProfileFaults(t *testing.T) {
	f := func(raw, reason, field string) {
		t.Helper()
		r := &body.Request{Src: []byte(`{"hash_profile":` + raw + `}`)}
		in, err := scanBody(r, body.JSON, registrationFields, 0)
		if err != nil {
			t.Fatal(raw, err)
		}
		in.profile()
		var got *invalid.FieldError
		if !errors.As(in.err, &got) || got.Reason != reason || got.Field != field {
			t.Errorf("%s: %v, want %s of %q", raw, in.err, reason, field)
		}
	}
	f(`7`, "invalid_type", "hash_profile")
	f(`[]`, "invalid_type", "hash_profile")
	f(`"{}"`, "invalid_type", "hash_profile")
	f(` { } `, "missing", "hash_profile.strategy")
	f(`{"strategy":null}`, "missing", "hash_profile.strategy")
	f(`{"strategy":7,"algorithm":"sha256"}`, "invalid_type", "hash_profile.strategy")
	f(`{"strategy":"s","strategy":"s"}`, "duplicate", "hash_profile.strategy")
	f(`{"strategy":"s","str\u0061tegy":"s"}`, "duplicate", "hash_profile.strategy")
	f(`{"strategy":"s","strategy":"s", "zeta" : [ {"alpha":1} , "}" ] ,"\u0062eta":{},"gamma":null}`, "unknown_field", "hash_profile.beta")
	f(`{"":1,"a":2}`, "unknown_field", "hash_profile.")
	f(`{"Strategy":"s"}`, "unknown_field", "hash_profile.Strategy")
}
