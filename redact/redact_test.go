package redact

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
)

// TestURL holds what of a URL is shown, valid or not.
func TestURL(t *testing.T) {
	f := func(text, want string) {
		t.Helper()
		if got := URL(text); got != want {
			t.Errorf("%q is shown as %q, want %q", text, got, want)
		}
		if got := Text("a " + text + ": b"); !strings.ContainsAny(text, " \"") && got != "a "+want+": b" {
			t.Errorf("in a text: %q", got)
		}
		if got := Text(fmt.Sprintf("Get %q: b", text)); got != fmt.Sprintf("Get %q: b", want) {
			t.Errorf("quoted: %s", got)
		}
	}
	f("http://h:1/p", "http://h:1/p")
	f("http://user:secret@h:1/p", "http://***@h:1/p")
	f("http://secret@h", "http://***@h")
	f("http://h/p?token=secret", "http://h/p?***")
	f("http://h/p#secret", "http://h/p#***")
	f("http://u:se@cr?e#t@h", "http://***@h")
	f("http://u:se/cret@h", "http://***@h")
	f("http://u:se cret@h", "http://***@h")
	f("tcp://*:5557", "tcp://*:5557")
	f("ipc://@abstract", "ipc://@abstract")
	f("redis://:secret@h/0", "redis://***@h/0")
	f("u:secret@h:1", "***@h:1")
	f("u:secret@h:1/p?token=secret", "***@h:1/p?***")
	f(":secret@h:1", "***@h:1")
	for _, text := range []string{`the instance "e@10.0.0.1" is not "a?b"`, "engine e@10.0.0.1: no answer", "mail x@h, or not"} {
		if got := Text(text); got != text {
			t.Errorf("%q is shown as %q", text, got)
		}
	}
}

// TestWord holds what of a word is shown that may be a URL.
func TestWord(t *testing.T) {
	for word, want := range map[string]string{
		"x:secret@h": "***@h", "http://u:se cret@h": "http://***@h", "u:se cret@h": "***@h", "http://h?secret": "http://h?***",
		"e@10.0.0.1|default|0": "e@10.0.0.1|default|0", "what?": "what?", "./a@b#1.yaml": "./a@b#1.yaml", "--flag": "--flag",
	} {
		if got := Word(word); got != want {
			t.Errorf("%q is shown as %q, want %q", word, got, want)
		}
	}
}

// TestError holds that errors of net/http and net/url name no secret, and remain what they are.
func TestError(t *testing.T) {
	for _, text := range []string{"http://u:secret@127.0.0.1:1/x?token=secret", "http://secret@127.0.0.1:1", "http://u:se\x7fsecret@h",
		"ftp://secret@h", "http://u:secret@h:port"} {
		_, err := http.Get(text)
		var as *url.Error
		shown := Error(fmt.Errorf("a peer: %w", err))
		if err == nil || strings.Contains(shown.Error(), "secret") || !errors.As(shown, &as) {
			t.Errorf("%q: %v", text, shown)
		}
	}
	// What net/url quotes of an address that it cannot read is a part of the password.
	for _, text := range []string{"admin:secret@host:1", "secret@host:1/x", "http://u:secret/x@h", "http://u:secret?x@h",
		"http://u:%zzsecret@h", "redis://:secret/x@h", "http://u: secret@h"} {
		_, err := url.Parse(text)
		if shown := Error(fmt.Errorf("a peer: %w", err)); err != nil && strings.Contains(shown.Error(), "secret") {
			t.Errorf("%q: %v", text, shown)
		}
	}
	for _, text := range []string{"http://h:port", "http://h/%zz"} {
		_, err := url.Parse(text)
		if shown := Error(err); shown.Error() != err.Error() {
			t.Errorf("an error without a secret: %v", shown)
		}
	}
	if Error(nil) != nil {
		t.Error("an error of nil")
	}
}
