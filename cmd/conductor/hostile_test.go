package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/klauspost/compress/gzip"

	"example.com/conductor/config"
	"example.com/conductor/internal/must"
)

// asker is a query of one dialect in JSON, whose prompt is given as a list.
type asker struct {
	path, model, field string
	refusal            string // how an error names an element
	hashes             bool   // signed ones count
	signed             bool   // so do negative token ids
	fixed              bool   // a body that is no JSON is reported without a place
}

var askers = []asker{
	{path: "/query", model: "model", field: "token_ids", refusal: `"field":"%s","index":%d`},
	{path: "/query_by_hash", model: "model", field: "seq_hashes", refusal: `"field":"%s","index":%d`, hashes: true},
	{path: "/dynamo/v1/query", model: "model_name", field: "token_ids", refusal: "%s[%d]: "},
	{path: "/dynamo/v1/query_by_hash", model: "model_name", field: "block_hashes", refusal: "%s[%d]: ", hashes: true},
	{path: "/dynamo/v1/query_tiered_by_hash", model: "model_name", field: "block_hashes", refusal: "%s[%d]: ", hashes: true},
	{path: "/query?dialect=v2", model: "model", field: "token_ids", refusal: `"field":"%s","index":%d`, signed: true, fixed: true},
	{path: "/query_by_hash?dialect=v2", model: "model", field: "seq_hashes", refusal: `"field":"%s","index":%d`, hashes: true, fixed: true},
}

// body is a query with such a prompt and more fields, each behind a comma.
func (a asker) body(list, more string) string {
	size := `"block_size":4,`
	if strings.HasPrefix(a.path, "/dynamo") {
		size = ""
	}
	return fmt.Sprintf(`{"%s":"m",%s"%s":%s%s}`, a.model, size, a.field, list, more)
}

// TestHostileBodies holds that bad requests are reported, in every dialect,
// with the field and the element it shows in.
func TestHostileBodies(t *testing.T) {
	t.Parallel()
	h, _ := everything(t, nil)
	for _, a := range askers {
		f := func(body string, says string) {
			t.Helper()
			rec := ask(h, a.path, "application/json", "", strings.NewReader(body))
			if rec.Code < 400 || rec.Code > 499 || !strings.Contains(rec.Body.String(), says) {
				t.Errorf("%s %.200q: %d %.300q, want %q", a.path, body, rec.Code, rec.Body, says)
			}
		}
		at := func(index int) string { return fmt.Sprintf(a.refusal, a.field, index) }
		for _, element := range []string{"18446744073709551616", "1.5", "1.0", "1e3", "[3]", "[[]]", "null", `"3"`, "{}", "true",
			strings.Repeat("9", 4000)} {
			f(a.body("[1,2,"+element+"]", ""), at(2))
			f(a.body("[ "+element+" ,123456]", ""), at(0))
			f(a.body("[1"+strings.Repeat(",123456", 99)+","+element+strings.Repeat(",123456", 99)+"]", ""), at(100))
		}
		if !a.hashes {
			f(a.body("[1,2,4294967296]", ""), at(2))
		}
		if !a.hashes && !a.signed {
			f(a.body("[1,2,-1]", ""), at(2))
		}
		for text, index := range map[string]int{"[1,2,x]": 2, "[1,2,03]": 2, "[1,2 3]": 1, "[1,2,]": 2, "[1,2": 1, "[1,2,": 2, "[": 0,
			"[1,2\x00": 1, "[1,2,-": 2, "[1,2,\xff": 2} {
			says := at(index)
			if a.fixed {
				says = "Invalid JSON object"
			}
			f(strings.TrimRight(a.body(text, ""), "}"), says)
		}
		f(a.body("[1"+strings.Repeat(",1", 1<<20)+"]", ""), "")          // too long for either limit
		f(a.body("[1"+strings.Repeat(",123456", 1_000_000)+"]", ""), "") // seven times what a body may have
		for _, list := range []string{"7", `"1,2"`, "{}", "null"} {
			f(a.body(list, ""), a.field)
		}
		if !a.fixed {
			name := fmt.Sprintf(`\u%04x%s`, a.field[0], a.field[1:])
			f(a.body("[1]", `,"`+a.field+`":[1]`), a.field)
			f(a.body("[1]", `,"`+name+`":[1]`), a.field)
			f(strings.Replace(a.body("[1]", ""), `"m"`, "\"m\xff\"", 1), a.model)
		}
		f(a.body("[1]", ",\"\xff\":1"), "")
		f(a.body("[1]", `,"x":`+strings.Repeat("[", 100_000)), "")
		f(a.body("[1]", `,"x":`+strings.Repeat(`{"a":`, 100_000)), "")
		f("\xef\xbb\xbf\xef\xbb\xbf"+a.body("[1]", ""), "") // one is left out
		f("", "")
	}
}

