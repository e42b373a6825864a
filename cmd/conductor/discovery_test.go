package main

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"example.com/conductor/internal/freeport"
	"example.com/conductor/internal/must"
)

// tells is the HTTP server of a vLLM whose publisher is an engine of the test.
func tells(t *testing.T, e *ruledEngine) string {
	return tellsLater(t, func() *ruledEngine { return e })
}

// tellsLater is tells for an engine that may be another one later.
func tellsLater(t *testing.T, engine func() *ruledEngine) string {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/kv_event_sources":
			_, port, err := net.SplitHostPort(engine().pub.Addr().String())
			must.Report(t, err)
			fmt.Fprintf(w, `{"0":{"publisher":"zmq","endpoint":"tcp://*:%s","replay_endpoint":null,"topic":""}}`, port)
		case "/v1/models":
			fmt.Fprint(w, `{"data":[{"id":"m"}]}`)
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(s.Close)
	return s.URL
}

// TestDiscovery follows engines by their URLs: of the settings file, of a folder of files, and
// of clients.
func TestDiscovery(t *testing.T) {
	t.Parallel()
	static, listed, asked := newRuledEngine(t, "static", 0), newRuledEngine(t, "listed", 0), newRuledEngine(t, "asked", 0)
	dir := t.TempDir()
	folder := filepath.Join(dir, "sources")
	must.Succeed(t, os.Mkdir(folder, 0o700))
	file := filepath.Join(dir, "conductor.yaml")
	must.Succeed(t, os.WriteFile(file, []byte("discovery: {sources_dir: "+folder+"}\nsources:\n- {discover: '"+tells(t, static)+
		"', instance_id: static, block_size: 16}\n"), 0o600))
	p := startProcess(t, "serve", "--config", file, "--listen", "127.0.0.1:0=conductor")
	services := func() string {
		_, answer := get(p.url + "/services")
		return answer
	}
	static.publish(ruledStored(0, 3))
	static.settled(p)
	if s := services(); !strings.Contains(s, `"learned"`) || !strings.Contains(s, `"discovery":[{"InstanceID":"static"`) {
		t.Errorf("the settings: %s", s)
	}

	// Files come, are bad, and go. A bad one changes nothing.
	one := filepath.Join(folder, "one.yaml")
	write := func(name, text string) {
		t.Helper()
		must.Succeed(t, os.WriteFile(name+".new", []byte(text), 0o600))
		must.Succeed(t, os.Rename(name+".new", name))
	}
	write(one, "sources:\n- {discover: '"+tells(t, listed)+"', instance_id: listed, block_size: 16}\n")
	eventually(t, "the file's source is not there", func() (string, bool) {
		s := services()
		return s, strings.Contains(s, "listed|default|0") || strings.Contains(s, `"InstanceID":"listed","BlockSize"`)
	})
	listed.publish(ruledStored(0, 2))
	listed.settled(p)
	write(one, "sources:\n- {instance_id: listed}\n")
	write(filepath.Join(folder, "two.yml"),
		"sources:\n- {endpoint: 'tcp://127.0.0.1:1', type: vLLM, modelname: m, instance_id: static, block_size: 16}\n")
	write(filepath.Join(folder, "three.yaml"), "log: {level: debug}\n")
	write(filepath.Join(folder, "readme.txt"), "no file of sources")
	answer := post(t, p.url+"/admin/reload", "{}", 200)
	for _, want := range []string{`"one.yaml"`, "is required", `"two.yml":"static|default|0 is a source of the settings"`,
		`"three.yaml":"a file of sources has no other settings"`} {
		if !strings.Contains(answer, want) {
			t.Errorf("%s is not in %s", want, answer)
		}
	}
	eventually(t, "three bad files and two engines are not in the metrics", func() (string, bool) {
		_, metrics := get(p.url + "/metrics")
		return metrics, strings.Contains(metrics, `conductor_source_files{state="bad"} 3`) &&
			strings.Contains(metrics, `conductor_discovery_targets{state="found"} 2`)
	})
	if s := listed.settled(p); s.LastSeq == nil {
		t.Errorf("a bad file costs its sources: %s", services())
	}
	must.Succeed(t, os.Remove(one))
	eventually(t, "the source of a file that is gone stays", func() (string, bool) {
		s := services()
		return s, !strings.Contains(s, `"listed"`)
	})

	// An engine that does not answer is named by commands.
	post(t, p.url+"/register", `{"discover":"http://127.0.0.1:1","instance_id":"deaf"}`, 200)
	eventually(t, "the engine's silence is no error", func() (string, bool) {
		s := services()
		return s, strings.Contains(s, "connection refused")
	})
	if out, _ := command("doctor", "--server", p.url).Output(); !strings.Contains(string(out), "error discovery: deaf|default\n") ||
		!strings.Contains(string(out), "connection refused") {
		t.Errorf("doctor says %s", out)
	}
	if out, err := command("services", "--server", p.url).Output(); err != nil ||
		!strings.Contains(string(out), "\ndeaf|default discover: ") {
		t.Errorf("services are %s, %v", out, err)
	}
	post(t, p.url+"/unregister", `{"instance_id":"deaf","dp_rank":0}`, 200)

	// A client's engine, whose first events tell the block size.
	body := `{"discover":"` + tells(t, asked) + `","instance_id":"asked"}`
	post(t, p.url+"/register", body, 200)
	post(t, p.url+"/register", body, 200)
	post(t, p.url+"/register", `{"discover":"http://127.0.0.1:1","instance_id":"asked"}`, 409)
	if answer := post(t, p.url+"/register", `{"discover":"file:///etc","instance_id":"asked"}`, 400); !strings.Contains(answer,
		`"field":"discover"`) {
		t.Errorf("a bad URL: %s", answer)
	}
	eventually(t, "the block size is not learned", func() (string, bool) {
		asked.publish(ruledStored(0, 2))
		s := services()
		return s + p.log(), strings.Contains(s, `"InstanceID":"asked","BlockSize":16`)
	})
	post(t, p.url+"/unregister", `{"instance_id":"asked","dp_rank":0}`, 200)
	eventually(t, "an unregistered engine stays", func() (string, bool) { s := services(); return s, !strings.Contains(s, `"asked"`) })
}

