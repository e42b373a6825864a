package engines_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"example.com/conductor/internal/must"
)

// patience ends a wait whose condition never comes true.
const patience = time.Minute

// eventually waits until done reports true. It fails the test with what done described last.
func eventually(t *testing.T, what string, done func() (state string, ok bool)) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(patience); ; <-tick.C {
		state, ok := done()
		if ok {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: %s", what, state)
		}
	}
}

// A question is a prompt with the truth about it.
type question struct {
	Tokens []uint32 `json:"tokens"`
	Lora   *string  `json:"lora"`
	Salt   *string  `json:"salt"`
	// Embeds has the digest, in hex, of the embeddings in each block; empty for a prompt of text.
	Embeds []string `json:"embeds,omitempty"`
	// Held has a letter for each block: d on the device, h on the host only, - on neither. Of several groups it is a text for logs.
	Held string `json:"held,omitempty"`
	// Taken is how many tokens an engine of several groups takes from its cache, nil for others.
	Taken *int `json:"taken,omitempty"`
	// Reached is how many tokens it takes with what it loads from the host, nil if it does not offload.
	Reached *int `json:"reached,omitempty"`
}

// command is a line for testdata/engine.py.
type command struct {
	Do        string     `json:"do"`
	N         int        `json:"n,omitempty"`
	Die       bool       `json:"die,omitempty"`
	Questions []question `json:"questions,omitempty"`
}

// options starts testdata/engine.py; its fields are that file's.
type options map[string]any

// An engine is one rank in a process of its own.
type engine struct {
	t        *testing.T
	options  options
	instance string
	rank     int
	port     int // of the live socket, rank included
	replay   int // of the replay socket, rank included; 0 without one

	cmd   *exec.Cmd
	in    *json.Encoder
	out   *json.Decoder
	last  int64  // sequence number, -1 before the first batch
	kept  int    // removals that left another copy of the block
	epoch uint64 // the server's epoch must be later than this
}

// block returns how many tokens a hash of the engine stands for.
func (e *engine) block() int {
	if n, ok := e.options["block"].(int); ok {
		return n
	}
	return blockSize
}

// freePorts returns the first of n consecutive ports that are free now. They are below those the
// system gives to clients, so that no connection takes the port of an engine between two lives.
func freePorts(t *testing.T, n int) int {
	t.Helper()
	for range 100 {
		port, free := 12000+rand.IntN(20000), 0
		for ; free < n; free++ {
			l, err := net.Listen("tcp", fmt.Sprintf(":%d", port+free))
			if err != nil {
				break
			}
			l.Close()
		}
		if free == n {
			return port
		}
	}
	t.Fatal("no free ports")
	return 0
}

// launch starts the process without waiting for it. The rank is added to the ports by the publisher.
func (e *engine) launch() {
	e.t.Helper()
	text, err := json.Marshal(e.options)
	must.Succeed(e.t, err)
	e.cmd = exec.Command(filepath.Join(os.Getenv("ENGINES_CACHE"), "venv", "bin", "python"), "-B", "-u", "testdata/engine.py", string(text))
	e.cmd.Stderr = os.Stderr
	in, err := e.cmd.StdinPipe()
	must.Succeed(e.t, err)
	out, err := e.cmd.StdoutPipe()
	must.Succeed(e.t, err)
	e.in, e.out = json.NewEncoder(in), json.NewDecoder(bufio.NewReaderSize(out, 1<<20))
	must.Succeed(e.t, e.cmd.Start())
}

// again starts the next life of an engine that has ended; its cache is empty. It works ahead
// steps before it answers, so that its sequence may pass the old one unseen.
func (e *engine) again(seed, ahead int) {
	e.t.Helper()
	e.options["seed"], e.options["ahead"] = seed, ahead
	e.launch()
	e.answer()
}

// send writes a command. Its answer is read with answer.
func (e *engine) send(c command) {
	e.t.Helper()
	if err := e.in.Encode(c); err != nil {
		e.t.Fatalf("%s: %v", e.instance, err)
	}
}

