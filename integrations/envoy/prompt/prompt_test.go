package prompt

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
)

// describe shows what was read: what there is to tokenize as /tokenize and the render service are asked for it.
func describe(r Request) string {
	if r.Without != "" {
		return r.Without
	}
	var all []string
	for _, p := range r.Prompts {
		if p.Text == nil {
			all = append(all, fmt.Sprint(p.Tokens))
			continue
		}
		ask, ok := p.Text.Tokenize()
		if !ok {
			ask = []byte("none")
		}
		all = append(all, fmt.Sprintf("%s; %s %s", ask, p.Text.RenderPath(), p.Text.Render()))
	}
	return strings.Join(all, " | ")
}

func TestRead(t *testing.T) {
	f := func(path, body, want string) {
		t.Helper()
		if got := describe(Read("POST", path, []byte(body))); got != want {
			t.Errorf("%s %s:\n got %s\nwant %s", path, body, got, want)
		}
	}
	f("/v1/completions", `{"model":"m","prompt":[1,2, 3]}`, "[1 2 3]")
	f("/openai/v1/completions?x=/v1/models", `{"prompt":[[1,2],[3]]}`, "[1 2] | [3]")
	f("/v1/completions", `{"model":"m","prompt":"a\"b","max_tokens":3,"stream":true}`,
		`{"model":"m","prompt":"a\"b"}; /v1/completions/render {"model":"m","prompt":"a\"b"}`)
	f("/v1/completions", `{"prompt": [ "a", "b" ],"add_special_tokens":false}`,
		`{"prompt":"a","add_special_tokens":false}; /v1/completions/render {"prompt":"a","add_special_tokens":false}`+
			` | {"prompt":"b","add_special_tokens":false}; /v1/completions/render {"prompt":"b","add_special_tokens":false}`)
	f("/v1/embeddings", `{"model":"m","input":"a"}`,
		`{"model":"m","prompt":"a"};  {"model":"m","input":"a"}`)
	f("/v1/embeddings", `{"input":[7]}`, "[7]")
	f("/v1/embeddings", `{"messages":[]}`, `{"messages":[]}; /v1/chat/completions/render {"messages":[]}`)

	const tools = `"tools":[{"type":"function"}]`
	f("/v1/chat/completions", `{"temperature":1,"messages":[{"role":"user","content":"a"}],`+tools+`,"model":"m"}`,
		`{"model":"m",`+tools+`,"messages":[{"role":"user","content":"a"}]}; /v1/chat/completions/render {"model":"m",`+tools+
			`,"messages":[{"role":"user","content":"a"}]}`)
	f("/v1/chat/completions", `{"messages":[],"reasoning_effort":"none","chat_template_kwargs":{"x":1}}`,
		`{"reasoning_effort":"none","messages":[],"chat_template_kwargs":{"enable_thinking":false,"reasoning_effort":"none","x":1}}; `+
			`/v1/chat/completions/render {"reasoning_effort":"none","chat_template_kwargs":{"x":1},"messages":[]}`)
	f("/v1/chat/completions", `{"messages":[],"documents":[]}`,
		`{"documents":[],"messages":[],"chat_template_kwargs":{"documents":[]}}; `+
			`/v1/chat/completions/render {"documents":[],"messages":[]}`)
	f("/v1/chat/completions", `{"messages":[{"content":[{"type":"text","text":"a"}]}]}`,
		`{"messages":[{"content":[{"type":"text","text":"a"}]}]}; `+
			`/v1/chat/completions/render {"messages":[{"content":[{"type":"text","text":"a"}]}]}`)
	f("/v1/chat/completions", `{"messages":[{"content":[{"type":"text","text":"a"},{"type":"image_url"}]}]}`, Media)

	f("/v1/responses", `{"model":"m","instructions":"i","input":"a"}`,
		`{"model":"m","add_special_tokens":true,"messages":[{"role":"system","content":"i"},{"role":"user","content":"a"}]}; `+
			`/v1/responses/render {"model":"m","instructions":"i","input":"a"}`)
	f("/v1/responses", `{"instructions":"","input":[ {"role":"user","content":[{"type":"input_text","text":"a"}]} ]}`,
		`{"add_special_tokens":true,"messages":[{"role":"user","content":[{"type":"text","text":"a"}]}]}; `+
			`/v1/responses/render {"instructions":"","input":[ {"role":"user","content":[{"type":"input_text","text":"a"}]} ]}`)
	const items = `"input":[{"role":"user","content":"a"},` +
		`{"type":"message","id":"i","role":"assistant","content":[{"type":"output_text","text":"b"}]}]`
	f("/v1/responses", `{`+items+`}`, `{"add_special_tokens":true,"messages":[{"role":"user","content":"a"},`+
		`{"role":"assistant","content":"b"}]}; /v1/responses/render {`+items+`}`)
	for _, other := range []string{`{"role":"user"}`, `{"role":"user","content":7}`, `{"content":"a"}`, `{"role":"user","content":[]}`, `7`,
		`{"role":"user","content":[{"type":"refusal","text":"a"}]}`, `{"role":"user","content":[{"type":"input_text"}]}`} {
		if r := Read("POST", "/v1/responses", []byte(`{"input":[`+other+`]}`)); r.Without == "" {
			if ask, ok := r.Prompts[0].Text.Tokenize(); ok {
				t.Errorf("of %s comes %s", other, ask)
			}
		}
	}
	f("/v1/responses", `{"input":[{"type":"function_call","call_id":"c"}]}`,
		`none; /v1/responses/render {"input":[{"type":"function_call","call_id":"c"}]}`)
	f("/v1/responses", `{"input":"a",`+tools+`}`, `none; /v1/responses/render {"input":"a",`+tools+`}`)
	f("/v1/responses", `{"input":[{"role":"user","content":[{"type":"input_image"}]}]}`, Media)
	f("/v1/responses", `{"input":"a","previous_response_id":"r"}`, Unsupported)

	f("/v1/completions", `{"prompt":[1],"truncate_prompt_tokens":3}`, Unsupported)
	f("/v1/models", `{"prompt":[1]}`, NoPrompt)
	for _, none := range []string{`{}`, `{"prompt":null}`, `{"prompt":[]}`, `{"prompt":[ ]}`, `{"prompt_embeds":"x"}`} {
		f("/v1/completions", none, NoPrompt)
	}
	for _, bad := range []string{``, `{`, `[]`, `"a"`, `{"model":3,"prompt":[1]}`, `{"prompt":[-1]}`, `{"prompt":[1.0]}`,
		`{"prompt":[1e2]}`, `{"prompt":[1 2]}`, `{"prompt":[01]}`, `{"prompt":[1,]}`, `{"prompt":[1]} x`, `{"prompt":[1`,
		`{"prompt":[4294967296]}`, `{"prompt":[1,"a"]}`, `{"prompt":["a",1]}`, `{"prompt":[[1],[]]}`, `{"prompt":[[[1]]]}`, `{"prompt":7}`,
		`{"prompt":{}}`, `{"prompt":[{}]}`, "\xff"} {
		f("/v1/completions", bad, BadBody)
	}
	f("/v1/chat/completions", `{"messages":"a"}`, BadBody)
	f("/v1/chat/completions", `{"messages":["type"]}`, BadBody)
	f("/v1/responses", `{"input":{}}`, BadBody)
	if r := Read("GET", "/v1/completions", []byte(`{"prompt":[1]}`)); r.Without != NoPrompt {
		t.Errorf("a GET has %q", r.Without)
	}
	if r := Read("POST", "/v1/completions", []byte(`{"prompt":[1],"model":"m","cache_salt":"s"}`)); r.Model != "m" || r.Salt != "s" {
		t.Errorf("model %q and salt %q", r.Model, r.Salt)
	}
	r := Read("POST", "/v1/completions", []byte(`{"prompt":["a"`+strings.Repeat(`,"b"`, 99)+`]}`))
	if len(r.Prompts) != MaxPrompts || r.Bytes != 401 {
		t.Errorf("of 100 prompts %d are read, %d bytes count", len(r.Prompts), r.Bytes)
	}
}

