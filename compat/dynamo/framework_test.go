package dynamo

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"example.com/conductor/internal/must"
)

// bodies are valid bodies of every endpoint that reads one, for an empty registry,
// with the status of their answers, and the fields an endpoint insists on.
var bodies = []struct {
	path, body string
	status     int
	required   []string
	limit      int
}{
	{
		"/register", `{"instance_id":1,"endpoint":"inproc://1/0","model_name":"m","block_size":4}`, 201,
		[]string{"instance_id", "endpoint", "model_name", "block_size"}, 2 << 20,
	},
	{"/unregister", `{"instance_id":1,"model_name":"m"}`, 404, []string{"instance_id", "model_name"}, 2 << 20},
	{"/query", `{"token_ids":[1,2,3,4],"model_name":"m"}`, 404, []string{"token_ids", "model_name"}, 8 << 20},
	{"/query_by_hash", `{"block_hashes":[1,-1],"model_name":"m"}`, 404, []string{"block_hashes", "model_name"}, 8 << 20},
	{"/query_tiered_by_hash", `{"block_hashes":[1,-1],"model_name":"m"}`, 404, []string{"block_hashes", "model_name"}, 8 << 20},
	{"/register_peer", `{"url":"http://a"}`, 201, []string{"url"}, 2 << 20},
	{"/deregister_peer", `{"url":"http://b"}`, 404, []string{"url"}, 2 << 20},
	{"/test/pause_listener", `{"instance_id":1}`, 404, []string{"instance_id"}, 2 << 20},
	{"/test/resume_listener", `{"instance_id":1}`, 404, []string{"instance_id"}, 2 << 20},
}

const (
	syntaxError = "Failed to parse the request body as JSON: "
	shapeError  = "Failed to deserialize the JSON body into the target type: "
)