// answer reads the answer that is due.
func (e *engine) answer() []question {
	e.t.Helper()
	var a struct {
		Last      int64
		Kept      int
		Questions []question
	}
	if err := e.out.Decode(&a); err != nil {
		e.t.Fatalf("%s: the engine is gone: %v", e.instance, err)
	}
	e.last, e.kept = a.Last, a.Kept
	return a.Questions
}

// do sends a command and returns its answer.
func (e *engine) do(c command) []question {
	e.t.Helper()
	e.send(c)
	return e.answer()
}

// dies lets the engine kill itself at a random one of the next steps.
func (e *engine) dies(steps int) {
	e.t.Helper()
	e.send(command{Do: "work", N: steps, Die: true})
	if err := e.out.Decode(new(any)); err == nil {
		e.t.Fatalf("%s: the engine still lives", e.instance)
	}
	e.cmd.Wait()
}

// kill ends the process if it runs.
func (e *engine) kill() {
	if e.cmd != nil && e.cmd.Process != nil && e.cmd.ProcessState == nil {
		e.cmd.Process.Kill()
		e.cmd.Wait()
	}
}

// A server is bin/conductor in a process of its own.
type server struct {
	t    *testing.T
	cmd  *exec.Cmd
	url  string
	logs bytes.Buffer
}

func startServer(t *testing.T, config string) *server {
	t.Helper()
	file := filepath.Join(t.TempDir(), "config.yaml")
	must.Succeed(t, os.WriteFile(file, []byte(config), 0o600))
	s := &server{t: t, cmd: exec.Command(os.Getenv("ENGINES_CONDUCTOR"), "serve", "--config", file, "--listen", "127.0.0.1:0=conductor")}
	stderr, err := s.cmd.StderrPipe()
	must.Succeed(t, err)
	must.Succeed(t, s.cmd.Start())
	t.Cleanup(func() { s.cmd.Process.Kill(); s.cmd.Wait() })
	lines, address := bufio.NewReader(stderr), regexp.MustCompile(`"address":"([^"]+)"`)
	for s.url == "" {
		line, err := lines.ReadString('\n')
		s.logs.WriteString(line)
		if err != nil {
			t.Fatalf("the server ended: %s", s.logs.String())
		}
		if m := address.FindStringSubmatch(line); m != nil {
			s.url = "http://" + m[1]
		}
	}
	go io.Copy(io.Discard, lines)
	return s
}

// call sends a JSON body, or asks without one, and decodes the answer into out.
func (s *server) call(path string, body, out any) {
	s.t.Helper()
	var resp *http.Response
	var err error
	if body == nil {
		resp, err = http.Get(s.url + path)
	} else {
		var text []byte
		if text, err = json.Marshal(body); err != nil {
			s.t.Fatal(err)
		}
		resp, err = http.Post(s.url+path, "application/json", bytes.NewReader(text))
	}
	must.Succeed(s.t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("status %d", resp.StatusCode)
	}
	if err == nil {
		err = json.Unmarshal(text, out)
	}
	if err != nil {
		s.t.Fatalf("%s: %v: %s", path, err, text)
	}
}

// service is one row of /services.
type service struct {
	InstanceID string
	DPRank     int
	State      string
	Reason     string
	Epoch      uint64
	LastSeq    *int64
	Gaps       uint64
	Orphans    int
	Dropped    uint64
	DroppedBy  map[string]uint64
	Restarts   uint64
	Findings   []struct{ Code, Message string }
}

// service returns the row of an engine.
func (s *server) service(e *engine) service {
	s.t.Helper()
	var all struct{ Services []service }
	s.call("/services", nil, &all)
	for _, row := range all.Services {
		if row.InstanceID == e.instance && row.DPRank == e.rank {
			return row
		}
	}
	s.t.Fatalf("%s is not registered", e.instance)
	return service{}
}

// peak returns the most memory the server ever had, in bytes; 0 where the system does not say.
func (s *server) peak() int {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.cmd.Process.Pid))
	for line := range strings.Lines(string(text)) {
		if kib, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			n, _ := strconv.Atoi(strings.Fields(kib)[0])
			return n << 10
		}
	}
	return 0
}
