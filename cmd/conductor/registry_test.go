package main

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"example.com/conductor/internal/must"
	"example.com/conductor/internal/redistest"
)

// follow waits until servers follow instances, in order, and no others.
func follow(t *testing.T, servers []*process, instances ...string) {
	t.Helper()
	for i, p := range servers {
		eventually(t, fmt.Sprintf("server %d never follows %v", i, instances), func() (string, bool) {
			_, text := get(p.url + "/services")
			var answer servicesAnswer
			decode(t, text, &answer)
			var names []string
			for _, s := range answer.Services {
				names = append(names, s.InstanceID)
			}
			return strings.Join(names, " "), slices.Equal(names, instances)
		})
	}
}

// registered is the body of a registration.
func registered(instance, endpoint string) string {
	return fmt.Sprintf(`{"endpoint":"tcp://%s","type":"vLLM","modelname":"m","instance_id":%q,"block_size":16,"dp_rank":0}`, endpoint,
		instance)
}

// TestReplicasShareSources registers at one of three servers, unregisters at another, takes the
// store away, brings an empty one back, and restarts a server.
func TestReplicasShareSources(t *testing.T) {
	t.Parallel()
	shared := redistest.Start(t)
	engine, fixed := newRuledEngine(t, "engine", 0), newRuledEngine(t, "fixed", 0)
	settings := "store: {url: '" + shared.URL() + "'}\nshutdown: {drain: 0s}\n"
	configured := settings + "sources:\n  - {endpoint: 'tcp://" + fixed.pub.Addr().String() +
		"', type: vLLM, modelname: m, instance_id: fixed, block_size: 16}\n"
	all := []*process{serveProcess(t, settings), serveProcess(t, settings), serveProcess(t, configured)}
	follow(t, all, "fixed")

	post(t, all[0].url+"/register", registered("engine", engine.pub.Addr().String()), 200)
	follow(t, all, "engine", "fixed")
	for _, p := range all {
		eventually(t, "a server does not follow the engine", func() (string, bool) {
			engine.publish(ruledStored(0, 4))
			_, text := get(p.url + "/services")
			return text, strings.Contains(text, `"Blocks":4`)
		})
	}
	eventually(t, "the fleet does not say who follows whom", func() (string, bool) {
		_, text := get(all[1].url + "/services?fleet=1")
		var answer fleetAnswer
		decode(t, text, &answer)
		return text, answer.Complete && len(answer.Services) == 2 && len(answer.Services[0].Replicas) == 3 &&
			len(answer.Services[1].Replicas) == 3 &&
			answer.Services[0].Registered == "client" && answer.Services[1].Registered == "configuration" &&
			answer.Services[0].Replicas[0].State != "connecting"
	})
	eventually(t, "the command does not say it", func() (string, bool) { // of another server, which may hear of it later
		out, err := command("services", "--fleet", "--server", all[0].url).CombinedOutput()
		return fmt.Sprintf("%v %s", err, out), err == nil && strings.Contains(string(out), "configuration") &&
			strings.Count(string(out), all[2].url+" ") == 2
	})

	// Every dialect.
	post(t, all[1].url+"/dynamo/v1/register",
		`{"instance_id":7,"model_name":"m","block_size":16,"dp_rank":0,"endpoint":"tcp://127.0.0.1:9"}`, 201)
	post(t, all[2].url+"/conductor/v1/register?dialect=v2", registered("second", "127.0.0.1:9"), 200)
	post(t, all[0].url+"/register", `{"instance_id":"asked","discover":"http://127.0.0.1:9"}`, 200)
	follow(t, all, "7", "engine", "fixed", "second")
	for _, p := range all {
		eventually(t, "a server does not ask the engine", func() (string, bool) {
			_, text := get(p.url + "/services")
			return text, strings.Contains(text, `"URL":"http://127.0.0.1:9"`)
		})
	}
	post(t, all[2].url+"/dynamo/v1/unregister", `{"instance_id":7,"model_name":"m"}`, 200)
	post(t, all[1].url+"/unregister", `{"instance_id":"second","dp_rank":0}`, 200)
	post(t, all[2].url+"/unregister", `{"instance_id":"asked","dp_rank":0}`, 200)
	follow(t, all, "engine", "fixed")
	for _, p := range all {
		eventually(t, "a server still asks the engine", func() (string, bool) {
			_, text := get(p.url + "/services")
			return text, !strings.Contains(text, `"URL"`)
		})
	}

	// The store goes, and comes back empty.
	shared.Kill()
	for _, p := range all {
		eventually(t, "/ready does not say that the store is away", func() (string, bool) {
			status, text := get(p.url + "/ready")
			return text, status == 200 && strings.Contains(text, `"up":false`)
		})
	}
	post(t, all[0].url+"/register", registered("meanwhile", "127.0.0.1:9"), 200)
	post(t, all[1].url+"/unregister", `{"instance_id":"engine","dp_rank":0}`, 200)
	follow(t, all[:1], "engine", "fixed", "meanwhile")
	if _, text := get(all[0].url + "/services?fleet=1"); !strings.Contains(text, `"complete":false`) ||
		!strings.Contains(text, "meanwhile") {
		t.Errorf("without the store: %s", text)
	}
	shared.Run()
	follow(t, all, "fixed", "meanwhile")

	// A server that is killed and one that stops come back.
	must.Succeed(t, all[0].cmd.Process.Kill())
	must.Succeed(t, all[2].cmd.Process.Signal(syscall.SIGTERM))
	must.Succeed(t, all[2].cmd.Wait())
	follow(t, all[1:2], "fixed", "meanwhile")
	all[0], all[2] = serveProcess(t, settings), serveProcess(t, configured)
	follow(t, all, "fixed", "meanwhile")
}

