package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"example.com/conductor/client"
	"example.com/conductor/examples/router"
	"example.com/conductor/internal/must"
	"example.com/conductor/internal/proctest"
	"example.com/conductor/internal/redistest"
	"example.com/conductor/lab/demo"
)

// TestDemoWithPage runs the demo as make demo UI=1 does: it prints the address of the page, the
// fleet works, and a signal ends all of it.
func TestDemoWithPage(t *testing.T) {
	t.Parallel()
	cmd := command(t, "demo", "--ui")
	errs := new(proctest.Transcript)
	cmd.Stderr = errs
	out, err := cmd.StdoutPipe()
	must.Succeed(t, err)
	must.Succeed(t, cmd.Start())
	t.Cleanup(func() { cmd.Process.Kill() })
	said := new(proctest.Transcript)
	page := ""
	lines := bufio.NewScanner(out)
	for address := regexp.MustCompile(`^page: +(http://\S+/ui) `); page == "" && lines.Scan(); {
		said.Write(append(lines.Bytes(), '\n'))
		if m := address.FindStringSubmatch(lines.Text()); m != nil {
			page = m[1]
		}
	}
	if page == "" {
		t.Fatalf("no address of a page: %s%s", said, errs)
	}
	if status, text := proctest.Get(page); status != 200 || !strings.Contains(text, "<title>Conductor</title>") {
		t.Errorf("page: %d %.200s", status, text)
	}
	proctest.Eventually(t, "the fleet does not work", func() (string, bool) {
		_, text := proctest.Get(strings.TrimSuffix(page, "/ui") + "/admin/stats?top=1")
		busy := regexp.MustCompile(`"sources":13,.*"events_per_s":[1-9].*"queries_per_s":[1-9]`).MatchString(text)
		return text, busy
	})
	must.Succeed(t, cmd.Process.Signal(syscall.SIGINT))
	for lines.Scan() {
		said.Write(append(lines.Bytes(), '\n'))
	}
	if err := cmd.Wait(); err != nil {
		exit, _ := err.(*exec.ExitError)
		t.Errorf("exit %v: %s%s", exit, said, errs)
	}
	for _, want := range []string{"seed:   ", "interrupted", "12 ranks and a pool published for "} {
		if !strings.Contains(said.String(), want) {
			t.Errorf("the demo does not say %q: %s", want, said)
		}
	}
	if status, text := proctest.Get(page); status != 0 {
		t.Errorf("the server is still there: %d %.100s", status, text)
	}
}

// TestDemoServerEnds holds that the demo does not wait for a server that has ended.
func TestDemoServerEnds(t *testing.T) {
	t.Parallel()
	_, err := demo.Launch(t.Context(), server(t), t.Output(), func(string, string) string { return "hash: {sed: 1}\n" })
	if err == nil || !strings.Contains(err.Error(), "has ended") {
		t.Errorf("a server with an unknown setting: %v", err)
	}
}

// TestDemoRouter holds that the example router computes fewer tokens and answers sooner than
// policies that know no cache, over generated requests and over a trace, and that of a burst of
// equal prompts it computes hardly more than a router that knows every choice, also where three
// routers share a server. These are 20 bursts: a copy more of one prompt is 5 %.
func TestDemoRouter(t *testing.T) {
	t.Parallel()
	// 20 conversations of 10 turns: each prompt begins with the one before.
	var lines strings.Builder
	for turn := 1; turn <= 10; turn++ {
		for talk := range 20 {
			ids := make([]string, 2*turn)
			for i := range ids {
				ids[i] = fmt.Sprint(talk*100 + i)
			}
			fmt.Fprintf(&lines, `{"timestamp":%d,"input_length":%d,"output_length":8,"hash_ids":[%s]}`+"\n", 3000*turn, 1024*turn,
				strings.Join(ids, ","))
		}
	}
	trace := filepath.Join(t.TempDir(), "trace.jsonl")
	must.Succeed(t, os.WriteFile(trace, []byte(lines.String()), 0o600))
	for _, c := range []struct {
		args             []string
		requests, bursts int
	}{{[]string{"--requests", "320"}, 320, 320}, {[]string{"--trace", trace, "--requests", "50"}, 50, 50}} {
		cmd := command(t, append([]string{"demo", "--router", "--json", "--seed", "3"}, c.args...)...)
		cmd.Stderr = t.Output()
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%v: %v\n%s", c.args, err, out)
		}
		var r demo.RouterReport
		decode(t, string(out), &r)
		if r.Requests.Requests != c.requests || r.Bursts.Requests != c.bursts {
			t.Fatalf("%v: %s", c.args, out)
		}
		if len(r.Requests.Outcomes) != 7 || len(r.Bursts.Outcomes) != 7 {
			t.Fatalf("%v: %s", c.args, out)
		}
		all := r.Requests.Outcomes
		for _, aware := range all[2:] {
			for _, other := range all[:2] {
				if aware.Alone > 0 || aware.Computed >= other.Computed || aware.Recomputed >= other.Recomputed ||
					aware.TTFT.Mean >= other.TTFT.Mean {
					t.Errorf("%v: %+v, and %+v", c.args, aware, other)
				}
			}
		}
		all = r.Bursts.Outcomes
		for _, expecting := range all[4:6] {
			if !strings.HasPrefix(expecting.Policy, "expectations") || expecting.Alone > 0 || *expecting.Beyond > 5 {
				t.Errorf("%v: %+v, and %+v", c.args, expecting, all[6])
			}
			for _, other := range all[:4] {
				if *other.Beyond < 100 || expecting.Computed >= other.Computed {
					t.Errorf("%v: %+v, and %+v", c.args, expecting, other)
				}
			}
		}
	}
	for _, args := range []string{"--router --faults", "--router --restarts 1", "--router --duration 1s", "--requests 5"} {
		if out, err := command(t, append([]string{"demo"}, strings.Fields(args)...)...).CombinedOutput(); err == nil ||
			!strings.Contains(string(out), "router") {
			t.Errorf("%s: %v\n%s", args, err, out)
		}
	}
}