// An engine of the settings, which the server asks where it publishes, cannot make the server listen, or connect to a
// socket of its machine, neither when it is followed nor while its events are to tell the block size.
func TestEnginesNameNoSockets(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	socket := filepath.Join(dir, "secret.sock")
	victim, err := net.Listen("unix", socket)
	must.Succeed(t, err)
	defer victim.Close()
	visits := make(chan struct{}, 10)
	go func() {
		for {
			c, err := victim.Accept()
			if err != nil {
				return
			}
			visits <- struct{}{}
			c.Close()
		}
	}()
	port, err := freeport.Address()
	must.Succeed(t, err)
	_, port, err = net.SplitHostPort(port)
	must.Succeed(t, err)
	told := map[string]string{"dials": "ipc://" + socket, "listens": "bind:tcp://127.0.0.1:" + port}
	sources := "sources:\n"
	for name, endpoint := range told {
		engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/kv_event_sources" {
				fmt.Fprintf(w, `[{"publisher":"zmq","endpoint":%q}]`, endpoint)
				return
			}
			fmt.Fprint(w, `{"data":[{"id":"m"}]}`)
		}))
		t.Cleanup(engine.Close)
		sources += fmt.Sprintf("- {discover: '%s', instance_id: %s, block_size: 16}\n- {discover: '%s', instance_id: %s-learns}\n",
			engine.URL, name, engine.URL, name)
	}
	p := serveProcess(t, sources)
	eventually(t, "the server does not say why", func() (string, bool) {
		_, answer := get(p.url + "/services")
		return answer, strings.Count(answer, "is not one that register.allow allows") == 4
	})
	if c, err := net.Dial("tcp", "127.0.0.1:"+port); err == nil {
		c.Close()
		t.Error("the server listens where an engine says")
	}
	if len(visits) > 0 {
		t.Error("the server connects to a socket that an engine names")
	}

	sources += "register: {allow: [default, 'ipc://" + dir + "/', 'bind:tcp://*:" + port + "']}\n"
	allows := serveProcess(t, sources)
	<-visits
	eventually(t, "the server does not listen", func() (string, bool) {
		c, err := net.Dial("tcp", "127.0.0.1:"+port)
		if err == nil {
			c.Close()
		}
		_, answer := get(allows.url + "/services")
		return answer, err == nil
	})
}

// A server that was killed asks the engines of clients again. One that publishes elsewhere by then
// is followed there, under its registration.
func TestTargetsOutliveTheServer(t *testing.T) {
	t.Parallel()
	var engine atomic.Pointer[ruledEngine]
	engine.Store(newRuledEngine(t, "asked", 0))
	url := tellsLater(t, engine.Load)
	dir := t.TempDir()
	settings := "snapshot: {dir: " + dir + "}\n"
	p := serveProcess(t, settings)
	post(t, p.url+"/register", `{"discover":"`+url+`","instance_id":"asked","block_size":16,"ttl":"1h"}`, 200)
	post(t, p.url+"/register", `{"discover":"http://127.0.0.1:1","instance_id":"deaf"}`, 200)
	engine.Load().publish(ruledStored(0, 3))
	engine.Load().settled(p)
	again := func(meanwhile func()) {
		t.Helper()
		eventually(t, "the registrations are not written", func() (string, bool) {
			text, err := os.ReadFile(filepath.Join(dir, "registrations"))
			return fmt.Sprint(err), strings.Contains(string(text), "deaf") && strings.Contains(string(text), "127.0.0.1 0 0")
		})
		must.Succeed(t, p.cmd.Process.Kill())
		p.cmd.Wait()
		meanwhile()
		p = serveProcess(t, settings)
	}
	again(func() {})
	_, answer := get(p.url + "/services")
	for _, want := range []string{`"InstanceID":"asked"`, `"TTL":"1h0m0s"`, `"discovery":[{"InstanceID":"asked"`,
		`{"InstanceID":"deaf","TenantID":"default","URL":"http://127.0.0.1:1"`} {
		if !strings.Contains(answer, want) {
			t.Errorf("%s is not in %s", want, answer)
		}
	}

	moved := newRuledEngine(t, "asked", 0)
	again(func() { engine.Store(moved) }) // the killed server has not subscribed to it
	moved.publish(ruledStored(0, 2))
	moved.settled(p)
	post(t, p.url+"/unregister", `{"instance_id":"asked","dp_rank":0}`, 200)
	eventually(t, "the engine stays", func() (string, bool) {
		_, answer := get(p.url + "/services")
		return answer, !strings.Contains(answer, `"asked"`) && strings.Contains(answer, `"deaf"`)
	})
}

// A server is not ready before an engine of the settings has told where it publishes.
func TestReadyWaitsForDiscovery(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "conductor.yaml")
	must.Succeed(t, os.WriteFile(file,
		[]byte("stream: {stale_after: 1h}\nsources:\n- {discover: 'http://127.0.0.1:1', instance_id: late, block_size: 16}\n"), 0o600))
	p := startProcess(t, "serve", "--config", file, "--listen", "127.0.0.1:0=conductor")
	if status, answer := get(p.url + "/ready"); status != 503 || !strings.Contains(answer, `"late|default|0"`) &&
		!strings.Contains(answer, `"late"`) {
		t.Errorf("%d %s", status, answer)
	}
}
