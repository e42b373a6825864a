package check

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"example.com/conductor/client"
	"example.com/conductor/internal/freeport"
)

// What whole engines are started with.
const (
	wholeModel  = "tiny"
	wholeBlock  = 32   // tokens; attention on the CPU takes multiples of 32
	wholeBlocks = 400  // of an engine's cache, few enough that it evicts
	wholeMost   = 4096 // tokens of a prompt and its answer
)

// enginePatience is how long an engine may take to start, or anything else that a shared machine may make slow: only a test that fails
// waits for all of it.
const enginePatience = 40 * time.Minute

// wait polls until done returns "", and fails after limit with what it returned last.
func wait(t *testing.T, limit time.Duration, what string, done func() string) {
	t.Helper()
	deadline := time.Now().Add(limit)
	for {
		last := done()
		if last == "" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: not after %s: %s", what, limit, last)
		}
		<-time.After(20 * time.Millisecond)
	}
}

func freeAddress(t *testing.T) string {
	t.Helper()
	address, err := freeport.Address()
	if err != nil {
		t.Fatal(err)
	}
	return address
}

// process is a program in a process group of its own, because vLLM starts further processes.
type process struct {
	t     *testing.T
	name  string
	cmd   *exec.Cmd
	log   string        // name of a file
	ended chan struct{} // closed when it has ended
}

// startProcess starts a program, and kills it when the test ends.
func startProcess(t *testing.T, name, program string, environment []string, args ...string) *process {
	t.Helper()
	p := &process{t: t, name: name, log: filepath.Join(t.TempDir(), "log"), ended: make(chan struct{})}
	log, err := os.Create(p.log)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	p.cmd = exec.Command(program, args...)
	p.cmd.Env = append(os.Environ(), environment...)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = p.cmd.Wait()
		close(p.ended)
	}()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("%s said last:\n%s", name, p.lastLines(15))
		}
		p.kill()
	})
	return p
}

// signal sends a signal to all processes of the group.
func (p *process) signal(s syscall.Signal) { _ = syscall.Kill(-p.cmd.Process.Pid, s) }

// kill ends the process at once, as if its machine had failed.
func (p *process) kill() {
	select {
	case <-p.ended: // its number may be that of another process by now
	default:
		p.signal(syscall.SIGKILL)
		<-p.ended
	}
}

func (p *process) text() string {
	text, _ := os.ReadFile(p.log)
	return string(text)
}

