package http_test

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	nethttp "net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"example.com/conductor/internal/must"
)

// TestQueryBatch holds that a batch answers what /query would, item by item.
func TestQueryBatch(t *testing.T) {
	s := newServer(t)
	for _, tenant := range []string{"default", "t"} {
		s.do("POST", "/register",
			fmt.Sprintf(`{"endpoint":"ipc:///nowhere","type":"vLLM","modelname":"m","instance_id":"a","block_size":16,"dp_rank":0,`+
				`"tenant_id":%q}`, tenant))
	}
	// f sends queries with defaults. Each is followed by the query that it is with the
	// defaults filled in.
	f := func(defaults string, queries ...[2]string) {
		t.Helper()
		var items []string
		for _, q := range queries {
			items = append(items, q[0])
		}
		rec := s.do("POST", "/query_batch", `{`+defaults+`"queries":[`+strings.Join(items, ",")+`]}`)
		var got struct{ Answers []json.RawMessage }
		if rec.Code != 200 || json.Unmarshal(rec.Body.Bytes(), &got) != nil || len(got.Answers) != len(queries) {
			t.Fatalf("%d %s", rec.Code, rec.Body)
		}
		for i, q := range queries {
			if q[1] == "" {
				q[1] = q[0]
			}
			if want := s.do("POST", "/query", q[1]); string(got.Answers[i]) != want.Body.String() {
				t.Errorf("%d: %s, want %s", i, got.Answers[i], want.Body)
			}
		}
	}
	whole := func(body, want string) {
		t.Helper()
		if rec := s.do("POST", "/query_batch", body); rec.Code != 400 || rec.Body.String() != want {
			t.Errorf("%s: %d %s, want %s", body, rec.Code, rec.Body, want)
		}
	}
	f("")
	f("", [2]string{`{"model":"m","block_size":16,"token_ids":[1,2,3]}`}, [2]string{`{"model":"x","block_size":16,"token_ids":[]}`},
		[2]string{`{"model":"m","block_size":16,"token_ids":[1,-2]}`}, [2]string{`{"block_size":16}`},
		[2]string{`{"model":"m","block_size":16,"token_ids":7}`},
		[2]string{`{"model":"m","block_size":16,"token_ids":[1],"model":"m"}`},
		[2]string{`{"model":"m","block_size":16,"token_ids":[1,[2]],"token_ids":[1]}`},
		[2]string{`{"model":"m","block_size":16,"token_ids_b64":"AQAAAA==","tenant_id":"t"}`},
		[2]string{`{"model":"m","block_size":16,"token_ids_b64":"AQAAAA","instance_id":"ghost"}`},
		[2]string{`{"model":"m","block_size":16,"token_ids_b64":"AQAA"}`},
		[2]string{`{"model":"m","block_size":16,"token_ids_b64":"AQAA_A"}`},
		[2]string{`{"model":"m","block_size":16,"token_ids_b64":"","token_ids":[]}`})
	f(`"model":"m","block_size":16,"tenant_id":"t",`,
		[2]string{`{"token_ids":[1]}`, `{"token_ids":[1],"model":"m","block_size":16,"tenant_id":"t"}`},
		[2]string{`{"token_ids":[1],"modelname":"x","tenant_id":null}`, `{"token_ids":[1],"model":"x","block_size":16,"tenant_id":"t"}`},
		[2]string{`{"token_ids":[1],"tenant_id":"default"}`, `{"token_ids":[1],"model":"m","block_size":16}`},
		[2]string{`{"token_ids":[1],"block_size":0}`, `{"token_ids":[1],"model":"m","block_size":0}`})
	f(`"model":"m","block_size":16,"tenant_id":"t","top":1,`,
		[2]string{`{"token_ids":[1]}`, `{"token_ids":[1],"model":"m","block_size":16,"tenant_id":"t","top":1}`},
		[2]string{`{"token_ids":[1],"top":2}`, `{"token_ids":[1],"model":"m","block_size":16,"tenant_id":"t","top":2}`})
	f(`"model":"m","block_size":16,"min_matched":1,`,
		[2]string{`{"token_ids":[1]}`, `{"token_ids":[1],"model":"m","block_size":16,"min_matched":1}`},
		[2]string{`{"token_ids":[1],"min_matched":0}`, `{"token_ids":[1],"model":"m","block_size":16}`})
	f(`"model":7,"block_size":16,`, [2]string{`{"token_ids":[1]}`, `{"token_ids":[1],"model":7,"block_size":16}`},
		[2]string{`{"token_ids":[1],"model":"m"}`, `{"token_ids":[1],"model":"m","block_size":16}`})

	if rec := s.do("POST", "/query_batch", `{"queries":[1,{"model":"m","block_size":16,"token_ids":[1]},null]}`); rec.Code != 200 ||
		!strings.HasPrefix(rec.Body.String(),
			`{"answers":[{"error":"queries element must be an object","reason":"invalid_type","field":"queries","index":0},{"default":`) {
		t.Errorf("%d %s", rec.Code, rec.Body)
	}
	whole(`{}`, `{"error":"queries is required","reason":"missing","field":"queries"}`)
	whole(`{"queries":{}}`, `{"error":"queries must be an array","reason":"not_array","field":"queries"}`)
	whole(`{"queries":[],"queries":[]}`, `{"error":"queries is given more than once","reason":"duplicate","field":"queries"}`)
	whole(`{"queries":[],"expected":{}}`, `{"error":"expected must be true or false","reason":"invalid_type","field":"expected"}`)
	whole(`{"queries":[],"block_size":0}`,
		`{"error":"block_size must be in 1..2147483647, got 0","reason":"out_of_range","field":"block_size"}`)
	whole(`{"queries":[`+strings.Repeat("1,", 256)+`1]}`,
		`{"error":"queries has 257 elements, at most 256 are allowed","reason":"out_of_range","field":"queries","index":256}`)
	whole(`{"queries":[{},{"token_ids":[1,}]}`,
		`{"error":"Invalid JSON object: invalid character '}' looking for beginning of value, in token_ids[1]","reason":"invalid_json",`+
			`"field":"queries","index":1}`)
	whole("{\"queries\":[{\"model\":\"\xff\"}]}",
		`{"error":"request body is not valid UTF-8, in model","reason":"invalid_json","field":"queries","index":0}`)
	whole(`{"queries":[{"token_ids":[1,2]},{"token_ids":[1,2]`,
		`{"error":"Invalid JSON object: unexpected end of JSON input","reason":"invalid_json","field":"queries","index":1}`)
	whole(`{"queries":[{"token_ids":[1]},x]}`,
		`{"error":"Invalid JSON object: invalid character 'x' looking for beginning of value","reason":"invalid_json",`+
			`"field":"queries","index":1}`)
	whole(`{"queries":[{"token_ids":[1]},{x}]}`,
		`{"error":"Invalid JSON object: invalid character 'x' looking for beginning of object key string","reason":"invalid_json",`+
			`"field":"queries","index":1}`)
	whole(`{"queries":[{"token_ids":[1]} {}]}`,
		`{"error":"Invalid JSON object: invalid character '{' after array element","reason":"invalid_json","field":"queries","index":0}`)
	whole(`{"queries":[{"token_ids":[1]}],"model":"m`,
		`{"error":"Invalid JSON object: unexpected end of JSON input","reason":"invalid_json","field":"model"}`)
	forty := `{"model":"m","block_size":16,"token_ids":[1` + strings.Repeat(",1", 39) + `]}`
	packed := `{"model":"m","block_size":16,"token_ids_b64":"` + base64.StdEncoding.EncodeToString(make([]byte, 160)) + `"}`
	for _, two := range []string{forty + "," + packed, packed + "," + packed, forty + "," + forty} {
		whole(`{"queries":[`+two+`]}`,
			`{"error":"queries have 80 tokens together, limits.max_tokens allows 64","reason":"out_of_range","field":"queries"}`)
	}
	if rec := s.do("POST", "/query_batch?detail=7", `{"queries":[]}`); rec.Code != 400 {
		t.Errorf("%d %s", rec.Code, rec.Body)
	}
	if rec := s.do("POST", "/query_batch", `{"queries":[`+strings.Repeat(" ", 4096)+`]}`); rec.Code != 413 {
		t.Errorf("%d %s", rec.Code, rec.Body)
	}
}

