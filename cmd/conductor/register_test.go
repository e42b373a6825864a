package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"example.com/conductor/cmd/internal/cli"
	"example.com/conductor/internal/must"
)

// TestRegisterBodies reads the command lines of register.
func TestRegisterBodies(t *testing.T) {
	full := registerFlags{instance: "e", model: "m", kind: "vLLM"}
	with := func(change func(*registerFlags)) *registerFlags {
		f := full
		change(&f)
		return &f
	}
	f := func(flags *registerFlags, engine, want string) {
		t.Helper()
		bodies, err := flags.requestBodies(engine)
		must.Succeed(t, err)
		text, err := json.Marshal(bodies)
		must.Succeed(t, err)
		if string(text) != want {
			t.Errorf("%s: %s\nwant %s", engine, text, want)
		}
	}
	f(new(registerFlags), "http://engine:8000", `[{"discover":"http://engine:8000","instance_id":"engine:8000"}]`)
	f(new(registerFlags), " HTTP://engine:8000/v1/", `[{"discover":"HTTP://engine:8000/v1/","instance_id":"engine:8000"}]`)
	f(&registerFlags{instance: "e", blockSize: "16", tenant: "acme"}, "https://engine",
		`[{"block_size":16,"discover":"https://engine","instance_id":"e","tenant_id":"acme"}]`)
	f(&full, "tcp://10.0.0.1:5557",
		`[{"block_size":"auto","dp_rank":0,"endpoint":"tcp://10.0.0.1:5557","instance_id":"e","modelname":"m","type":"vLLM"}]`)
	f(with(func(f *registerFlags) { f.blockSize, f.ranks, f.replayPort = "16", "2", 6557 }), "tcp://[::1]:5557",
		`[{"block_size":16,"dp_rank":0,"endpoint":"tcp://[::1]:5557","instance_id":"e","modelname":"m",`+
			`"replay_endpoint":"tcp://[::1]:6557","type":"vLLM"},`+
			`{"block_size":16,"dp_rank":1,"endpoint":"tcp://[::1]:5558","instance_id":"e","modelname":"m",`+
			`"replay_endpoint":"tcp://[::1]:6558","type":"vLLM"}]`)
	f(with(func(f *registerFlags) { f.ranks, f.replayEndpoint = "3-3", "tcp://replays:7000" }), "tcp://e:5557",
		`[{"block_size":"auto","dp_rank":3,"endpoint":"tcp://e:5560","instance_id":"e","modelname":"m",`+
			`"replay_endpoint":"tcp://replays:7003","type":"vLLM"}]`)
	f(with(func(f *registerFlags) { f.ranks, f.blockSize = "2", "16" }), "bind:tcp://*:5557",
		`[{"block_size":16,"dp_rank":0,"endpoint":"bind:tcp://*:5557","instance_id":"e","modelname":"m","type":"vLLM"},{"block_size":16,`+
			`"dp_rank":1,"endpoint":"bind:tcp://*:5557","instance_id":"e","modelname":"m","type":"vLLM"}]`)
	f(&registerFlags{instance: "pool", model: "m", kind: "LMCache", blockSize: "256"}, "push:",
		`[{"block_size":256,"endpoint":"push:","instance_id":"pool","modelname":"m","type":"LMCache"}]`)
	f(with(func(f *registerFlags) {
		f.set = []string{"events=none", "capacity_blocks=100", `aliases=["a","b"]`, "ttl=10m"}
		f.blockSize = "16"
	}), "", `[{"aliases":["a","b"],"block_size":16,"capacity_blocks":100,"events":"none","instance_id":"e","modelname":"m","ttl":"10m",`+
		`"type":"vLLM"}]`)

	wrong := func(flags *registerFlags, engine, want string) {
		t.Helper()
		if bodies, err := flags.requestBodies(engine); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, %v, want %q", engine, bodies, err, want)
		}
	}
	wrong(&full, "", "no engine: name it as http://host:port")
	wrong(&full, "engine:8000", "write http://engine:8000 for the address of the engine's API, or tcp://engine:8000")
	wrong(new(registerFlags), "tcp://e:5557", "add --instance, --model, --type")
	wrong(&registerFlags{ranks: "8"}, "http://engine:8000", "leave --ranks")
	wrong(with(func(f *registerFlags) { f.ranks = "2" }), "tcp://e:65535", "rank 1 of tcp://e:65535 would be at port 65536")
	wrong(with(func(f *registerFlags) { f.ranks = "2" }), "ipc:///tmp/e", "no port to add rank 1 to")
	wrong(with(func(f *registerFlags) { f.replayPort = 1 }), "ipc:///tmp/e", "--replay-endpoint")
	wrong(with(func(f *registerFlags) { f.blockSize = "big" }), "tcp://e:1", "--block-size")
	wrong(with(func(f *registerFlags) { f.set = []string{"ttl"} }), "tcp://e:1", "field=value")
	for _, ranks := range []string{"0", "-1", "x", "3-1", "1-x", "5000", "-"} {
		wrong(with(func(f *registerFlags) { f.ranks = ranks }), "tcp://e:1", "--ranks: \""+ranks+"\"")
	}
}

