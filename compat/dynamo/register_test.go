package dynamo

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"example.com/conductor/history/peer"
	"example.com/conductor/internal/must"
)

// newRegistration is the body of a valid registration with some fields changed: a
// value of "" leaves the field out.
func newRegistration(changes ...string) string {
	fields := []string{"instance_id", "endpoint", "model_name", "block_size"}
	values := map[string]string{"instance_id": "1", "endpoint": `"inproc://1/0"`, "model_name": `"m"`, "block_size": "4"}
	for i := 0; i+1 < len(changes); i += 2 {
		if _, ok := values[changes[i]]; !ok {
			fields = append(fields, changes[i])
		}
		values[changes[i]] = changes[i+1]
	}
	var parts []string
	for _, f := range fields {
		if values[f] != "" {
			parts = append(parts, fmt.Sprintf("%q:%s", f, values[f]))
		}
	}
	return "{" + strings.Join(parts, ",") + "}"
}

func refusal(text string) string {
	raw, err := json.Marshal(map[string]string{"error": text})
	if err != nil {
		panic(err)
	}
	return string(raw)
}

func TestRegister(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, s *testServer) {
		f := func(status int, text string, changes ...string) {
			t.Helper()
			want := done
			if status != 201 {
				want = refusal(text)
			}
			before := len(s.conductor.Registrations())
			s.do("POST", "/register", newRegistration(changes...), status, want)
			if n := len(s.conductor.Registrations()) - before; status != 201 && n != 0 {
				t.Errorf("%v: %d registered by what was refused", changes, n)
			}
		}
		// What can never work, in the order of checks, before anything is registered.
		f(400, "invalid ZMQ endpoint `h:1`: missing scheme", "endpoint", `"h:1"`, "replay_endpoint", `"zzz"`, "block_size", "0")
		f(400, "invalid ZMQ endpoint ``: missing scheme", "endpoint", `""`)
		f(400, "invalid replay endpoint `zzz`: invalid ZMQ endpoint `zzz`: missing scheme", "replay_endpoint", `"zzz"`, "block_size", "0")
		f(400, "block_size must be greater than zero", "block_size", "0")
		f(400, "instance_id must not be empty", "instance_id", `""`)
		f(400, "model_name must not be empty", "model_name", `""`)
		f(400, "dp_rank must be at most 2147483647, got 4294967295", "dp_rank", "4294967295")

		long := `"` + strings.Repeat("x", 257) + `"`
		f(400, "instance_id must have at most 256 bytes, got 257", "instance_id", long)
		f(400, "modelname must have at most 256 bytes, got 257", "model_name", long)
		f(400, "endpoint must have at most 1024 bytes, got 1034", "endpoint", `"tcp://h`+strings.Repeat("x", 1025)+`:1"`)

		f(201, "")
		f(409, "instance 1 dp_rank 0 already registered")
		f(409, "instance 1 dp_rank 0 already registered", "dp_rank", "null", "replay_endpoint", "null", "additional_salt", "null",
			"block_size", "8")
		f(201, "", "dp_rank", "1", "endpoint", `"inproc://1/1"`, "additionalsalt", `"s"`, "anything", "[{}]")
		f(409, "instance 1 is already registered for model=m routing_group=default", "model_name", `"n"`, "dp_rank", "2")
		f(409, "instance 1 is already registered for model=m routing_group=default", "routing_group", `"g"`)
		f(409, "instance 1 is already registered for model=m routing_group=default", "tenant_id", `"g"`, "block_size", "8")
		f(409, "block_size mismatch for model=m routing_group=default: existing=4, requested=8", "instance_id", "2", "block_size", "8")
		f(409, "block_size mismatch for model=m routing_group=default: existing=4, requested=8", "instance_id", "1", "dp_rank", "2",
			"block_size", "8")
		f(201, "", "instance_id", "2", "block_size", "8", "tenant_id", `"old"`)
		f(201, "", "instance_id", "3", "block_size", "8", "tenant_id", `"old"`, "routing_group", `"new"`)
		f(201, "", "instance_id", "4", "tenant_id", `""`, "routing_group", `""`)
		f(201, "", "instance_id", "18446744073709551615")
		f(201, "", "instance_id", `"prefill-1"`, "model_name", "", "modelname", `"m"`)
		f(201, "", "instance_id", `"007"`)
		f(409, "instance 4 dp_rank 0 already registered", "instance_id", `"4"`)

		for partition, want := range map[string]int{"default": 5, "old": 1, "new": 1} { // the two ranks of 1 are one worker
			rec := s.send("GET", "/workers?routing_group="+partition, "")
			var rows []any
			if err := json.Unmarshal(rec.Body.Bytes(), &rows); err != nil || len(rows) != want {
				t.Errorf("%s: %v %s, want %d workers", partition, err, rec.Body, want)
			}
		}
	})
}

