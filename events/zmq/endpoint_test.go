package zmq

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"example.com/conductor/internal/must"
)

func TestCheckEndpoint(t *testing.T) {
	good := func(endpoint, network, addr string) {
		t.Helper()
		gotNetwork, gotAddr, err := splitEndpoint(endpoint)
		if err != nil || gotNetwork != network || gotAddr != addr {
			t.Errorf("%q: got %q %q %v", endpoint, gotNetwork, gotAddr, err)
		}
	}
	good("tcp://127.0.0.1:5557", "tcp", "127.0.0.1:5557")
	good("tcp://vllm-0.vllm.svc.cluster.local:5557", "tcp", "vllm-0.vllm.svc.cluster.local:5557")
	good("tcp://[::1]:5557", "tcp", "[::1]:5557")
	good("tcp://[fe80::1%eth0]:65535", "tcp", "[fe80::1%eth0]:65535")
	good("ipc:///run/engine/kv.sock", "unix", "/run/engine/kv.sock")
	good("ipc://relative", "unix", "relative")
	good("ipc://@abstract", "unix", "@abstract")

	bad := func(endpoint, want string) {
		t.Helper()
		err := CheckEndpoint(endpoint)
		var e *endpointError
		if !errors.As(err, &e) || !e.Permanent() || e.Endpoint != endpoint || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want something about %q", endpoint, err, want)
		}
	}
	bad("", "no scheme")
	bad("127.0.0.1:5557", "no scheme")
	bad("tcp://*:5557", `wildcard to bind to: write the host to connect to instead of "*"`)
	bad("tcp://0.0.0.0:5557", `wildcard to bind to: write the host to connect to instead of "0.0.0.0"`)
	bad("tcp://[::]:5557", "wildcard")
	bad("tcp://[::ffff:0.0.0.0]:5557", "wildcard")
	bad("tcp://${POD_IP}:5557", "the variable ${POD_IP}")
	bad("tcp://$(POD_IP):5557", "the variable $(POD_IP)")
	bad("tcp://host:$PORT", "the variable $PORT")
	bad("ipc:///run/${POD_NAME}/kv.sock", "the variable ${POD_NAME}")
	bad("tcp://:5557", "names no host")
	bad("tcp://host", "host:port")
	bad("tcp://host:", "port")
	bad("tcp://host:0", "port")
	bad("tcp://host:65536", "port")
	bad("tcp://host:-1", "port")
	bad("tcp://host:kv", "port")
	bad("tcp://host:*", "port")
	bad("tcp://::1:5557", "brackets")
	bad("tcp://a b:5557", "host")
	bad("tcp://user@host:5557", "host")
	bad("tcp://host/path:5557", "host")
	bad("ipc://", "path")
	bad("ipc://*", "path")
	bad("ipc:///"+strings.Repeat("x", 200), "path")
	bad("inproc://kv", "scheme")
	bad("udp://host:5557", "scheme")
	bad("http://host:5557", "HTTP server: give that of an engine as discover")
	bad("HTTPS://host", "HTTP server: give that of an engine as discover")
	bad("bind:tcp://*:5557", "only that of live events can")

	// What was meant is plain.
	bad("host:5557", `has no scheme: want tcp://host:port or ipc://path; write "tcp://host:5557"`)
	bad("[::1]:5557", `write "tcp://[::1]:5557"`)
	bad("tcp:host:5557", `write "tcp://host:5557"`)
	bad("tcp:/host:5557", `write "tcp://host:5557"`)
	bad("tcp://host:5557/", `write "tcp://host:5557"`)
	bad("tcp://host:5557/topic", `write "tcp://host:5557"`)
	bad("TCP://host:5557", `write "tcp://host:5557"`)
	bad("zmq://host:5557", `write "tcp://host:5557"`)
	bad(" tcp://host:5557", `has space around it; write "tcp://host:5557"`)
	bad("tcp://host:5557\n", `write "tcp://host:5557"`)
	bad("/run/kv.sock", `write "ipc:///run/kv.sock"`)
	bad("unix:///run/kv.sock", `write "ipc:///run/kv.sock"`)
	for endpoint, want := range map[string]string{
		"bind:*:5557": "bind:tcp://*:5557", "BIND:tcp://*:5557": "bind:tcp://*:5557", "bind://*:5557": "bind:tcp://*:5557",
		"bind:TCP://*:5557": "bind:tcp://*:5557", "bind:tcp://*:5557/": "bind:tcp://*:5557",
		"bind:zmq://0.0.0.0:5557": "bind:tcp://0.0.0.0:5557",
	} {
		if err := CheckLiveEndpoint(endpoint); err == nil || !strings.HasSuffix(err.Error(), fmt.Sprintf("write %q", want)) {
			t.Errorf("%q: %v, want %q", endpoint, err, want)
		}
	}
	for _, endpoint := range []string{"carrier pigeon", "tcp://host", "inproc://kv", "tcp://user:secret@host:5557", "user:secret@host:5557",
		"tcp://*:5557", "", "tcp://host:0/"} {
		if err := CheckEndpoint(endpoint); err == nil || strings.Contains(err.Error(), "; write") ||
			strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: %v", endpoint, err)
		}
	}

	if _, err := (Transport{}).Subscribe(context.Background(), "tcp://*:5557"); !errors.As(err, new(*endpointError)) {
		t.Errorf("subscribing to a wildcard: %v", err)
	}
	if _, err := (Transport{}).Replay(context.Background(), "inproc://kv", 0); !errors.As(err, new(*endpointError)) {
		t.Errorf("replaying from inproc: %v", err)
	}
}

func TestCheckLive(t *testing.T) {
	for _, e := range []string{"tcp://h:1", "ipc:///x", "bind:tcp://*:5557", "bind:tcp://10.0.0.1:5557", "bind:tcp://0.0.0.0:5557",
		"bind:tcp://[::]:5557", "bind:tcp://[::1]:5557"} {
		must.Report(t, CheckLiveEndpoint(e))
	}
	for _, e := range []string{"bind:", "bind:5557", "bind:ipc:///x", "bind:tcp://*", "bind:tcp://*:", "bind:tcp://*:0",
		"bind:tcp://*:70000", "bind:bind:tcp://*:1", "bind:tcp://${POD_IP}:1", "bind:tcp://:1", "tcp://*:1"} {
		err := CheckLiveEndpoint(e)
		if err == nil || !strings.Contains(err.Error(), strconv.Quote(e)) {
			t.Errorf("%q: %v", e, err)
		}
	}
	if CheckEndpoint("bind:tcp://*:5557") == nil {
		t.Error("a replay service is bound to")
	}
}