// TestLimitsInTheQueryString holds that min_matched and top there count where the body
// does not say them.
func TestLimitsInTheQueryString(t *testing.T) {
	s := newServer(t)
	for _, name := range []string{"a", "b", "c"} {
		s.do("POST", "/register",
			fmt.Sprintf(`{"endpoint":"ipc:///%s","type":"vLLM","modelname":"m","instance_id":%q,"block_size":16,"dp_rank":0}`, name, name))
	}
	f := func(query, more string, rows ...string) {
		t.Helper()
		for _, path := range []string{"/query", "/query_by_hash", "/query_batch"} {
			prompt := "token_ids"
			if path == "/query_by_hash" {
				prompt = "seq_hashes"
			}
			item := `{"model":"m","block_size":16,"` + prompt + `":[1]` + more + `}`
			if path == "/query_batch" {
				item = `{"queries":[` + item + `]}`
			}
			rec := s.do("POST", path+query, item)
			text := rec.Body.String()
			if path == "/query_batch" {
				text = strings.TrimSuffix(strings.TrimPrefix(text, `{"answers":[`), `]}`)
			}
			var got map[string]map[string]any
			if err := json.Unmarshal([]byte(text), &got); err != nil || rec.Code != 200 {
				t.Errorf("%s%s: %d %s", path, query, rec.Code, rec.Body)
			} else if names := slices.Sorted(maps.Keys(got["default"])); !slices.Equal(names, rows) {
				t.Errorf("%s%s %s: rows of %q, want %q", path, query, more, names, rows)
			}
		}
	}
	f("?top=2", "", "a", "b")
	f("?top=2", `,"top":1`, "a")
	f("?top=2", `,"top":null`, "a", "b")
	f("?top=2147483647&min_matched=0", "", "a", "b", "c")
	f("?min_matched=1", "")
	f("?min_matched=1", `,"min_matched":0`, "a", "b", "c")
	f("?top=1&detail=1", `,"instance_id":"c"`, "c")
	for _, query := range []string{"?top=0", "?top=-1", "?top=", "?top=two", "?top=1.5", "?top=2147483648", "?min_matched=-1",
		"?min_matched=99999999999999999999", "?top=null", "?top=1&min_matched=null"} {
		name, _, _ := strings.Cut(query[strings.LastIndexAny(query, "?&")+1:], "=")
		for _, path := range []string{"/query", "/query_batch"} { // of a batch as a whole
			rec := s.do("POST", path+query,
				`{"model":"m","block_size":16,"token_ids":[1],"queries":[{"token_ids":[1],"top":1,"min_matched":0}]}`)
			if rec.Code != 400 || !strings.Contains(rec.Body.String(), `"field":"`+name+`"`) {
				t.Errorf("%s%s: %d %s", path, query, rec.Code, rec.Body)
			}
		}
	}
}

