package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/vmihailenco/msgpack/v5"
	"google.golang.org/grpc"

	"example.com/conductor/internal/must"
	"example.com/conductor/internal/redistest"
	"example.com/conductor/lab/sim/digest"
	"example.com/conductor/lab/sim/engine"
	"example.com/conductor/lab/sim/publisher"
	"example.com/conductor/lab/sim/truth"
)

// shardModels is how many models the fleet of a test has. Engine e<i> of model m<i> holds i+1 blocks
// of the one prompt.
const shardModels = 6

// shardFleet is a store, engines and replicas that share the shards.
type shardFleet struct {
	t        *testing.T
	store    *redistest.Server
	settings string
	replicas []*process
	grpc     map[*process]string // addresses of their listeners of gRPC
	engines  []*publisher.Publisher
}

// newShardFleet starts a fleet and registers its engines, which have published, at the last replica. Once
// every owner has all of it, they forget all but the newest batch: who comes later gets the rest from replicas.
func newShardFleet(t *testing.T, replicas, owners int, more string) *shardFleet {
	f := &shardFleet{t: t, store: redistest.Start(t), grpc: make(map[*process]string)}
	f.settings = fmt.Sprintf("store: {url: '%s'}\ncluster: {mode: shards, owners: %d}\n%s", f.store.URL(), owners, more)
	for range replicas {
		f.start()
	}
	for range shardModels {
		e, err := publisher.Listen(publisher.Options{Host: "127.0.0.1", BlockSize: recordedBlock, Wire: publisher.VLLMMap{}, Ring: 10_000})
		must.Succeed(t, err)
		t.Cleanup(func() { e.Close() })
		f.engines = append(f.engines, e)
	}
	for i, e := range f.engines {
		for n := range i + 1 {
			event := engine.Event{Kind: engine.Stored, Tier: truth.Device, Hashes: []digest.Digest{numbered(uint64(n + 1))},
				Parent: numbered(uint64(n)), HasParent: n > 0,
				Tokens: recordedTokens(n + 1)[n*recordedBlock:]}
			_, err := e.Publish([]engine.Event{event})
			must.Succeed(t, err)
		}
	}
	f.register(f.replicas[replicas-1])
	f.settled(owners, f.replicas...)
	f.held(owners)
	for _, e := range f.engines {
		e.Forget()
	}
	return f
}

// start starts a replica.
func (f *shardFleet) start() *process {
	p, address := grpcProcess(f.t, f.settings)
	f.replicas, f.grpc[p] = append(f.replicas, p), address
	return p
}

// dial returns a connection to a replica, with a token.
func (f *shardFleet) dial(p *process, token string) *grpc.ClientConn {
	return dialed(f.t, f.grpc[p], token, nil)
}

// drop lets each engine lose its last block. They go on with batches without events until stop is called:
// a replica whose subscription takes effect late would not see otherwise that it has missed something.
func (f *shardFleet) drop() (stop func()) {
	for i, e := range f.engines {
		_, err := e.Publish([]engine.Event{{Kind: engine.Removed, Tier: truth.Device, Hashes: []digest.Digest{numbered(uint64(i + 1))}}})
		must.Succeed(f.t, err)
	}
	ended := make(chan struct{})
	var idle sync.WaitGroup
	idle.Go(func() {
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
			case <-ended:
				return
			}
			for _, e := range f.engines {
				_, err := e.Publish(nil)
				must.Report(f.t, err)
			}
		}
	})
	return func() {
		close(ended)
		idle.Wait()
	}
}

// register registers the engines at a replica.
func (f *shardFleet) register(p *process) {
	f.t.Helper()
	for i, e := range f.engines {
		post(f.t, p.url+"/register", fmt.Sprintf(`{"endpoint": %q, "replay_endpoint": %q, "type": "vLLM", "modelname": "m%d", `+
			`"instance_id": "e%d", "block_size": %d, "dp_rank": 0}`,
			e.Endpoint(), e.ReplayEndpoint(), i, i, recordedBlock), 200)
	}
}

