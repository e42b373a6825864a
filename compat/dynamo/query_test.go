package dynamo

import (
	"encoding/json"
	"strings"
	"testing"
	"testing/synctest"

	"example.com/conductor/events/stream/streamtest"
)

// inBubble runs a test under a fake clock, with its own server.
func inBubble(t *testing.T, cfg Config, f func(*testing.T, *testServer)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { f(t, newServer(t, cfg)) })
}

const none = `{"scores":{},"frequencies":[],"tree_sizes":{},"instances":{}}`

func ask(tokens, more string) string {
	return `{"token_ids":` + tokens + `,"model_name":"m"` + more + `}`
}

func byHash(hashes, more string) string {
	return `{"block_hashes":[` + hashes + `],"model_name":"m"` + more + `}`
}

// Local hashes of the prompt's first blocks.
const (
	local1, local2, local3, local4 = "14643705804678351452", "16777012769546811212", "483935686894639516", "135165725823939817"
	signed1, signed2               = "-3803038269031200164", "-1669731304162740404"
)

func TestQuery(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, s *testServer) {
		f := func(body, want string) {
			t.Helper()
			s.do("POST", "/query", body, 200, want)
		}
		s.do("POST", "/query", ask("[1,2,3,4]", ""), 404, `{"error":"no indexer for model=m routing_group=default"}`)
		s.register(7, 0, "")
		s.register(8, 0, "")
		s.register(9, 0, "")
		f(ask(promptOf(3), ""), none)
		s.publish(7, 0, stored("GPU", 1, 2), stored("CPU", 3, 3))
		s.publish(8, 0, stored("GPU", 1, 2))
		want := `{"scores":{"7":{"0":8},"8":{"0":8}},"frequencies":[],"tree_sizes":{"7":{"0":2},"8":{"0":2}},"instances":{` +
			`"7":{"longest_matched":12,"gpu":8,"dp":{"0":8},"cpu":12,"disk":12},` +
			`"8":{"longest_matched":8,"gpu":8,"dp":{"0":8},"cpu":8,"disk":8}}}`
		f(ask(promptOf(3), ""), want)
		f(ask(promptOf(4), `,"routing_group":"default","tenant_id":"other","lora_name":null,"cache_salt":"","unknown":{"a":[1,null]}`),
			want)
		f(ask("[]", ""), none)
		f(ask("[1,2,3]", ""), none)
		f(ask("[2,3,4,5]", ""), none)
		f(ask(promptOf(3), `,"cache_salt":"x"`), none)
		f(ask(promptOf(3), `,"lora_name":"x"`), none)
		f(strings.Replace(ask(promptOf(3), ""), "model_name", "modelname", 1), want)
		s.do("POST", "/dynamo/v1/query", ask(promptOf(3), ""), 200, want)

		g := func(body, want string) {
			t.Helper()
			s.do("POST", "/query_by_hash", body, 200, want)
		}
		g(byHash(local1+","+local2+","+local3, ""), want)
		g(byHash(signed1+","+signed2+","+local3, ""), want)
		g(byHash("", ""), none)
		g(byHash(local2, ""), none)
		s.do("POST", "/query_by_hash", byHash(local1, `,"cache_salt":""`), 400,
			`{"error":"cache_salt is not accepted by /query_by_hash; block_hashes must already include the intended cache salt"}`)
		s.do("POST", "/query_by_hash", strings.Replace(byHash(local1, `,"cache_salt":"x"`), `"m"`, `"n"`, 1), 400,
			`{"error":"cache_salt is not accepted by /query_by_hash; block_hashes must already include the intended cache salt"}`)
		s.do("POST", "/query_by_hash", byHash(local1, `,"cache_salt":null,"routing_group":"g"`), 404,
			`{"error":"no indexer for model=m routing_group=g"}`)

		s.do("POST", "/query_tiered_by_hash", byHash(local1+","+local2+","+local3, ""), 200,
			`{"block_size":4,"tiered":{"device":{"scores":[[{"worker_id":7,"dp_rank":0},2],[{"worker_id":8,"dp_rank":0},2]],`+
				`"frequencies":[]},`+
				`"lower_tier":[["host_pinned",{"hits":[[{"worker_id":7,"dp_rank":0},1]]}]]}}`)
		s.do("POST", "/query_tiered_by_hash", byHash(local2, ""), 200,
			`{"block_size":4,"tiered":{"device":{"scores":[],"frequencies":[]},"lower_tier":[]}}`)
		s.do("POST", "/query_tiered_by_hash", strings.Replace(byHash(local2, ""), `"m"`, `"n"`, 1), 404,
			`{"error":"no indexer for model=n routing_group=default"}`)

		s.publish(7, 0, removed("GPU", 2))
		f(ask(promptOf(3), ""), `{"scores":{"7":{"0":4},"8":{"0":8}},"frequencies":[],"tree_sizes":{"7":{"0":1},"8":{"0":2}},"instances":{`+
			`"7":{"longest_matched":4,"gpu":4,"dp":{"0":4},"cpu":4,"disk":4},`+
			`"8":{"longest_matched":8,"gpu":8,"dp":{"0":8},"cpu":8,"disk":8}}}`)
	})
}