// TestBadQueries compares the errors of bodies that a router should not send: field,
// element and reason.
func TestBadQueries(t *testing.T) {
	s := newServer(t)
	f := func(body, reason, field string, index int) {
		t.Helper()
		rec := s.do("POST", "/query", body)
		var got struct {
			Error, Reason, Field string
			Index                *int
		}
		if rec.Code != 400 || json.Unmarshal(rec.Body.Bytes(), &got) != nil {
			t.Fatalf("%.100s: %d %s", body, rec.Code, rec.Body)
		}
		at := -1
		if got.Index != nil {
			at = *got.Index
		}
		if got.Reason != reason || got.Field != field || at != index || got.Error == "" {
			t.Errorf("%.100s: %s, want %s %s %d", body, rec.Body, reason, field, index)
		}
	}
	const rest = `,"model":"m","block_size":16}`
	f(`{"token_ids":[1,2`, "invalid_json", "token_ids", 1)
	f(`{"token_ids":[1,2,`, "invalid_json", "token_ids", 2)
	f(`{"token_ids":[1,2,x]`+rest, "invalid_json", "token_ids", 2)
	f(`{"token_ids":[1,02]`+rest, "invalid_json", "token_ids", 1)
	f(`{"model":"m`, "invalid_json", "model", -1)
	f("{\"model\":\"\xff\"}", "invalid_json", "model", -1)
	f("{\"mod\xff\":1"+rest, "invalid_json", "", -1)
	f(`{"token_ids":[1,4294967296]`+rest, "out_of_range", "token_ids", 1)
	f(`{"token_ids":[1,123456,-1,4294967296]`+rest, "out_of_range", "token_ids", 2)
	f(`{"token_ids":[1,1.0]`+rest, "invalid_type", "token_ids", 1)
	f(`{"token_ids":[1,1e3]`+rest, "invalid_type", "token_ids", 1)
	f(`{"token_ids":[1,[2]]`+rest, "invalid_type", "token_ids", 1)
	f(`{"token_ids":[1,null]`+rest, "invalid_type", "token_ids", 1)
	f(`{"token_ids":[],"token_ids":[]`+rest, "duplicate", "token_ids", -1)
	f(`{"token_ids":[],"tok\u0065n_ids":[]`+rest, "duplicate", "token_ids", -1)
	f(`{"model":"x","token_ids":[]`+rest, "duplicate", "model", -1)
	f(`{"token_ids":[],"token_ids_b64":""`+rest, "conflict", "token_ids_b64", -1)
	f(`{"token_ids_b64":7`+rest, "invalid_type", "token_ids_b64", -1)
	f(`{"token_ids_b64":"AAA"`+rest, "invalid_value", "token_ids_b64", -1)
	f(`{"token_ids":[`+strings.Repeat("7,", 64)+`7]`+rest, "out_of_range", "token_ids", 64)
	for _, name := range []string{"min_matched", "top"} {
		for value, reason := range map[string]string{
			"-1": "out_of_range", "2147483648": "out_of_range", "99999999999999999999": "out_of_range",
			"1.0": "invalid_type", "1e3": "invalid_type", `"1"`: "invalid_type", "[]": "invalid_type", "true": "invalid_type",
		} {
			f(`{"token_ids":[],"`+name+`":`+value+rest, reason, name, -1)
		}
	}
	f(`{"token_ids":[],"top":0`+rest, "out_of_range", "top", -1)

	req := httptest.NewRequest("POST", "/query", strings.NewReader("{}"))
	req.ContentLength = 1 << 40
	rec := httptest.NewRecorder()
	s.engine.ServeHTTP(rec, req)
	if rec.Code != 413 {
		t.Errorf("a length over the limit: %d %s", rec.Code, rec.Body)
	}
}

// TestLyingLengths sends bodies over a socket that are shorter than they say.
func TestLyingLengths(t *testing.T) {
	s := newServer(t)
	server := httptest.NewServer(s.engine)
	defer server.Close()
	const body = `{"model":"m","block_size":16,"token_ids":[1,2,3]}`
	for extra, want := range map[int]int{0: 200, 1: 400, 1000: 400} {
		conn, err := net.Dial("tcp", server.Listener.Addr().String())
		must.Succeed(t, err)
		fmt.Fprintf(conn, "POST /query HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(body)+extra, body)
		conn.(*net.TCPConn).CloseWrite()
		resp, err := nethttp.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil || resp.StatusCode != want {
			t.Errorf("%d bytes more promised than sent: %v %v, want %d", extra, resp, err, want)
		}
		conn.Close()
	}
}