// shardQuery is a query of model i, longer than what its engine holds.
func shardQuery(i int) map[string]any {
	return map[string]any{"model": fmt.Sprintf("m%d", i), "block_size": recordedBlock, "token_ids": recordedTokens(shardModels + 1)}
}

// shardTruth is the beginning of the answer for model i.
func shardTruth(i int) string {
	return fmt.Sprintf(`{"default":{"e%d":{"longest_matched":%d,`, i, (i+1)*recordedBlock)
}

// ask makes a request, and returns status, body and header; 0 without an answer.
func (f *shardFleet) ask(p *process, path string, body any, header ...string) (int, string, http.Header) {
	f.t.Helper()
	text, err := json.Marshal(body)
	must.Succeed(f.t, err)
	return f.askRaw(p, path, text, append([]string{"Content-Type", "application/json"}, header...)...)
}

func (f *shardFleet) askRaw(p *process, path string, text []byte, header ...string) (int, string, http.Header) {
	f.t.Helper()
	req, err := http.NewRequestWithContext(f.t.Context(), "POST", p.url+path, bytes.NewReader(text))
	must.Succeed(f.t, err)
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := unfollowed.Do(req)
	if err != nil {
		return 0, err.Error(), nil
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err.Error(), nil
	}
	return resp.StatusCode, string(answer), resp.Header
}

// unfollowed is a client that follows no redirect.
var unfollowed = &http.Client{
	Timeout:       2 * time.Minute,
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
}

// settled waits until every replica answers for every model, and the shards rest.
func (f *shardFleet) settled(owners int, replicas ...*process) {
	f.t.Helper()
	for _, p := range replicas {
		for i := range shardModels {
			eventually(f.t, fmt.Sprintf("m%d is never answered", i), func() (string, bool) {
				status, answer, _ := f.ask(p, "/query", shardQuery(i))
				return fmt.Sprint(status, answer, p.log()), status == 200 && strings.HasPrefix(answer, shardTruth(i))
			})
		}
	}
	f.rest(owners, replicas...)
}

// rest waits until the shards are where they are to be, in the eyes of all replicas.
func (f *shardFleet) rest(owners int, replicas ...*process) {
	f.t.Helper()
	for _, p := range replicas {
		eventually(f.t, "shards never rest", func() (string, bool) {
			shards, text := f.shards(p)
			for _, s := range shards {
				if s.Moving || len(s.Replicas) != owners {
					return text, false
				}
			}
			return text, len(shards) == shardModels
		})
	}
}

// held waits until the owners of each shard hold all blocks of its engine, and miss nothing. One owner
// can answer while others still connect, and those need the whole replay.
func (f *shardFleet) held(owners int) {
	f.t.Helper()
	synced := regexp.MustCompile(`(?m)^conductor_source_state\{.*state="synced".*\} 1$`)
	eventually(f.t, "not all owners hold what their engines publish", func() (string, bool) {
		said := ""
		for _, p := range f.replicas {
			_, text := get(p.url + "/metrics")
			said += text
		}
		all := len(synced.FindAllString(said, -1)) == owners*shardModels
		for i := range shardModels {
			blocks := regexp.MustCompile(fmt.Sprintf(`(?m)^conductor_source_blocks\{.*instance_id="e%d".*\} %d$`, i, i+1))
			all = all && len(blocks.FindAllString(said, -1)) == owners
		}
		return said, all
	})
}

// shards returns what a replica knows of the shards.
func (f *shardFleet) shards(p *process) (all []clusterShard, text string) {
	f.t.Helper()
	_, text = get(p.url + "/admin/cluster")
	var answer clusterAnswer
	must.Succeed(f.t, json.Unmarshal([]byte(text), &answer))
	return answer.Shards, text
}

// valueOf returns the value of a series in the text of /metrics, -1 if it is not there.
func valueOf(text, series string) (v float64) {
	_, rest, found := strings.Cut(text, "\n"+series+" ")
	if _, err := fmt.Sscan(rest, &v); !found || err != nil {
		return -1
	}
	return v
}