// TestHostileItems holds that one bad query of a batch is its own matter, and that
// broken JSON is reported with the query and its element.
func TestHostileItems(t *testing.T) {
	h, _ := everything(t, nil)
	a := asker{model: "model", field: "token_ids"}
	f := func(list string, status int, says string) {
		t.Helper()
		good := a.body("[1]", `,"instance_id":"good"`)
		rec := ask(h, "/query_batch", "application/json", "", strings.NewReader(`{"queries":[`+good+`,`+a.body(list, "")+`,`+good+`]}`))
		if rec.Code != status || !strings.Contains(rec.Body.String(), says) ||
			strings.Count(rec.Body.String(), `"good":`) != 2*(200/status) {
			t.Errorf("%.200q: %d %.500q, want %d %q", list, rec.Code, rec.Body, status, says)
		}
	}
	for _, element := range []string{"4294967296", "-1", "1.5", "1e3", "[3]", "null", `"3"`, "{}"} {
		f("[1,2,"+element+"]", 200, `"field":"token_ids","index":2`)
	}
	for text, index := range map[string]int{"[1,2,x]": 2, "[1,2 3]": 1, "[1,2,]": 2, "[1,2": 1, "[1,2,03]": 2} {
		f(text, 400, fmt.Sprintf(`, in token_ids[%d]","reason":"invalid_json","field":"queries","index":1`, index))
	}
}

// TestHostilePacks does the like with msgpack.
func TestHostilePacks(t *testing.T) {
	h, _ := everything(t, nil)
	for path, field := range map[string]string{"/query": "token_ids", "/query_by_hash": "seq_hashes"} {
		head := "\x83" + packed("model") + packed("m") + packed("block_size") + packed(4) + packed(field)
		f := func(prompt string, says ...string) {
			t.Helper()
			rec := ask(h, path, "application/msgpack", "", strings.NewReader(head+prompt))
			for _, s := range says {
				if rec.Code != 400 || !strings.Contains(rec.Body.String(), s) {
					t.Errorf("%s %.100q: %d %q, want %q", path, prompt, rec.Code, rec.Body, s)
				}
			}
		}
		at := func(index byte) string { return packed("index") + string(rune(index)) }
		for _, element := range []any{1.5, float32(1), nil, "3", []byte("1234"), []int{3}, map[string]int{"a": 1}, true} {
			f("\x93\x01\x02"+packed(element), field+" element", at(2))
			f("\xdc\x00\x65"+strings.Repeat("\x07", 100)+packed(element), field+" element", at(100))
		}
		if field == "token_ids" {
			f("\x93\x01\x02"+packed(int64(1)<<31), "int32 range", at(2))
			f("\x93\x01\x02"+packed(-1<<40), "int32 range", at(2))
			f("\x93\x01\x02"+packed(uint64(1)<<63), "int32 range", at(2))
		}
		f(packed([]byte("12345")), field+" bin size must be a multiple of")
		f(packed("text"), field)
		f(packed(nil), field)
		for _, lie := range []string{
			"\x93\x01\x02", "\xdc\xff\xff\x01", "\xdd\xff\xff\xff\xff\x01", "\xc4\x05abcd", "\xc6\xff\xff\xff\xffabcd",
			"\xdb\xff\xff\xff\xffabcd", "\xc9\xff\xff\xff\xff\x01a", "\xdf\xff\xff\xff\xff\x01\x01",
			"\x91\xdd\xff\xff\xff\xff", "\x91\xc1", "\xc1", "\xcb1234", strings.Repeat("\x91", 100_000) + "\x01",
			strings.Repeat("\x81\xa1a", 100_000) + "\x01",
		} {
			f(lie, "Invalid msgpack object")
		}
	}
}

