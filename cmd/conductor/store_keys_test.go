package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"

	"example.com/conductor/internal/must"
)

// documentedKeys are the keys of docs/formats.md by their names there.
func documentedKeys(t *testing.T) map[string]*regexp.Regexp {
	t.Helper()
	text, err := os.ReadFile("../../docs/formats.md")
	must.Succeed(t, err)
	keys := make(map[string]*regexp.Regexp)
	parts := strings.NewReplacer("{name", `\{default`, "bucket}", `[0-9]+\}`, ":hash:", ":[0-9a-f]{24}:",
		"DEPLOYMENT", "[0-9a-f]{24}", "ID", "[A-Z2-7]+", ":N",
		":[0-9]+")
	for _, m := range regexp.MustCompile("(?m)^\\| `(kvconductor:[^`]*)`").FindAllStringSubmatch(string(text), -1) {
		keys[m[1]] = regexp.MustCompile("^" + parts.Replace(m[1]) + "$")
	}
	return keys
}

// usesDocumentedKeys lets a store tell its commands from now on. The function that it returns waits until all
// keys of docs/formats.md have been in commands, and requires that no others were.
func usesDocumentedKeys(t *testing.T, addr, user, password string) (all func()) {
	t.Helper()
	keys := documentedKeys(t)
	conn, err := net.Dial("tcp", addr)
	must.Succeed(t, err)
	t.Cleanup(func() { conn.Close() })
	_, err = io.WriteString(conn, "AUTH "+user+" "+password+"\r\nMONITOR\r\n")
	must.Succeed(t, err)
	var mu sync.Mutex
	seen := make(map[string]bool) // names, guarded by mu
	other := ""                   // key that has none, guarded by mu
	see := func(key string) {
		mu.Lock()
		defer mu.Unlock()
		for name, k := range keys {
			if k.MatchString(key) {
				seen[name] = true
				return
			}
		}
		other = key
	}
	go func() {
		in, key := bufio.NewReader(conn), regexp.MustCompile(`"(kvconductor:[^"]*)"`)
		for {
			line, err := in.ReadString('\n')
			if err != nil {
				return
			}
			for _, m := range key.FindAllStringSubmatch(line, -1) {
				see(m[1])
			}
		}
	}()
	return func() {
		t.Helper()
		eventually(t, "keys of docs/formats.md are in no command", func() (string, bool) {
			mu.Lock()
			defer mu.Unlock()
			if other != "" {
				t.Fatalf("docs/formats.md lacks the key %s", other)
			}
			return fmt.Sprint("seen are ", seen), len(seen) == len(keys)
		})
	}
}