// TestKeys holds that texts share a key if and only if they share the fields that decide their tokens.
func TestKeys(t *testing.T) {
	key := func(path, body string) [32]byte {
		return Read("POST", path, []byte(body)).Prompts[0].Text.Key()
	}
	base := key("/v1/completions", `{"model":"m","prompt":"a"}`)
	if base != key("/v1/completions", `{"prompt": "a", "max_tokens":3, "model" :"m","cache_salt":"s"}`) {
		t.Error("fields about the answer change the key")
	}
	for _, other := range []string{`{"model":"n","prompt":"a"}`, `{"model":"m","prompt":"b"}`,
		`{"model":"m","prompt":"a","add_special_tokens":false}`} {
		if base == key("/v1/completions", other) {
			t.Errorf("%s has the same key", other)
		}
	}
	if key("/v1/responses", `{"input":"a"}`) == key("/v1/embeddings", `{"input":"a"}`) {
		t.Error("different paths have the same key")
	}
}

// TestManyObjects reads the largest bodies with as many objects as they can have. It takes minutes if each object costs a look at all
// that follows it.
func TestManyObjects(t *testing.T) {
	many := strings.Repeat("{},", 8<<20/3)
	r := Read("POST", "/v1/chat/completions", []byte(`{"messages":[`+many+`{}]}`))
	if r.Without != "" || r.Bytes < 8<<20-3 {
		t.Errorf("the chat is read as %+v", r)
	}
	fields := strings.Repeat(`"a":{},`, 8<<20/7)
	if r := Read("POST", "/v1/foo", []byte(`{`+fields+`"model":"m"}`)); r.Model != "m" {
		t.Errorf("the body is read as %+v", r)
	}
}