// TestFleetServicesByTenant shows a client the sources of its tenants alone.
func TestFleetServicesByTenant(t *testing.T) {
	t.Parallel()
	shared := redistest.Start(t)
	p, _ := twoTenants(t, "store: {url: '"+shared.URL()+"'}\n")
	eventually(t, "the registry is not there", func() (string, bool) {
		_, text := askAs(t, "GET", p.url+"/services?fleet=1", "operator", "", nil)
		return text, strings.Count(text, `"State":"`) == 2 && strings.Contains(text, "registered-b") &&
			strings.Contains(text, `"URL":"http://`)
	})
	for _, accept := range []string{"application/json", "application/msgpack"} {
		req, err := http.NewRequest("GET", p.url+"/services?fleet=1", nil)
		must.Succeed(t, err)
		req.Header.Set("Accept", accept)
		req.Header.Set("Authorization", "Bearer query-b")
		resp, err := http.DefaultClient.Do(req)
		must.Succeed(t, err)
		answer, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		must.Succeed(t, err)
		text := string(answer)
		for _, secret := range []string{"engine-a", "registered-", "tcp://", "http://"} {
			if strings.Contains(text, secret) {
				t.Errorf("%s as %s: %q", secret, accept, text)
			}
		}
		if !strings.Contains(text, "engine-b") {
			t.Errorf("%q", text)
		}
	}
	if status, _ := askAs(t, "GET", p.url+"/services?fleet=1", "", "", nil); status != 401 {
		t.Errorf("without credentials: %d", status)
	}
}