// watch asks replicas all the time, until the function that it returns is called: that returns how
// many answers were right, wrong and refused.
func (f *shardFleet) watch(replicas ...*process) (stop func() (right, wrong, refused int64)) {
	var right, wrong, refused atomic.Int64
	quit := make(chan struct{})
	var work sync.WaitGroup
	for n, p := range replicas {
		work.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(n), 3))
			for {
				select {
				case <-quit:
					return
				case <-time.After(2 * time.Millisecond):
				}
				i := rng.IntN(shardModels)
				switch status, answer, _ := f.ask(p, "/query", shardQuery(i)); {
				case status == 200 && strings.HasPrefix(answer, shardTruth(i)):
					right.Add(1)
				case status == 0 || status == 503:
					if refused.Add(1) < 5 {
						f.t.Logf("m%d at %s: %d %s", i, p.url, status, answer)
					}
				default:
					if wrong.Add(1) < 5 {
						f.t.Errorf("m%d at %s: %d %s", i, p.url, status, answer)
					}
				}
			}
		})
	}
	return func() (int64, int64, int64) {
		close(quit)
		work.Wait()
		return right.Load(), wrong.Load(), refused.Load()
	}
}

// TestShardsAnswerThroughEveryReplica asks three replicas in all dialects. One of them holds each
// shard.
func TestShardsAnswerThroughEveryReplica(t *testing.T) {
	t.Parallel()
	f := newShardFleet(t, 3, 1, "")
	for _, p := range f.replicas {
		f.dialects(p)
		f.batches(p)
	}
	held, forwarded := 0, 0.0
	for _, p := range f.replicas {
		rows, _ := servicesOf[ruledService](t, p.url)
		held += len(rows)
		_, text := get(p.url + "/metrics")
		forwarded += valueOf(text, `conductor_cluster_forwarded_total{result="answered"}`)
	}
	if held != shardModels || forwarded < 2*shardModels*5 {
		t.Errorf("%d sources are followed, %v queries were sent on", held, forwarded)
	}
	f.redirects()
	f.hops()
	// replicas tell each other of states now and then
	eventually(t, "conductor cluster and services --fleet name other replicas", func() (string, bool) {
		out, err := command("cluster", "--server", f.replicas[0].url).CombinedOutput()
		if err != nil || strings.Count(string(out), "serving (1/1 synced)") != shardModels ||
			!strings.Contains(string(out), "default  m5 ") {
			return fmt.Sprintf("conductor cluster: %v\n%s", err, out), false
		}
		row := regexp.MustCompile(`(?m)^default +m5 .* (http://\S+) +(http://\S+) serving \(1/1 synced\)$`).FindStringSubmatch(string(out))
		sources, err := command("services", "--fleet", "--server", f.replicas[0].url).CombinedOutput()
		return fmt.Sprintf("%v\n%s%s", err, out, sources), err == nil && row != nil && row[1] == row[2] &&
			regexp.MustCompile(`(?m)^e5 .* `+regexp.QuoteMeta(row[1])+` synced$`).Match(sources)
	})
	f.registers()
}