func (p *process) lastLines(n int) string {
	lines := strings.Split(strings.TrimSpace(p.text()), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// await waits until a URL answers 200.
func (p *process) await(url string) {
	p.t.Helper()
	wait(p.t, enginePatience, p.name+" serves "+url, func() string {
		select {
		case <-p.ended:
			p.t.Fatalf("%s has ended: %s", p.name, p.lastLines(30))
		default:
		}
		r, err := http.Get(url)
		if err != nil {
			return err.Error()
		}
		r.Body.Close()
		if r.StatusCode != http.StatusOK {
			return r.Status
		}
		return ""
	})
}

// wholeEngine is a vLLM.
type wholeEngine struct {
	*process
	address      string // of its HTTP server
	live, replay string // of its sockets of events
}

// start starts vLLM, without waiting until it serves.
func (e *wholeEngine) start(t *testing.T, model, adapter string) {
	t.Helper()
	host, port, err := net.SplitHostPort(e.address)
	if err != nil {
		t.Fatal(err)
	}
	// vLLM binds only endpoints with an asterisk, and connects to others.
	bind := func(address string) string { return "tcp://" + strings.Replace(address, host, "*", 1) }
	events, err := json.Marshal(map[string]any{
		"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": bind(e.live), "replay_endpoint": bind(e.replay), "topic": "kv",
	})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	args := []string{
		"serve", model, "--host", host, "--port", port, "--served-model-name", wholeModel, "--load-format", "dummy", "--enforce-eager",
		"--block-size", fmt.Sprint(wholeBlock), "--num-gpu-blocks-override", fmt.Sprint(wholeBlocks),
		"--max-model-len", fmt.Sprint(wholeMost), "--max-num-seqs", "16", "--max-num-batched-tokens", "1024",
		"--enable-prompt-tokens-details", "--kv-events-config", string(events),
	}
	if adapter != "" {
		args = append(args, "--enable-lora", "--max-lora-rank", "8", "--lora-modules", "sql="+adapter)
	}
	args = append(args, strings.Fields(os.Getenv("E2E_VLLM_ARGS"))...)
	e.process = startProcess(t, "the engine at "+e.address, os.Getenv("E2E_VLLM"), []string{
		"VLLM_CPU_KVCACHE_SPACE=1", "VLLM_CPU_OMP_THREADS_BIND=nobind", "OMP_NUM_THREADS=1", // GiB; engines share few processors
		"HF_HUB_OFFLINE=1", "VLLM_NO_USAGE_STATS=1", "TMPDIR=" + dir, "VLLM_CACHE_ROOT=" + dir,
	}, args...)
}

func (e *wholeEngine) up() { e.await("http://" + e.address + "/health") }

// wholePicker is a conductor-picker.
type wholePicker struct {
	*process
	address, admin string
}

// start starts the picker at its addresses, without waiting.
func (p *wholePicker) start(t *testing.T, conductor string, args ...string) {
	t.Helper()
	p.process = startProcess(t, "the picker at "+p.address, os.Getenv("PICKER_BINARY"), nil, append([]string{
		"--listen", p.address, "--admin", p.admin, "--conductor", conductor, "--debug-header",
	}, args...)...)
}

func (p *wholePicker) up() { p.await("http://" + p.admin + "/readyz") }

// metric returns the sum of a metric's values over the labels that contain a text.
func (p *wholePicker) metric(name, label string) (sum float64) {
	p.t.Helper()
	r, err := http.Get("http://" + p.admin + "/metrics")
	if err != nil {
		p.t.Fatal(err)
	}
	defer r.Body.Close()
	lines := bufio.NewScanner(r.Body)
	for lines.Scan() {
		rest, ok := strings.CutPrefix(lines.Text(), name)
		if !ok || rest == "" || rest[0] != '{' && rest[0] != ' ' || !strings.Contains(rest, label) {
			continue
		}
		v, err := strconv.ParseFloat(rest[strings.LastIndexByte(rest, ' ')+1:], 64)
		if err != nil {
			p.t.Fatalf("metric %q: %v", lines.Text(), err)
		}
		sum += v
	}
	return sum
}

// whole is two vLLM behind an Envoy, with Conductor and a picker.
type whole struct {
	t         *testing.T // of the part that runs
	outer     *testing.T // of the whole test: programs that are started with it run until its end
	model     string     // a folder
	adapter   string     // a folder, "" for none
	conductor *process
	url       string // of Conductor
	client    *client.Client
	engines   []*wholeEngine
	picker    *wholePicker
	envoy     *env
	random    *rand.Rand
	words     []string // of the text that the tokenizer was trained on
	figures   []string // lines of the table
}

// patient are settings of a picker on a machine where everything may be late. Envoy waits longer than both together.
var patient = []string{"--patience", "5s", "--tokenizer-timeout", "10s"}

// startWhole starts everything once.
func startWhole(t *testing.T) *whole {
	t.Helper()
	for _, name := range []string{"ENVOY_BIN", "E2E_VLLM", "CONDUCTOR_BINARY", "PICKER_BINARY"} {
		if os.Getenv(name) == "" {
			t.Skipf("%s is not set; run make e2e-envoy", name)
		}
	}
	w := &whole{t: t, outer: t, random: rand.New(rand.NewPCG(5, 7))}
	w.makeModel()
	for range 2 {
		e := &wholeEngine{address: freeAddress(t), live: freeAddress(t), replay: freeAddress(t)}
		e.start(t, w.model, w.adapter)
		w.engines = append(w.engines, e)
	}
	w.startConductor()
	for _, e := range w.engines {
		e.up()
		out, err := exec.Command(os.Getenv("CONDUCTOR_BINARY"), "register", "http://"+e.address, "--server", w.url).CombinedOutput()
		if err != nil {
			t.Fatalf("conductor register: %v: %s", err, out)
		}
	}
	w.picker = &wholePicker{address: freeAddress(t), admin: freeAddress(t)}
	w.picker.start(t, w.url, patient...)
	w.envoy = w.startEnvoy(w.picker)
	w.primeBlockSize()
	w.picker.up()
	w.awaitPicker(w.envoy)
	return w
}

// makeModel makes a model of random weights and its tokenizer, and an adapter of random weights.
func (w *whole) makeModel() {
	w.t.Helper()
	dir := w.t.TempDir()
	w.model = filepath.Join(dir, "model")
	python := filepath.Join(filepath.Dir(os.Getenv("E2E_VLLM")), "python")
	if out, err := exec.Command(python, "-B", "../../../examples/vllm/model.py", w.model).CombinedOutput(); err != nil {
		w.t.Fatalf("examples/vllm/model.py: %v: %s", err, out)
	}
	w.adapter = filepath.Join(dir, "adapter")
	if out, err := exec.Command(python, "-B", "testdata/adapter.py", w.model, w.adapter).CombinedOutput(); err != nil {
		w.t.Fatalf("testdata/adapter.py: %v: %s", err, out)
	}
	text, err := os.ReadFile("../../../LICENSE")
	if err != nil {
		w.t.Fatal(err)
	}
	w.words = strings.Fields(string(text))
}

func (w *whole) startConductor() {
	w.t.Helper()
	w.conductor, w.url = startConductor(w.t)
	var err error
	if w.client, err = client.New(w.url); err != nil {
		w.t.Fatal(err)
	}
}

// startConductor starts a Conductor that knows no engine, and returns its URL too.
func startConductor(t *testing.T) (p *process, url string) {
	t.Helper()
	address := freeAddress(t)
	p = startProcess(t, "Conductor", os.Getenv("CONDUCTOR_BINARY"), nil, "serve", "--listen", address+"=conductor")
	url = "http://" + address
	p.await(url + "/health")
	return p, url
}

// startEnvoy starts an Envoy by deploy/envoy.yaml with other addresses, and with a header that says which engine answered.
func (w *whole) startEnvoy(pickers ...*wholePicker) *env {
	w.t.Helper()
	text, err := os.ReadFile("../deploy/envoy.yaml")
	if err != nil {
		w.t.Fatal(err)
	}
	b := bootstrap{}
	if err := yaml.Unmarshal(text, (*map[string]any)(&b)); err != nil {
		w.t.Fatal(err)
	}
	var at0, at1 []string
	for _, p := range pickers {
		at0 = append(at0, p.address)
	}
	for _, e := range w.engines {
		at1 = append(at1, e.address)
	}
	b.setEndpoints("picker", at0...)
	b.setEndpoints("engines", at1...)
	b.filter("envoy.filters.http.ext_proc")["message_timeout"] = "60s"
	at(b.cluster("picker"), "health_checks", 0).(map[string]any)["timeout"], b.cluster("picker")["connect_timeout"] = "60s", "60s"
	anywhere := map[string]any{"socket_address": map[string]any{"address": "127.0.0.1", "port_value": 0}}
	b.listener()["address"] = anywhere
	b["admin"] = map[string]any{"address": anywhere}
	route := at(b.manager(), "route_config", "virtual_hosts", 0, "routes", 0).(map[string]any)
	route["response_headers_to_add"] = []any{
		map[string]any{"header": map[string]any{"key": "x-served-by", "value": "%UPSTREAM_REMOTE_ADDRESS%"}},
		map[string]any{"header": map[string]any{"key": "x-attempts", "value": "%UPSTREAM_REQUEST_ATTEMPT_COUNT%"}},
	}
	e := &env{t: w.t, client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 200}}}
	w.t.Cleanup(e.client.CloseIdleConnections)
	e.startEnvoy(os.Getenv("ENVOY_BIN"), b)
	return e
}

