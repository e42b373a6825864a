package config

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"example.com/conductor/internal/must"
)

// TestNamesThatMakeOneTopic requires that the mistake is a sentence up to the source that it is about.
func TestNamesThatMakeOneTopic(t *testing.T) {
	path := filepath.Join(t.TempDir(), "c.yaml")
	const source = "- {endpoint: 'bind:tcp://*:5557', type: vLLM, block_size: 16, instance_id: "
	must.Succeed(t, os.WriteFile(path, []byte("sources:\n"+source+"p@3, modelname: m}\n"+source+"p, modelname: 3@m}\n"), 0o600))
	_, err := Load(Options{File: path})
	want := `names with @ make the topic "kv@p@3@m", which is also that of sources[0].instance_id (` + path + ":2:"
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %s", err, want)
	}
}

func TestReadSources(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pod.yaml")
	f := func(text, why string, keys ...string) {
		t.Helper()
		must.Succeed(t, os.WriteFile(path, []byte(text), 0o600))
		got, err := ReadSources(path)
		var names []string
		for _, s := range got {
			names = append(names, s.Key().String())
		}
		if (err != nil) != (why != "") || err != nil && !strings.Contains(err.Error(), why) || !slices.Equal(names, keys) {
			t.Errorf("%s: got %q %v, want %q %q", text, names, err, keys, why)
		}
	}
	f("sources:\n- {discover: 'http://h:8000', instance_id: a}\n"+
		"- {endpoint: 'tcp://h:1', type: vLLM, modelname: m, instance_id: b, block_size: auto}\n", "", "a|default|0", "b|default|0")
	f(`{"sources": [{"discover": "http://h:8000", "instance_id": "a", "block_size": 16}]}`, "", "a|default|0")
	f("sources: []\n", "")
	f("", "")
	f("log: {level: debug}\n", "no other settings")
	f("sources:\n- {instance_id: a}\n", "endpoint: is required")
	f("sources:\n- {endpoint: 'tcp://h:1', type: vLLM, modelname: m, instance_id: b}\n", "block_size: is required")
	f("sources:\n- {endpoint: 'tcp://h:1', type: vLLM, modelname: m, instance_id: b, block_size: '16'}\n",
		"must be a whole number, or auto")
	f("sources:\n- {discover: 'tcp://h:1', instance_id: b}\n", "is no URL")
	f("sources:\n- {discover: 'http://h', endpoint: 'tcp://h:1', instance_id: b}\n", "comes from the engine")
	f("sources: [\n", "pod.yaml")
	f("sources:\n# "+strings.Repeat("x", maxSourceFile), "more than")

	// A mistake in one source leaves the others.
	good := func(name string) string {
		return "- {endpoint: 'tcp://h:1', type: vLLM, modelname: m, block_size: 16, instance_id: " + name + "}\n"
	}
	among := func(bad, why string) {
		t.Helper()
		f("sources:\n"+good("a")+bad+good("c"), why, "a|default|0", "c|default|0")
	}
	among("- {endpoint: 'tcp://h:1', type: vLLM, modelname: m, block_size: 0, instance_id: b}\n",
		"pod.yaml:3:65: sources[1].block_size: 0 is too small; the least is 1")
	among(strings.Replace(good("b"), "modelname", "modlname", 1), "sources[1].modlname: unknown key")
	among(strings.Replace(good("b"), "}", ", lora_name: "+strings.Repeat("x", 257)+"}", 1), "sources[1].lora_name: must have at most")
	among(strings.Replace(good("b"), "}", ", ttl: {GPU: soon}}", 1), "sources[1].ttl.GPU: ")
	among(strings.Replace(good("b"), "}", ", serves: [x, 7]}", 1), "sources[1].serves[1]: ")
	among("- b\n", "sources[1]: must be a map")
	among(good("a"), `sources[1]: the same instance, tenant and rank "a|default|0" as sources[0]`)
	f(`{"kvevent_instance": {"a": {"endpoint": "h:1", "type": "vLLM", "modelname": "m", "block_size": 16}}, "sources": [`+
		`{"endpoint": "tcp://h:1", "type": "vLLM", "modelname": "m", "block_size": 16, "instance_id": "b"}]}`,
		"kvevent_instance.a.endpoint: ", "b|default|0")
	f("sources:\n"+good("a")+"surces: []\n", "surces: unknown key")

	if _, err := ReadSources(path + ".none"); err == nil {
		t.Error("a file that is not there is read")
	}
}
