package zmq

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"

	"example.com/conductor/events/reach"
	"example.com/conductor/internal/must"
)

func rulesOf(t *testing.T, local bool, rules ...string) *reach.Rules {
	t.Helper()
	r, err := reach.Parse(rules, local)
	must.Succeed(t, err)
	return r
}

func TestReaches(t *testing.T) {
	r := rulesOf(t, false, "default", "bind:tcp://*:7000", "ipc:///run/engines/")
	for _, endpoint := range []string{"tcp://10.0.0.1:5557", "tcp://engine:5557", "tcp://[fd12::1]:1", "bind:tcp://*:7000",
		"ipc:///run/engines/a", "inproc://x", "", "tcp://x"} {
		must.Report(t, CheckReach(r, endpoint))
	}
	for _, endpoint := range []string{
		"tcp://127.0.0.1:5557", "tcp://localhost:5557", "tcp://LocalHost.:5557", "tcp://[::1]:5557", "tcp://169.254.169.254:80",
		"tcp://[::ffff:169.254.169.254]:80",
		"bind:tcp://*:7001", "bind:tcp://127.0.0.1:81", "ipc:///run/secret", "ipc:///run/engines/../secret", "ipc://@abstract",
	} {
		if err := CheckReach(r, endpoint); !errors.Is(err, errReach) {
			t.Errorf("%s: %v", endpoint, err)
		}
		must.Report(t, CheckReach(nil, endpoint))
	}
	for endpoint, rule := range map[string]string{"bind:tcp://*:7001": "bind:tcp://*:7001", "bind:tcp://[::1]:81": "bind:tcp://*:81",
		"ipc:///run//secret/../x": "ipc:///run/x"} {
		want := fmt.Sprintf("register.allow allows: add %q", rule)
		if err := CheckReach(r, endpoint); err == nil || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("%s: %v", endpoint, err)
		}
		must.Report(t, CheckReach(rulesOf(t, false, rule), endpoint))
	}
	if err := CheckReach(r, "ipc://@abstract"); err == nil || !strings.HasSuffix(err.Error(), "the settings may name it under sources") {
		t.Error(err)
	}
	if err := CheckReach(rulesOf(t, false, "tcp://10.0.0.0/8:5000-6000"), "tcp://engine:80"); err == nil {
		t.Error("a name is looked up for a port that no rule has")
	}
}

// TestDialReaches: what counts is the address that is dialed, whatever its name said before.
func TestDialReaches(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	must.Succeed(t, err)
	defer ln.Close()
	accepted := make(chan struct{}, 10)
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			accepted <- struct{}{}
			c.Close()
		}
	}()
	_, port, err := net.SplitHostPort(ln.Addr().String())
	must.Succeed(t, err)
	t2 := Transport{Reach: rulesOf(t, false, "default")}
	raw, err := t2.dialEndpoint(t.Context(), "tcp", "localhost:"+port) // as a name that DNS has turned to this machine
	if err == nil {
		raw.Close()
	}
	if !errors.Is(err, errReach) || len(accepted) > 0 {
		t.Errorf("a name of this machine: %v, %d connections", err, len(accepted))
	}
	if _, err := t2.Subscribe(t.Context(), "ipc:///nowhere/x.sock"); !errors.Is(err, errReach) {
		t.Errorf("a path: %v", err)
	}
	if _, err := (&Sockets{}).TransportFor(Claim{}, t2.Reach).Subscribe(t.Context(), "bind:tcp://127.0.0.1:0"); err == nil ||
		strings.Contains(err.Error(), "listen") {
		t.Errorf("a bound socket: %v", err)
	}
	t2.Reach = rulesOf(t, true, "default")
	raw, err = t2.dialEndpoint(t.Context(), "tcp", "localhost:"+port)
	must.Succeed(t, err)
	raw.Close()
}
