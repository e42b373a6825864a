package main

import (
	"fmt"
	"io"
	"net"
	"regexp"
	"slices"
	"strings"
	"testing"

	"example.com/conductor/internal/freeport"
	"example.com/conductor/internal/must"
)

// TestPortsLookAlike registers endpoints and URLs whose ports refuse connections, accept them and say nothing, or
// speak another protocol. A client without the role admin sees no difference between them, now or
// later; one with it sees the causes. Sources of the configuration look alike in /ready too.
func TestPortsLookAlike(t *testing.T) {
	t.Parallel()
	listen := func(serve func(net.Conn)) string {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		must.Succeed(t, err)
		t.Cleanup(func() { l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				t.Cleanup(func() { c.Close() })
				serve(c)
			}
		}()
		return l.Addr().String()
	}
	gone, err := freeport.Address() // another test may get a port that was the system's choice
	must.Succeed(t, err)
	ports := map[string]string{
		"closed": gone, "silent": listen(func(net.Conn) {}),
		"http": listen(func(c net.Conn) { io.WriteString(c, "HTTP/1.1 400 Bad Request\r\n\r\n"); c.Close() }),
	}
	config := "auth: {file: " + credentialsFile(t, "guest register,query '*'", "operator admin '*'") +
		", anonymous: [register, query], loopback: [none]}\nsources:\n"
	for name, at := range ports {
		config += fmt.Sprintf("  - {endpoint: 'tcp://%s', type: vLLM, modelname: m, instance_id: own-%s, block_size: 16}\n", at, name)
	}
	p := serveProcess(t, config)
	for name, at := range ports {
		post(t, p.url+"/register", fmt.Sprintf(`{"endpoint":"tcp://%s","type":"vLLM","modelname":"m","instance_id":"%s","block_size":16,`+
			`"dp_rank":0}`, at, name), 200)
		post(t, p.url+"/register", fmt.Sprintf(`{"discover":"http://%s","type":"vLLM","modelname":"m","instance_id":"asked-%s"}`, at, name),
			200)
	}
	names := regexp.MustCompile(`(own-|asked-)?(closed|silent|http)\b|127\.0\.0\.1:\d+`)
	alike := func(path, token string) (all []string) { // answers about sources, without their names
		_, text := askAs(t, "GET", p.url+path, token, "", nil)
		for _, said := range regexp.MustCompile(`"(LastError|last_error|Reason|reason|State|state)":"([^"\\]|\\.)*"|"Addresses":\d+`).
			FindAllString(text, -1) {
			if said = names.ReplaceAllString(said, "NAME"); !slices.Contains(all, said) {
				all = append(all, said)
			}
		}
		slices.Sort(all)
		return all
	}
	eventually(t, "the operator does not see why", func() (string, bool) {
		_, text := askAs(t, "GET", p.url+"/services", "operator", "", nil)
		return text, strings.Count(text, "refused") >= 3
	})
	const unreachable = "there is no connection that can be followed"
	for _, token := range []string{"", "guest"} {
		for path, want := range map[string][]string{
			"/services": {`"Addresses":0`, `"LastError":"the engine cannot be asked"`, `"LastError":"` + unreachable + `"`,
				`"Reason":""`, `"State":"connecting"`, `"State":"waiting"`},
			"/dynamo/v1/workers": {`"last_error":"` + unreachable + `"`, `"reason":""`, `"state":"connecting"`},
			"/ready":             {`"reason":"` + unreachable + `"`, `"state":"connecting"`},
		} {
			if got := alike(path, token); !slices.Equal(got, want) {
				t.Errorf("%s as %q tells %q, want %q", path, token, got, want)
			}
		}
	}
	if got := alike("/ready", "operator"); !strings.Contains(strings.Join(got, " "), "refused") {
		t.Errorf("/ready tells an operator %q", got)
	}
}

// gone returns a port at which nothing listens.
func gone(t *testing.T) string {
	t.Helper()
	address, err := freeport.Address()
	must.Succeed(t, err)
	return address[strings.LastIndexByte(address, ':')+1:]
}

// A client that may register cannot use the server to reach its own machine, or the addresses at
// which clouds tell secrets. Sources of the configuration may.
func TestRegisterReaches(t *testing.T) {
	t.Parallel()
	victim, err := net.Listen("tcp", "127.0.0.1:0")
	must.Succeed(t, err)
	defer victim.Close()
	visits := make(chan struct{}, 100)
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
	_, port, err := net.SplitHostPort(victim.Addr().String())
	must.Succeed(t, err)
	body := func(endpoint, more string) string {
		return fmt.Sprintf(`{"endpoint":%q,"type":"vLLM","modelname":"m","instance_id":"i","block_size":16,"dp_rank":0%s}`, endpoint, more)
	}
	const source = "sources: [{endpoint: 'tcp://127.0.0.1:PORT', type: vLLM, modelname: m, instance_id: own, block_size: 16}]\n"

	open := serveProcess(t, "", "0.0.0.0:0=conductor")
	open.url = "http://127.0.0.1:" + open.url[strings.LastIndexByte(open.url, ':')+1:]
	for _, endpoint := range []string{"tcp://127.0.0.1:" + port, "tcp://localhost:" + port, "tcp://[::1]:" + port,
		"tcp://169.254.169.254:80", "ipc:///var/run/docker.sock", "bind:tcp://*:" + port} {
		if answer := post(t, open.url+"/register", body(endpoint, ""), 400); !strings.Contains(answer, `"field":"endpoint"`) ||
			!strings.Contains(answer, "register.allow") {
			t.Errorf("%s: %s", endpoint, answer)
		}
	}
	if answer := post(t, open.url+"/register", body("tcp://192.0.2.1:5557", `,"replay_endpoint":"tcp://127.0.0.1:`+port+`"`),
		400); !strings.Contains(answer, `"field":"replay_endpoint"`) {
		t.Errorf("a replay endpoint: %s", answer)
	}
	post(t, open.url+"/dynamo/v1/register",
		fmt.Sprintf(`{"instance_id":1,"endpoint":"tcp://127.0.0.1:%s","model_name":"m","block_size":16}`, port), 400)
	post(t, open.url+"/register", body("tcp://192.0.2.1:5557", ""), 200)
	if len(visits) > 0 {
		t.Errorf("the victim was visited %d times", len(visits))
	}

	// On loopback too: a web page that reaches the server has no rights to its machine's sockets.
	local := serveProcess(t, "")
	for endpoint, rule := range map[string]string{"ipc:///var/run/docker.sock": "ipc:///var/run/docker.sock",
		"bind:tcp://*:8181": "bind:tcp://*:8181", "bind:tcp://127.0.0.1:8181": "bind:tcp://*:8181"} {
		if answer := post(t, local.url+"/register", body(endpoint, ""), 400); !strings.Contains(answer, `"field":"endpoint"`) ||
			!strings.Contains(answer, `register.allow allows: add \"`+rule) {
			t.Errorf("%s: %s", endpoint, answer)
		}
	}
	post(t, local.url+"/register", body("tcp://127.0.0.1:"+gone(t), ""), 200)

	ruled := serveProcess(t, strings.ReplaceAll(source, "PORT", port)+"register: {allow: ['tcp://10.0.0.0/8:5000-6000']}\n")
	<-visits // by the source of the configuration
	post(t, ruled.url+"/register", body("tcp://127.0.0.1:"+port, ""), 400)
	post(t, ruled.url+"/register", body("tcp://10.1.2.3:80", ""), 400)
	post(t, ruled.url+"/register", body("tcp://10.1.2.3:5557", ""), 200)
}
