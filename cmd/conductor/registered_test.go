package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"example.com/conductor/internal/must"
	"example.com/conductor/internal/redistest"
)

// lastingServer is a server with snapshots that is killed and started again.
type lastingServer struct {
	*process
	t         *testing.T
	file      string
	snapshots string // the directory
}

// newLastingServer starts a server whose snapshots are due all the time. stuck lets the first one never end.
func newLastingServer(t *testing.T, stuck bool, further ...string) *lastingServer {
	t.Helper()
	dir := t.TempDir()
	s := &lastingServer{t: t, file: filepath.Join(dir, "config.yaml"), snapshots: filepath.Join(dir, "snapshots")}
	must.Succeed(t, os.WriteFile(s.file, []byte(fmt.Sprintf("snapshot: {dir: %q, interval: 1ms}\n", s.snapshots)+strings.Join(further, "")),
		0o600))
	must.Succeed(t, os.Mkdir(s.snapshots, 0o700))
	if stuck { // a pipe without a reader
		must.Succeed(t, syscall.Mkfifo(s.snapshotFile(), 0o600))
	}
	s.start()
	return s
}

// snapshotFile and registrationsFile are written before they get their names.
func (s *lastingServer) snapshotFile() string {
	return filepath.Join(s.snapshots, "00000001.snapshot.tmp")
}

func (s *lastingServer) registrationsFile() string {
	return filepath.Join(s.snapshots, "00000000.snapshot.tmp")
}

func (s *lastingServer) start() {
	s.t.Helper()
	s.process = startCommand(s.t, command("serve", "--config", s.file, "--listen", "127.0.0.1:0=conductor"))
}

// kill ends the process at once.
func (s *lastingServer) kill() {
	s.t.Helper()
	must.Succeed(s.t, s.cmd.Process.Kill())
	s.cmd.Wait()
}

// has returns the sources and the targets of discovery that there are.
func (s *lastingServer) has() map[string]bool {
	s.t.Helper()
	status, body := get(s.url + "/services")
	if status != 200 {
		s.t.Fatalf("%d %s", status, body)
	}
	var answer struct{ Services, Discovery []struct{ InstanceID string } }
	decode(s.t, body, &answer)
	all := map[string]bool{}
	for _, row := range answer.Services {
		all[row.InstanceID] = true
	}
	for _, row := range answer.Discovery {
		all[row.InstanceID+" asked"] = true
	}
	return all
}

// send posts JSON. It returns status 0 if there is no answer.
func send(url, body string) (status int, answer string, header http.Header) {
	resp, err := http.Post(url, "application/json", strings.NewReader(body))
	if err != nil {
		return 0, err.Error(), nil
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err.Error(), nil
	}
	return resp.StatusCode, string(text), resp.Header
}

// dialectOfCalls is how a dialect registers and unregisters an instance.
type dialectOfCalls struct {
	name                 string
	register, unregister string // paths
	body, end            string // with the instance for %s
	registered           int    // status
}

// dialectsOfCalls returns all of them; url is the HTTP server of an engine.
func dialectsOfCalls(url string) []dialectOfCalls {
	const fields = `"endpoint":"tcp://127.0.0.1:1","block_size":16,`
	return []dialectOfCalls{
		{"conductor", "/register", "/unregister", `{` + fields + `"type":"vLLM","modelname":"m","dp_rank":0,"instance_id":"%s"}`,
			`{"instance_id":"%s","dp_rank":0}`, 200},
		{"discover", "/register", "/unregister", `{"discover":"` + url + `","block_size":16,"instance_id":"%s"}`,
			`{"instance_id":"%s","dp_rank":0}`, 200},
		{"pushed", "/register", "/unregister",
			`{"endpoint":"push:","block_size":16,"type":"LMCache","modelname":"m","dp_rank":0,"instance_id":"%s"}`,
			`{"instance_id":"%s","dp_rank":0}`, 200},
		{"unpublished", "/register", "/unregister",
			`{"events":"none","capacity_blocks":8,"block_size":16,"type":"Standard","modelname":"m","instance_id":"%s"}`,
			`{"instance_id":"%s","dp_rank":0}`, 200},
		{"dynamo", "/dynamo/v1/register", "/dynamo/v1/unregister", `{` + fields + `"model_name":"m","instance_id":"%s"}`,
			`{"instance_id":"%s","model_name":"m"}`, 201},
		{"mooncake", "/register?dialect=v2", "/unregister?dialect=v2",
			`{"endpoint":"tcp://127.0.0.1:2","block_size":16,"type":"vLLM","modelname":"m","dp_rank":0,"instance_id":"%s"}`,
			`{"instance_id":"%s","dp_rank":0}`, 200},
	}
}

