package main

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	pb "example.com/conductor/api/kvconductor/v1"
	"example.com/conductor/internal/apitest"
	"example.com/conductor/internal/must"
)

// TestAliases follows an engine that serves its model under several names, as vLLM does with
// --served-model-name a b: a query for any of them is answered in every dialect, in the tenant alone, after
// a restart too. The answer about another name says which there are.
func TestAliases(t *testing.T) {
	t.Parallel()
	engine, listed := newRuledEngine(t, "served", 0), newRuledEngine(t, "listed", 0)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/kv_event_sources":
			_, port, err := net.SplitHostPort(engine.pub.Addr().String())
			must.Report(t, err)
			fmt.Fprintf(w, `{"0":{"publisher":"zmq","endpoint":"tcp://0.0.0.0:%s","replay_endpoint":null,"topic":""}}`, port)
		case "/v1/models":
			fmt.Fprint(w, `{"data":[{"id":"name-a","root":"/models/x","parent":null},{"id":"name-b","root":"/models/x","parent":null},`+
				`{"id":"sql","root":"/adapters/sql","parent":"name-a"}]}`)
		default:
			http.NotFound(w, r)
		}
	}))
	defer server.Close()
	dir := t.TempDir()
	config := "snapshot: {dir: " + filepath.Join(dir, "snapshots") + ", interval: 0s}\nsources:\n" +
		explainSource(listed, "vLLM", "of-file", ", aliases: [also-of-file]")
	p, address := grpcProcess(t, config)
	post(t, p.url+"/register", `{"discover":"`+server.URL+`","instance_id":"served","block_size":16}`, 200)
	engine.publish(ruledStored(0, 4))
	listed.publish(ruledStored(0, 2))
	engine.settled(p)
	listed.settled(p)

	tokens := string(asJSON(recordedTokens(4)))
	ask := func(path, name, more string) string {
		return post(t, p.url+path, `{"model":"`+name+`","block_size":16,"token_ids":`+tokens+more+`}`, 200)
	}
	f := func(what, answer string, wants ...string) {
		t.Helper()
		for _, want := range wants {
			if !strings.Contains(answer, want) {
				t.Errorf("%s: %s is not in %s", what, want, answer)
			}
		}
	}
	conn := dialed(t, address, "", nil)
	check := func() {
		t.Helper()
		for _, name := range []string{"name-a", "name-b"} {
			f(name, ask("/query", name, ""), `"longest_matched":64`)
			f("a batch", post(t, p.url+"/query_batch", `{"model":"`+name+`","block_size":16,"queries":[{"token_ids":`+tokens+`}]}`, 200),
				`"longest_matched":64`)
			f("hashes", post(t, p.url+"/query_by_hash",
				`{"model":"`+name+`","block_size":16,"hash":"engine","seq_hashes":[1000,1001,1002,1003]}`, 200), `"longest_matched":64`)
			f("Mooncake's dialect", ask("/query?dialect=v2", name, ""), `"served"`, "64")
			f("Dynamo's dialect", post(t, p.url+"/dynamo/v1/query", `{"model_name":"`+name+`","token_ids":`+tokens+`}`, 200), `served`,
				"64")
			f("explain", post(t, p.url+"/admin/explain", `{"model":"`+name+`","block_size":16,"token_ids":`+tokens+`}`, 200),
				`"longest_matched":4,`)
			ans, err := pb.NewConductorClient(conn).Query(inTime(t),
				&pb.QueryRequest{Model: name, BlockSize: 16, Prompt: &pb.QueryRequest_Tokens{Tokens: &pb.Tokens{Ids: recordedTokens(4)}}})
			if must.Report(t, err); len(ans.GetRows()) != 1 || ans.Rows[0].LongestMatched != 64 {
				t.Errorf("gRPC answers %v", ans)
			}
		}
		f("the file", ask("/query", "also-of-file", ""), `"listed":{"longest_matched":32`)
		if answer := ask("/query", "name-b", `,"tenant_id":"blue"`); answer != "{}" {
			t.Errorf("the alias counts for another tenant: %s", answer)
		}
		if answer := ask("/query", "sql", ""); !strings.HasPrefix(answer, `{"default":{"served":{"longest_matched":0,`) {
			t.Errorf("an adapter has blocks of the model, or no row: %s", answer)
		}
	}
	check()
	_, services := get(p.url + "/services")
	f("services", services, `"Aliases":["name-b"]`, `"Aliases":["also-of-file"]`, `aliases \"name-b\"`)
	_, view := get(p.url + "/global_view")
	f("the view", view, `"aliases":["name-b"]`)
	doc := apitest.Load(t)
	for path, answer := range map[string]string{"/services": services, "/global_view": view} {
		rec := httptest.NewRecorder()
		rec.Header().Set("Content-Type", "application/json")
		rec.WriteString(answer)
		doc.CheckAnswer(t, httptest.NewRequest(http.MethodGet, path, nil), rec)
	}

	const told = `model \"nome-b\" is not registered for tenant \"default\"; these models are: \"name-b\", \"name-a\", \"of-file\"`
	f("an unknown model", ask("/query?detail=1", "nome-b", ""), `"warnings":["`+told+`"]`)
	f("one in a batch", post(t, p.url+"/query_batch?detail=1", `{"block_size":16,"queries":[{"model":"name-b","token_ids":`+tokens+
		`},{"model":"nome-b","token_ids":`+tokens+`}]}`, 200), told)
	f("an explanation", post(t, p.url+"/admin/explain", `{"model":"nome-b","block_size":16,"token_ids":`+tokens+`}`, 200),
		strings.ToUpper(told[:1])+told[1:]+".", `"not_registered"`)
	f("an unknown size", post(t, p.url+"/query?detail=1", `{"model":"name-b","block_size":64,"token_ids":`+tokens+`}`, 200),
		`model \"name-a\" of tenant \"default\" is registered with block size 16, not 64`)
	if answer := ask("/query", "nome-b", ""); answer != "{}" {
		t.Errorf("without detail: %s", answer)
	}

	// Another list of aliases is no other source: its blocks stay.
	changed := newRuledEngine(t, "changed", 0)
	register := func(alias string) {
		t.Helper()
		post(t, p.url+"/register", fmt.Sprintf(`{"endpoint":"tcp://%s","type":"vLLM","modelname":"changed","instance_id":"changed",`+
			`"block_size":16,"dp_rank":0,"aliases":[%q]}`, changed.pub.Addr(), alias), 200)
	}
	register("first")
	changed.publish(ruledStored(0, 3))
	changed.settled(p)
	f("an alias", ask("/query", "first", ""), `"longest_matched":48`)
	register("second")
	f("another alias", ask("/query", "second", ""), `"longest_matched":48`)
	if answer := ask("/query", "first", ""); answer != "{}" {
		t.Errorf("the alias from before counts: %s", answer)
	}

	// A restart has the aliases of the file and of the last run, although the engine tells nothing any more.
	must.Succeed(t, p.cmd.Process.Signal(os.Interrupt))
	p.cmd.Wait()
	server.Close()
	p, address = grpcProcess(t, config)
	conn = dialed(t, address, "", nil)
	engine.settled(p)
	check()
	f("the last alias", ask("/query", "second", ""), `"changed":{"longest_matched":48`)
}