// TestTiersAndRanks is the reference's own sum: two ranks, device 2 and 1, host 1,
// disk 2 and 1, here with an external block on top.
func TestTiersAndRanks(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, s *testServer) {
		s.register(1, 0, "")
		s.register(1, 1, "")
		s.publish(1, 0, stored("GPU", 1, 2), stored("CPU", 3, 3), stored("DISK", 4, 5), stored("EXTERNAL", 6, 6))
		s.publish(1, 1, stored("GPU", 1, 1), stored("DISK", 2, 2))
		s.do("POST", "/query", ask(promptOf(8), ""), 200,
			`{"scores":{"1":{"0":8,"1":4}},"frequencies":[],"tree_sizes":{"1":{"0":2,"1":1}},"instances":{`+
				`"1":{"longest_matched":24,"gpu":8,"dp":{"0":8,"1":4},"cpu":12,"disk":24}}}`)
		s.publish(1, 0, map[string]any{"type": "AllBlocksCleared"})
		s.publish(1, 1, removed("GPU", 1), stored("CPU", 1, 1))
		// Only below the device: an instance, but no score.
		s.do("POST", "/query", ask(promptOf(8), ""), 200,
			`{"scores":{},"frequencies":[],"tree_sizes":{},"instances":{"1":{"longest_matched":8,"gpu":0,"dp":{"1":0},"cpu":4,"disk":8}}}`)
		s.publish(1, 0, stored("GPU", 1, 1), stored("EXTERNAL", 2, 3))
		s.do("POST", "/query_tiered_by_hash", byHash(strings.Join([]string{local1, local2, local3, local4}, ","), ""), 200,
			`{"block_size":4,"tiered":{"device":{"scores":[[{"worker_id":1,"dp_rank":0},1]],"frequencies":[]},"lower_tier":[`+
				`["host_pinned",{"hits":[[{"worker_id":1,"dp_rank":1},1]]}],`+
				`["disk",{"hits":[[{"worker_id":1,"dp_rank":1},1]]}],`+
				`["external",{"hits":[[{"worker_id":1,"dp_rank":0},2]]}]]}}`)
	})
}

// TestAdaptersAndSalts asks for what was stored under an adapter and under a salt.
func TestAdaptersAndSalts(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, s *testServer) {
		s.register(1, 0, "")
		s.register(2, 0, `,"additional_salt":"unused"`)
		s.publish(1, 0, stored("GPU", 1, 2, "lora_name", "alpha-7b"))
		s.publish(2, 0, stored("GPU", 1, 1), stored("GPU", 1, 3, "cache_salt", "s"))
		one := func(id string, tokens, held string) string {
			return `{"scores":{"` + id + `":{"0":` + tokens + `}},"frequencies":[],"tree_sizes":{"` + id + `":{"0":` + held +
				`}},"instances":{"` +
				id + `":{"longest_matched":` + tokens + `,"gpu":` + tokens + `,"dp":{"0":` + tokens + `},"cpu":` + tokens + `,"disk":` +
				tokens + `}}}`
		}
		s.do("POST", "/query", ask(promptOf(4), ""), 200, one("2", "4", "4"))
		s.do("POST", "/query", ask(promptOf(4), `,"cache_salt":"s"`), 200, one("2", "12", "4"))
		s.do("POST", "/query", ask(promptOf(4), `,"lora_name":"alpha-7b"`), 200, one("1", "8", "2"))
	})
}

// TestRegisteredAdapter is a client of version 1.0 that names the adapter when it
// registers: that is for events and queries alike which name none, so it is as if
// no event had named it.
func TestRegisteredAdapter(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, s *testServer) {
		s.register(1, 0, `,"lora_name":"a"`)
		s.publish(1, 0, stored("GPU", 1, 1))
		s.do("POST", "/query", ask(promptOf(1), `,"lora_name":"a"`), 200, none)
		rec := s.send("POST", "/query", ask(promptOf(1), ""))
		if !strings.Contains(rec.Body.String(), `"scores":{"1":{"0":4}}`) {
			t.Errorf("got %s", rec.Body)
		}
	})
}

