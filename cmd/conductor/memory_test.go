package main

import (
	"bufio"
	"fmt"
	"strings"
	"testing"

	"example.com/conductor/internal/memory"
	"example.com/conductor/internal/must"
)

// The log says what the memory limit is and where it is from, and the settings stand.
func TestServeTellsMemoryLimit(t *testing.T) {
	t.Parallel()
	f := func(env, want, not string) {
		t.Helper()
		cmd := command("serve", "--listen", "127.0.0.1:0=conductor")
		cmd.Env = append(cmd.Env, env)
		stderr, err := cmd.StderrPipe()
		if err == nil {
			err = cmd.Start()
		}
		must.Succeed(t, err)
		defer cmd.Wait()
		defer cmd.Process.Kill()
		log := ""
		for lines := bufio.NewScanner(stderr); !strings.Contains(log, "listening") && lines.Scan(); {
			log += lines.Text()
		}
		if !strings.Contains(log, want) || not != "" && strings.Contains(log, not) {
			t.Errorf("%q: the log is %s", env, log)
		}
	}
	f("GOMEMLIMIT=600MiB", `"limit":"600MiB","from":"GOMEMLIMIT"`, `"from":"cgroup","message":"memory limit`)
	f("", "cgroup", "GOMEMLIMIT")
	f("GOMEMLIMIT=off", `"limit":"off","from":"GOMEMLIMIT"`, `"from":"cgroup","message":"memory limit`)
}

// All indexes together have a bound without a setting and without a cgroup. The log says at the start what it is and
// where it is from, as metrics and /ready do.
func TestServeTellsIndexBound(t *testing.T) {
	t.Parallel()
	f := func(config, wantFrom string, want int64) {
		t.Helper()
		p := serveProcess(t, config)
		var said struct {
			Bytes int64
			From  string
		}
		eventually(t, "the log does not tell the bound", func() (string, bool) {
			log := p.log()
			for line := range strings.Lines(log) {
				if strings.Contains(line, "indexes may take") {
					decode(t, line, &said)
					return log, true
				}
			}
			return log, false
		})
		if wantFrom == "" {
			var n int64
			if n, wantFrom = memory.Available(); n == 0 {
				t.Fatal("neither the cgroup nor the machine says how much memory there is")
			}
			want = n / 2
		}
		if said.Bytes != want || said.From != wantFrom {
			t.Errorf("%q: the log says %d from %s, want %d from %s", config, said.Bytes, said.From, want, wantFrom)
		}
		_, metrics := get(p.url + "/metrics")
		_, ready := get(p.url + "/ready")
		if has := strings.Contains(metrics, "\nconductor_index_bytes_limit "); has != (want > 0) ||
			strings.Contains(ready, fmt.Sprintf(`"limit":%d`, want)) != (want > 0) {
			t.Errorf("%q: metrics tell a limit: %t, /ready says %s", config, has, ready)
		}
	}
	f("", "", 0)
	f("index: {max_bytes_total: 64MiB}\n", "index.max_bytes_total", 64<<20)
	f("index: {max_bytes_total: 0}\n", "index.max_bytes_total", 0)
}