// TestFrameworkAnswers sends every endpoint what its service never sees, through a
// real server, and holds status, headers and body against the reference's.
func TestFrameworkAnswers(t *testing.T) {
	s := newServer(t, Config{TestEndpoints: true})
	web := httptest.NewServer(s.handler)
	defer web.Close()
	send := func(method, path, contentType, body string) (*http.Response, string) {
		t.Helper()
		req, err := http.NewRequest(method, web.URL+path, strings.NewReader(body))
		must.Succeed(t, err)
		if contentType != "" {
			req.Header.Set("Content-Type", contentType)
		}
		resp, err := web.Client().Do(req)
		must.Succeed(t, err)
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		must.Succeed(t, err)
		return resp, string(text)
	}
	f := func(path, contentType, body string, status int, want string) {
		t.Helper()
		resp, text := send("POST", path, contentType, body)
		if resp.StatusCode != status || text != want || resp.Header.Get("Content-Type") != "text/plain; charset=utf-8" {
			t.Errorf("%s %q %.100q\n got %d %q %q\nwant %d %q", path, contentType, body, resp.StatusCode, resp.Header.Get("Content-Type"),
				text, status, want)
		}
	}
	const unsupported = "Expected request with `Content-Type: application/json`"
	for _, b := range bodies {
		// The type comes before the length, the length before the content.
		long := strings.Repeat(" ", b.limit+1)
		f(b.path, "", b.body, 415, unsupported)
		f(b.path, "text/plain", long, 415, unsupported)
		f(b.path, "application/jsonx", b.body, 415, unsupported)
		f(b.path, "json", b.body, 415, unsupported)
		f(b.path, "application/json; charset=utf-8", long, 413, "Failed to buffer the request body: length limit exceeded")
		f(b.path, "application/vnd.x+json", "", 400, syntaxError+"EOF while parsing a value at line 1 column 0")
		f(b.path, "Application/JSON", "{", 400, syntaxError+"EOF while parsing an object at line 1 column 1")
		f(b.path, "application/json", "{}", 422, shapeError+"missing field `"+b.required[0]+"` at line 1 column 2")
		f(b.path, "application/json", `{"a":1}`, 422, shapeError+"missing field `"+b.required[0]+"` at line 1 column 7")
		for _, name := range b.required {
			f(b.path, "application/json", fmt.Sprintf(`{"%s":{}}`, name), 422,
				fmt.Sprintf("%s%s: invalid type: map, expected %s at line 1 column %d", shapeError, name, wanted(name), len(name)+4))
			f(b.path, "application/json", fmt.Sprintf(`{"%s":null}`, name), 422,
				fmt.Sprintf("%s%s: invalid type: null, expected %s at line 1 column %d", shapeError, name, wanted(name), len(name)+8))
		}
		for _, method := range []string{"GET", "PUT", "DELETE", "HEAD", "OPTIONS"} {
			resp, text := send(method, b.path, "", "")
			if resp.StatusCode != 405 || text != "" || resp.Header.Get("Allow") != "POST" || resp.Header.Get("Content-Type") != "" {
				t.Errorf("%s %s: %d %q %v", method, b.path, resp.StatusCode, text, resp.Header)
			}
		}
		// As long as is allowed, and what follows the document is not looked at.
		resp, text := send("POST", b.path, "application/json", b.body+" x"+strings.Repeat(" ", b.limit-len(b.body)-2))
		if resp.StatusCode != b.status || resp.Header.Get("Content-Type") != "application/json" {
			t.Errorf("%s: %d %v %s", b.path, resp.StatusCode, resp.Header, text)
		}
		if b.path == "/register" {
			send("POST", "/unregister", "application/json", `{"instance_id":1,"model_name":"m"}`)
		}
	}
	for _, path := range []string{"/workers", "/peers", "/health"} {
		resp, text := send("POST", path, "", "")
		if resp.StatusCode != 405 || text != "" || resp.Header.Get("Allow") != "GET,HEAD" {
			t.Errorf("POST %s: %d %q %v", path, resp.StatusCode, text, resp.Header)
		}
		if resp, text := send("HEAD", path, "", ""); resp.StatusCode != 200 || text != "" {
			t.Errorf("HEAD %s: %d %q", path, resp.StatusCode, text)
		}
	}
	for _, path := range []string{"/", "/nothing", "/query/", "//query", "/workers/1", "/Query", "/services", "/test",
		"/conductor/v1/nothing"} {
		for _, method := range []string{"GET", "POST"} {
			resp, text := send(method, path, "application/json", "")
			if resp.StatusCode != 404 || text != "" || resp.Header.Get("Content-Type") != "" {
				t.Errorf("%s %s: %d %q %v", method, path, resp.StatusCode, text, resp.Header)
			}
		}
	}
	resp, text := send("GET", "/health", "", "")
	if resp.StatusCode != 200 || text != "" || resp.Header.Get("Content-Type") != "" || resp.Header.Get("Content-Length") != "0" {
		t.Errorf("health: %d %q %v", resp.StatusCode, text, resp.Header)
	}
	if n := len(s.conductor.Registrations()); n != 0 {
		t.Errorf("%d registered", n)
	}
}

// wanted is how the reference names the type of a field.
func wanted(field string) string {
	switch field {
	case "instance_id":
		return "u64"
	case "block_size":
		return "u32"
	case "token_ids", "block_hashes":
		return "a sequence"
	}
	return "a string"
}