// dialects asks one replica for every model in every dialect.
func (f *shardFleet) dialects(p *process) {
	t := f.t
	for i := range shardModels {
		tokens, want := recordedTokens(shardModels+1), (i+1)*recordedBlock
		status, answer, header := f.ask(p, "/conductor/v1/query?detail=1", shardQuery(i))
		if status != 200 || !strings.HasPrefix(answer, shardTruth(i)) || !strings.Contains(answer, `"state":"synced"`) ||
			header.Get("Content-Type") != "application/json" {
			t.Errorf("/query?detail=1 of m%d: %d %s %v", i, status, answer, header)
		}
		status, answer, _ = f.ask(p, "/dynamo/v1/query", map[string]any{"model_name": fmt.Sprintf("m%d", i), "token_ids": tokens})
		if status != 200 || !strings.Contains(answer, fmt.Sprintf(`"e%d"`, i)) || !strings.Contains(answer, fmt.Sprint(want)) {
			t.Errorf("/dynamo/v1/query of m%d: %d %s", i, status, answer)
		}
		status, answer, _ = f.ask(p, "/query?dialect=v2", shardQuery(i))
		if status != 200 || !strings.Contains(answer, fmt.Sprintf(`"e%d"`, i)) || !strings.Contains(answer, fmt.Sprint(want)) {
			t.Errorf("/query?dialect=v2 of m%d: %d %s", i, status, answer)
		}
		packed, err := msgpack.Marshal(shardQuery(i))
		must.Succeed(t, err)
		status, answer, header = f.askRaw(p, "/query", packed, "Content-Type", "application/msgpack")
		var of struct {
			Instances map[string]struct {
				Longest int `msgpack:"longest_matched"`
			} `msgpack:"instances"`
		}
		if err := msgpack.Unmarshal([]byte(answer), &of); status != 200 || err != nil ||
			of.Instances[fmt.Sprintf("e%d", i)].Longest != want || header.Get("Content-Type") != "application/msgpack" {
			t.Errorf("m%d in msgpack: %d %q %v %+v", i, status, answer, err, of)
		}
		status, answer, _ = f.ask(p, "/admin/explain", shardQuery(i))
		if status != 200 || !strings.Contains(answer, fmt.Sprintf(`"matched":%d`, i+1)) {
			t.Errorf("/admin/explain of m%d: %d %s", i, status, answer)
		}
	}
	status, answer, _ := f.ask(p, "/query", map[string]any{"model": "unknown", "block_size": 16, "token_ids": []int{1}})
	if status != 200 || answer != "{}" {
		t.Errorf("a model that the fleet does not know: %d %s", status, answer)
	}
	if status, answer, _ = f.ask(p, "/query", map[string]any{"model": "m0", "block_size": 0, "token_ids": []int{1}}); status != 400 ||
		!strings.Contains(answer, `"field":"block_size"`) {
		t.Errorf("a bad query: %d %s", status, answer)
	}
}

// batches asks one replica for all models at once, with two bad queries among them.
func (f *shardFleet) batches(p *process) {
	var queries []any
	for i := range shardModels {
		queries = append(queries, shardQuery(i))
	}
	queries = append(queries, map[string]any{"model": "m1"}, "no query", shardQuery(0))
	status, answer, _ := f.ask(p, "/query_batch", map[string]any{"queries": queries, "tenant_id": "default"})
	var of struct{ Answers []json.RawMessage }
	if err := json.Unmarshal([]byte(answer), &of); status != 200 || err != nil || len(of.Answers) != len(queries) {
		f.t.Fatalf("a batch: %d %s %v", status, answer, err)
	}
	for i := range shardModels {
		if !strings.HasPrefix(string(of.Answers[i]), shardTruth(i)) {
			f.t.Errorf("answer %d of a batch: %s", i, of.Answers[i])
		}
	}
	if last := len(queries) - 1; !strings.Contains(string(of.Answers[last-2]), `"field":"block_size"`) ||
		!strings.Contains(string(of.Answers[last-1]), `"index":7`) || !strings.HasPrefix(string(of.Answers[last]), shardTruth(0)) {
		f.t.Errorf("the end of a batch: %s", answer)
	}
	status, packed, _ := f.ask(p, "/query_batch", map[string]any{"queries": queries}, "Accept", "application/msgpack")
	var inMsgpack struct {
		Answers []map[string]any `msgpack:"answers"`
	}
	if err := msgpack.Unmarshal([]byte(packed), &inMsgpack); status != 200 || err != nil || len(inMsgpack.Answers) != len(queries) ||
		inMsgpack.Answers[5]["default"] == nil {
		f.t.Errorf("a batch in msgpack: %d %q %v", status, packed, err)
	}
}

// away returns a replica that does not serve model m0, and one that does.
func (f *shardFleet) away() (from, to *process) {
	for _, p := range f.replicas {
		if _, body := servicesOf[ruledService](f.t, p.url); strings.Contains(body, `"e0"`) {
			to = p
		} else {
			from = p
		}
	}
	return from, to
}

