package dynamo_test

import (
	"encoding/binary"
	"encoding/hex"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

var rewrite = flag.Bool("conformance.rewrite", false, "write the answers of this run into testdata/conformance")

// patience bounds what other goroutines and processes bring about; nothing
// waits for it to pass.
const patience = 30 * time.Second

// TestConformance runs testdata/conformance/*.txt against a server of the
// dialect, over real HTTP and real ZeroMQ sockets. Which server is under test:
//
//	DYNAMO_CONFORMANCE_URL      a running one; scripts that need flags are skipped
//	DYNAMO_CONFORMANCE_COMMAND  a command that takes Dynamo's flags; one process
//	                            per script
//	neither                     our own
//
// A script is a list of steps,
//
//	[only ours|only dynamo] [eventually] command [word] [key=value ...]
//	lines of input
//	---- [ours|dynamo]
//	lines of expected output
//
// with a blank line after each; a step that both servers answer differently has
// two expectations. $A to $Z are instance ids and $M a model name that no other
// script has; $NAME is what step NAME opened; $TMP is a folder.
//
// The commands:
//
//	GET|POST|... path    a request: headers (Name: value), then the body as it is;
//	                     @pad N is a JSON document of N bytes. Expected: status,
//	                     headers (name: value), then the body: JSON compared as
//	                     in conformance_requests_test.go, "exact ...", "contains ..." or nothing
//	publisher P          PUB and ROUTER sockets; $P.live and $P.replay are their
//	                     endpoints. topic=, frames=3|4 (of replies), sentinel=no
//	publish P            one batch, an event per line (JSON; {"$bin": hex} is bytes).
//	                     rank=, seq=, form=map, lost (not live), unkept (no replay)
//	send P               one message, a frame per line: "text", u64 N, hex ...,
//	                     batch [events]
//	restart P, close P   new sockets on the same ports from sequence 0; gone
//	gone P               waits until nobody is subscribed
//	settle P             publishes a marker and waits until it is indexed for
//	                     instance= (rank=): all before it is applied then
//	requests P           the replay requests so far, or the first
//	query                tokens=first..last or tokens=1,2,3 or hashes=1,2; model=,
//	                     group=, lora=, salt=. Expected: a line per instance
//	dump                 model=, group=: a line per block of the partition
//	wire NAME            one line per event, "--" between batches: a new instance
//	                     gets them; expected is its dump
//	mark, delta          a metric's value; what it grew by since
//	peer F               an HTTP server with the input as its /dump. status=;
//	                     first=P: P publishes the input up to "--" before
//	asked F              the paths it was asked for
//	server S flags       another server under test; later requests go to it
//	exits flags          runs the command to its end. Expected: rc and "contains"
//	file path            lines of JSON; rename from to
func TestConformance(t *testing.T) {
	u := underTest(t)
	files, err := filepath.Glob("testdata/conformance/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts found: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			if strings.HasPrefix(filepath.Base(file), "peer") {
				t.Parallel() // on servers of their own, which pause a second before they recover
			}
			runScript(t, u, file)
		})
	}
}

// step is one command of a script.
type step struct {
	line       int // of its first line, from 1
	only       string
	eventually bool
	name       string
	words      []string // neither command nor key=value
	keys       map[string]string
	input      []string
	want       []expectation
	raw        []string // as written, up to the first ----
}

type expectation struct {
	of    string // server, "" for both
	lines []string
}

// script is one file being run.
type script struct {
	t      *testing.T
	u      *target
	base   string // where requests go
	vars   map[string]string
	engine map[string]*engine
	peers  map[string]*fakePeer
	marks  map[string]float64
	rows   int // wire rows so far
}