// TestMillionTokens holds that a prompt of a million tokens is read.
func TestMillionTokens(t *testing.T) {
	body := []byte(`{"prompt":[128000` + strings.Repeat(",128000", 1<<20-1) + `]}`)
	if r := Read("POST", "/v1/completions", body); r.Without != "" || len(r.Prompts[0].Tokens) != 1<<20 {
		t.Errorf("%q, %d prompts", r.Without, len(r.Prompts))
	}
}

// FuzzRead holds that no body makes Read panic, that what it makes of JSON is JSON, and that fields and lists of token ids are those
// that encoding/json reads.
func FuzzRead(f *testing.F) {
	for _, body := range []string{`{"prompt":[1,2]}`, `{"prompt":["a","b"]}`, `{"input":[{"role":"user","content":"a"}]}`,
		`{"messages":[{"content":[{"type":"text"}]}],"documents":[1],"chat_template_kwargs":{}}`, `{"input":"a","instructions":"b"}`,
		`{"prompt":[ 1 , 4294967295 ]}`, `[`, ``} {
		for kind := range 4 {
			f.Add(kind, []byte(body))
		}
	}
	f.Fuzz(func(t *testing.T, kind int, body []byte) {
		path := []string{completionsPath, embeddingsPath, chatPath, responsesPath}[uint(kind)%4]
		r := Read("POST", path, body)
		if (r.Without == "") != (len(r.Prompts) > 0) || len(r.Prompts) > MaxPrompts {
			t.Fatalf("%d prompts without %q", len(r.Prompts), r.Without)
		}
		for _, p := range r.Prompts {
			if (p.Text == nil) == (len(p.Tokens) == 0) {
				t.Fatalf("a prompt has %d tokens and text %v", len(p.Tokens), p.Text)
			}
			if p.Text == nil || !json.Valid(body) {
				continue
			}
			if !json.Valid(p.Text.Render()) {
				t.Fatalf("no JSON: %s", p.Text.Render())
			}
			if ask, ok := p.Text.Tokenize(); ok && !json.Valid(ask) {
				t.Fatalf("no JSON: %s", ask)
			}
		}
		got := make(map[string]json.RawMessage)
		ok := fields(body, func(name string, raw json.RawMessage) { got[name] = raw })
		var want map[string]json.RawMessage
		if json.Unmarshal(body, &want) == nil && want != nil {
			if !ok {
				t.Fatalf("%s has no fields", body)
			}
			for name := range read {
				if string(got[name]) != string(want[name]) {
					t.Fatalf("%s: %q is %s, want %s", body, name, got[name], want[name])
				}
			}
		}
		var list []json.Number
		if json.Unmarshal(body, &list) != nil || list == nil {
			if ids, ok := IDs(body); ok {
				t.Fatalf("%s: got %v", body, ids)
			}
			return
		}
		ids, ok := make([]uint32, 0, len(list)), true
		for _, n := range list {
			var id uint64
			if err := json.Unmarshal([]byte(n), &id); err != nil || id > math.MaxUint32 {
				ok = false
				break
			}
			ids = append(ids, uint32(id))
		}
		if strings.ContainsAny(string(body), `"n`) {
			return // numbers as texts, or null: encoding/json takes them for a Number
		}
		if got, gotOK := IDs(body); gotOK != ok || ok && !slices.Equal(got, ids) {
			t.Fatalf("%s: got %v %t, want %v %t", body, got, gotOK, ids, ok)
		}
	})
}