// primeBlockSize sends each engine a prompt: Conductor learns the size of blocks from the first events.
func (w *whole) primeBlockSize() {
	w.t.Helper()
	for _, e := range w.engines {
		w.direct(e, w.fresh(2*wholeBlock))
	}
	wait(w.t, enginePatience, "Conductor knows both engines", func() string {
		all, err := w.client.Instances(w.t.Context())
		if err != nil {
			return err.Error()
		}
		for _, i := range all {
			if i.State != "synced" || i.BlockSize != wholeBlock {
				return fmt.Sprintf("%+v", i)
			}
		}
		if len(all) != len(w.engines) {
			return fmt.Sprintf("%d instances", len(all))
		}
		return ""
	})
}

// awaitPicker waits until Envoy asks a picker.
func (w *whole) awaitPicker(e *env) {
	w.t.Helper()
	wait(w.t, enginePatience, "Envoy asks the picker", func() string {
		if a := w.send(e, w.completion(w.fresh(8), false)); a.err != nil || a.why == "" {
			return a.String()
		}
		return ""
	})
}

// fresh returns n random tokens. Tokens 0 and 1 are special.
func (w *whole) fresh(n int) []uint32 {
	all := make([]uint32, n)
	for i := range all {
		all[i] = uint32(2 + w.random.IntN(250))
	}
	return all
}

