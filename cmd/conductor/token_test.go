package main

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"example.com/conductor/cmd/internal/cli"
	"example.com/conductor/conductor/access"
	"example.com/conductor/internal/must"
)

// TestTokenFile makes a file of credentials, adds to it while a server uses it, and asks with each token.
func TestTokenFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file, out := filepath.Join(dir, "credentials.yaml"), filepath.Join(dir, "b.token")
	status, first, errs := runCLI("token", "--name", "a", "--role", "query", "--file", file)
	if status != cli.ExitFine || !strings.HasPrefix(first, access.TokenPrefix) || strings.Count(first, "\n") != 1 ||
		!strings.Contains(errs, "auth: {file: "+file+"}") || !strings.Contains(errs, "shown this once") {
		t.Fatalf("a new file: %d %q %q", status, first, errs)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file: %v %v", info, err)
	}
	text, err := os.ReadFile(file)
	must.Succeed(t, err)
	if strings.Contains(string(text), strings.TrimSpace(first)) {
		t.Errorf("the file holds the token: %s", text)
	}
	p := serveProcess(t, "auth: {file: "+file+"}\n")
	ask := func(token string) int {
		name := filepath.Join(t.TempDir(), "token")
		must.Succeed(t, os.WriteFile(name, []byte(token), 0o600))
		status, _, _ := runCLI("services", "--server", p.url, "--token-file", name)
		return status
	}
	if ask(first) != cli.ExitFine || ask("kvc_other") != cli.ExitError {
		t.Error("the server does not take the token, or takes any")
	}
	status, said, errs := runCLI("token", "--name", "b", "--role", "query", "--role", "metrics", "--tenant", "acme", "--file", file,
		"--out", out)
	if status != cli.ExitFine || said != "" || !strings.Contains(errs, "--token-file "+out) {
		t.Fatalf("an existing file: %d %q %q", status, said, errs)
	}
	second, err := os.ReadFile(out)
	must.Succeed(t, err)
	eventually(t, "the server does not know the second token", func() (string, bool) {
		return p.log(), ask(string(second)) == cli.ExitFine
	})
	if ask(first) != cli.ExitFine {
		t.Error("the first token is lost")
	}

	before, err := os.ReadFile(file)
	must.Succeed(t, err)
	wrong := func(want string, args ...string) {
		t.Helper()
		status, said, errs := runCLI(append([]string{"token"}, args...)...)
		after, err := os.ReadFile(file)
		if status == cli.ExitFine || said != "" || !strings.Contains(errs, want) || err != nil || string(after) != string(before) {
			t.Errorf("%v: %d %q %q, want %q\n%s", args, status, said, errs, want, after)
		}
		if left, _ := filepath.Glob(filepath.Join(dir, "*")); len(left) != 2 {
			t.Errorf("%v: left behind: %v", args, left)
		}
	}
	wrong(`name: "b" is taken by another entry`, "--name", "b", "--role", "query", "--file", file)
	wrong(`name: "b" is taken by another entry`, "--name", "b", "--role", "query", "--file", file, "--out", filepath.Join(dir, "c.token"))
	wrong("exists: a token is written to a new file only", "--name", "c", "--role", "query", "--file", file, "--out", out)
	wrong("--role", "--name", "c", "--role", "king", "--file", file)
	wrong("no such file", "--name", "c", "--role", "query", "--file", filepath.Join(dir, "none", "file"))
}

// TestTokenWithoutFiles prints the token alone, and beside it the entry, which goes into a file by hand.
func TestTokenWithoutFiles(t *testing.T) {
	status, token, errs := runCLI("token", "--name", "a", "--role", "query", "--tenant", "acme")
	if status != cli.ExitFine || !strings.HasPrefix(token, access.TokenPrefix) || strings.Count(token, "\n") != 1 ||
		strings.Contains(errs, strings.TrimSpace(token)) || !strings.Contains(errs, "shown this once") {
		t.Fatalf("%d %q %q", status, token, errs)
	}
	before, _, _ := strings.Cut(errs, tokenFollows)
	_, entry, found := strings.Cut(before, "\n  - ")
	if !found {
		t.Fatalf("no entry in %q", errs)
	}
	file := filepath.Join(t.TempDir(), "credentials.yaml")
	must.Succeed(t, os.WriteFile(file, []byte("tokens:\n  - "+entry), 0o600))
	_, err := access.LoadCredentials(file)
	must.Succeed(t, err)
	if digest := sha256.Sum256([]byte(strings.TrimSpace(token))); !strings.Contains(entry, hex.EncodeToString(digest[:])) {
		t.Errorf("the entry is not that of the token: %s", entry)
	}
}

// TestTokensTogether adds to one file many times at once: all clients that are not refused are in it.
func TestTokensTogether(t *testing.T) {
	file := filepath.Join(t.TempDir(), "credentials.yaml")
	added := make([]bool, 200)
	var all sync.WaitGroup
	for i := range added {
		all.Go(func() {
			err := addCredentials(file, &tokenEntry{Name: fmt.Sprintf("client-%d", i), SHA256: fmt.Sprintf("%064x", i+1),
				Roles: []string{"query"}, Tenants: []string{"*"}})
			if added[i] = err == nil; err != nil && !strings.Contains(err.Error(), "another conductor token is at work") {
				t.Error(err)
			}
		})
	}
	all.Wait()
	text, err := os.ReadFile(file)
	must.Succeed(t, err)
	for i, ok := range added {
		if ok != strings.Contains(string(text), fmt.Sprintf("client-%d\n", i)) {
			t.Errorf("client-%d: added %t\n%s", i, ok, text)
		}
	}
}

// TestWithEntry adds to files of every shape.
func TestWithEntry(t *testing.T) {
	entry := &tokenEntry{Name: "new", SHA256: "00", Roles: []string{"query"}, Tenants: []string{"*"}}
	const added = "  - name: new\n    sha256: \"00\"\n    roles: [query]\n    tenants: [\"*\"]\n"
	f := func(old, want string) {
		t.Helper()
		text, err := withEntry([]byte(old), entry)
		must.Succeed(t, err)
		got := strings.ReplaceAll(string(text), "'*'", `"*"`)
		if got != want {
			t.Errorf("%s: %s\nwant %s", old, got, want)
		}
	}
	f("", "tokens:\n"+added)
	f("# ours\n", "# ours\ntokens:\n"+added)
	f("tokens:\n", "tokens:\n"+added)
	f("tokens: []\n", "tokens:\n"+added)
	f("# ours\ntokens:\n  # the router\n  - name: old # since May\n    sha256: \"11\"\n    roles: [query]\n    tenants: [\"*\"]\n"+
		"certificates:\n  - name: engines\n    subject: engines\n",
		"# ours\ntokens:\n  # the router\n  - name: old # since May\n    sha256: \"11\"\n    roles: [query]\n    tenants: [\"*\"]\n"+added+
			"certificates:\n  - name: engines\n    subject: engines\n")
	f("certificates:\n  - name: engines\n", "certificates:\n  - name: engines\ntokens:\n"+added)
	if _, err := withEntry([]byte("tokens: ["), entry); err == nil {
		t.Error("a file that is no YAML is added to")
	}
}