// askedEngine is the HTTP server of an engine whose publisher is not there.
func askedEngine(t *testing.T) string {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/kv_event_sources":
			fmt.Fprint(w, `{"0":{"publisher":"zmq","endpoint":"tcp://*:1","replay_endpoint":null,"topic":""}}`)
		case "/v1/models":
			fmt.Fprint(w, `{"data":[{"id":"m"}]}`)
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(s.Close)
	return s.URL
}

// A server that is killed right behind an answer knows of the call when it starts again, in each dialect,
// although a snapshot is under way all the time.
func TestKilledBehindARegistration(t *testing.T) {
	t.Parallel()
	s := newLastingServer(t, true)
	url := askedEngine(t)
	restart := func(instance string, there bool) {
		t.Helper()
		s.kill()
		s.start()
		if has := s.has(); has[instance] != there && has[instance+" asked"] != there {
			t.Errorf("%s is there: %t; there are %v", instance, !there, has)
		}
	}
	for _, d := range dialectsOfCalls(url) {
		post(t, s.url+d.register, fmt.Sprintf(d.body, d.name), d.registered)
		restart(d.name, true)
		if d.name == "discover" {
			eventually(t, "the engine was not asked", func() (string, bool) { has := s.has(); return fmt.Sprint(has), has["discover"] })
			post(t, s.url+d.register, fmt.Sprintf(d.body, d.name), 200)
		}
	}
	for _, d := range dialectsOfCalls(url) {
		post(t, s.url+d.unregister, fmt.Sprintf(d.end, d.name), 200)
		restart(d.name, false)
	}
	if has := s.has(); len(has) > 0 {
		t.Errorf("there are %v", has)
	}
	// The snapshot was under way: it goes on once the pipe has a reader.
	pipe, err := os.Open(s.snapshotFile())
	must.Succeed(t, err)
	defer pipe.Close()
	magic := make([]byte, 6)
	if _, err := io.ReadFull(pipe, magic); err != nil || string(magic) != "KVSNAP" {
		t.Errorf("%q, %v", magic, err)
	}
}

// With a store that other replicas share, the store has not heard of the last call, and does not undo it.
func TestKilledBehindARegistrationWithAStore(t *testing.T) {
	t.Parallel()
	shared := redistest.Start(t)
	s := newLastingServer(t, true, "store: {url: '", shared.URL(), "'}\n")
	complete := func() {
		t.Helper()
		eventually(t, "the store has not heard of all changes", func() (string, bool) {
			_, body := get(s.url + "/services?fleet=1")
			_, metrics := get(s.url + "/metrics")
			return body, strings.Contains(body, `"complete":true`) && strings.Contains(metrics, "conductor_registry_pending 0\n")
		})
	}
	all := dialectsOfCalls("http://127.0.0.1:1")
	for _, d := range all {
		post(t, s.url+d.register, fmt.Sprintf(d.body, d.name), d.registered)
	}
	for i, d := range all {
		if i <= 2 {
			complete()
		}
		if i == 2 { // it is away from here on
			shared.Kill()
		}
		post(t, s.url+d.unregister, fmt.Sprintf(d.end, d.name), 200)
		s.kill()
		s.start()
		if has := s.has(); has[d.name] || has[d.name+" asked"] {
			t.Errorf("%s is back; there are %v", d.name, has)
		}
		if i >= 2 {
			continue
		}
		complete()
		if has := s.has(); has[d.name] || has[d.name+" asked"] {
			t.Errorf("the store has brought %s back; there are %v", d.name, has)
		}
	}
	shared.Run()
	complete()
	if has := s.has(); len(has) > 0 {
		t.Errorf("the store has brought %v back", has)
	}
}

