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

	"kvconductor/compat/internal/conformance"
)

var rewrite = flag.Bool("conformance.rewrite", false, "write the answers of this run into testdata/conformance")

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

// script is one file being run.
type script struct {
	t      *testing.T
	u      *target
	base   string // where requests go
	vars   map[string]string
	engine map[string]*conformance.Engine
	peers  map[string]*fakePeer
	marks  map[string]float64
	rows   int // wire rows so far
}

func runScript(t *testing.T, u *target, file string) {
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	steps, comments := conformance.Parse(t, file, string(raw), "server", "exits", "mark", "delta")
	for _, s := range steps {
		if (s.Name == "server" || s.Name == "exits") && len(u.command.Line) == 0 {
			const need = "needs a command to start servers with flags: DYNAMO_CONFORMANCE_COMMAND"
			if os.Getenv("REQUIRE_INTEROP") == "1" {
				t.Fatal(need)
			}
			t.Skip(need)
		}
	}
	s := &script{t: t, u: u, vars: make(map[string]string), engine: make(map[string]*conformance.Engine), peers: make(map[string]*fakePeer), marks: make(map[string]float64)}
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
		if err := os.WriteFile(file, []byte(conformance.Print(steps, comments)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// run executes one step and compares what came out.
func (s *script) run(file string, st *conformance.Step) {
	if st.Only != "" && st.Only != s.u.kind {
		return
	}
	want := st.Expected(s.u.kind)
	if want == nil {
		s.t.Fatalf("%s:%d: no expectation for %s", file, st.Line, s.u.kind)
	}
	var got string
	var bad error
	ok := conformance.Until(func() bool {
		got, bad = s.execute(st, *want)
		return bad == nil || !st.Eventually
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
	s.t.Errorf("%s:%d: %s\n%v\ngot:\n%s\nwant:\n%s", file, st.Line, s.expand(strings.Join(st.Raw, "\n")), bad, got, s.expand(strings.Join(*want, "\n")))
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

func (s *script) word(st *conformance.Step, i int) string {
	if i >= len(st.Words) {
		s.t.Fatalf("line %d: %s needs another word", st.Line, st.Name)
	}
	return s.expand(st.Words[i])
}

func (s *script) key(st *conformance.Step, name, otherwise string) string {
	if v, ok := st.Keys[name]; ok {
		return s.expand(v)
	}
	return otherwise
}

func (s *script) number(st *conformance.Step, name string, otherwise uint64) uint64 {
	v, ok := st.Keys[name]
	if !ok {
		return otherwise
	}
	n, err := strconv.ParseUint(s.expand(v), 10, 64)
	if err != nil {
		s.t.Fatalf("line %d: %v", st.Line, err)
	}
	return n
}

// execute runs a step once. An output that has to be equal is compared here;
// requests compare themselves.
func (s *script) execute(st *conformance.Step, want []string) (got string, bad error) {
	switch st.Name {
	case "publisher":
		e, err := conformance.Open(s.key(st, "topic", "kv-events"), s.key(st, "frames", "4"), s.key(st, "sentinel", "yes") == "yes")
		if err != nil {
			s.t.Fatal(err)
		}
		s.t.Cleanup(e.Close)
		name := s.word(st, 0)
		s.engine[name] = e
		s.vars[name+".live"], s.vars[name+".replay"] = e.Live, e.Replay
	case "publish":
		s.publish(st, s.at(st), st.Input)
	case "send":
		s.send(st, s.at(st))
	case "restart":
		if err := s.at(st).Restart(); err != nil {
			s.t.Fatal(err)
		}
	case "close":
		s.at(st).Close()
	case "gone":
		if !conformance.Until(func() bool { return !s.at(st).Heard() }) {
			s.t.Fatalf("line %d: somebody is still subscribed", st.Line)
		}
	case "settle":
		s.settle(st, s.at(st), s.key(st, "instance", s.vars["A"]), s.key(st, "model", s.vars["M"]))
	case "requests":
		got = s.at(st).Requested()
		if st.Has("first") {
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
		lines, before := st.Input, func() {}
		if from, ok := st.Keys["first"]; ok {
			end := slices.Index(lines, "--")
			e, batch := s.engine[from], lines[:end]
			before, lines = sync.OnceFunc(func() { s.publish(st, e, batch) }), lines[end+1:]
		}
		s.peers[name] = newFakePeer(s.t, int(s.number(st, "status", 200)), s.expand(strings.Join(lines, "\n")), before)
		s.vars[name] = s.peers[name].URL
	case "asked":
		got = s.peers[s.word(st, 0)].asked()
	case "server":
		s.base = s.u.start(s.t, s.expandAll(st.Words[1:]), s.expandAll(st.Input))
		s.vars[st.Words[0]] = s.base
	case "use":
		s.base = s.word(st, 0)
	case "exits":
		return s.u.command.Exits(s.t, s.expandAll(st.Words), s.expandAll(st.Input), s.expandAll(want))
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

func (s *script) at(st *conformance.Step) *conformance.Engine {
	e := s.engine[s.word(st, 0)]
	if e == nil {
		s.t.Fatalf("line %d: no publisher %s", st.Line, st.Words[0])
	}
	return e
}

// publish sends the events of lines as one batch.
func (s *script) publish(st *conformance.Step, e *conformance.Engine, lines []string) {
	events := make([]any, len(lines))
	for i, l := range lines {
		events[i] = s.value(st, l)
	}
	batch := []any{1.5, events, nil}
	if rank, ok := st.Keys["rank"]; ok {
		n, err := strconv.ParseInt(rank, 10, 32)
		if err != nil {
			s.t.Fatal(err)
		}
		batch[2] = n
	}
	var payload any = batch
	if s.key(st, "form", "array") == "map" {
		payload = conformance.Object{{Key: "ts", Value: 1.5}, {Key: "events", Value: events}, {Key: "data_parallel_rank", Value: batch[2]}}
	}
	e.Publish(s.t, s.number(st, "seq", e.Next), conformance.Encode(payload), st.Has("lost"), st.Has("unkept"))
}

func (s *script) send(st *conformance.Step, e *conformance.Engine) {
	var frames [][]byte
	for _, l := range st.Input {
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
			frames = append(frames, conformance.Encode([]any{1.5, s.value(st, rest), nil}))
		case "msgpack":
			frames = append(frames, conformance.Encode(s.value(st, rest)))
		default:
			frames = append(frames, []byte(s.value(st, l).(string)))
		}
	}
	e.Send(s.t, frames)
}

func (s *script) value(st *conformance.Step, line string) any {
	v, err := conformance.DecodeValue(s.expand(line))
	if err != nil {
		s.t.Fatalf("line %d: %q: %v", st.Line, line, err)
	}
	return v
}

// settle waits until the server has applied all that e published: a block of
// its own comes last, and is asked for.
func (s *script) settle(st *conformance.Step, e *conformance.Engine, instance, model string) {
	e.Markers++
	token := uint64(4_000_000_000) + e.Markers
	size := s.number(st, "block", 4)
	tokens := make([]any, size)
	for i := range tokens {
		tokens[i] = token
	}
	event := []any{"BlockStored", []any{token}, nil, tokens, size}
	e.Publish(s.t, e.Next, conformance.Encode([]any{1.5, []any{event}, nil}), false, false)
	asked := fmt.Sprintf(`{"token_ids":%s,"model_name":%q}`, conformance.EncodeJSON(tokens), model)
	var last string
	if !conformance.Until(func() bool {
		_, _, last = s.do("POST", "/query", map[string]string{"Content-Type": "application/json"}, asked)
		return strings.Contains(last, `"`+instance+`"`)
	}) {
		s.t.Fatalf("line %d: the marker %d of instance %s is not indexed: %s", st.Line, token, instance, last)
	}
	// Other tiers may be applied beside the marker's; a dump waits for all.
	s.do("GET", "/dump", nil, "")
}

// wire gives a new instance the batches of the input and returns its dump.
func (s *script) wire(st *conformance.Step) string {
	e, err := conformance.Open("", "3", true)
	if err != nil {
		s.t.Fatal(err)
	}
	defer e.Close()
	s.rows++
	instance, model := s.vars["W"], fmt.Sprintf("%s-%d", s.vars["M"], s.rows)
	size := s.number(st, "block", 4)
	body := fmt.Sprintf(`{"instance_id":%s,"endpoint":%q,"model_name":%q,"block_size":%d}`, instance, e.Live, model, size)
	json := map[string]string{"Content-Type": "application/json"}
	if status, _, answer := s.do("POST", "/register", json, body); status != 201 {
		s.t.Fatalf("line %d: register: %d %s", st.Line, status, answer)
	}
	e.Await(s.t)
	var batch []string
	for _, l := range append(st.Input, "--") {
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
		s.t.Fatalf("line %d: unregister: %d %s", st.Line, status, answer)
	}
	return out
}
