package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"example.com/conductor/internal/must"
)

func TestReadSources(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pod.yaml")
	f := func(text, why string, keys ...string) {
		t.Helper()
		must.Succeed(t, os.WriteFile(path, []byte(text), 0o600))
		got, err := ReadSources(path)
		if why != "" {
			if err == nil || !strings.Contains(err.Error(), why) {
				t.Errorf("%s: got %v, want %q", text, err, why)
			}
			return
		}
		var names []string
		for _, s := range got {
			names = append(names, s.Key().String())
		}
		if err != nil || strings.Join(names, " ") != strings.Join(keys, " ") {
			t.Errorf("%s: got %q %v, want %q", text, names, err, keys)
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
	if _, err := ReadSources(path + ".none"); err == nil {
		t.Error("a file that is not there is read")
	}
}