// A server that is killed before an answer starts again with what it had answered before.
func TestKilledBeforeTheAnswer(t *testing.T) {
	t.Parallel()
	s := newLastingServer(t, false)
	calls := dialectsOfCalls("")[0]
	post(t, s.url+calls.register, fmt.Sprintf(calls.body, "answered"), 200)
	for _, there := range []bool{true, false} {
		path, body := calls.register, calls.body
		if !there {
			path, body = calls.unregister, calls.end
		}
		// Without the file to which changes are appended all of it is written again; without a reader that never ends.
		appended := filepath.Join(s.snapshots, "registrations")
		must.Succeed(t, os.Rename(appended, appended+".away"))
		must.Succeed(t, syscall.Mkfifo(s.registrationsFile(), 0o600))
		answered := make(chan string, 1)
		go func() {
			status, text, _ := send(s.url+path, fmt.Sprintf(body, "waits"))
			answered <- fmt.Sprint(status, " ", text)
		}()
		eventually(t, "the call has no effect", func() (string, bool) { has := s.has(); return fmt.Sprint(has), has["waits"] == there })
		select {
		case text := <-answered:
			t.Errorf("it is answered before it is on the disk: %s", text)
		default:
		}
		s.kill()
		if text := <-answered; !strings.HasPrefix(text, "0 ") {
			t.Errorf("it is answered: %s", text)
		}
		must.Succeed(t, os.Rename(appended+".away", appended))
		must.Succeed(t, os.Remove(s.registrationsFile()))
		s.start()
		if has := s.has(); !has["answered"] {
			t.Errorf("there are %v", has)
		}
		status := 200
		if !there && !s.has()["waits"] {
			status = 404
		}
		post(t, s.url+path, fmt.Sprintf(body, "waits"), status)
	}
}

// A server that is killed while many clients register and unregister has all that was answered.
func TestKilledWhileClientsRegister(t *testing.T) {
	t.Parallel()
	s := newLastingServer(t, false)
	calls := dialectsOfCalls("")[0]
	const clients = 8
	type known struct{ sure, asked bool } // what was answered last, and asked for since
	var state [clients]known
	for _, kill := range []int{1, 1 + rand.IntN(8), 8 + rand.IntN(50), 100} {
		answers := make(chan struct{})
		var all sync.WaitGroup
		for i := range clients {
			all.Go(func() {
				for {
					there := !state[i].sure
					path, body := calls.register, calls.body
					if !there {
						path, body = calls.unregister, calls.end
					}
					state[i].asked = there
					status, text, _ := send(s.url+path, fmt.Sprintf(body, fmt.Sprint("i", i)))
					if status == 0 {
						return // it was killed
					}
					if status != 200 && !(status == 404 && !there) {
						t.Errorf("%s: %d %s", path, status, text)
						return
					}
					state[i].sure = there
					answers <- struct{}{}
				}
			})
		}
		ended := make(chan struct{})
		go func() {
			all.Wait()
			close(ended)
		}()
		for range kill {
			select {
			case <-answers:
			case <-ended:
				t.Fatal("no client asks any more")
			}
		}
		s.kill()
		for end := false; !end; {
			select {
			case <-answers:
			case <-ended:
				end = true
			}
		}
		s.start()
		has := s.has()
		for i := range state {
			instance := fmt.Sprint("i", i)
			if k := &state[i]; has[instance] != k.sure && has[instance] != k.asked {
				t.Errorf("killed behind %d answers: %s is there: %t, %+v", kill, instance, has[instance], *k)
			}
			state[i].sure = has[instance]
		}
	}
}

