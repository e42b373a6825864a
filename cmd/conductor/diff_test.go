package main

import (
	"strings"
	"testing"
)

// Two servers are compared over HTTP. A difference is exit status 1.
func TestDiffCommand(t *testing.T) {
	t.Parallel()
	a, b := serveProcess(t, ""), serveProcess(t, "")
	f := func(want string, fails bool, args ...string) {
		t.Helper()
		out, err := command(append([]string{"diff"}, args...)...).CombinedOutput()
		if (err != nil) != fails || !strings.Contains(string(out), want) {
			t.Errorf("%q: %v\n%s", args, err, out)
		}
	}
	f("no difference", false, a.url, b.url)
	post(t, a.url+"/register", `{"endpoint":"tcp://127.0.0.1:5","type":"vLLM","modelname":"m","instance_id":"i","block_size":16,`+
		`"dp_rank":0}`, 200)
	f("the second does not know the source", true, a.url, b.url)
	f("no difference", false, a.url, b.url, "--source", "other|default|0")
	f(`{"source":"i|default|0","blocks":[0,0],"only":[0,0],"equal_batches":false,"why":"the first does not know the source"}`, true, b.url,
		a.url, "--json")
	f("no difference", false, strings.TrimPrefix(a.url, "http://"), a.url)
	f("has a path", true, a.url, b.url+"/nowhere")
	f("no server listens at 127.0.0.1:1", true, a.url, "127.0.0.1:1")
	f("no such file", true, a.url, "missing.snapshot")
}