// TestBothDialects registers and asks on either side of one index.
func TestBothDialects(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, s *testServer) {
		there := func(body string, status int) string {
			t.Helper()
			rec := s.send("POST", "/conductor/v1/register", body)
			if rec.Code != status {
				t.Errorf("%s: %d %s", body, rec.Code, rec.Body)
			}
			return rec.Body.String()
		}
		// tcp endpoints never seen by a socket: the network is ours.
		there(`{"instance_id":"node-a","endpoint":"tcp://10.0.0.1:1","type":"SGLang","modelname":"m","block_size":4,"dp_rank":0,`+
			`"tenant_id":"g"}`, 200)
		there(`{"instance_id":"node-a","endpoint":"tcp://10.0.0.1:2","type":"vLLM","modelname":"m","block_size":8,"dp_rank":1,`+
			`"tenant_id":"g"}`, 200)
		there(`{"instance_id":"pool","endpoint":"tcp://10.0.0.1:3","type":"Mooncake","modelname":"m","block_size":4,"dp_rank":0,`+
			`"tenant_id":"g"}`, 200)
		s.do("POST", "/register", `{"instance_id":12,"endpoint":"tcp://10.0.0.1:4","model_name":"m","block_size":8,"routing_group":"g"}`,
			201, done)
		there(`{"instance_id":"12","endpoint":"tcp://10.0.0.1:4","type":"vLLM","modelname":"m","block_size":8,"dp_rank":0,"tenant_id":"g"}`,
			200)
		synctest.Wait()
		s.network.PublisherAt("tcp://10.0.0.1:1").Publish(streamtest.EncodeBatch(1.5, nil, stored("GPU", 1, 3)))
		s.network.PublisherAt("tcp://10.0.0.1:2").Publish(streamtest.EncodeBatch(1.5, nil,
			map[string]any{
				"type": "BlockStored", "block_hashes": []int{5}, "parent_block_hash": nil, "token_ids": []int{1, 2, 3, 4, 5, 6, 7, 8},
				"block_size": 8,
			},
		))
		synctest.Wait()
		// Over both block sizes, and a string stays one.
		s.do("POST", "/query", ask(promptOf(4), `,"tenant_id":"g"`), 200,
			`{"scores":{"node-a":{"0":12,"1":8}},"frequencies":[],"tree_sizes":{"node-a":{"0":3,"1":1}},"instances":{`+
				`"node-a":{"longest_matched":12,"gpu":12,"dp":{"0":12,"1":8},"cpu":12,"disk":12}}}`)
		s.do("POST", "/query_tiered_by_hash", byHash(local1, `,"routing_group":"g"`), 200,
			`{"block_size":4,"tiered":{"device":{"scores":[[{"worker_id":"node-a","dp_rank":0},1]],"frequencies":[]},"lower_tier":[]}}`)
		var rows []map[string]any
		if err := json.Unmarshal(s.send("GET", "/workers", "").Body.Bytes(), &rows); err != nil || len(rows) != 3 {
			t.Fatalf("%v %v", err, rows)
		}
		if rows[0]["instance_id"] != 12.0 || rows[1]["instance_id"] != "node-a" || rows[1]["block_size"] != 4.0 ||
			rows[2]["block_size"] != 8.0 {
			t.Errorf("workers %v", rows)
		}
		s.do("POST", "/register", `{"instance_id":"pool","endpoint":"inproc://p","model_name":"m","block_size":4,"routing_group":"g"}`, 409,
			`{"error":"instance pool dp_rank 0 already registered"}`)
		s.do("POST", "/unregister", `{"instance_id":"pool","model_name":"m"}`, 404, `{"error":"instance pool not found"}`)
		s.do("POST", "/unregister", `{"instance_id":"node-a","modelname":"m"}`, 200, done)
		if rec := s.send("GET", "/conductor/v1/services", ""); strings.Contains(rec.Body.String(), "node-a") ||
			!strings.Contains(rec.Body.String(), `"pool"`) {
			t.Errorf("services after the worker left: %s", rec.Body)
		}
	})
}

// TestQueryLimits bounds what one query may ask for.
func TestQueryLimits(t *testing.T) {
	s := newServer(t, Config{MaxTokens: 8})
	s.register(1, 0, "")
	s.do("POST", "/query", ask(promptOf(2), ""), 200, none)
	s.do("POST", "/query", ask("[1,2,3,4,5,6,7,8,9]", ""), 413, "token_ids has more than 8 elements, the most limits.max_tokens allows")
	s.do("POST", "/query_by_hash", byHash("1,2,3,4,5,6,7,8,9", ""), 413,
		"block_hashes has more than 8 elements, the most limits.max_tokens allows")
}
