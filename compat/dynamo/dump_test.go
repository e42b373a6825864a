package dynamo

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/gin-gonic/gin"
	"github.com/rs/zerolog"

	"example.com/conductor/bounds"
	"example.com/conductor/conductor"
	"example.com/conductor/internal/apitest"
	"example.com/conductor/internal/must"
)

// kept is an event of a dump: blocks are given as "block_hash tokens_hash", each as
// it is printed, parent as well.
func kept(worker, tier string, id, rank int, parent string, blocks ...string) string {
	for i, b := range blocks {
		engine, clientHash, _ := strings.Cut(b, " ")
		blocks[i] = fmt.Sprintf(`{"block_hash":%s,"tokens_hash":%s,"mm_extra_info":null}`, engine, clientHash)
	}
	return fmt.Sprintf(`{"worker_id":%s,"storage_tier":"%s","residency_domain":"worker","event":{"event_id":%d,"data":{"stored":`+
		`{"parent_hash":%s,"start_position":null,"blocks":[%s]}},"dp_rank":%d}}`, worker, tier, id, parent, strings.Join(blocks, ","), rank)
}

// Local hashes of the prompt's later blocks, and of its first under an adapter and
// under a salt.
const (
	local5, local6     = "1363306219480167028", "2084387875073858317"
	adapted1, adapted2 = "16548428770143335509", "14084073444636004547"
	salted1            = "5728354201622468629"
)

// fleet is two workers, one of two ranks, on every tier, under an adapter and a
// salt, with one of a string id and a block on a medium of its own.
func (s *testServer) fleet() {
	s.t.Helper()
	s.register(7, 0, "")
	s.register(7, 1, "")
	s.register(8, 0, "")
	s.do("POST", "/register", `{"instance_id":"node","endpoint":"inproc://3/0","model_name":"m","block_size":4}`, 201, done)
	s.publish(7, 0, stored("GPU", 1, 3), stored("CPU", 4, 4), stored("DISK", 5, 5), stored("EXTERNAL", 6, 6))
	s.publish(7, 1, stored("GPU", 1, 1))
	s.publish(8, 0, stored("GPU", 1, 2, "lora_name", "alpha-7b"), stored("GPU", 1, 1, "cache_salt", "s"), stored("TAPE", 1, 1))
	s.publish(3, 0, stored("GPU", 1, 2))
}

// The two forms, byte for byte.
func TestDumpInBothForms(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, s *testServer) {
		s.do("GET", "/dump", "", 200, "{}")
		s.register(1, 0, `,"routing_group":"g"`)
		const idle = `"m:g":{"block_size":4,"model_name":"m","routing_group":"g","events":[]}`
		s.do("GET", "/dump", "", 200, "{"+idle+"}")
		s.fleet()
		want := []string{
			kept("8", "device", 0, 0, "null", "2001 "+adapted1, "2002 "+adapted2),
			kept("7", "device", 1, 0, "null", "1001 "+local1, "1002 "+local2, "1003 "+local3),
			kept("7", "device", 2, 1, "null", "1001 "+local1),
			kept("8", "device", 3, 0, "null", "3001 "+salted1),
			kept("7", "host_pinned", 4, 0, "1003", "1004 "+local4),
			kept("7", "disk", 5, 0, "1004", "1005 "+local5),
			kept("7", "external", 6, 0, "1005", "1006 "+local6),
		}
		whole := `{"m:default":{"block_size":4,"model_name":"m","routing_group":"default","events":[` + strings.Join(want, ",") + `]},` +
			idle + "}"
		for _, path := range []string{"/dump", "/dynamo/v1/dump", "/dump?new=1"} {
			s.do("GET", path, "", 200, whole)
		}
		var lines strings.Builder
		for _, event := range want {
			lines.WriteString(`{"key":"m:default","block_size":4,"model_name":"m","routing_group":"default","event":` + event + "}\n")
		}
		rec := s.accept("/dump", "application/json;q=0.5, application/x-ndjson")
		if rec.Body.String() != lines.String() || rec.Header().Get("Content-Type") != "application/x-ndjson" {
			t.Errorf("%s\n got %s\nwant %s", rec.Header(), rec.Body, &lines)
		}
		if rec := s.accept("/dump", "application/json, */*"); rec.Body.String() != whole ||
			rec.Header().Get("Content-Type") != "application/json" {
			t.Errorf("%s %s", rec.Header(), rec.Body)
		}
	})
}