// TestForgedEntriesGiveWay fills the registry of a server with 3,000 entries that no server has written: most cannot
// be used, the others take all sources there may be. Clients register all the same, and the log stays short.
func TestForgedEntriesGiveWay(t *testing.T) {
	t.Parallel()
	shared, began := redistest.Start(t), time.Now()
	p := serveProcess(t, "store: {url: '"+shared.URL()+"'}\nlimits: {max_sources: 20}\nshutdown: {drain: 0s}\n")
	store := redis.NewClient(&redis.Options{Addr: shared.Addr})
	defer store.Close()
	var entries []any
	for i := range 1000 {
		name := fmt.Sprintf("forged%04d", i)
		field := fmt.Sprintf(`[%q,"default",0]`, name)
		good := fmt.Sprintf(`{"at":5,"by":"x","source":{"instance_id":%q,"modelname":"m","type":"vLLM","block_size":16,`+
			`"endpoint":"tcp://127.0.0.1:9"}}`, name)
		entries = append(entries, field, good, "nonsense"+name, good, field+" ", good)
	}
	must.Succeed(t, store.HSet(t.Context(), "kvconductor:{default}:sources", entries...).Err())
	must.Succeed(t, store.Incr(t.Context(), "kvconductor:{default}:revision").Err())
	eventually(t, "the entries are not taken over", func() (string, bool) {
		_, text := get(p.url + "/services")
		return text, strings.Count(text, `"InstanceID":"forged`) >= 20
	})
	for i := range 20 {
		post(t, p.url+"/register", registered(fmt.Sprintf("engine%02d", i), "127.0.0.1:9"), 200)
	}
	post(t, p.url+"/register", registered("more", "127.0.0.1:9"), 503)
	if _, text := get(p.url + "/services"); strings.Count(text, `"InstanceID":"forged`) > 0 {
		t.Error(text)
	}
	// The line comes behind the change, and once a minute at most.
	eventually(t, "no line about entries", func() (string, bool) { return p.log(), strings.Contains(p.log(), "entries of the registry") })
	if n, most := strings.Count(p.log(), "entries of the registry"), 1+int(time.Since(began)/time.Minute); n > most {
		t.Errorf("%d lines about entries: %.4000s", n, p.log())
	}
}

// TestReplicasKeepTheLaterRegistration changes sources at one server and then at the other, which has not heard of it: each
// time the later change counts at both.
func TestReplicasKeepTheLaterRegistration(t *testing.T) {
	t.Parallel()
	settings := "store: {url: '" + redistest.Start(t).URL() + "'}\nshutdown: {drain: 0s}\n"
	a, b := serveProcess(t, settings), serveProcess(t, settings)
	both := []*process{a, b}
	var all []string
	for i := range 20 {
		all = append(all, fmt.Sprintf("engine-%02d", i))
		post(t, a.url+"/register", registered(all[i], "127.0.0.1:9"), 200)
	}
	follow(t, both, all...)
	// Once both follow the last source of the other, they have heard of all that it did before.
	settle := func(round string, want ...string) {
		t.Helper()
		last := []string{"last-a-" + round, "last-b-" + round}
		post(t, a.url+"/register", registered(last[0], "127.0.0.1:9"), 200)
		post(t, b.url+"/register", registered(last[1], "127.0.0.1:9"), 200)
		follow(t, both, append(want, last...)...)
		for _, name := range last {
			post(t, a.url+"/unregister", unregistered(name), 200)
		}
		follow(t, both, want...)
	}
	for _, name := range all {
		post(t, a.url+"/unregister", unregistered(name), 200)
		post(t, b.url+"/register", registered(name, "127.0.0.1:9"), 200)
	}
	settle("registered", all...)
	for _, name := range all {
		post(t, b.url+"/unregister", unregistered(name), 200)
		post(t, a.url+"/register", registered(name, "127.0.0.1:9"), 200)
		resp, err := http.Post(b.url+"/unregister", "application/json", strings.NewReader(unregistered(name)))
		must.Succeed(t, err)
		if resp.Body.Close(); resp.StatusCode != 404 && resp.StatusCode != 200 { // 404 if it has not heard that the source is back
			t.Errorf("%s: %s", name, resp.Status)
		}
	}
	settle("unregistered")
}

// unregistered is the body that unregisters an instance.
func unregistered(instance string) string {
	return fmt.Sprintf(`{"instance_id":%q,"dp_rank":0}`, instance)
}