// text returns n words.
func (w *whole) text(n int) string {
	from := w.random.IntN(len(w.words) - n)
	return strconv.Itoa(w.random.IntN(1000)) + " " + strings.Join(w.words[from:from+n], " ")
}

// ask is a request to an engine.
type ask struct {
	path   string
	body   map[string]any
	stream bool
}

func (w *whole) completion(prompt any, stream bool) ask {
	return newAsk("/v1/completions", map[string]any{"prompt": prompt}, stream)
}

func newAsk(path string, body map[string]any, stream bool) ask {
	for name, value := range map[string]any{"model": wholeModel, "max_tokens": 2, "temperature": 0, "ignore_eos": true} {
		if body[name] == nil {
			body[name] = value
		}
	}
	if stream {
		body["stream"], body["stream_options"] = true, map[string]any{"include_usage": true}
	}
	return ask{path, body, stream}
}

// told is what came of a request.
type told struct {
	status         int
	err            error // of the request, or of an answer that is not whole
	text           string
	prompt, cached int
	served         string // endpoint of the engine
	attempts       int
	began          time.Time
	took           time.Duration

	why       string // of the picker, "" if Envoy did not ask one
	reason    string
	chosen    string // endpoint
	tokens    int
	has, soon int
}

func (a *told) String() string {
	return fmt.Sprintf("status %d by %s (%d attempts), %d of %d tokens cached, %v; picker: %q", a.status, a.served, a.attempts, a.cached,
		a.prompt, a.err, a.why)
}

// failed reports whether the client did not get its answer.
func (a *told) failed() bool { return a.err != nil || a.status != http.StatusOK }

// predicted returns how many tokens the picker expected the engine to take from its cache: whole blocks, and never the last token,
// because an engine computes at least one.
func (a *told) predicted() int { return min(a.soon, (a.tokens-1)/wholeBlock*wholeBlock) }

// byPrefix reports whether the picker knew what engines have.
func (a *told) byPrefix() bool { return a.reason == "prefix" || a.reason == "no_prefix" }

var reasonLine = regexp.MustCompile(`^(\w+): (\d+) tokens, to \S+ at (\S+) \(has (\d+), soon (\d+), cost`)

// send sends a request through an Envoy.
func (w *whole) send(e *env, a ask) *told { return w.sendTo(e.client, e.url, a) }

// direct sends a prompt to an engine, past Envoy.
func (w *whole) direct(e *wholeEngine, prompt []uint32) *told {
	w.t.Helper()
	a := w.sendTo(http.DefaultClient, "http://"+e.address, w.completion(prompt, false))
	if a.failed() {
		w.t.Fatalf("a request to %s: %s", e.address, a)
	}
	return a
}

