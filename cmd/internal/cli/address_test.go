package cli

import (
	"strings"
	"testing"
)

func TestBaseURL(t *testing.T) {
	f := func(text, want string) {
		t.Helper()
		if got, err := BaseURL(text, false); err != nil || got != want {
			t.Errorf("%q: %q, %v, want %q", text, got, err, want)
		}
	}
	f("http://127.0.0.1:13333", "http://127.0.0.1:13333")
	f("https://conductor.example/", "https://conductor.example")
	f("HTTP://conductor.example", "http://conductor.example")
	f("127.0.0.1:8090", "http://127.0.0.1:8090")
	f("conductor", "http://conductor:13333")
	f("conductor.example:80/", "http://conductor.example:80")
	f("10.0.0.1", "http://10.0.0.1:13333")
	f("::1", "http://[::1]:13333")
	f("[::1]", "http://[::1]:13333")
	f("[::1]:8090", "http://[::1]:8090")
	f("http://[::1]:8090", "http://[::1]:8090")
	f(":8090", "http://127.0.0.1:8090")
	f(" localhost:8090\n", "http://localhost:8090")

	if got, err := BaseURL("conductor", true); err != nil || got != "https://conductor:13333" {
		t.Errorf("with TLS: %q, %v", got, err)
	}

	refused := func(text, want string) {
		t.Helper()
		if got, err := BaseURL(text, false); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %q, %v, want %q", text, got, err, want)
		}
	}
	refused("", "no host")
	refused("http://", "no host")
	refused("http://:8090", "no host")
	refused("tcp://10.0.0.1:5557", "not over tcp")
	refused("localhost:8090/conductor/v1", `has a path: name the listener alone, http://localhost:8090,`)
	refused("https://conductor.example/ui", "https://conductor.example,")
	refused("http://conductor.example?x=1", "has a path")
	refused("http://me:secret@conductor.example", "--token-file")
	refused("localhost:port", `"port" is no port`)
	refused("http://localhost:70000", `"70000" is no port`)
	refused("localhost:0", `"0" is no port`)
	refused("::1:2:3:4:5:6:7:8:13333", "brackets")
	refused("conduc tor", "no URL")
	if _, err := BaseURL("http://me:secret@conductor.example", false); strings.Contains(err.Error(), "secret") {
		t.Error("an error holds a secret:", err)
	}
}