// ranksOf reads what register and unregister print with --json.
func ranksOf(t *testing.T, out string) (all []changedRank) {
	t.Helper()
	must.Succeed(t, json.Unmarshal([]byte(out), &all))
	return all
}

// TestRegisterCommand registers instances with their ranks, repeats that, and removes them.
func TestRegisterCommand(t *testing.T) {
	t.Parallel()
	p := serveProcess(t, "limits: {max_sources: 4}\n")
	run := func(status int, want string, args ...string) string {
		t.Helper()
		got, out, errs := runCLI(append(args, "--server", p.url)...)
		if got != status || !strings.Contains(out+errs, want) {
			t.Errorf("%v: %d\n%s%s\nwant %d %q", args, got, out, errs, status, want)
		}
		return out
	}
	register := []string{"register", "tcp://127.0.0.1:1", "--instance", "a", "--model", "m", "--type", "vLLM", "--block-size", "16",
		"--ranks", "2", "--replay-port", "11"}
	out := run(cli.ExitFine, "", register...)
	if !slices.Equal(strings.Fields(out), strings.Fields(`INSTANCE TENANT RANK ENDPOINT REPLAY STATE
		a default 0 tcp://127.0.0.1:1 tcp://127.0.0.1:11 connecting
		a default 1 tcp://127.0.0.1:2 tcp://127.0.0.1:12 connecting`)) && !strings.Contains(out, "refused") {
		t.Errorf("registered: %s", out)
	}
	if all := ranksOf(t, run(cli.ExitFine, "", append(register, "--json")...)); len(all) != 2 || all[1].Endpoint != "tcp://127.0.0.1:2" ||
		all[1].Rank != 1 || all[1].Result != "registered" {
		t.Errorf("again: %+v", all)
	}
	// Some ranks find no room, and the others stay.
	more := append(slices.Clone(register), "--ranks", "4")
	more[3] = "prefill"
	out = run(cli.ExitError, "2 of 4 ranks of prefill are refused: 2, 3", more...)
	if strings.Count(out, "refused: ") < 2 || strings.Count(out, "\nprefill ") != 4 {
		t.Errorf("no room: %s", out)
	}
	run(cli.ExitError, "refused: ", append(register, "--block-size", "32")...)
	run(cli.ExitFine, "unknown field blok", append(register, "--block-size", "32", "--replace", "--set", "blok=1")...)
	run(cli.ExitError, "2 of 2 ranks of a are not healthy: 0, 1; rank 0: ",
		append(register, "--block-size", "32", "--wait", "--timeout", "300ms")...)

	run(cli.ExitError, `no instance "prefil" is registered; did you mean "prefill"?`, "unregister", "prefil")
	run(cli.ExitError, `no instance "prefill" is registered for tenant "acme"`, "unregister", "prefill", "--tenant", "acme")
	run(cli.ExitError, "prefill has no rank 3", "unregister", "prefill", "--rank", "3")
	run(cli.ExitFine, "unregistered", "unregister", "prefill", "--rank", "1")
	if all := ranksOf(t, run(cli.ExitFine, "", "unregister", "a", "--json")); len(all) != 2 || all[0].Result != "unregistered" ||
		all[1].Result != "unregistered" {
		t.Errorf("unregistered: %+v", all)
	}
	if _, answer := get(p.url + "/services"); !strings.Contains(answer, `"count":1`) {
		t.Errorf("left: %s", answer)
	}
	// A field that the command compares with what the server says has one way only.
	if status, _, errs := runCLI(append(register, "--set", "dp_rank=3")...); status != cli.ExitUsage ||
		!strings.Contains(errs, "--set: dp_rank is set by --ranks, as in --ranks 3-3") {
		t.Errorf("--set dp_rank: %d %s", status, errs)
	}
	// A block size that the first events tell.
	run(cli.ExitFine, "waiting", "register", "tcp://127.0.0.1:1", "--instance", "c", "--model", "m", "--type", "vLLM", "--ranks", "3-4")
	if all := ranksOf(t, run(cli.ExitFine, "", "unregister", "c", "--json")); len(all) != 2 || all[0].Rank != 3 ||
		all[1].Result != "unregistered" {
		t.Errorf("unregistered while learning: %+v", all)
	}
	// Names of several tenants.
	for _, tenant := range []string{"acme", "default"} {
		run(cli.ExitFine, tenant, "register", "tcp://127.0.0.1:1", "--instance", "d", "--model", "m", "--type", "vLLM", "--block-size",
			"16", "--tenant", tenant)
	}
	run(cli.ExitError, "instances of the tenants acme, default are called \"d\": name one with --tenant", "unregister", "d")
	run(cli.ExitFine, "acme", "unregister", "d", "--tenant", "acme")
	run(cli.ExitUsage, "no scheme", "register", "127.0.0.1:1")
	status, _, errs := runCLI("register", "http://127.0.0.1:1", "--server", "127.0.0.1:1")
	if status != cli.ExitError || errs != "conductor: no server listens at 127.0.0.1:1: start one with conductor serve, or name it with "+
		"--server\n" {
		t.Errorf("no server: %d %s", status, errs)
	}
}