// renamed is a store by an engine of another hash seed.
func renamed(by int, e map[string]any) map[string]any {
	var hashes []int
	for _, h := range e["block_hashes"].([]int) {
		hashes = append(hashes, h+by)
	}
	e["block_hashes"] = hashes
	if parent, ok := e["parent_block_hash"].(int); ok {
		e["parent_block_hash"] = parent + by
	}
	return e
}

// TestDumpUnifiesNames holds that a dump has one name for each block: that of most
// workers in the dump, of equal numbers that of the first.
func TestDumpUnifiesNames(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, s *testServer) {
		for worker := 6; worker <= 8; worker++ {
			s.register(worker, 0, "")
		}
		for i, node := range []string{"node-a", "node-b", "node-c"} { // a dump leaves them out
			s.do("POST", "/register", fmt.Sprintf(`{"instance_id":%q,"endpoint":"inproc://%d/0","model_name":"m","block_size":4}`, node,
				i+1), 201, done)
			s.publish(i+1, 0, renamed(8000, stored("GPU", 1, 2)))
		}
		s.publish(8, 0, renamed(1000, stored("GPU", 1, 1)), renamed(1000, stored("GPU", 2, 3)), renamed(1000, stored("CPU", 4, 4)))
		s.publish(7, 0, renamed(1000, stored("GPU", 1, 2)))
		s.publish(6, 0, stored("GPU", 1, 1), stored("GPU", 2, 4), stored("CPU", 5, 5))
		slot := func(events ...string) string {
			return `{"m:default":{"block_size":4,"model_name":"m","routing_group":"default","events":[` + strings.Join(events, ",") + `]}}`
		}
		s.do("GET", "/dump", "", 200, slot(
			kept("8", "device", 0, 0, "null", "2001 "+local1, "2002 "+local2, "1003 "+local3),
			kept("7", "device", 1, 0, "null", "2001 "+local1, "2002 "+local2),
			kept("6", "device", 2, 0, "null", "2001 "+local1, "2002 "+local2, "1003 "+local3, "1004 "+local4),
			kept("8", "host_pinned", 3, 0, "1003", "1004 "+local4),
			kept("6", "host_pinned", 4, 0, "1004", "1005 "+local5),
		))
	})
}

// TestDumpUnifiesPartNames holds the same where blocks of two parts share one.
func TestDumpUnifiesPartNames(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, s *testServer) {
		s.register(6, 0, "")
		s.register(7, 0, "")
		for i, last := range []int{5, 9} { // two blocks, whose first parts have equal tokens
			s.publish(6, 0, map[string]any{"type": "BlockStored", "block_hashes": []int{3001 + i}, "parent_block_hash": nil,
				"token_ids": []int{1, 2, 3, 4, last, 6, 7, 8}, "block_size": 8, "medium": "GPU"})
		}
		s.publish(7, 0, stored("GPU", 1, 2))
		names := make(map[string]string)
		blocks := regexp.MustCompile(`"block_hash":(\d+),"tokens_hash":(\d+)`)
		for _, m := range blocks.FindAllStringSubmatch(s.send("GET", "/dump", "").Body.String(), -1) {
			if name, known := names[m[2]]; known && name != m[1] {
				t.Errorf("block %s is %s and %s", m[2], name, m[1])
			}
			names[m[2]] = m[1]
		}
		if len(names) != 3 {
			t.Errorf("%v", names)
		}
	})
}

// accept asks for a kind of answer.
func (s *testServer) accept(path, kind string) *httptest.ResponseRecorder {
	req := httptest.NewRequest("GET", path, nil)
	req.Header.Set("Accept", kind)
	rec := httptest.NewRecorder()
	s.handler.ServeHTTP(rec, req)
	return rec
}

// Without local hashes there is no dump, and what a dump costs is not paid.
func TestDumpOff(t *testing.T) {
	forgetful(t).do("GET", "/dump", "", 501, refusal("local hashes are not kept: index.local_hashes is false"))
}