// TestConcurrentRegistrations holds that checks and registration are one step.
func TestConcurrentRegistrations(t *testing.T) {
	s := newServer(t, Config{})
	codes := make([]int, 32)
	var all sync.WaitGroup
	for i := range codes {
		all.Go(func() {
			size, model := "4", `"m"`
			if i%2 == 1 {
				size = "8"
			}
			if i%3 == 0 {
				model = `"n"`
			}
			codes[i] = s.send("POST", "/register",
				newRegistration("instance_id", fmt.Sprint(i/4), "dp_rank", fmt.Sprint(i%4), "block_size", size, "model_name", model)).Code
		})
	}
	all.Wait()
	sizes, models := make(map[string]int), make(map[string]string)
	registered := 0
	for _, r := range s.conductor.Registrations() {
		registered++
		if have, ok := sizes[r.Model]; ok && have != r.BlockSize {
			t.Errorf("model %s has block sizes %d and %d", r.Model, have, r.BlockSize)
		}
		if have, ok := models[r.Instance]; ok && have != r.Model {
			t.Errorf("instance %s is in %s and %s", r.Instance, have, r.Model)
		}
		sizes[r.Model], models[r.Instance] = r.BlockSize, r.Model
	}
	created := 0
	for i, code := range codes {
		if code != 201 && code != 409 {
			t.Errorf("registration %d: %d", i, code)
		}
		if code == 201 {
			created++
		}
	}
	if created == 0 || created != registered {
		t.Errorf("%d created, %d registered", created, registered)
	}
}