func (w *whole) sendTo(c *http.Client, url string, a ask) *told {
	got := &told{began: time.Now()}
	defer func() { got.took = time.Since(got.began) }()
	body, err := json.Marshal(a.body)
	if err != nil {
		panic(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), enginePatience)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url+a.path, bytes.NewReader(body))
	if err != nil {
		panic(err)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("X-Conductor-Picker-Debug", "1")
	response, err := c.Do(r)
	if err != nil {
		got.err = err
		return got
	}
	defer response.Body.Close()
	got.status, got.served = response.StatusCode, response.Header.Get("X-Served-By")
	got.attempts, _ = strconv.Atoi(response.Header.Get("X-Attempts"))
	if got.why = response.Header.Get("X-Conductor-Picker"); got.why != "" {
		m := reasonLine.FindStringSubmatch(got.why)
		if m == nil {
			got.err = fmt.Errorf("reason %q cannot be read", got.why)
			return got
		}
		got.reason, got.chosen = m[1], m[3]
		got.tokens, _ = strconv.Atoi(m[2])
		got.has, _ = strconv.Atoi(m[4])
		got.soon, _ = strconv.Atoi(m[5])
	}
	text, err := io.ReadAll(response.Body)
	if err != nil {
		got.err = err
		return got
	}
	if got.status == http.StatusOK {
		got.err = got.read(text, a.stream)
	} else {
		got.err = fmt.Errorf("%.300s", text)
	}
	return got
}

// read reads an answer, which has to be whole.
func (a *told) read(text []byte, stream bool) error {
	parts := [][]byte{text}
	if stream {
		if !bytes.HasSuffix(bytes.TrimSpace(text), []byte("data: [DONE]")) {
			return fmt.Errorf("a stream without its end: %.300q", text)
		}
		parts = nil
		for line := range bytes.Lines(text) {
			if event, ok := bytes.CutPrefix(line, []byte("data: ")); ok && event[0] == '{' {
				parts = append(parts, event)
			}
		}
	}
	type content struct{ Content string }
	var usage bool
	for _, part := range parts {
		var answer struct {
			Choices []struct {
				Text           string
				Message, Delta content
			}
			Usage *struct {
				PromptTokens        int `json:"prompt_tokens"`
				PromptTokensDetails *struct {
					CachedTokens int `json:"cached_tokens"`
				} `json:"prompt_tokens_details"`
			}
		}
		if err := json.Unmarshal(part, &answer); err != nil {
			return err
		}
		for _, c := range answer.Choices {
			a.text += c.Text + c.Message.Content + c.Delta.Content
		}
		if u := answer.Usage; u != nil && u.PromptTokensDetails != nil {
			usage = true
			a.prompt, a.cached = u.PromptTokens, u.PromptTokensDetails.CachedTokens
		}
	}
	if !usage {
		return errors.New("an answer without prompt_tokens_details")
	}
	return nil
}

// settle waits until Conductor has applied everything that the engines have done: it has each compute a new block, and waits until
// Conductor knows that one.
func (w *whole) settle() {
	w.t.Helper()
	for _, e := range w.engines {
		last := w.fresh(wholeBlock + 1)
		w.direct(e, last)
		wait(w.t, enginePatience, "Conductor hears of a block of "+e.address, func() string {
			answer, err := w.client.Candidates(w.t.Context(), client.Query{Model: wholeModel, BlockSize: wholeBlock, Tokens: last})
			if err != nil {
				return err.Error()
			}
			for _, row := range answer.Rows {
				if row.Instance == e.address && row.Longest == wholeBlock {
					return ""
				}
			}
			return fmt.Sprintf("%+v", answer.Rows)
		})
	}
}

// say adds a line to the table.
func (w *whole) say(what, format string, of ...any) {
	line := fmt.Sprintf("| %s | %s |", what, fmt.Sprintf(format, of...))
	w.figures = append(w.figures, line)
	w.t.Log(line)
}

// quantiles returns p50 and p99 in whole milliseconds.
func quantiles(all []*told) (p50, p99 time.Duration) {
	if len(all) == 0 {
		return 0, 0
	}
	took := make([]time.Duration, len(all))
	for i, a := range all {
		took[i] = a.took
	}
	slices.Sort(took)
	return took[len(took)/2].Round(time.Millisecond), took[len(took)*99/100].Round(time.Millisecond)
}

// number returns a variable of the environment, or what counts without it.
func number(t *testing.T, name string, without int) int {
	t.Helper()
	n, err := strconv.Atoi(cmp.Or(os.Getenv(name), strconv.Itoa(without)))
	if err != nil || n < 1 {
		t.Fatalf("%s: want a number", name)
	}
	return n
}