// TestWaitTellsErrors registers an engine with a wrong block size: it is synced, and --wait, doctor, services and /ready say
// what is wrong, and what to do.
func TestWaitTellsErrors(t *testing.T) {
	t.Parallel()
	p, e := serveProcess(t, ""), newRuledEngine(t, "a", 0)
	const remedy = "registered is 16: they cannot be indexed; register block_size 12"
	run := func(status int, want string, args ...string) {
		t.Helper()
		if got, out, errs := runCLI(append(args, "--server", p.url)...); got != status || !strings.Contains(out+errs, want) {
			t.Errorf("%v: %d\n%s%s\nwant %d %q", args, got, out, errs, status, want)
		}
	}
	register := []string{"register", "tcp://" + e.pub.Addr().String(), "--instance", "a", "--model", "m", "--type", "vLLM",
		"--block-size", "16"}
	run(cli.ExitFine, "", register...)
	for i := range 8 {
		e.publish(map[string]any{"type": "BlockStored", "block_hashes": []int{i}, "parent_block_hash": nil,
			"token_ids": recordedTokens(1)[:12], "block_size": 12, "medium": "GPU"})
	}
	e.settled(p)
	run(cli.ExitError, "a is not healthy: events announce blocks of 12 tokens, "+remedy, append(register, "--wait")...)
	run(cli.ExitError, remedy, "doctor")
	salted := newRuledEngine(t, "salted", 0)
	with := []string{"register", "tcp://" + salted.pub.Addr().String(), "--instance", "salted", "--model", "m", "--type", "vLLM",
		"--block-size", "16", "--salt", "pepper"}
	run(cli.ExitFine, "", with...)
	salted.publish(ruledStored(0, 1))
	salted.settled(p)
	run(cli.ExitFine, `only queries with cache_salt "pepper" find its blocks`, append(with, "--wait")...)
	run(cli.ExitFine, "unregistered", "unregister", "salted")
	run(cli.ExitFine, remedy, "services")
	if status, body := get(p.url + "/ready"); status != 200 ||
		!strings.HasPrefix(body, `{"summary":"1 source has an error finding","summary_severity":"error","ready":true`) {
		t.Errorf("/ready: %d %s", status, body)
	}
}

// TestRegisterBeforeFirstAttempt registers two ranks with a server that has not tried to connect to them yet. It
// lists rank 0, whose block size it will learn from the first events, without an error, and rank 1 not at all.
func TestRegisterBeforeFirstAttempt(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer := `{}`
		if r.URL.Path == "/conductor/v1/services" {
			answer = `{"services":[],"discovery":[{"InstanceID":"c","TenantID":"default","DPRank":0,"Sources":0}]}`
		}
		if _, err := io.WriteString(w, answer); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(server.Close)
	status, out, errs := runCLI("register", "tcp://127.0.0.1:1", "--instance", "c", "--model", "m", "--type", "vLLM", "--ranks", "2",
		"--json", "--server", server.URL)
	if status != cli.ExitFine {
		t.Fatalf("%d %s%s", status, out, errs)
	}
	if all := ranksOf(t, out); len(all) != 2 || all[0].State != "waiting" || all[1].State != "" || all[1].Result != "registered" {
		t.Errorf("%+v, want rank 0 waiting and rank 1 only registered", all)
	}
}