func runScript(t *testing.T, u *target, file string) {
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	steps, comments := parseScript(t, file, string(raw))
	for _, s := range steps {
		if (s.name == "server" || s.name == "exits") && len(u.command) == 0 {
			const need = "needs a command to start servers with flags: DYNAMO_CONFORMANCE_COMMAND"
			if os.Getenv("REQUIRE_INTEROP") == "1" {
				t.Fatal(need)
			}
			t.Skip(need)
		}
	}
	s := &script{t: t, u: u, vars: make(map[string]string), engine: make(map[string]*engine), peers: make(map[string]*fakePeer), marks: make(map[string]float64)}
	first := 1 + rand.Uint64N(1<<31)*100
	for i := range uint64(26) {
		s.vars[string(rune('A'+i))] = strconv.FormatUint(first+i, 10)
	}
	s.vars["M"] = fmt.Sprintf("conformance-%s-%d", strings.TrimSuffix(filepath.Base(file), ".txt"), first)
	s.vars["TMP"] = t.TempDir()
	s.base = u.url(t)
	t.Cleanup(s.clean)
	for i := range steps {
		s.run(file, &steps[i])
	}
	if *rewrite {
		if err := os.WriteFile(file, []byte(printScript(steps, comments)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// run executes one step and compares what came out.
func (s *script) run(file string, st *step) {
	if st.only != "" && st.only != s.u.kind {
		return
	}
	want := st.expected(s.u.kind)
	if want == nil {
		s.t.Fatalf("%s:%d: no expectation for %s", file, st.line, s.u.kind)
	}
	var got string
	var bad error
	ok := until(func() bool {
		got, bad = s.execute(st, *want)
		return bad == nil || !st.eventually
	})
	if bad == nil && ok {
		return
	}
	if *rewrite {
		*want = strings.Split(s.unexpand(strings.TrimRight(got, "\n")), "\n")
		if got == "" {
			*want = nil
		}
		return
	}
	s.t.Errorf("%s:%d: %s\n%v\ngot:\n%s\nwant:\n%s", file, st.line, s.expand(strings.Join(st.raw, "\n")), bad, got, s.expand(strings.Join(*want, "\n")))
}

// expected returns the lines a server's output must have, nil if the step has
// none for it.
func (st *step) expected(kind string) *[]string {
	for i := range st.want {
		if st.want[i].of == "" || st.want[i].of == kind {
			return &st.want[i].lines
		}
	}
	return nil
}

// until polls with a pause, and reports whether ok held in time.
func until(ok func() bool) bool {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(patience); !ok(); <-tick.C {
		if time.Now().After(deadline) {
			return false
		}
	}
	return true
}

// parseScript returns the steps, and the comments that precede each.
func parseScript(t *testing.T, file, text string) (steps []step, comments map[int][]string) {
	comments = make(map[int][]string)
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	for i := 0; i < len(lines); {
		if lines[i] == "" || strings.HasPrefix(lines[i], "#") {
			comments[len(steps)] = append(comments[len(steps)], lines[i])
			i++
			continue
		}
		st := step{line: i + 1, keys: make(map[string]string)}
		for ; i < len(lines) && lines[i] != "" && !strings.HasPrefix(lines[i], "----"); i++ {
			st.raw = append(st.raw, lines[i])
		}
		st.head()
		st.input = st.raw[1:]
		for ; i < len(lines) && lines[i] != ""; i++ {
			if of, ok := strings.CutPrefix(lines[i], "----"); ok {
				st.want = append(st.want, expectation{of: strings.TrimSpace(of)})
				continue
			}
			last := &st.want[len(st.want)-1]
			last.lines = append(last.lines, lines[i])
		}
		if st.want == nil {
			t.Fatalf("%s:%d: command without ----", file, st.line)
		}
		for j := range st.want {
			if st.want[j].lines == nil {
				st.want[j].lines = []string{}
			}
		}
		steps = append(steps, st)
	}
	return steps, comments
}

// head reads the first line of a step.
func (st *step) head() {
	words := strings.Fields(st.raw[0])
	if words[0] == "only" {
		st.only, words = words[1], words[2:]
	}
	if words[0] == "eventually" {
		st.eventually, words = true, words[1:]
	}
	st.name = words[0]
	for _, w := range words[1:] {
		if key, value, ok := strings.Cut(w, "="); ok && !strings.HasPrefix(w, "/") && st.name != "server" && st.name != "exits" && st.name != "mark" && st.name != "delta" {
			st.keys[key] = value
		} else {
			st.words = append(st.words, w)
		}
	}
}

func printScript(steps []step, comments map[int][]string) string {
	var out strings.Builder
	for i, st := range steps {
		for _, c := range comments[i] {
			out.WriteString(c + "\n")
		}
		out.WriteString(strings.Join(st.raw, "\n") + "\n")
		for _, w := range st.want {
			out.WriteString(strings.TrimSpace("---- "+w.of) + "\n")
			for _, l := range w.lines {
				out.WriteString(l + "\n")
			}
		}
	}
	for _, c := range comments[len(steps)] {
		out.WriteString(c + "\n")
	}
	return out.String()
}

// variable is $NAME or what an opened one has, $NAME.live.
var variable = regexp.MustCompile(`\$([A-Za-z]+(\.(live|replay))?)`)

// expand fills in variables; $bin is part of the notation for bytes.
func (s *script) expand(text string) string {
	return variable.ReplaceAllStringFunc(text, func(name string) string {
		if name == "$bin" {
			return name
		}
		v, ok := s.vars[name[1:]]
		if !ok {
			s.t.Fatalf("no variable %s", name)
		}
		return v
	})
}

// unexpand is the way back, for -conformance.rewrite.
func (s *script) unexpand(text string) string {
	names := slices.SortedFunc(maps.Keys(s.vars), func(a, b string) int { return len(s.vars[b]) - len(s.vars[a]) })
	for _, name := range names {
		text = strings.ReplaceAll(text, s.vars[name], "$"+name)
	}
	return text
}

func (s *script) word(st *step, i int) string {
	if i >= len(st.words) {
		s.t.Fatalf("line %d: %s needs another word", st.line, st.name)
	}
	return s.expand(st.words[i])
}

func (s *script) key(st *step, name, otherwise string) string {
	if v, ok := st.keys[name]; ok {
		return s.expand(v)
	}
	return otherwise
}

func (st *step) has(word string) bool {
	for _, w := range st.words {
		if w == word {
			return true
		}
	}
	return false
}

func (s *script) number(st *step, name string, otherwise uint64) uint64 {
	v, ok := st.keys[name]
	if !ok {
		return otherwise
	}
	n, err := strconv.ParseUint(s.expand(v), 10, 64)
	if err != nil {
		s.t.Fatalf("line %d: %v", st.line, err)
	}
	return n
}

// execute runs a step once. An output that has to be equal is compared here;
// requests compare themselves.
func (s *script) execute(st *step, want []string) (got string, bad error) {
	switch st.name {
	case "publisher":
		e, err := openEngine(s.key(st, "topic", "kv-events"), s.key(st, "frames", "4"), s.key(st, "sentinel", "yes") == "yes")
		if err != nil {
			s.t.Fatal(err)
		}
		s.t.Cleanup(e.close)
		name := s.word(st, 0)
		s.engine[name] = e
		s.vars[name+".live"], s.vars[name+".replay"] = e.live, e.replay
	case "publish":
		s.publish(st, s.at(st), st.input)
	case "send":
		s.send(st, s.at(st))
	case "restart":
		if err := s.at(st).restart(); err != nil {
			s.t.Fatal(err)
		}
	case "close":
		s.at(st).close()
	case "gone":
		if !until(func() bool { return !s.at(st).heard() }) {
			s.t.Fatalf("line %d: somebody is still subscribed", st.line)
		}
	case "settle":
		s.settle(st, s.at(st), s.key(st, "instance", s.vars["A"]), s.key(st, "model", s.vars["M"]))
	case "requests":
		got = s.at(st).requested()
		if st.has("first") {
			got, _, _ = strings.Cut(got, "\n")
		}
	case "query":
		got = s.query(st)
	case "dump":
		got = s.dump(s.key(st, "model", s.vars["M"]), s.key(st, "group", "default"))
	case "wire":
		got = s.wire(st)
	case "mark":
		s.marks[s.word(st, 0)] = s.metric(s.word(st, 0))
	case "delta":
		got = strconv.FormatFloat(s.metric(s.word(st, 0))-s.marks[s.word(st, 0)], 'f', -1, 64)
	case "peer":
		name := s.word(st, 0)
		lines, before := st.input, func() {}
		if from, ok := st.keys["first"]; ok {
			end := slices.Index(lines, "--")
			e, batch := s.engine[from], lines[:end]
			before, lines = sync.OnceFunc(func() { s.publish(st, e, batch) }), lines[end+1:]
		}
		s.peers[name] = newFakePeer(s.t, int(s.number(st, "status", 200)), s.expand(strings.Join(lines, "\n")), before)
		s.vars[name] = s.peers[name].URL
	case "asked":
		got = s.peers[s.word(st, 0)].asked()
	case "server":
		s.base = s.u.start(s.t, s.expandAll(st.words[1:]), s.expandAll(st.input))
		s.vars[st.words[0]] = s.base
	case "use":
		s.base = s.word(st, 0)
	case "exits":
		return s.u.exits(s.t, s.expandAll(st.words), s.expandAll(st.input), s.expandAll(want))
	case "file":
		return s.file(st, want)
	case "rename":
		if err := os.Rename(s.word(st, 0), s.word(st, 1)); err != nil {
			s.t.Fatal(err)
		}
	default:
		return s.request(st, want)
	}
	if expected := s.expand(strings.Join(want, "\n")); strings.TrimRight(got, "\n") != expected {
		return got, fmt.Errorf("not as expected")
	}
	return got, nil
}

func (s *script) expandAll(lines []string) []string {
	out := make([]string, len(lines))
	for i, l := range lines {
		out[i] = s.expand(l)
	}
	return out
}

func (s *script) at(st *step) *engine {
	e := s.engine[s.word(st, 0)]
	if e == nil {
		s.t.Fatalf("line %d: no publisher %s", st.line, st.words[0])
	}
	return e
}

// publish sends the events of lines as one batch.
func (s *script) publish(st *step, e *engine, lines []string) {
	events := make([]any, len(lines))
	for i, l := range lines {
		events[i] = s.value(st, l)
	}
	batch := []any{1.5, events, nil}
	if rank, ok := st.keys["rank"]; ok {
		n, err := strconv.ParseInt(rank, 10, 32)
		if err != nil {
			s.t.Fatal(err)
		}
		batch[2] = n
	}
	var payload any = batch
	if s.key(st, "form", "array") == "map" {
		payload = object{{"ts", 1.5}, {"events", events}, {"data_parallel_rank", batch[2]}}
	}
	e.publish(s.t, s.number(st, "seq", e.next), encode(payload), st.has("lost"), st.has("unkept"))
}

func (s *script) send(st *step, e *engine) {
	var frames [][]byte
	for _, l := range st.input {
		switch word, rest, _ := strings.Cut(l, " "); word {
		case "u64":
			n, err := strconv.ParseUint(rest, 10, 64)
			if err != nil {
				s.t.Fatal(err)
			}
			frames = append(frames, binary.BigEndian.AppendUint64(nil, n))
		case "hex":
			b, err := hex.DecodeString(rest)
			if err != nil {
				s.t.Fatal(err)
			}
			frames = append(frames, b)
		case "batch":
			frames = append(frames, encode([]any{1.5, s.value(st, rest), nil}))
		case "msgpack":
			frames = append(frames, encode(s.value(st, rest)))
		default:
			frames = append(frames, []byte(s.value(st, l).(string)))
		}
	}
	e.send(s.t, frames)
}

func (s *script) value(st *step, line string) any {
	v, err := decodeValue(s.expand(line))
	if err != nil {
		s.t.Fatalf("line %d: %q: %v", st.line, line, err)
	}
	return v
}

// settle waits until the server has applied all that e published: a block of
// its own comes last, and is asked for.
func (s *script) settle(st *step, e *engine, instance, model string) {
	e.markers++
	token := uint64(4_000_000_000) + e.markers
	size := s.number(st, "block", 4)
	tokens := make([]any, size)
	for i := range tokens {
		tokens[i] = token
	}
	event := []any{"BlockStored", []any{token}, nil, tokens, size}
	e.publish(s.t, e.next, encode([]any{1.5, []any{event}, nil}), false, false)
	asked := fmt.Sprintf(`{"token_ids":%s,"model_name":%q}`, encodeJSON(tokens), model)
	var last string
	if !until(func() bool {
		_, _, last = s.do("POST", "/query", map[string]string{"Content-Type": "application/json"}, asked)
		return strings.Contains(last, `"`+instance+`"`)
	}) {
		s.t.Fatalf("line %d: the marker %d of instance %s is not indexed: %s", st.line, token, instance, last)
	}
	// Other tiers may be applied beside the marker's; a dump waits for all.
	s.do("GET", "/dump", nil, "")
}

// wire gives a new instance the batches of the input and returns its dump.
func (s *script) wire(st *step) string {
	e, err := openEngine("", "3", true)
	if err != nil {
		s.t.Fatal(err)
	}
	defer e.close()
	s.rows++
	instance, model := s.vars["W"], fmt.Sprintf("%s-%d", s.vars["M"], s.rows)
	size := s.number(st, "block", 4)
	body := fmt.Sprintf(`{"instance_id":%s,"endpoint":%q,"model_name":%q,"block_size":%d}`, instance, e.live, model, size)
	json := map[string]string{"Content-Type": "application/json"}
	if status, _, answer := s.do("POST", "/register", json, body); status != 201 {
		s.t.Fatalf("line %d: register: %d %s", st.line, status, answer)
	}
	e.await(s.t)
	var batch []string
	for _, l := range append(st.input, "--") {
		if l == "--" {
			s.publish(st, e, batch)
			batch = nil
		} else {
			batch = append(batch, l)
		}
	}
	s.settle(st, e, instance, model)
	out := s.dump(model, "default")
	if status, _, answer := s.do("POST", "/unregister", json, fmt.Sprintf(`{"instance_id":%s,"model_name":%q}`, instance, model)); status != 200 {
		s.t.Fatalf("line %d: unregister: %d %s", st.line, status, answer)
	}
	return out
}
