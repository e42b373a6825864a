package main

import (
	"strings"
	"testing"

	"example.com/conductor/client"
)

// TestServerIsBounded: a client that connects and sends nothing, or headers without an end, does not stay.
func TestServerIsBounded(t *testing.T) {
	s := newServer(nil)
	if s.ReadHeaderTimeout == 0 || s.IdleTimeout == 0 || s.MaxHeaderBytes == 0 || s.WriteTimeout != 0 {
		t.Errorf("headers %s and %d bytes, idle %s, answers %s", s.ReadHeaderTimeout, s.MaxHeaderBytes, s.IdleTimeout, s.WriteTimeout)
	}
}

func TestWorker(t *testing.T) {
	f := func(text, want string) {
		t.Helper()
		w, err := worker(text)
		if err != nil {
			if want != "" || !strings.Contains(err.Error(), "such as engine-a=http://") {
				t.Errorf("%q: %v", text, err)
			}
			return
		}
		if got := w.String() + " " + w.URL.String(); got != want {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
	f("a=http://10.0.0.7:8000", "a/0 http://10.0.0.7:8000")
	f("a/3=http://10.0.0.7:8000", "a/3 http://10.0.0.7:8000")
	f("http://10.0.0.7:8000", "")
	f("=http://10.0.0.7:8000", "")
	f("a/x=http://10.0.0.7:8000", "")
	f("a=10.0.0.7", "")
}

func TestWorkersOf(t *testing.T) {
	const tenant = "default"
	all := []client.Instance{
		{Tenant: tenant, Instance: "a", Model: "m", BlockSize: 16, Address: "http://a:8000", Ranks: []int{0, 1}},
		{Tenant: tenant, Instance: "a", Model: "m", BlockSize: 32, Address: "http://a:8000", Ranks: []int{0}},
		{Tenant: tenant, Instance: "b", Model: "m"},
		{Tenant: tenant, Instance: "c", Model: "other", Aliases: []string{"m"}, Address: "http://c", Ranks: []int{3}},
		{Tenant: tenant, Instance: "d", Model: "other", Address: "http://d", Ranks: []int{0}},
		{Tenant: tenant, Instance: "e", Model: "other", Adapters: []string{"m"}, Address: "http://e", Ranks: []int{0}},
		{Tenant: tenant, Instance: "f", Model: "m", Role: "prefill", Address: "http://f", Ranks: []int{0}},
		{Tenant: "blue", Instance: "g", Model: "m", Address: "http://g", Ranks: []int{0}},
	}
	workers, err := workersOf(all, "m")
	var got []string
	for _, w := range workers {
		got = append(got, w.String()+" "+w.URL.String())
	}
	if text := strings.Join(got, ", "); err != nil || text != "a/0 http://a:8000, a/1 http://a:8000, c/3 http://c, e/0 http://e" {
		t.Errorf("%s, %v", text, err)
	}
	if _, err := workersOf(all, "x"); err == nil || !strings.Contains(err.Error(), `model "x"`) {
		t.Errorf("%v", err)
	}
}