// redirects asks to be redirected, and goes where that says.
func (f *shardFleet) redirects() {
	from, to := f.away()
	for path, want := range map[string]string{"/query?top=3": "/conductor/v1/query?top=3", "/conductor/v1/query": "/conductor/v1/query"} {
		status, answer, header := f.ask(from, path, shardQuery(0), "Prefer", "redirect")
		if status != 307 || header.Get("Location") != to.url+want || header.Get("Preference-Applied") != "redirect" {
			f.t.Errorf("%s: %d %s %v, want %s", path, status, answer, header, to.url+want)
		}
		if status, answer, _ := f.ask(&process{url: to.url}, want, shardQuery(0)); status != 200 ||
			!strings.HasPrefix(answer, shardTruth(0)) {
			f.t.Errorf("%s: %d %s", want, status, answer)
		}
	}
	if status, answer, header := f.ask(to, "/query", shardQuery(0), "Prefer", "redirect"); status != 200 || header.Get("Location") != "" {
		f.t.Errorf("a replica that serves redirects: %d %s", status, answer)
	}
	batch := map[string]any{"queries": []any{shardQuery(0)}}
	if status, answer, header := f.ask(from, "/query_batch", batch, "Prefer", "redirect"); status != 200 || header.Get("Location") != "" ||
		!strings.Contains(answer, shardTruth(0)) {
		f.t.Errorf("a batch: %d %s", status, answer)
	}
}

// hops sends a query that a replica must not send on.
func (f *shardFleet) hops() {
	from, to := f.away()
	status, answer, _ := f.ask(from, "/query", shardQuery(0), "Conductor-Forwarded", "x")
	if status != 421 || !strings.Contains(answer, `"reason":"misdirected"`) {
		f.t.Errorf("a second hop: %d %s", status, answer)
	}
	status, answer, _ = f.ask(from, "/query_batch", map[string]any{"queries": []any{shardQuery(0)}}, "Conductor-Forwarded", "x")
	if status != 421 {
		f.t.Errorf("a second hop of a batch: %d %s", status, answer)
	}
	if status, answer, header := f.ask(from, "/query", shardQuery(0)); status != 200 || header.Get("Conductor-Replica") == "" {
		f.t.Errorf("%d %s %v", status, answer, header)
	}
	if _, _, header := f.ask(to, "/query", shardQuery(0)); header.Get("Conductor-Replica") != "" {
		f.t.Errorf("an answer of this replica itself names another: %v", header)
	}
}

// registers registers a source again and unregisters it, at replicas that do not follow it.
func (f *shardFleet) registers() {
	from, to := f.away()
	f.register(from)
	eventually(f.t, "a source is followed where it was registered again", func() (string, bool) {
		_, body := servicesOf[ruledService](f.t, from.url)
		return body, !strings.Contains(body, `"e0"`)
	})
	if status, answer, _ := f.ask(from, "/query", shardQuery(0)); status != 200 || !strings.HasPrefix(answer, shardTruth(0)) {
		f.t.Errorf("after a registration: %d %s", status, answer)
	}
	post(f.t, from.url+"/unregister", `{"instance_id": "e0", "dp_rank": 0}`, 200)
	for _, p := range f.replicas {
		eventually(f.t, "an unregistered source is answered", func() (string, bool) {
			status, answer, _ := f.ask(p, "/query", shardQuery(0))
			return answer, status == 200 && answer == "{}"
		})
	}
	from, to = to, from // of m1
	post(f.t, from.url+"/dynamo/v1/unregister", `{"instance_id": "e1", "model_name": "m1"}`, 200)
	post(f.t, to.url+"/unregister", `{"instance_id": "e7", "dp_rank": 0}`, 404)
}