// TestDecodeErrors holds what answers say of bodies that do not fit: status, field and element
// as the reference, most of them observed there.
func TestDecodeErrors(t *testing.T) {
	s := newServer(t, Config{})
	f := func(path, body string, status int, text string) {
		t.Helper()
		prefix := shapeError
		if status == 400 {
			prefix = syntaxError
		}
		s.do("POST", path, body, status, prefix+text)
	}
	f("/register", `null`, 422, "invalid type: null, expected struct RegisterRequest at line 1 column 4")
	f("/register", `[1]`, 422, "invalid type: sequence, expected struct RegisterRequest at line 1 column 0")
	f("/register", `"x"`, 422, `invalid type: string "x", expected struct RegisterRequest at line 1 column 3`)
	f("/register", `{"instance_id":true}`, 422, "instance_id: invalid type: boolean `true`, expected u64 at line 1 column 19")
	f("/register", `{"instance_id":-1}`, 422, "instance_id: invalid value: integer `-1`, expected u64 at line 1 column 17")
	f("/register", `{"instance_id":1.5}`, 422, "instance_id: invalid type: floating point `1.5`, expected u64 at line 1 column 18")
	f("/register", `{"instance_id":1e3}`, 422, "instance_id: invalid type: floating point `1e3`, expected u64 at line 1 column 18")
	f("/register", `{"instance_id":-0}`, 422, "instance_id: invalid type: floating point `-0`, expected u64 at line 1 column 17")
	f("/register", `{"instance_id":18446744073709551616}`, 422,
		"instance_id: invalid type: floating point `18446744073709551616`, expected u64 at line 1 column 35")
	f("/register", `{"instance_id":1,"instance_id":2}`, 422, "duplicate field `instance_id` at line 1 column 30")
	f("/register", `{"modelname":"m","model_name":"m"}`, 422, "missing field `instance_id` at line 1 column 34")
	f("/register", `{"model_name":"m","modelname":7,"modelname":8,"model_name":"m"}`, 422,
		"duplicate field `model_name` at line 1 column 58")
	f("/register", `{"modelname":"m","modelname":"m"}`, 422, "missing field `instance_id` at line 1 column 33")
	f("/register", newRegistration("routing_group", "null"), 422,
		"routing_group: invalid type: null, expected a string at line 1 column 95")
	f("/register", newRegistration("tenant_id", "null"), 422, "tenant_id: invalid type: null, expected a string at line 1 column 91")
	f("/register", newRegistration("block_size", "4294967296"), 422,
		"block_size: invalid value: integer `4294967296`, expected u32 at line 1 column 83")
	f("/register", newRegistration("dp_rank", "-1"), 422, "dp_rank: invalid value: integer `-1`, expected u32 at line 1 column 87")
	f("/register", newRegistration("dp_rank", `"0"`), 422, `dp_rank: invalid type: string "0", expected u32 at line 1 column 88`)
	f("/register", newRegistration("replay_endpoint", "5"), 422,
		"replay_endpoint: invalid type: integer `5`, expected a string at line 1 column 94")
	f("/query", "{\n\"token_ids\":\n [1,-1]}", 422, "token_ids[1]: invalid value: integer `-1`, expected u32 at line 3 column 6")
	f("/query", `{"token_ids":[1,-1]}`, 422, "token_ids[1]: invalid value: integer `-1`, expected u32 at line 1 column 18")
	f("/query", `{"token_ids":[1,2,4294967296]}`, 422,
		"token_ids[2]: invalid value: integer `4294967296`, expected u32 at line 1 column 28")
	f("/query", `{"token_ids":[1, 2 ,3.0]}`, 422, "token_ids[2]: invalid type: floating point `3.0`, expected u32 at line 1 column 23")
	f("/query", `{"token_ids":[null]}`, 422, "token_ids[0]: invalid type: null, expected u32 at line 1 column 18")
	f("/query", `{"token_ids":["1"]}`, 422, `token_ids[0]: invalid type: string "1", expected u32 at line 1 column 17`)
	f("/query", `{"token_ids":[[1]]}`, 422, "token_ids[0]: invalid type: sequence, expected u32 at line 1 column 14")
	f("/query", `{"token_ids":null}`, 422, "token_ids: invalid type: null, expected a sequence at line 1 column 17")
	f("/query", `{"token_ids":"1,2"}`, 422, `token_ids: invalid type: string "1,2", expected a sequence at line 1 column 18`)
	f("/query", `{"model_name":"m","token_ids":[],"lora_name":1}`, 422,
		"lora_name: invalid type: integer `1`, expected a string at line 1 column 46")
	f("/query_by_hash", `{"block_hashes":[1,18446744073709551616]}`, 422,
		"block_hashes[1]: invalid type: floating point `18446744073709551616`, expected i64 at line 1 column 39")
	f("/query_by_hash", `{"block_hashes":[-9223372036854775809]}`, 422,
		"block_hashes[0]: invalid type: floating point `-9223372036854775809`, expected i64 at line 1 column 37")
	f("/query_by_hash", `{"block_hashes":[1.0]}`, 422,
		"block_hashes[0]: invalid type: floating point `1.0`, expected i64 at line 1 column 20")

	f("/query", `{"token_ids":[1,`, 400, "token_ids[1]: EOF while parsing a value at line 1 column 16")
	f("/query", `{"token_ids":[1`, 400, "token_ids[0]: EOF while parsing a list at line 1 column 15")
	f("/query", `{"token_ids":[1,]}`, 400, "token_ids[1]: invalid syntax at line 1 column 17")
	f("/query", `{"token_ids":[1 2]}`, 400, "token_ids[0]: invalid syntax at line 1 column 17")
	f("/query", `{"token_ids":[`, 400, "token_ids[0]: EOF while parsing a list at line 1 column 14")
	f("/query", `{"token_ids":[1,2,3`+"\x00]}", 400, "token_ids[2]: invalid syntax at line 1 column 20")
	f("/query", `{"token_ids":[1,2],"model_name":"m"`, 400, "EOF while parsing an object at line 1 column 35")
	f("/query_by_hash", `{"block_hashes":[123456,123456 , 7;]}`, 400, "block_hashes[2]: invalid syntax at line 1 column 35")
	f("/query_by_hash", `{"block_hashes":[123456,123456 ,`, 400, "block_hashes[2]: EOF while parsing a value at line 1 column 32")
	f("/query", `{"token_ids":[1,02]}`, 400, "token_ids[1]: invalid syntax at line 1 column 18")
	f("/query", `{"token_ids":[1,+2]}`, 400, "token_ids[1]: invalid syntax at line 1 column 17")
	f("/query", `{"token_ids":[1,2.]}`, 400, "token_ids[1]: invalid syntax at line 1 column 19")
	f("/query", `{"token_ids":[1,1e999]}`, 400, "token_ids[1]: invalid syntax at line 1 column 21")
	f("/query", `{"token_ids":[1,nul]}`, 400, "token_ids[1]: invalid syntax at line 1 column 17")
	f("/query", `{"token_ids"[1]}`, 400, "invalid syntax at line 1 column 13")
	f("/query", `{"a":1,}`, 400, "invalid syntax at line 1 column 8")
	f("/query", `{"a":1 "b":2}`, 400, "invalid syntax at line 1 column 8")
	f("/query", `{a:1}`, 400, "invalid syntax at line 1 column 2")
	f("/query", `{"a":tru}`, 400, "a: invalid syntax at line 1 column 6")
	f("/query", `{"model_name":"a`+"\n"+`b"}`, 400, "model_name: invalid syntax at line 2 column 0")
	f("/query", `{"model_name":"\x"}`, 400, "model_name: invalid syntax at line 1 column 17")
	f("/query", `{"model_name":"\ud800"}`, 400, "model_name: invalid syntax at line 1 column 22")
	f("/query", `{"model_name":"\ud800\n"}`, 400, "model_name: invalid syntax at line 1 column 24")
	f("/query", `{"model_name":"\ud800\u0041"}`, 400, "model_name: invalid syntax at line 1 column 28")
	f("/query", `{"model_name":"\udc00"}`, 400, "model_name: invalid syntax at line 1 column 22")
	f("/query", `{"model_name":"\u00zz"}`, 400, "model_name: invalid syntax at line 1 column 20")
	f("/query", `{"model_name":"\u00"}`, 400, "model_name: invalid syntax at line 1 column 20")
	f("/query", `{"token_ids":["é\n\"'`+"\x7f"+`"]}`, 422,
		`token_ids[0]: invalid type: string "é\n\"'\x7f", expected u32 at line 1 column 24`)
	f("/query", `{"x":[1,]}`, 400, "x: invalid syntax at line 1 column 9")
	f("/query", `{"x":{"y":1,}}`, 400, "x: invalid syntax at line 1 column 13")
	f("/query", "{\"model_name\":\"\xff\"}", 400, "model_name: invalid syntax at line 1 column 17")
	f("/query", "{\"\xc3\x28\":1}", 400, "invalid syntax at line 1 column 5")
	f("/query", `{"a":`+strings.Repeat("[", 5000)+strings.Repeat("]", 5000)+`}`, 400, "a: invalid syntax at line 1 column 133")
	f("/query", `{"a":"\`, 400, "a: EOF while parsing an object at line 1 column 7")
}

// TestUnusualButRight are bodies that are fine although they look odd.
func TestUnusualButRight(t *testing.T) {
	s := newServer(t, Config{})
	f := func(body, want string) {
		t.Helper()
		s.do("POST", "/query", body, 404, refusal("no indexer for model="+want))
	}
	f(" \t\r\n{ \"token_ids\" : [ ] , \"model_name\" : \"m\" } garbage", "m routing_group=default")
	f(`{"token_ids":[0,4294967295, 7 ,0],"model_name":"m"}`, "m routing_group=default")
	f(`{"\u0074oken_ids":[1],"model_name":"\ud83d\ude00\n\"ü"}`, "😀\n\"ü routing_group=default")
	f(`{"token_ids":[1],"model_name":"m","x":{"y":[{},[],"\ud800",-1.5e-7,1e999,true,false,null,{"z":0}]},"x":1}`,
		"m routing_group=default")
	f(`{"token_ids":[1],"model_name":"","routing_group":"a:b"}`, " routing_group=a:b")
	f(`{"token_ids":[1],"model_name":"m","lora_name":null,"cache_salt":null,"tenant_id":"t"}`, "m routing_group=t")
}

// FuzzBodies sends arbitrary bodies to every endpoint: none may panic or fail,
// and every answer is one that openapi.yaml describes.
func FuzzBodies(f *testing.F) {
	for i, b := range bodies {
		f.Add(i, []byte(b.body))
		f.Add(i, []byte(b.body[:len(b.body)/2]))
	}
	f.Add(0, []byte(`{"instance_id":"\ud83d\ude00","endpoint":"tcp://*:0","model_name":"m","block_size":4294967295,`+
		`"dp_rank":2147483647,"routing_group":""}`))
	f.Add(2, []byte(`{"token_ids":[1,-2,3.5,1e3,null,"x",[1]],"model_name":"m"}`))
	f.Add(2, []byte(`{"token_ids":[000000001,0,12345678901,1 , 2],"model_name":null}`))
	f.Add(3, []byte(`{"block_hashes":[-9223372036854775808,18446744073709551615],"cache_salt":""}`))
	f.Add(4, []byte("{\"block_hashes\":[],\"model_name\":\"\xff\"}"))
	s := newServer(f, Config{TestEndpoints: true, MaxTokens: 1 << 10})
	s.register(1, 0, "")
	f.Fuzz(func(t *testing.T, which int, body []byte) {
		path := bodies[uint(which)%uint(len(bodies))].path
		rec := s.send("POST", path, string(body))
		text := rec.Body.String()
		switch rec.Code {
		case 200, 201:
		case 400:
			if !strings.HasPrefix(text, syntaxError) && !strings.HasPrefix(text, `{"error":"`) {
				t.Errorf("%s %q: %d %q", path, body, rec.Code, text)
			}
		case 404, 409:
			if !strings.HasPrefix(text, `{"error":"`) {
				t.Errorf("%s %q: %d %q", path, body, rec.Code, text)
			}
		case 422:
			if !strings.HasPrefix(text, shapeError) {
				t.Errorf("%s %q: %d %q", path, body, rec.Code, text)
			}
		case 413: // limits.max_tokens
		case 415: // no body, so no type
			if len(body) > 0 {
				t.Errorf("%s %q: %d %q", path, body, rec.Code, text)
			}
		case 503: // limits.max_sources
		default:
			t.Errorf("%s %q: %d %q", path, body, rec.Code, text)
		}
	})
}