// A disk that refuses fails calls in the words of each dialect, and shows. Calls that are made again
// succeed once the disk takes them.
func TestRegisterOnFailingDisk(t *testing.T) {
	t.Parallel()
	s := newLastingServer(t, false)
	f := func(path, body, instance string, status int, want string) {
		t.Helper()
		got, text, header := send(s.url+path, fmt.Sprintf(body, instance))
		if got != status || strings.TrimSpace(text) != want || (header.Get("Retry-After") != "") != (status == 503) {
			t.Errorf("%s %s: %d %s %v, want %d %s", path, instance, got, text, header, status, want)
		}
	}
	const reason = `the change counts, but a restart would lose it: is a directory`
	all := dialectsOfCalls("http://127.0.0.1:1")
	refused := func(d dialectOfCalls) string {
		if d.name == "dynamo" {
			return `{"error":"` + reason + `"}`
		}
		return `{"error":"` + reason + `","reason":"not_durable"}`
	}
	must.Succeed(t, os.MkdirAll(filepath.Join(s.registrationsFile(), "in-the-way"), 0o700)) // no file can be made there
	for _, d := range all {
		f(d.register, d.body, d.name, 503, refused(d))
	}
	has := s.has()
	if !has["conductor"] || !has["discover asked"] || !has["dynamo"] || !has["mooncake"] {
		t.Errorf("there are %v", has)
	}
	if _, body := get(s.url + "/services"); !strings.Contains(body, `"not_durable"`) {
		t.Errorf("no finding: %s", body)
	}
	if _, body := get(s.url + "/metrics"); !strings.Contains(body, "conductor_registrations_failing 1\n") {
		t.Error("the metric does not show it")
	}
	if _, body := get(s.url + "/admin/stats"); !strings.Contains(body, `registrations: is a directory`) {
		t.Errorf("%s", body)
	}
	must.Succeed(t, os.RemoveAll(s.registrationsFile()))
	for _, d := range all {
		status := 200
		if d.name == "dynamo" {
			status = 409 // it is registered
		}
		post(t, s.url+d.register, fmt.Sprintf(d.body, d.name), status)
	}
	eventually(t, "the finding stays", func() (string, bool) {
		_, body := get(s.url + "/services")
		return body, !strings.Contains(body, `"not_durable"`)
	})
	// Without the file to which changes are appended all of it is written again.
	must.Succeed(t, os.Remove(filepath.Join(s.snapshots, "registrations")))
	must.Succeed(t, os.MkdirAll(filepath.Join(s.registrationsFile(), "in-the-way"), 0o700))
	for _, d := range all {
		f(d.unregister, d.end, d.name, 503, refused(d))
	}
	must.Succeed(t, os.RemoveAll(s.registrationsFile()))
	for _, d := range all {
		post(t, s.url+d.unregister, fmt.Sprintf(d.end, d.name), 404)
	}
	s.kill()
	s.start()
	if has := s.has(); len(has) > 0 {
		t.Errorf("there are %v", has)
	}
}

// Answers say that a registration lives in memory.
func TestRegisterInMemory(t *testing.T) {
	t.Parallel()
	f := func(config string, salt string, durable bool) {
		t.Helper()
		p := serveProcess(t, config)
		for _, d := range dialectsOfCalls("http://127.0.0.1:1") {
			body := d.body
			if salt != "" && !strings.Contains(d.register, "?") && d.name != "dynamo" && d.name != "unpublished" {
				body = strings.Replace(body, "{", `{"additionalsalt":"`+salt+`",`, 1)
			} else if salt != "" {
				continue // it takes none
			}
			status, text, header := send(p.url+d.register, fmt.Sprintf(body, d.name))
			var answer struct{ Durable *bool }
			must.Report(t, json.Unmarshal([]byte(text), &answer))
			own := d.register == "/register"
			if status != d.registered || (header.Get("Conductor-Durable") == "false") == durable ||
				(answer.Durable != nil && !*answer.Durable) != (own && !durable) {
				t.Errorf("%s: %d %s %v", d.name, status, text, header)
			}
		}
	}
	kept := fmt.Sprintf("snapshot: {dir: %q}\n", filepath.Join(t.TempDir(), "snapshots"))
	f("log: {level: info}\n", "", false)
	f(kept, "", true)
	f(fmt.Sprintf("snapshot: {dir: %q}\n", filepath.Join(t.TempDir(), "snapshots")), "pepper", false)
}