// TestDemoShards spreads models over three servers, and one of them is killed: each model has one owner,
// so that some have none for a while. No settled answer is wrong.
func TestDemoShards(t *testing.T) {
	t.Parallel()
	shared := redistest.Start(t)
	cmd := command(t, "demo", "--shards", "3", "--owners", "1", "--store", shared.URL(), "--duration", "18s", "--json")
	cmd.Stderr = t.Output()
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var r demo.ShardsReport
	decode(t, string(out), &r)
	if r.Answers.Settled == 0 || r.Answers.Wrong > 0 || len(r.Models) != demo.Models {
		t.Fatalf("%s", out)
	}
	if r.Killed.IsZero() || r.Added.Before(r.Killed) || r.Forwarded == 0 || r.Moves < demo.Models || r.Retried == 0 {
		t.Errorf("%s", out)
	}
	unserved := 0
	for _, m := range r.Models {
		if m.AfterKill > 0 {
			unserved++
		}
	}
	if unserved == 0 || r.Answers.Unserved == 0 {
		t.Errorf("the kill of a server cost no model its owner: %s", out)
	}
	for _, args := range []string{"--shards 1", "--shards 3 --owners 0", "--owners 1", "--store redis://127.0.0.1:1",
		"--shards 3 --faults"} {
		if out, err := command(t, append([]string{"demo"}, strings.Fields(args)...)...).CombinedOutput(); err == nil ||
			!strings.Contains(string(out), "shards") && !strings.Contains(string(out), "owners") {
			t.Errorf("%s: %v\n%s", args, err, out)
		}
	}
	without := command(t, "demo", "--shards", "3")
	without.Args = append(without.Args, "--conductor", conductorPath(t))
	without.Env = append(without.Env, "PATH="+t.TempDir())
	if out, err := without.CombinedOutput(); err == nil ||
		!strings.Contains(string(out), "install the package valkey-server or redis-server") {
		t.Errorf("without a store: %v\n%s", err, out)
	}
}

// TestRoutersShareServer runs two example routers in front of two engines without events. A prompt that came through
// one router is found by the other, and one that the engine refused is not.
func TestRoutersShareServer(t *testing.T) {
	t.Parallel()
	s, err := demo.Launch(t.Context(), server(t), t.Output(), func(string, string) string { return "" })
	must.Succeed(t, err)
	defer func() { must.Succeed(t, s.Stop()) }()
	c, err := client.New(s.URL)
	must.Succeed(t, err)
	query := client.Query{Model: "m", BlockSize: 16, Expected: true}
	var workers []router.Worker
	for _, name := range []string{"a", "b"} {
		engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			if strings.Contains(string(body), "[9,") {
				w.WriteHeader(http.StatusTooManyRequests)
			}
			fmt.Fprint(w, name)
		}))
		defer engine.Close()
		u, err := url.Parse(engine.URL)
		must.Succeed(t, err)
		workers = append(workers, router.Worker{Instance: name, URL: u})
		must.Succeed(t, c.Register(t.Context(), client.Registration{Type: "vLLM", Instance: name, Model: "m", BlockSize: 16, Events: "none",
			CapacityBlocks: 100}))
	}
	fronts := make([]*router.Router, 2)
	for i := range fronts {
		fronts[i] = &router.Router{Conductor: c, Query: query, Workers: workers, Patience: time.Minute}
	}
	// send sends a prompt of 64 equal tokens through a router, and returns the engine that answers.
	send := func(through int, token uint32) string {
		t.Helper()
		body, err := json.Marshal(map[string]any{"prompt": slices.Repeat([]uint32{token}, 64)})
		must.Succeed(t, err)
		answer := httptest.NewRecorder()
		fronts[through].ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/completions",
			bytes.NewReader(body)))
		fronts[through].Wait()
		return fmt.Sprint(answer.Code, " ", answer.Body)
	}
	expected := func(token uint32) (tokens []int) {
		t.Helper()
		q := query
		q.Tokens = slices.Repeat([]uint32{token}, 64)
		rows, err := c.Query(t.Context(), q)
		must.Succeed(t, err)
		for _, row := range rows {
			tokens = append(tokens, row.Ranks[0].Expected)
		}
		return tokens
	}
	got := []string{send(0, 1), send(1, 2), send(1, 1), send(0, 2), send(0, 9), send(1, 9)}
	if want := "[200 a 200 a 200 a 200 a 429 b 429 b]"; fmt.Sprint(got) != want {
		t.Errorf("%v, want %s", got, want)
	}
	if known := fmt.Sprint(expected(1), expected(2), expected(9)); known != "[64 0] [64 0] [0 0]" {
		t.Errorf("expected are %s", known)
	}
	for _, r := range fronts {
		if r.Alone() > 0 {
			t.Errorf("%d choices alone", r.Alone())
		}
	}
}