// TestLyingBodies sends bodies over a socket that are not as long as they say.
func TestLyingBodies(t *testing.T) {
	t.Parallel()
	h, _ := everything(t, nil)
	_, address := listen(t, h, config.Default().Limits, nil)
	for _, d := range dialects {
		f := func(head, body string) {
			t.Helper()
			conn, err := net.Dial("tcp", address)
			must.Succeed(t, err)
			defer conn.Close()
			fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: %s\r\n%s\r\n\r\n%s", d.path, d.contentType, head, body)
			conn.(*net.TCPConn).CloseWrite()
			res, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil || res.StatusCode < 400 || res.StatusCode > 499 {
				t.Errorf("%s as %s, %s: %v %v", d.path, d.contentType, head, res, err)
			}
		}
		n := len(d.body)
		for _, said := range []int{n + 1, n + 1000, n - 1, n / 2, 1 << 40} {
			f(fmt.Sprintf("Content-Length: %d", said), d.body)
		}
		chunked := "Transfer-Encoding: chunked"
		f(chunked, fmt.Sprintf("%x\r\n%s\r\n", n, d.body)) // no last chunk
		f(chunked, fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", n+9, d.body))
		f(chunked, fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", n-2, d.body))
		f(chunked, "ffffffffffffffff\r\n"+d.body)
		f(chunked, "x\r\n"+d.body)
	}
}

// TestHostileBodiesLeaveNothing holds that unknown names, giant prompts and bombs
// cost memory while they are read alone.
func TestHostileBodiesLeaveNothing(t *testing.T) {
	h, _ := everything(t, nil)
	var bomb bytes.Buffer
	w := gzip.NewWriter(&bomb)
	io.Copy(w, io.LimitReader(zeros{}, 64<<20))
	w.Close()
	round := func(from, to int) {
		for i := from; i < to; i++ {
			name := fmt.Sprintf("%d-%s", i, strings.Repeat("n", 10_000))
			for _, a := range askers {
				send := func(body, coding string) {
					ask(h, a.path, "application/json", coding, strings.NewReader(body))
				}
				send(strings.Replace(a.body("[1,2,3,4]", ""), `"m"`, `"`+name+`"`, 1), "")
				send(a.body("[1,2,3,4]", `,"tenant_id":"`+name+`","lora_name":"`+name+`"`), "")
				send(a.body("[1,2,3,4]", `,"`+name+`":1,"instance_id":"`+name+`"`), "")
				send(a.body(`[1,"`+name+`"]`, ""), "")
				if i%50 == 0 {
					send(a.body("[1"+strings.Repeat(",123456", 140_000)+"]", ""), "")
					send(bomb.String(), "gzip")
				}
			}
		}
	}
	heap := func() uint64 {
		runtime.GC() // pools take two
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	round(0, 10)
	before := heap()
	round(10, 110)
	if after := heap(); after > before+4<<20 { // of 30 MiB of names
		t.Errorf("%d bytes before, %d after", before, after)
	}
}

// zeros is text without an end.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// TestRequestsDoNotMix holds that no client is answered with the request of another, though
// requests use each other's buffers.
func TestRequestsDoNotMix(t *testing.T) {
	t.Parallel()
	h, _ := everything(t, nil)
	var wg sync.WaitGroup
	for client := range 8 {
		wg.Go(func() {
			for i := range 100 {
				name := fmt.Sprintf("%d-%d-%s", client, i, strings.Repeat(string(rune('a'+client)), i*37%500))
				f := func(path, contentType, body, want string) {
					t.Helper()
					if rec := ask(h, path, contentType, "", strings.NewReader(body)); rec.Body.String() != want {
						t.Errorf("%s: %d %.300q, want %.300q", path, rec.Code, rec.Body, want)
					}
				}
				const zero = `{"longest_matched":0,"GPU":0,"CPU":0,"DISK":0,"DP":{},"rank_matches":{}}`
				one := `{"model":"m","block_size":4,"token_ids":[1,2,3,4],"instance_id":"` + name + `"}`
				row := `{"default":{"` + name + `":` + zero + `}}`
				f("/query", "application/json", one, row)
				f("/query_batch", "application/json", `{"queries":[`+one+`,{},`+one+`]}`,
					`{"answers":[`+row+`,{"error":"model is required","reason":"missing","field":"model"},`+row+`]}`)
				f("/query?dialect=v2", "application/json", `{"`+name+`":1}`, `{"error":"unsupported request field: `+name+
					`","reason":"unknown_field","field":"`+name+`"}`)
				f("/query", "application/msgpack", packed(map[string]int{name: 1}),
					"\x83"+packed("error")+packed("unsupported request field: "+name)+packed("reason")+packed("unknown_field")+
						packed("field")+packed(name))
				f("/dynamo/v1/query", "application/json", `{"model_name":"`+name+`","token_ids":[1]}`, `{"error":"no indexer for model=`+
					name+` routing_group=default"}`)
				f("/dynamo/v1/query", "application/json", `{"model_name":"m","token_ids":"`+name+`"}`,
					fmt.Sprintf("Failed to deserialize the JSON body into the target type: token_ids: invalid type: string %q, expected "+
						"a sequence at line 1 column %d", name, 32+len(name)))
			}
		})
	}
	wg.Wait()
}