// TestDumpWhileRecovering refuses a dump of an index that is not whole: a replica would go on
// behind marks without blocks.
func TestDumpWhileRecovering(t *testing.T) {
	gate := make(chan struct{})
	s := newServerOn(t, Config{}, newNetwork(), gate)
	s.do("GET", "/dump", "", 503, refusal("a recovery is under way, what is here is not whole"))
	close(gate)
	s.do("GET", "/dump", "", 200, "{}")
	s.do("HEAD", "/dump", "", 200, "")
}

// A client that does not read holds up no more than its share of dumps.
func TestDumpsAreBounded(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, s *testServer) {
		for i := range maxDumps {
			must.Succeed(t, s.dialect.dumps.Enter(t.Context(), bounds.Flow{Name: fmt.Sprint(i)}))
		}
		done := make(chan int)
		go func() { done <- s.send("GET", "/dump", "").Code }()
		synctest.Wait()
		select {
		case <-done:
			t.Error("one more dump was made")
		default:
		}
		s.dialect.dumps.Leave(bounds.Flow{Name: "0"})
		if code := <-done; code != 200 {
			t.Error(code)
		}
		must.Succeed(t, s.dialect.dumps.Enter(t.Context(), bounds.Flow{Name: "0"}))
		if rec := s.send("GET", "/dump", ""); rec.Code != 503 || rec.Header().Get("Retry-After") == "" {
			t.Errorf("a dump without a slot: %d", rec.Code)
		}
	})
}

// TestDumpsLeaveASlot lets one client take all the dumps that it can. Another gets one.
func TestDumpsLeaveASlot(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, s *testServer) {
		for range maxDumps - 1 {
			must.Succeed(t, s.dialect.dumps.Enter(t.Context(), bounds.Flow{Name: "greedy"}))
		}
		if err := s.dialect.dumps.Enter(t.Context(), bounds.Flow{Name: "greedy"}); err == nil {
			t.Error("one client has all slots")
		}
		if code := s.send("GET", "/dump", "").Code; code != 200 {
			t.Errorf("another client: %d", code)
		}
	})
}

// forgetful is a server that keeps no local hashes.
func forgetful(t *testing.T) *testServer {
	c := conductor.New(conductor.Options{Log: zerolog.Nop()})
	t.Cleanup(c.Close)
	d := New(Config{Conductor: c, Log: zerolog.Nop()})
	r := gin.New()
	d.MountRoot(r)
	d.Mount(r.Group(prefix))
	return &testServer{t: t, conductor: c, dialect: d, handler: r}
}

// Whatever has happened, each event is behind one of the same worker or nothing,
// chains are one event, and removed blocks are gone.
func TestDumpAfterChanges(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, s *testServer) {
		f := func(want ...string) {
			t.Helper()
			s.do("GET", "/dump", "", 200,
				`{"m:default":{"block_size":4,"model_name":"m","routing_group":"default","events":[`+strings.Join(want, ",")+`]}}`)
		}
		s.register(7, 0, "")
		f()
		for i := 1; i <= 4; i++ { // one after the other, and still one event
			s.publish(7, 0, stored("GPU", i, i))
		}
		f(kept("7", "device", 0, 0, "null", "1001 "+local1, "1002 "+local2, "1003 "+local3, "1004 "+local4))
		s.publish(7, 0, stored("GPU", 1, 4)) // copies do not show
		s.publish(7, 0, removed("GPU", 4), removed("GPU", 4))
		f(kept("7", "device", 0, 0, "null", "1001 "+local1, "1002 "+local2, "1003 "+local3))
		s.publish(7, 0, removed("GPU", 2), removed("GPU", 2))
		f(kept("7", "device", 0, 0, "null", "1001 "+local1), kept("7", "device", 1, 0, "1002", "1003 "+local3))
		s.publish(7, 0, stored("GPU", 9, 9)) // waits for its parent
		f(kept("7", "device", 0, 0, "null", "1001 "+local1), kept("7", "device", 1, 0, "1002", "1003 "+local3))
		s.publish(7, 0, map[string]any{"type": "AllBlocksCleared"})
		f()
	})
}

