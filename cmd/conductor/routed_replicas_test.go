package main

import (
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	pb "example.com/conductor/api/kvconductor/v1"
	"example.com/conductor/internal/freeport"
	"example.com/conductor/internal/must"
	"example.com/conductor/internal/redistest"
)

// shardReport is a report that the prompt of shardQuery goes to the engine of model i.
func shardReport(i int, id string) map[string]any {
	report := shardQuery(i)
	report["instance_id"], report["ttl"], report["request_id"] = fmt.Sprintf("e%d", i), "5m", id
	return report
}

// takeBack takes a report back at a replica, and returns the status.
func takeBack(t *testing.T, p *process, id string, header ...string) int {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), "DELETE", p.url+"/routed/"+id, nil)
	must.Succeed(t, err)
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := unfollowed.Do(req)
	must.Succeed(t, err)
	io.Copy(io.Discard, resp.Body)
	resp.Body.Close()
	return resp.StatusCode
}

var expectedField = regexp.MustCompile(`^\{"default":\{"[^"]+":\{.*?"expected":(\d+)`)

// expects returns how many tokens replicas expect of the engine of model i, those of them that serve the model.
func (f *shardFleet) expects(i int, replicas ...*process) (tokens []int, said string) {
	f.t.Helper()
	for _, p := range replicas {
		status, answer, header := f.ask(p, "/query?expected=1", shardQuery(i))
		said += fmt.Sprint(p.url, ": ", status, answer, "\n")
		if status != 200 || header.Get("Conductor-Replica") != "" {
			continue
		}
		if m := expectedField.FindStringSubmatch(answer); m != nil {
			n, err := strconv.Atoi(m[1])
			must.Succeed(f.t, err)
			tokens = append(tokens, n)
		}
	}
	slices.Sort(tokens)
	return tokens, said
}

// expected waits until the replicas that serve a model expect some numbers of tokens.
func (f *shardFleet) expected(i int, want ...int) {
	f.t.Helper()
	eventually(f.t, fmt.Sprintf("m%d: not %v", i, want), func() (string, bool) {
		got, said := f.expects(i, f.replicas...)
		return said, slices.Equal(got, want)
	})
}

// mirrored returns how many reports all replicas have told others of, by result.
func (f *shardFleet) mirrored(result string) (n float64) {
	for _, p := range f.replicas {
		_, text := get(p.url + "/metrics")
		n += valueOf(text, `conductor_reports_mirrored_total{result="`+result+`"}`)
	}
	return n
}