func TestUnregister(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, s *testServer) {
		ranks := func(want string) {
			t.Helper()
			var rows []struct {
				ID        json.Number    `json:"instance_id"`
				Endpoints map[string]any `json:"endpoints"`
			}
			must.Succeed(t, json.Unmarshal(s.send("GET", "/workers", "").Body.Bytes(), &rows))
			got := ""
			for _, r := range rows {
				got += r.ID.String() + ":"
				for rank := range 4 {
					if r.Endpoints[fmt.Sprint(rank)] != nil {
						got += fmt.Sprint(rank)
					}
				}
				got += " "
			}
			if got = strings.TrimSpace(got); got != want {
				t.Errorf("workers %q, want %q", got, want)
			}
		}
		f := func(body string, status int, text string) {
			t.Helper()
			want := done
			if status != 200 {
				want = refusal(text)
			}
			s.do("POST", "/unregister", body, status, want)
		}
		for id := range 3 {
			for rank := range 3 {
				s.register(id, rank, "")
			}
		}
		s.register(10, 0, `,"routing_group":"g"`)
		ranks("0:012 1:012 2:012 10:0")
		f(`{"instance_id":9,"model_name":"m"}`, 404, "instance 9 not found")
		f(`{"instance_id":1,"model_name":"n"}`, 404, "instance 1 is registered for model=m routing_group=default")
		f(`{"instance_id":1,"model_name":"m","routing_group":"g"}`, 404, "instance 1 is registered for model=m routing_group=default")
		f(`{"instance_id":1,"model_name":"m","tenant_id":"g"}`, 404, "instance 1 is registered for model=m routing_group=default")
		f(`{"instance_id":1,"model_name":"m","routing_group":"default","dp_rank":7}`, 404, "instance 1 dp_rank 7 not found")
		f(`{"instance_id":1,"model_name":"m","dp_rank":7}`, 404, "instance 1 dp_rank 7 not found")
		ranks("0:012 1:012 2:012 10:0")
		f(`{"instance_id":1,"model_name":"m","routing_group":"default","dp_rank":1}`, 200, "")
		ranks("0:012 1:02 2:012 10:0")
		f(`{"instance_id":1,"model_name":"m","routing_group":null,"dp_rank":2}`, 200, "") // the rank counts without a group too
		ranks("0:012 1:0 2:012 10:0")
		f(`{"instance_id":1,"model_name":"m","routing_group":"default","dp_rank":0}`, 200, "")
		f(`{"instance_id":2,"model_name":"m","tenant_id":"default","dp_rank":null}`, 200, "")
		ranks("0:012 10:0")

		// Blocks go at once, and the partition with its last worker.
		s.publish(10, 0, stored("GPU", 1, 1), stored("CPU", 2, 2))
		if got := s.send("POST", "/query",
			ask(promptOf(2), `,"routing_group":"g"`)).Body.String(); !strings.Contains(got, `"10":{"longest_matched":8`) {
			t.Errorf("got %s", got)
		}
		f(`{"instance_id":"10","modelname":"m"}`, 200, "") // in every group
		ranks("0:012")
		s.do("POST", "/query", ask(promptOf(2), `,"routing_group":"g"`), 404, refusal("no indexer for model=m routing_group=g"))
		s.do("POST", "/query", ask(promptOf(2), ""), 200, none)
		s.publish(0, 0, stored("GPU", 1, 1))
		s.publish(0, 1, stored("GPU", 1, 2))
		f(`{"instance_id":0,"model_name":"m","dp_rank":1}`, 200, "")
		if got := s.send("POST", "/query", ask(promptOf(2), "")).Body.String(); !strings.Contains(got, `"scores":{"0":{"0":4}}`) {
			t.Errorf("got %s", got)
		}
	})
}

func TestWorkers(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, s *testServer) {
		f := func(path, want string) {
			t.Helper()
			s.do("GET", path, "", 200, want)
		}
		f("/workers", "[]")
		s.register(10, 0, "")
		s.do("POST", "/register", newRegistration("instance_id", "9", "endpoint", `"inproc://never"`, "model_name", `"llama"`,
			"routing_group",
			`"acme"`, "dp_rank", "3"), 201, done)
		s.publish(10, 0, stored("GPU", 1, 1))
		ten := `{"instance_id":10,"source":"zmq","status":"active","model_name":"m","routing_group":"default","block_size":4,` +
			`"endpoints":{"0":"inproc://10/0"},"listeners":{"0":{"endpoint":"inproc://10/0","status":"active","state":"synced",` +
			`"reason":"","epoch":1,"watermark":0}}}`
		nine := `{"instance_id":9,"source":"zmq","status":"failed","model_name":"llama","routing_group":"acme","block_size":4,` +
			`"endpoints":{"3":"inproc://never"},"listeners":{"3":{"endpoint":"inproc://never","status":"failed","last_error":"this ` +
			`endpoint never works","state":"failed","reason":"bad_endpoint","epoch":1,"watermark":null}}}`
		f("/workers", "["+nine+","+ten+"]")
		f("/workers?tenant_id=acme&foo=%zz&foo=1", "["+nine+","+ten+"]")
		f("/workers?routing_group=acme", "["+nine+"]")
		f("/workers?model_name=m", "["+ten+"]")
		f("/workers?model_name=m&routing_group=acme", "[]")
		f("/workers?model_name=%6d", "["+ten+"]")
		f("/workers?model_name=%zz", "[]")
		s.do("GET", "/workers?model_name=a&model_name=b", "", 400, "Failed to deserialize query string: duplicate field `model_name`")
		// A worker is as bad as its worst rank.
		s.do("POST", "/register", newRegistration("instance_id", "10", "endpoint", `"inproc://never"`, "dp_rank", "1"), 201, done)
		synctest.Wait()
		if got := s.send("GET", "/workers?model_name=m", "").Body.String(); !strings.Contains(got, `"source":"zmq","status":"failed"`) {
			t.Errorf("got %s", got)
		}
	})
}

