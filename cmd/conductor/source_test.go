package main

import (
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"example.com/conductor/internal/must"
)

// sourceStory is the answer of /admin/source.
type sourceStory struct {
	Endpoint   string
	Registered struct {
		By, Name string
		At       time.Time
	}
	Groups []struct {
		Rank      int `json:"dp_rank"`
		Group     int
		Kind      string
		Window    int
		BlockSize int `json:"block_size"`
		Blocks    int
	} `json:"attention_groups"`
	Events []struct {
		Kind, From, To, Reason string
		Gaps, Batches, Epoch   int
	}
}

// words returns the events in words.
func (s *sourceStory) words() string {
	var all []string
	for _, e := range s.Events {
		all = append(all, strings.Join(strings.Fields(fmt.Sprint(e.Kind, " ", e.To, " ", e.Reason)), " "))
	}
	return strings.Join(all, ", ")
}

// TestSourceStory holds that the server tells who registered a source, also after a restart, and what has happened
// to it.
func TestSourceStory(t *testing.T) {
	t.Parallel()
	named, told := newRuledEngine(t, "named", 0), newRuledEngine(t, "told", 0)
	settings := fmt.Sprintf("snapshot: {dir: %q}\nauth: {file: %s}\nsources:\n", t.TempDir(),
		credentialsFile(t, "router register,admin '*'", "asks query '*'")) + explainSource(named, "vLLM", "m", "")
	p := serveProcess(t, settings)
	story := func(source string) (s sourceStory) {
		t.Helper()
		status, text := askAs(t, "GET", p.url+"/admin/source?source="+url.QueryEscape(source), "router", "", nil)
		if status != 200 {
			t.Fatalf("%s: %d %s", source, status, text)
		}
		must.Succeed(t, json.Unmarshal([]byte(text), &s))
		return s
	}
	status, text := askAs(t, "POST", p.url+"/register", "router", "application/json",
		fmt.Appendf(nil, `{"endpoint":"tcp://%s","type":"vLLM","modelname":"m","instance_id":"told","block_size":16,"dp_rank":0}`,
			told.pub.Addr()))
	if status != 200 {
		t.Fatalf("%d %s", status, text)
	}
	if s := story("named|default|0"); s.Registered.By != "configuration" || s.Registered.Name != "" || s.Endpoint != "tcp://"+
		named.pub.Addr().String() {
		t.Errorf("%+v", s)
	}
	named.publish(ruledStored(0, 2, "group_idx", 0, "kv_cache_spec_kind", "full_attention"),
		ruledStored(0, 1, "group_idx", 1, "kv_cache_spec_kind", "sliding_window", "kv_cache_spec_sliding_window", 64))
	eventually(t, "the attention groups are not there", func() (string, bool) {
		got := fmt.Sprint(story("named|default|0").Groups)
		return got, got == "[{0 0 full_attention 0 16 2} {0 1 sliding_window 64 16 1}]"
	})
	first := story("told|default|0")
	if first.Registered.By != "client" || first.Registered.Name != "router" || time.Since(first.Registered.At) > time.Hour {
		t.Errorf("%+v", first)
	}
	told.publish(ruledStored(0, 2))
	told.seq += 5
	told.publish(ruledStored(0, 1))
	told.seq = 0
	told.publish(ruledStored(0, 3))
	eventually(t, "the story is not whole", func() (string, bool) {
		s, left := story("told|default|0"), map[string]int{"gap": 1, "lost": 5, "dropped publisher_restarted": 2,
			"state partial gap_unrecoverable": 0, "state synced": 0}
		for _, e := range s.Events {
			what := strings.Join(strings.Fields(e.Kind+" "+e.To+" "+e.Reason), " ")
			if left[what] == e.Gaps+e.Batches+e.Epoch {
				delete(left, what)
			}
		}
		return fmt.Sprint(s.words(), " lacks ", left), len(left) == 0
	})
	for token, name := range map[string]string{"router": "router", "asks": ""} {
		_, text := askAs(t, "GET", p.url+"/services", token, "", nil)
		if !strings.Contains(text, `"Registered":"client","RegisteredBy":"`+name+`"`) {
			t.Errorf("%s sees %s", token, text)
		}
	}
	must.Succeed(t, p.cmd.Process.Kill()) // the registration is on the disk since its answer
	p.cmd.Wait()
	p = serveProcess(t, settings)
	if again := story("told|default|0"); again.Registered != first.Registered {
		t.Errorf("after a restart %+v, before %+v", again.Registered, first.Registered)
	}
}

// TestSettingsInForce holds that operators see the settings in use, after a reload too, and no password.
func TestSettingsInForce(t *testing.T) {
	t.Parallel()
	p := serveProcess(t, "tracing: {endpoint: 'http://user:secret@127.0.0.1:1/'}\nlimits: {max_tenant_sources: 7}\n")
	_, text := get(p.url + "/admin/settings")
	for _, want := range []string{`"file":"/`, `"name":"limits.max_tenant_sources","value":"7","default":"0","changed":true,"live":true`,
		`"name":"tracing.endpoint","value":"http://***@127.0.0.1:1/"`,
		`"name":"log.level","value":"info","default":"info","changed":false`} {
		if !strings.Contains(text, want) {
			t.Errorf("%s is missing in %s", want, text)
		}
	}
	if strings.Contains(text, "secret") {
		t.Errorf("the password is shown: %s", text)
	}
}
