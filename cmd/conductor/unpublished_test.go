package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	kv "example.com/conductor/client"
	"example.com/conductor/internal/apitest"
	"example.com/conductor/internal/must"
)

// An engine that publishes no events is registered by a file and by a client, is listed, has rows of zeros, is waited for by
// nothing, leaves no advice, and is there again after a restart until a client unregisters it.
func TestEngineWithoutEvents(t *testing.T) {
	t.Parallel()
	doc := apitest.Load(t)
	s := newLastingServer(t, false, "ready: {min_sources: 2}\ndynamo: {test_endpoints: true}\n",
		"sources: [{events: none, capacity_blocks: 8, type: Standard, modelname: m, instance_id: llama, block_size: 16}]\n")
	if status, body := get(s.url + "/ready"); status != 503 || !strings.Contains(body, `"synced":1,`) ||
		!strings.Contains(body, `"waiting":[]`) && !strings.Contains(body, `"recovering":true`) {
		t.Errorf("with one of two sources: %d %s", status, body)
	}
	c, err := kv.New(s.url)
	must.Succeed(t, err)
	tgi := kv.Registration{Type: "vLLM", Model: "m", Instance: "tgi", BlockSize: 16, Events: "none", CapacityBlocks: 4096,
		Approximate: "count"}
	must.Succeed(t, c.Register(t.Context(), tgi))
	must.Succeed(t, c.Register(t.Context(), tgi))
	all, err := c.Services(t.Context())
	if err != nil || len(all) != 2 || all[0].Events != "none" || all[0].CapacityBlocks != 8 || all[0].Approximate != "" ||
		all[1].State != "approximate" || all[1].CapacityBlocks != 4096 || all[1].Approximate != "count" || all[1].Endpoint != "" {
		t.Errorf("%+v, %v", all, err)
	}

	run := func(args ...string) string {
		t.Helper()
		out, err := command(append(args, "--server", s.url)...).Output()
		if err != nil {
			t.Errorf("%q: %v %s", args, err, out)
		}
		return string(out)
	}
	holds := func(when string) {
		t.Helper()
		eventually(t, "it is not ready "+when, func() (string, bool) { status, body := get(s.url + "/ready"); return body, status == 200 })
		answer := post(t, s.url+"/query?detail=1", `{"model":"m","block_size":16,"token_ids":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16]}`,
			200)
		for _, instance := range []string{"llama", "tgi"} {
			if want := fmt.Sprintf(`"%s":{"longest_matched":0,`, instance); !strings.Contains(answer, want) ||
				strings.Count(answer, `"state":"approximate","reason":""`) != 2 {
				t.Errorf("%s: %s", when, answer)
			}
		}
		if _, body := get(s.url + "/metrics"); !strings.Contains(body, "conductor_sources{state=\"approximate\"} 2\n") ||
			!strings.Contains(body, `conductor_source_state{dp_rank="0",instance_id="tgi",reason="",state="approximate",`+
				`tenant_id="default"} 1`) {
			t.Errorf("%s: the metrics do not show them", when)
		}
		if _, body := get(s.url + "/admin/stats"); strings.Count(body, `"state":"approximate"`) != 2 {
			t.Errorf("%s: %s", when, body)
		}
		if out := run("doctor"); out != "nothing to do\n" {
			t.Errorf("%s: %s", when, out)
		}
		if out := run("top"); !strings.HasPrefix(out, "2 sources, 2 synced") {
			t.Errorf("%s: %s", when, out)
		}
	}
	holds("at first")
	a := askExplain(t, s.process, doc, map[string]any{"model": "m", "block_size": recordedBlock, "token_ids": recordedTokens(4),
		"instance_id": "llama"})
	if len(a.Instances) != 1 || len(a.Instances[0].Ranks) != 1 || a.Instances[0].Ranks[0].text() != "| 0 [0 16] no_events" {
		t.Errorf("%+v", a)
	}
	if _, body := get(s.url + "/dynamo/v1/workers"); !strings.Contains(body, `"instance_id":"llama"`) ||
		!strings.Contains(body, `"status":"active"`) {
		t.Errorf("%s", body)
	}
	post(t, s.url+"/dynamo/v1/test/pause_listener", `{"instance_id":"llama"}`, 200)
	holds("after a pause")
	must.Succeed(t, c.Feedback(t.Context(), "tgi", "", "", 0, 512))

	for _, discover := range []string{`"discover":"http://127.0.0.1:1","block_size":16`, `"block_size":"auto"`} {
		body := post(t, s.url+"/register", `{"events":"none","capacity_blocks":8,"type":"Standard","modelname":"m","instance_id":"x",`+
			discover+`}`, 400)
		if !strings.Contains(body, "with events none") {
			t.Errorf("%s: %s", discover, body)
		}
	}

	s.kill()
	s.start()
	holds("after a restart")
	post(t, s.url+"/unregister", `{"instance_id":"tgi","dp_rank":0}`, 200)
	post(t, s.url+"/unregister", `{"instance_id":"tgi","dp_rank":0}`, 404)
	s.kill()
	s.start()
	if has := s.has(); len(has) != 1 || !has["llama"] {
		t.Errorf("after its end: %v", has)
	}
}

// The settings of such a source are checked and summed up.
func TestConfigOfEngineWithoutEvents(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "config.yaml")
	must.Succeed(t, os.WriteFile(file, []byte("sources:\n"+
		"  - {events: none, capacity_blocks: 8, type: Standard, modelname: m, instance_id: llama, block_size: 16}\n"+
		"  - {events: none, capacity_blocks: 8, type: Standard, modelname: m, instance_id: tgi, block_size: 16}\n"), 0o600))
	out, err := command("config", "check", file).CombinedOutput()
	if err != nil || strings.Count(string(out), "events none, room for 8 blocks") != 2 || strings.Contains(string(out), "warning") {
		t.Errorf("%v: %s", err, out)
	}
}