// Names may hold what separates them, and a partition may have two block sizes: no
// two slots have one key.
func TestDumpKeys(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, s *testServer) {
		keys := func(want ...string) {
			t.Helper()
			d := json.NewDecoder(s.send("GET", "/dump", "").Body)
			var got []string
			var name string
			for err := expect(d, '{'); err == nil && d.More(); {
				if name, err = nextKey(d); err == nil {
					var slot struct {
						Size  int    `json:"block_size"`
						Model string `json:"model_name"`
						Group string `json:"routing_group"`
					}
					err = d.Decode(&slot)
					got = append(got, fmt.Sprintf("%s is %s, %s, %d", name, slot.Model, slot.Group, slot.Size))
				}
			}
			if strings.Join(got, "\n") != strings.Join(want, "\n") {
				t.Errorf("\n got %q\nwant %q", got, want)
			}
		}
		register := func(instance, model, group string, size int) {
			t.Helper()
			rec := s.send("POST", "/conductor/v1/register", fmt.Sprintf(
				`{"instance_id":%q,"endpoint":"tcp://10.0.0.1:1","type":"vLLM","modelname":%q,"tenant_id":%q,"block_size":%d,"dp_rank":%d}`,
				instance, model, group, size, size))
			if rec.Code != 200 {
				t.Fatal(rec.Body)
			}
		}
		register("1", "m", "g", 4)
		register("1", "m", "g", 16)
		register("1", "m", "g", 8)
		keys("m:g is m, g, 4", "m:g@8 is m, g, 8", "m:g@16 is m, g, 16")
		register("2", "a", "b:c", 4)
		register("2", "a:b", "c", 4)
		keys("a:b:c is a, b:c, 4", "a:b:c@4 is a:b, c, 4", "m:g is m, g, 4", "m:g@8 is m, g, 8", "m:g@16 is m, g, 16")
		register("3", "m", "g@8", 4)
		register("3", "m", "g@8", 8)
		keys("a:b:c is a, b:c, 4", "a:b:c@4 is a:b, c, 4", "m:g is m, g, 4", "m:g@8@8 is m, g, 8", "m:g@16 is m, g, 16",
			"m:g@8 is m, g@8, 4", "m:g@8@8@8 is m, g@8, 8")
		register("4", `"<é`, "\n", 4)
		keys("\"<é:\n is \"<é, \n, 4", "a:b:c is a, b:c, 4", "a:b:c@4 is a:b, c, 4", "m:g is m, g, 4", "m:g@8@8 is m, g, 8",
			"m:g@16 is m, g, 16",
			"m:g@8 is m, g@8, 4", "m:g@8@8@8 is m, g@8, 8")
	})
}

// A dump is what openapi.yaml says, in every form.
func TestDumpFitsOpenAPI(t *testing.T) {
	openapi3filter.RegisterBodyDecoder(ndjson, openapi3filter.FileBodyDecoder)
	doc := apitest.Load(t)
	line := doc.OpenAPI.Components.Schemas["DynamoDumpLine"].Value
	f := func(t *testing.T, s *testServer, accept string, status int) {
		t.Helper()
		req := httptest.NewRequest("GET", prefix+"/dump", nil)
		req.Header.Set("Accept", accept)
		rec := httptest.NewRecorder()
		s.handler.ServeHTTP(rec, req)
		if doc.CheckAnswer(t, req, rec); rec.Code != status {
			t.Errorf("%s: %d", accept, rec.Code)
		}
		if accept != ndjson || rec.Code != 200 {
			return
		}
		for raw := range bytes.Lines(rec.Body.Bytes()) {
			var v any
			if err := json.Unmarshal(raw, &v); err != nil {
				t.Fatalf("%v: %s", err, raw)
			}
			if err := line.VisitJSON(v, openapi3.MultiErrors()); err != nil {
				t.Errorf("%s: %v", raw, err)
			}
		}
	}
	inBubble(t, Config{}, func(t *testing.T, s *testServer) {
		s.fleet()
		s.publish(7, 0, stored("GPU", 9, 9), map[string]any{
			"type": "BlockStored", "block_hashes": []int{5}, "parent_block_hash": nil, "token_ids": []int{}, "block_size": 4,
		})
		f(t, s, "*/*", 200)
		f(t, s, ndjson, 200)
	})
	f(t, forgetful(t), "*/*", 501)
}
