package main

import (
	"bufio"
	"strings"
	"testing"

	"kvconductor/internal/must"
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
	f("GOMEMLIMIT=600MiB", `"limit":"600MiB","from":"GOMEMLIMIT"`, "cgroup")
	f("", "cgroup", "GOMEMLIMIT")
	f("GOMEMLIMIT=off", `"limit":"off","from":"GOMEMLIMIT"`, "cgroup")
}
