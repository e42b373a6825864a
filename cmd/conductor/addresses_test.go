package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestWrongAddresses registers addresses that a publisher binds to, and variables that
// were not replaced, as their owners would: the error says which it is and what to write, whether clients may
// register the address or not.
func TestWrongAddresses(t *testing.T) {
	t.Parallel()
	local := serveProcess(t, "listeners: [{address: '127.0.0.1:0', dialect: conductor}]\n")
	open := serveProcess(t, "", "0.0.0.0:0=conductor")
	open.url = "http://127.0.0.1:" + open.url[strings.LastIndexByte(open.url, ':')+1:]
	f := func(field, address, want string) {
		t.Helper()
		endpoint, more := "tcp://192.0.2.1:5557", ""
		switch field {
		case "endpoint":
			endpoint = address
		default:
			more = fmt.Sprintf(",%q:%q", field, address)
		}
		body := fmt.Sprintf(`{"endpoint":%q,"type":"vLLM","modelname":"m","instance_id":"i","block_size":16,"dp_rank":0%s}`, endpoint, more)
		if field == "discover" {
			body = fmt.Sprintf(`{"discover":%q,"instance_id":"i"}`, address)
		}
		for _, p := range []*process{local, open} {
			if answer := post(t, p.url+"/register", body, 400); !strings.Contains(answer, `"field":"`+field+`"`) ||
				!strings.Contains(answer, want) || strings.Contains(answer, "register.allow") {
				t.Errorf("%s %s: %s", field, address, answer)
			}
		}
	}
	for _, field := range []string{"endpoint", "replay_endpoint", "snapshot_endpoint"} {
		for _, host := range []string{"*", "0.0.0.0", "[::]", "[::ffff:0.0.0.0]"} {
			f(field, "tcp://"+host+":5557", "wildcard to bind to: write the host to connect to instead of")
		}
		f(field, "tcp://${POD_IP}:5557", "the variable ${POD_IP}")
		f(field, "tcp://$(POD_IP):5557", "the variable $(POD_IP)")
		f(field, "tcp://engine:$PORT", "the variable $PORT")
		f(field, "ipc:///run/${POD_NAME}/kv.sock", "the variable ${POD_NAME}")
		f(field, "tcp://:5557", "names no host")
		f(field, "tcp://engine:0", "port 0")
		f(field, "tcp://engine", "missing port")
	}
	f("endpoint", "bind:tcp://${POD_IP}:5557", "the variable ${POD_IP}")
	f("discover", "http://0.0.0.0:8000", "wildcard to bind to: write the host to connect to instead of")
	f("discover", "http://$(POD_IP):8000", "the variable $(POD_IP)")

	// Dynamo's indexer takes any endpoint, and says of the listener why it failed.
	post(t, local.url+"/dynamo/v1/register", `{"instance_id":7,"endpoint":"tcp://0.0.0.0:5557","model_name":"m","block_size":16}`, 201)
	eventually(t, "the wildcard of a worker is no fault", func() (string, bool) {
		_, workers := get(local.url + "/dynamo/v1/workers")
		return workers, strings.Contains(workers, `"status":"failed"`) && strings.Contains(workers, "wildcard to bind to")
	})

	// The engines of discovery.
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/kv_event_sources":
			fmt.Fprint(w, `[{"publisher":"zmq","endpoint":"tcp://[::]:5557"},{"publisher":"zmq","endpoint":"tcp://0.0.0.0:5558"},`+
				`{"publisher":"zmq","endpoint":"tcp://*:5559"}]`)
		case "/v1/models":
			fmt.Fprint(w, `{"data":[{"id":"m"}]}`)
		default:
			http.NotFound(w, r)
		}
	}))
	defer engine.Close()
	post(t, local.url+"/register", `{"discover":"`+engine.URL+`","instance_id":"found","block_size":16}`, 200)
	eventually(t, "the engine's wildcards are no endpoints", func() (string, bool) {
		_, services := get(local.url + "/services")
		return services, strings.Contains(services, `"tcp://127.0.0.1:5557"`) && strings.Contains(services, `"tcp://127.0.0.1:5558"`) &&
			strings.Contains(services, `"tcp://127.0.0.1:5559"`)
	})
}