// TestShardsShareReports reports at each of three replicas. Both owners of a shard expect what one of them was told,
// each report is sent to the other owner once, and a replica that takes a shard over begins without.
func TestShardsShareReports(t *testing.T) {
	t.Parallel()
	f := newShardFleet(t, 3, 2, "")
	const all = (shardModels + 1) * recordedBlock
	told := 0.0
	for n, p := range f.replicas {
		for i := range shardModels {
			id := fmt.Sprint(n, "-", i)
			if status, answer, _ := f.ask(p, "/routed", shardReport(i, id)); status != 204 {
				t.Fatalf("%s: %d %s", id, status, answer)
			}
			f.expected(i, all, all)
			// The count comes behind the answer of the other replica, which may expect the report before.
			told++
			eventually(t, id+" was not told to another", func() (string, bool) {
				got := f.mirrored(delivered)
				return fmt.Sprintf("%v reports were, want %v", got, told), got == told
			})
		}
	}

	// Of reports that another replica mirrors, a replica keeps those that it serves, and mirrors none.
	list, served := []any{}, 0
	for i := range shardModels {
		list = append(list, shardReport(i, fmt.Sprint("list-", i)))
		if own, _ := f.expects(i, f.replicas[0]); len(own) > 0 {
			served++
		}
	}
	status, answer, _ := f.ask(f.replicas[0], "/routed", map[string]any{"prompts": list}, "Conductor-Forwarded", "x", "Conductor-Mirrored",
		"1")
	if status != 200 && served < shardModels || served < shardModels && !strings.Contains(answer, fmt.Sprintf(`{"kept":%d,`, served)) {
		t.Errorf("a mirrored list, %d of it served: %d %s", served, status, answer)
	}
	for i := range shardModels {
		takeBack(t, f.replicas[0], fmt.Sprint("list-", i), "Conductor-Forwarded", "x", "Conductor-Mirrored", "1")
	}
	if got := f.mirrored(delivered); got != told {
		t.Errorf("%v reports were told on", got-told)
	}

	taken := func(when string, want int, told float64) {
		t.Helper()
		for n := range f.replicas {
			for i := range shardModels {
				id, before := fmt.Sprint(n, "-", i), f.mirrored(delivered)
				if status := takeBack(t, f.replicas[(n+i)%3], id); status != want {
					t.Errorf("%s is taken back%s: %d", id, when, status)
				}
				// What waits for a second is dropped.
				eventually(t, id+" is not taken back at the others", func() (string, bool) {
					got := f.mirrored(delivered) - before
					return fmt.Sprint(got), got >= told
				})
			}
		}
	}
	taken("", 204, 2)
	for i := range shardModels {
		f.expected(i, (i+1)*recordedBlock, (i+1)*recordedBlock)
	}
	taken(" again", 404, 0)

	// Lists are split, and faults stay where they are.
	list = nil
	for i := range shardModels {
		list = append(list, shardReport(i, fmt.Sprint("list-", i)), map[string]any{"model": fmt.Sprint("m", i), "block_size": recordedBlock,
			"token_ids": []int{1}, "instance_id": "none"})
	}
	status, answer, _ = f.ask(f.replicas[0], "/routed", map[string]any{"prompts": list})
	if status != 200 || !strings.Contains(answer, fmt.Sprintf(`"kept":%d,`, shardModels)) ||
		strings.Count(answer, `"known":["e`) != shardModels || !strings.Contains(answer, `"prompt":11,`) {
		t.Errorf("a list: %d %s", status, answer)
	}
	for i := range shardModels {
		f.expected(i, all, all)
		takeBack(t, f.replicas[1], fmt.Sprint("list-", i))
		f.expected(i, (i+1)*recordedBlock, (i+1)*recordedBlock)
	}

	list = slices.DeleteFunc(list, func(x any) bool { return x.(map[string]any)["instance_id"] == "none" })
	if status, answer, _ := f.ask(f.replicas[2], "/routed", map[string]any{"prompts": list}); status != 204 {
		t.Errorf("a list without a fault: %d %s", status, answer)
	}
	for i := range shardModels {
		f.expected(i, all, all)
		takeBack(t, f.replicas[1], fmt.Sprint("list-", i))
		f.expected(i, (i+1)*recordedBlock, (i+1)*recordedBlock)
	}

	// Calls of gRPC.
	for n, p := range f.replicas {
		to := pb.NewConductorClient(f.dial(p, ""))
		report := &pb.RoutedPrompt{
			Model: "m0", BlockSize: recordedBlock, InstanceId: "e0", TtlMs: 300_000, RequestId: fmt.Sprint("call-", n),
			Prompt: &pb.RoutedPrompt_Tokens{Tokens: &pb.Tokens{Ids: recordedTokens(shardModels + 1)}},
		}
		_, err := to.Routed(inTime(t), &pb.RoutedRequest{Prompts: []*pb.RoutedPrompt{report}})
		must.Succeed(t, err)
		f.expected(0, all, all)
		_, err = pb.NewConductorClient(f.dial(f.replicas[(n+1)%3], "")).TakeBack(inTime(t),
			&pb.TakeBackRequest{RequestId: report.RequestId})
		must.Succeed(t, err)
		f.expected(0, recordedBlock, recordedBlock)
	}
	if n := f.mirrored(refused) + f.mirrored(failed) + f.mirrored(dropped); n != 0 {
		t.Errorf("%v reports did not arrive", n)
	}

	// One replica dies. The others take over what it served, and expect nothing there but what they knew.
	for i := range shardModels {
		f.ask(f.replicas[1], "/routed", shardReport(i, fmt.Sprint("kept-", i)))
		f.expected(i, all, all)
	}
	owned := map[int]bool{}
	for i := range shardModels {
		if own, _ := f.expects(i, f.replicas[0]); len(own) > 0 {
			owned[i] = true
		}
	}
	must.Succeed(t, f.replicas[0].cmd.Process.Kill())
	for i := range shardModels { // no client waits for the dead one; the new owner of a shard may not be synced yet
		held := shardReport(i, fmt.Sprint("held-", i)) // so that it changes nothing if a new owner gets it
		held["token_ids"] = recordedTokens(i + 1)
		if status, answer, _ := f.ask(f.replicas[1], "/routed", held); status != 204 &&
			(status != 200 || !strings.Contains(answer, "may not confirm")) {
			t.Errorf("m%d: %d %s", i, status, answer)
		}
	}
	f.replicas = f.replicas[1:]
	f.settled(2, f.replicas...)
	for i := range shardModels {
		if want := []int{all, all}; !owned[i] {
			f.expected(i, want...)
		} else {
			f.expected(i, (i+1)*recordedBlock, all)
		}
	}
}

// Results in conductor_reports_mirrored_total.
const delivered, refused, failed, dropped = "delivered", "refused", "failed", "dropped"

// pairOf asks two servers what they expect of the one engine, which holds nothing.
func pairOf(t *testing.T, token string, both ...*process) func(want ...int) {
	f := &shardFleet{t: t}
	return func(want ...int) {
		t.Helper()
		for i, p := range both {
			eventually(t, fmt.Sprintf("server %d does not expect %d tokens", i, want[i]), func() (string, bool) {
				status, answer, _ := f.ask(p, "/query?expected=1",
					map[string]any{"model": "m", "block_size": 16, "token_ids": make([]int, 64)}, "Authorization", "Bearer "+token)
				return fmt.Sprint(status, answer, p.log()), status == 200 &&
					strings.Contains(answer, fmt.Sprintf(`"expected":%d,`, want[i]))
			})
		}
	}
}

