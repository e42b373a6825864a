package discovery

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
)

// TestBaseOf holds what stands in front of the paths of an engine in the URLs that people have of it.
func TestBaseOf(t *testing.T) {
	for text, want := range map[string]string{
		"http://h:8000": "http://h:8000", "http://h:8000/": "http://h:8000", "http://h:8000//": "http://h:8000",
		"http://h:8000/v1": "http://h:8000", "http://h:8000/v1/": "http://h:8000", "HTTP://h:8000/v1": "HTTP://h:8000",
		"http://h/team/v1": "http://h/team", "http://h/team/v1/": "http://h/team", "http://h/team": "http://h/team",
		"http://h/v1/chat/completions": "http://h", "http://h/team/v1/completions": "http://h/team",
		"http://h/v1/models": "http://h", "http://h/v1/models/": "http://h", "http://h/v1/embeddings": "http://h",
		"http://h/v1/responses": "http://h", "http://h/v1/messages": "http://h", "http://h/a%2Fb/v1": "http://h/a%2Fb",
		"http://h/kv_event_sources": "http://h", "http://h/team/server_info": "http://h/team", "http://h/get_server_info": "http://h",
		"http://h/health": "http://h", "http://h/metrics": "http://h", "http://h/generate": "http://h",
		// A path behind which engines have theirs stays.
		"http://h/v1/team": "http://h/v1/team", "http://h/v1/v1": "http://h/v1", "http://h/v10": "http://h/v10",
		"http://h/models": "http://h/models", "http://v1": "http://v1", "http://health": "http://health", "http://h/env1": "http://h/env1",
	} {
		if got := baseOf(text); got != want {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
	}
}

// TestDiscoverAtOpenAIBase follows engines whose URL is the one that clients of OpenAI's API have.
func TestDiscoverAtOpenAIBase(t *testing.T) {
	for _, c := range []struct{ behind, prefix string }{
		{"/v1", ""}, {"/v1/", ""}, {"/v1/chat/completions", ""}, {"/team/v1", "/team"}, {"/kv_event_sources", ""}, {"/v1/v1", "/v1"},
	} {
		for _, model := range []string{"", "llama"} {
			f := newFleet(t, nil, "127.0.0.1")
			f.answer("127.0.0.1", c.prefix+"/kv_event_sources", vllmTells(7000))
			f.answer("127.0.0.1", c.prefix+"/v1/models", `{"data":[{"id":"llama"}]}`)
			f.add("127.0.0.1", func(t *Target) { t.URL, t.Model = t.URL+c.behind, model })
			f.want(sourcesAt(7000)...)
			if s := l0(f); s.Error != "" || !strings.HasSuffix(s.URL, c.behind) {
				t.Errorf("%s: %+v", c.behind, s)
			}
		}
	}
}

// TestErrorsNameWholeURLs holds that whatever an engine does wrong, its target says which URL it did it at.
func TestErrorsNameWholeURLs(t *testing.T) {
	const sources, info, models = "/kv_event_sources", "/server_info", "/v1/models"
	f := func(model, wrong, want string, answers ...string) {
		t.Helper()
		f := newFleet(t, nil, "127.0.0.1")
		for i := 0; i < len(answers); i += 2 {
			f.answer("127.0.0.1", "/team"+answers[i], answers[i+1])
		}
		f.add("127.0.0.1", func(t *Target) { t.URL, t.Model = t.URL+"/team/", model })
		at := "http://127.0.0.1:" + f.port + "/team" + wrong
		if s := l0(f); !strings.Contains(s.Error, at) || !strings.Contains(s.Error, want) || s.Sources != 0 {
			t.Errorf("%q is not %q at %s; %d sources", s.Error, want, at, s.Sources)
		}
	}
	for _, model := range []string{"", "llama"} {
		f(model, sources, "404") // nothing is there that an engine has, so none is guessed
		f(model, models, "404")
		f(model, sources, "302", sources, "http://127.0.0.1:1/")
		f(model, sources, "no known shape", sources, "no JSON")
		f(model, sources, "has no endpoint", sources, `{"0":{}}`, models, `{"data":[{"id":"llama"}]}`)
		f(model, sources, "names the rank", sources, `{"x":{"endpoint":"tcp://*:1"}}`, models,
			`{"data":[{"id":"llama"}]}`)
		f(model, info, "302", info, "http://127.0.0.1:1/")
		f(model, info, "no known shape", info, "no JSON")
		f(model, info, "KV events are off", info, "{}")
		f(model, sources, "more than", sources, strings.Repeat("x", maxBody+1))
	}
	f("", models, "404", sources, vllmTells(7000))
	f("", models, "no known shape", sources, vllmTells(7000), models, "{}")

	nameless := newFleet(t, nil)
	nameless.add("engines", func(t *Target) { t.URL = "http://engines:8000/v1" })
	if s := l0(nameless); !strings.Contains(s.Error, "http://engines:8000/v1: ") {
		t.Errorf("a name without addresses: %q", s.Error)
	}
	closed := newFleet(t, nil)
	closed.port = "1"
	closed.add("127.0.0.1", func(t *Target) { t.URL += "/team/v1" })
	if s := l0(closed); !strings.Contains(s.Error, "http://127.0.0.1:1/team/kv_event_sources: ") {
		t.Errorf("a closed port: %q", s.Error)
	}
}

// TestGuessedPortIsTold holds that a source at the port of an older vLLM says that nobody has told it.
func TestGuessedPortIsTold(t *testing.T) {
	f := newFleet(t, nil, "127.0.0.1")
	f.net.PublisherAt("tcp://127.0.0.1:5557").OnSubscribe = func(context.Context) error { return errors.New("refused") }
	f.answer("127.0.0.1", "/v1/models", `{"data":[{"id":"llama"}]}`)
	f.add("127.0.0.1", func(t *Target) { t.Model = "llama" })
	f.want("e|default|0 tcp://127.0.0.1:5557 vLLM llama 16 ")
	want := fmt.Sprintf("http://127.0.0.1:%s has neither /kv_event_sources nor /server_info", f.port)
	if s := f.c.Services()[0]; len(s.Findings) == 0 || !strings.Contains(fmt.Sprint(s.Findings), want) {
		t.Errorf("findings are %v, want %q", s.Findings, want)
	}
}