// TestShardsSurvive kills one of three replicas and starts another, while clients ask all the time.
func TestShardsSurvive(t *testing.T) {
	t.Parallel()
	f := newShardFleet(t, 3, 2, "")
	stop := f.watch(f.replicas[1:]...)
	must.Succeed(t, f.replicas[0].cmd.Process.Kill())
	f.settled(2, f.replicas[1:]...)
	fourth := f.start()
	f.settled(2, f.replicas[1:]...)
	right, wrong, refused := stop()
	if right == 0 || wrong != 0 {
		t.Errorf("%d right, %d wrong, %d refused", right, wrong, refused)
	}
	if refused > 0 { // each shard has two owners
		t.Errorf("%d of %d queries were refused", refused, right)
	}
	eventually(t, "the new replica follows nothing", func() (string, bool) {
		rows, body := servicesOf[ruledService](t, fourth.url)
		return body, len(rows) > 0
	})
	f.store.Kill()
	eventually(t, "the store is up", func() (string, bool) {
		_, text := get(fourth.url + "/metrics")
		return "", strings.Contains(text, "\nconductor_store_up 0\n")
	})
	for _, p := range f.replicas[1:] {
		for i := range shardModels {
			if status, answer, _ := f.ask(p, "/query", shardQuery(i)); status != 200 || !strings.HasPrefix(answer, shardTruth(i)) {
				t.Errorf("without a store, m%d: %d %s", i, status, answer)
			}
		}
	}
}

// TestShardsSurviveAStoppedReplica stops one of three replicas without ending it, and lets it go on
// once the others have taken over.
func TestShardsSurviveAStoppedReplica(t *testing.T) {
	t.Parallel()
	f := newShardFleet(t, 3, 2, "")
	stop := f.watch(f.replicas[1:]...)
	must.Succeed(t, f.replicas[0].cmd.Process.Signal(syscall.SIGSTOP))
	f.settled(2, f.replicas[1:]...)
	must.Succeed(t, f.replicas[0].cmd.Process.Signal(syscall.SIGCONT))
	f.settled(2, f.replicas...)
	if right, wrong, refused := stop(); right == 0 || wrong != 0 || refused != 0 {
		t.Errorf("%d right, %d wrong, %d refused", right, wrong, refused)
	}
}

// TestForgedForwards asks replicas with credentials. What a client says of itself in the headers of
// replicas has no effect, and a forwarded query is checked as one that was not sent on.
func TestForgedForwards(t *testing.T) {
	t.Parallel()
	credentials := credentialsFile(t, "replica peer '*'", "peer-b peer b", "any query '*'", "only-b query b", "operator admin '*'")
	file := redistest.File(t, "replica\n")
	f := newShardFleet(t, 2, 1, "auth: {file: "+credentials+", loopback: [metrics, admin]}\npeer: {token_file: "+file+"}\n")
	from, to := f.away()
	client := func(tenants string, roles ...string) []string {
		text, err := json.Marshal(map[string]any{"name": "x", "roles": roles, "tenants": strings.Fields(tenants)})
		must.Succeed(t, err)
		return []string{"Conductor-Forwarded", "x", "Conductor-Client", string(text)}
	}
	check := func(p *process, path, token string, want int, header ...string) {
		t.Helper()
		status, answer, _ := f.ask(p, path, shardQuery(0), append([]string{"Authorization", "Bearer " + token}, header...)...)
		if status != want || status == 200 && path == "/query" && !strings.HasPrefix(answer, shardTruth(0)) {
			t.Errorf("%s as %s with %v: %d %s, want %d", path, token, header, status, answer, want)
		}
	}
	for _, p := range []*process{from, to} {
		check(p, "/query", "any", 200)
		check(p, "/query", "only-b", 403)
		check(p, "/query", "stranger", 401)
		check(p, "/admin/explain", "operator", 200)
		check(p, "/admin/explain", "any", 403)
	}
	check(to, "/query", "only-b", 403, client("default", "query", "admin")...)
	check(to, "/admin/explain", "any", 403, client("default", "admin")...)
	check(to, "/query", "stranger", 401, client("default", "query")...)
	check(to, "/register", "any", 403, client("default", "admin")...)
	check(to, "/query", "replica", 200, client("default", "query")...)
	check(to, "/query", "replica", 403, client("b", "query")...)
	check(to, "/query", "replica", 403, client("default", "metrics")...)
	check(to, "/query", "replica", 403) // it vouches for no client
	check(to, "/query", "peer-b", 403, client("default", "query")...)
	check(to, "/query", "replica", 400, "Conductor-Forwarded", "x", "Conductor-Client", "{")
	check(to, "/feedback", "replica", 403, client("default", "metrics")...)
}