// TestReplicasShareReports reports at one of two servers that follow every source and share a store, as clients with few
// rights. The other one expects it too.
func TestReplicasShareReports(t *testing.T) {
	t.Parallel()
	shared, engine := redistest.Start(t), newRuledEngine(t, "engine", 0)
	credentials := credentialsFile(t, "replica peer '*'", "router query default", "other query b", "operator admin '*'")
	settings := fmt.Sprintf("store: {url: '%s'}\nauth: {file: %s, loopback: [metrics, register, admin]}\npeer: {token_file: %s}\n"+
		"shutdown: {drain: 0s}\n", shared.URL(), credentials, redistest.File(t, "replica\n"))
	a, b := serveProcess(t, settings), serveProcess(t, settings)
	post(t, a.url+"/register", registered("engine", engine.pub.Addr().String()), 200)
	follow(t, []*process{a, b}, "engine")
	f, expect := &shardFleet{t: t}, pairOf(t, "router", a, b)
	expect(0, 0)
	report := func(p *process, tokens int, id, token string, want int) {
		t.Helper()
		status, answer, _ := f.ask(p, "/routed", map[string]any{"model": "m", "block_size": 16, "token_ids": make([]int, tokens),
			"instance_id": "engine", "ttl": "5m", "request_id": id}, "Authorization", "Bearer "+token)
		if status != want && (status != 200 || want != 204 || !strings.Contains(answer, "may not confirm")) {
			t.Fatalf("%s as %s: %d %s", id, token, status, answer)
		}
	}
	tell := func(from, to *process, tokens int, id string) { // again, until from has found to in the store
		t.Helper()
		eventually(t, "the other server is not told of "+id, func() (string, bool) {
			report(from, tokens, id, "router", 204)
			_, answer, _ := f.ask(to, "/query?expected=1", map[string]any{"model": "m", "block_size": 16, "token_ids": make([]int, 64)},
				"Authorization", "Bearer router")
			return answer, strings.Contains(answer, fmt.Sprintf(`"expected":%d,`, tokens))
		})
	}
	tell(a, b, 32, "one")
	expect(32, 32)
	tell(b, a, 64, "two")
	expect(64, 64)
	report(a, 48, "three", "other", 403)
	for _, token := range []string{"other", "unknown"} {
		if status := takeBack(t, b, "two", "Authorization", "Bearer "+token); status != 403 && status != 401 {
			t.Errorf("%s takes a report back: %d", token, status)
		}
	}
	expect(64, 64)
	if status := takeBack(t, a, "two", "Authorization", "Bearer router"); status != 204 {
		t.Error(status)
	}
	expect(32, 32)

	// A server that starts again knows the reports that come from then on.
	must.Succeed(t, b.cmd.Process.Signal(syscall.SIGTERM))
	must.Succeed(t, b.cmd.Wait())
	b = serveProcess(t, settings)
	follow(t, []*process{b}, "engine")
	pairOf(t, "router", a, b)(32, 0)
	tell(a, b, 64, "four")
	report(a, 64, "", "router", 400)
}

// TestPeersShareReports holds the same for servers that only name each other as peers, themselves among them.
func TestPeersShareReports(t *testing.T) {
	t.Parallel()
	engine := newRuledEngine(t, "engine", 0)
	var addresses [2]string
	for i := range addresses {
		var err error
		addresses[i], err = freeport.Address()
		must.Succeed(t, err)
	}
	settings := fmt.Sprintf("dynamo: {peers: ['http://%s', 'http://%s']}\nsources:\n"+
		"  - {endpoint: 'tcp://%s', type: vLLM, modelname: m, instance_id: engine, block_size: 16}\n", addresses[0], addresses[1],
		engine.pub.Addr())
	a, b := serveProcess(t, settings, addresses[0]+"=conductor"), serveProcess(t, settings, addresses[1]+"=conductor")
	f, expect := &shardFleet{t: t, replicas: []*process{a, b}}, pairOf(t, "", a, b)
	expect(0, 0)
	for i, p := range f.replicas {
		tokens := 32 * (i + 1)
		status, answer, _ := f.ask(p, "/routed", map[string]any{"model": "m", "block_size": 16, "token_ids": make([]int, tokens),
			"instance_id": "engine", "ttl": "5m", "request_id": fmt.Sprint(i)})
		if status != 200 && status != 204 {
			t.Fatal(status, answer)
		}
		expect(tokens, tokens)
	}
	if status := takeBack(t, a, "1"); status != 204 {
		t.Error(status)
	}
	expect(32, 32)
	if status := takeBack(t, b, "0"); status != 204 {
		t.Error(status)
	}
	expect(0, 0)
	if n := f.mirrored(refused) + f.mirrored(failed) + f.mirrored(dropped); n != 0 {
		t.Errorf("%v reports did not arrive", n)
	}
}
