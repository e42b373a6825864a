package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"example.com/conductor/internal/must"
)

// TestCommandsSayWhoseSourcesTheySee requires that a command which finds nothing says that its token sees the sources of some
// tenants alone, where the server has those of another.
func TestCommandsSayWhoseSourcesTheySee(t *testing.T) {
	t.Parallel()
	p := serveProcess(t, "auth: {file: "+credentialsFile(t, "acme query,register,admin acme", "two query acme,blue",
		"operator query,register,admin '*'")+"}\n"+
		"sources:\n  - {endpoint: 'tcp://127.0.0.1:1', type: vLLM, modelname: m, instance_id: e1, tenant_id: other, block_size: 16}\n")
	token := func(name string) string {
		file := filepath.Join(t.TempDir(), name)
		must.Succeed(t, os.WriteFile(file, []byte(name), 0o600))
		return file
	}
	acme, two, operator := token("acme"), token("two"), token("operator")
	f := func(token, want string, args ...string) {
		t.Helper()
		_, out, errs := runCLI(append(args, "--server", p.url, "--token-file", token)...)
		if text := out + errs; !strings.Contains(text, want) || token != operator && strings.Contains(text, "other\"") {
			t.Errorf("%v: %s, want %s", args, text, want)
		}
	}
	const none = `no source is registered for the tenant "acme", and the token sees those of no other tenant`
	f(acme, none+": every answer to it is empty", "doctor")
	f(acme, none+": conductor register adds one", "services")
	f(acme, none, "services", "--instance", "e1")
	f(acme, `no instance "e1" is registered for the tenant "acme", and the token sees those of no other tenant`, "unregister", "e1")
	f(acme, `no source is registered for the tenant "acme"`, "top", "--once")
	const outside = `the tenant is outside the scope of the credentials, which is the tenant "acme"; `
	f(acme, outside, "query", "--model", "m", "--block-size", "16", "--tokens", "1,2")
	f(acme, outside, "explain", "--model", "m", "--block-size", "16", "--tokens", "1,2")
	f(acme, outside, "register", "tcp://10.0.0.1:1", "--instance", "e2", "--model", "m", "--type", "vLLM", "--block-size", "16", "--wait",
		"--timeout", "1s")
	f(two, `no source is registered for the tenants "acme" and "blue", and the token sees those of no other tenant`, "doctor")
	f(operator, "e1|other|0", "doctor")
}