func TestPeers(t *testing.T) {
	s := newServer(t, Config{Replica: peer.New(peer.Config{Peers: []string{"http://b:1"}})})
	s.do("GET", "/peers", "", 200, `["http://b:1"]`)
	s.do("POST", "/register_peer", `{"url":"http://a:1"}`, 201, done)
	s.do("POST", "/register_peer", `{"url":"http://a:1"}`, 201, done)
	s.do("POST", "/register_peer", `{"url":""}`, 201, done)
	s.do("GET", "/peers", "", 200, `["http://b:1","http://a:1",""]`)
	s.do("POST", "/deregister_peer", `{"url":"http://b:1/"}`, 404, `{"error":"peer not found"}`)
	s.do("POST", "/deregister_peer", `{"url":"http://b:1"}`, 200, done)
	s.do("POST", "/deregister_peer", `{"url":""}`, 200, done)
	s.do("POST", "/deregister_peer", `{"url":"http://a:1"}`, 200, done)
	s.do("GET", "/peers", "", 200, `[]`)
	s.do("POST", "/register_peer", `{"url":null}`, 422,
		"Failed to deserialize the JSON body into the target type: url: invalid type: null, expected a string at line 1 column 11")
}

func TestReopenLogs(t *testing.T) {
	newServer(t, Config{}).do("POST", "/reopen_logs", "", 200, done)
	var fails error
	reopened := 0
	s := newServer(t, Config{ReopenLogs: func() error {
		reopened++
		return fails
	}})
	s.do("POST", "/reopen_logs", "no JSON at all", 200, done)
	fails = errors.New("no such directory")
	s.do("POST", "/reopen_logs", "", 500, `{"error":"no such directory"}`)
	if reopened != 2 {
		t.Errorf("reopened %d times, want 2", reopened)
	}
}

func TestListenerControl(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, s *testServer) {
		s.do("POST", "/test/pause_listener", `{"instance_id":1}`, 404, "")
		s.do("POST", "/test/resume_listener", `{`, 404, "")
	})
	inBubble(t, Config{TestEndpoints: true}, func(t *testing.T, s *testServer) {
		s.register(1, 0, "")
		s.do("POST", "/register", newRegistration("endpoint", `"inproc://never"`, "dp_rank", "1"), 201, done)
		synctest.Wait()
		s.do("POST", "/test/pause_listener", `{"instance_id":2}`, 404, refusal("instance 2 not found"))
		s.do("POST", "/test/pause_listener", `{"instance_id":1,"dp_rank":2}`, 404, refusal("instance 1 dp_rank 2 not found"))
		s.do("POST", "/test/pause_listener", `{"instance_id":1,"dp_rank":1}`, 409,
			refusal("instance 1 dp_rank 1 cannot be paused from status failed"))
		s.do("POST", "/test/resume_listener", `{"instance_id":1}`, 409,
			refusal("instance 1 dp_rank 0 cannot be resumed from status active"))
		s.do("POST", "/test/resume_listener", `{"instance_id":1,"dp_rank":null}`, 409,
			refusal("instance 1 dp_rank 0 cannot be resumed from status active"))
		s.do("POST", "/test/pause_listener", `{"instance_id":"1","dp_rank":0}`, 200, done)
		s.do("POST", "/test/pause_listener", `{}`, 422,
			"Failed to deserialize the JSON body into the target type: missing field `instance_id` at line 1 column 2")
	})
}