// TestRegisterByDiscovery registers an engine by its address, waits until it is synced, and removes it.
func TestRegisterByDiscovery(t *testing.T) {
	t.Parallel()
	p := serveProcess(t, "")
	e := newRuledEngine(t, "engine", 0)
	at := tells(t, e)
	name := strings.TrimPrefix(at, "http://")
	_, port, err := net.SplitHostPort(e.pub.Addr().String())
	must.Succeed(t, err)
	var status int
	var out, errs string
	eventually(t, "registered", func() (string, bool) { // the command waits five seconds for the engine
		status, out, errs = runCLI("register", at, "--server", p.url, "--block-size", "16")
		return fmt.Sprintf("%d %s%s", status, out, errs), status == cli.ExitFine && strings.Contains(out, "\n"+name+" ") &&
			strings.Contains(out, "tcp://127.0.0.1:"+port)
	})
	e.name = name
	e.publish(ruledStored(0, 3))
	e.settled(p) // before its first batch the source is partial, and --wait ends with an error
	status, out, errs = runCLI("register", at, "--server", p.url, "--block-size", "16", "--wait", "--json")
	if all := ranksOf(t, out); status != cli.ExitFine || len(all) != 1 || all[0].Instance != name || all[0].State != "synced" {
		t.Errorf("waited: %d %s%s", status, out, errs)
	}
	if status, out, errs := runCLI("unregister", name, "--server", p.url, "--rank", "0"); status != cli.ExitError ||
		!strings.Contains(errs, "leave --rank out") {
		t.Errorf("one rank: %d %s%s", status, out, errs)
	}
	if status, out, errs := runCLI("unregister", name, "--server", p.url); status != cli.ExitFine ||
		!strings.Contains(out, "unregistered") {
		t.Errorf("unregistered: %d %s%s", status, out, errs)
	}
	if _, answer := get(p.url + "/services"); answer != `{"count":0,"services":[]}` {
		t.Errorf("left: %s", answer)
	}

	status, out, errs = runCLI("register", "http://127.0.0.1:1", "--server", p.url)
	if status != cli.ExitFine || out != "" ||
		!strings.Contains(errs, "warning: 127.0.0.1:1 is registered, and has not told yet where it publishes: ") {
		t.Errorf("deaf: %d %s%s", status, out, errs)
	}
	if status, out, errs := runCLI("unregister", "127.0.0.1:1", "--server", p.url); status != cli.ExitFine ||
		!strings.Contains(out, "is not asked any more") {
		t.Errorf("deaf: %d %s%s", status, out, errs)
	}
}

// TestRegisterWithoutAsking registers with a token that may register and not ask.
func TestRegisterWithoutAsking(t *testing.T) {
	t.Parallel()
	token := filepath.Join(t.TempDir(), "token")
	entry, err := command("token", "--name", "engines", "--role", "register", "--out", token).Output()
	must.Succeed(t, err)
	file := filepath.Join(t.TempDir(), "credentials.yaml")
	must.Succeed(t, os.WriteFile(file, []byte("tokens:\n"+string(entry)), 0o600))
	p := serveProcess(t, "auth: {file: "+file+"}\n")
	status, out, errs := runCLI("register", "tcp://127.0.0.1:1", "--instance", "a", "--model", "m", "--type", "vLLM", "--block-size", "16",
		"--server", p.url, "--token-file", token)
	if status != cli.ExitFine || !strings.Contains(out, "registered") {
		t.Errorf("register: %d %s%s", status, out, errs)
	}
	status, _, errs = runCLI("unregister", "a", "--server", p.url, "--token-file", token)
	if status != cli.ExitError || !strings.Contains(errs, "refuses: this needs the role query; the client of the token in "+token+
		" may not") {
		t.Errorf("unregister: %d %s", status, errs)
	}
	status, _, errs = runCLI("services", "--server", p.url)
	if status != cli.ExitError || !strings.Contains(errs, "send a token with --token-file") {
		t.Errorf("no token: %d %s", status, errs)
	}
}
