package mooncake_test

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
	"testing"

	"kvconductor/compat/internal/conformance"
	"kvconductor/index/hash"
)

var rewrite = flag.Bool("conformance.rewrite", false, "write the answers of this run into testdata/conformance")

// TestConformance runs testdata/conformance/*.txt against a server of the dialect, over
// real HTTP and real ZeroMQ sockets: the one at MOONCAKE_CONFORMANCE_URL, else our own.
// Scripts that start servers with a file need ours.
//
// The notation of scripts is that of package conformance; the kinds of servers are ours
// and mooncake. $M is a model that no other script has, $E.live what publisher E is
// connected to, $P the tokens of prompt P, $P0 what the engine calls its first block,
// $P0.digest its digest in hex, $P0.low the end of that, $P0.bin the digest as bytes, $P0.tokens its tokens.
//
// The commands:
//
//	GET|POST|... path     a request: headers (Name: value), then the body as JSON, which is
//	                      sent as msgpack ({"$bin": hex} is bytes), or "hex ...". Expected:
//	                      status, headers, then the body as in conformance.CompareBody
//	prompt P              tokens=1..48, block=, profile=sha256_cbor/0, lora=, salt=. The
//	                      last block= is that of steps that name none
//	publisher E           PUB and ROUTER sockets. pool: its events are a Mooncake master's.
//	                      topic=
//	register I at=E       type=, rank=, block=, profile= (or none), tenant=, lora=, model=,
//	                      replay: with its replay endpoint; then a line of JSON with other fields. Expected: ok, or status,
//	                      reason, field and error
//	unregister I          rank=, tenant=. Expected: the removed keys or the error
//	publish E             one batch, an event per line; then waits until it is applied,
//	                      unless nowait. rank=, seq=, lost, unkept
//	send E                one message, a frame per line: "text", u64 N, hex ..., batch [events]
//	restart E             new sockets on the same ports, from sequence 0
//	reopen E, close E     new sockets on the same ports; none
//	gone E                waits until nobody is subscribed
//	requests E            the replay requests so far
//	query P               blocks=N (of P), tokens=, instance=, tenant=, lora=, salt=, block=,
//	                      model=. Expected: a line per instance, invariants are checked
//	services, view        a line per service and context of the script's models
//	source E              show=State,DroppedBy: what ours tells of the source at E
//	server S, exits       a process of ours with the input as Mooncake's file
//
// Events are JSON, or one of these, whose key=value words replace a field, add it, take
// it away (key=-) or say it once more (+key=value):
//
//	stored [1,2] removed [1,2] cleared        an engine's
//	put KEY P0 drop KEY P0 clear              a master's, of block P0 in an object
func TestConformance(t *testing.T) {
	u := underTest(t)
	files, err := filepath.Glob("testdata/conformance/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts found: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) { runScript(t, u, file) })
	}
}

// script is one file being run.
type script struct {
	t       *testing.T
	u       *target
	base    string // where requests go
	vars    map[string]string
	engines map[string]*publisher
	block   string // size of steps that name none
}

// publisher is an engine, or a master.
type publisher struct {
	*conformance.Engine
	pool   bool
	events uint64 // ids given so far
}

func runScript(t *testing.T, u *target, file string) {
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	steps, comments := conformance.Parse(t, file, string(raw), "server", "exits")
	for _, s := range steps {
		if (s.Name == "server" || s.Name == "exits") && len(u.command.Line) == 0 {
			t.Skip("starts servers, and another one is under test")
		}
	}
	s := &script{t: t, u: u, vars: make(map[string]string), engines: make(map[string]*publisher), block: "4"}
	s.vars["M"] = fmt.Sprintf("conformance-%s-%d", strings.TrimSuffix(filepath.Base(file), ".txt"), rand.Uint32())
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

// run executes one step and compares what came out. When a foreign server has applied
// an event cannot be seen, so there what it brings about is waited for.
func (s *script) run(file string, st *conformance.Step) {
	if st.Only != "" && st.Only != s.u.kind {
		return
	}
	want := st.Expected(s.u.kind)
	if want == nil {
		s.t.Fatalf("%s:%d: no expectation for %s", file, st.Line, s.u.kind)
	}
	patient := st.Eventually || s.u.kind != ours && slices.Contains([]string{"query", "view", "services"}, st.Name)
	var got string
	var bad error
	ok := conformance.Until(func() bool {
		got, bad = s.execute(st, *want)
		return bad == nil || !patient || *rewrite && !st.Eventually
	})
	if bad == nil && ok {
		return
	}
	if *rewrite {
		if *want = nil; got != "" {
			*want = strings.Split(s.unexpand(strings.TrimRight(got, "\n")), "\n")
		}
		return
	}
	s.t.Errorf("%s:%d: %s\n%v\ngot:\n%s\nwant:\n%s", file, st.Line, strings.Join(st.Raw, "\n"), bad, s.unexpand(got), strings.Join(*want, "\n"))
}

// variable is $NAME, or something of it.
var variable = regexp.MustCompile(`\$[A-Za-z]+[0-9]*(\.[a-z]+)?`)

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

// unexpand is the way back for what is long.
func (s *script) unexpand(text string) string {
	names := slices.SortedFunc(maps.Keys(s.vars), func(a, b string) int { return len(s.vars[b]) - len(s.vars[a]) })
	for _, name := range names {
		if len(s.vars[name]) > 12 {
			text = strings.ReplaceAll(text, s.vars[name], "$"+name)
		}
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
	n, err := strconv.ParseUint(s.key(st, name, strconv.FormatUint(otherwise, 10)), 10, 64)
	if err != nil {
		s.t.Fatalf("line %d: %v", st.Line, err)
	}
	return n
}

func (s *script) value(st *conformance.Step, text string) any {
	v, err := conformance.DecodeValue(s.expand(text))
	if err != nil {
		s.t.Fatalf("line %d: %q: %v", st.Line, text, err)
	}
	return v
}

func (s *script) at(st *conformance.Step) *publisher {
	e := s.engines[s.word(st, 0)]
	if e == nil {
		s.t.Fatalf("line %d: no publisher %s", st.Line, st.Words[0])
	}
	return e
}

// execute runs a step once. An output that has to be equal is compared here; requests
// and processes compare themselves.
func (s *script) execute(st *conformance.Step, want []string) (got string, bad error) {
	switch st.Name {
	case "prompt":
		s.prompt(st)
	case "publisher":
		e, err := conformance.Open(s.key(st, "topic", ""), "4", true)
		if err != nil {
			s.t.Fatal(err)
		}
		s.t.Cleanup(e.Close)
		name := s.word(st, 0)
		s.engines[name] = &publisher{Engine: e, pool: st.Has("pool")}
		if e.Next = 0; st.Has("pool") {
			e.Next = 1 // as masters count
		}
		s.vars[name+".live"], s.vars[name+".replay"] = e.Live, e.Replay
	case "register":
		got = s.register(st)
	case "unregister":
		got = s.unregister(st)
	case "publish":
		s.publish(st, s.at(st))
	case "send":
		s.send(st, s.at(st))
	case "restart":
		if err := s.at(st).Restart(); err != nil {
			s.t.Fatal(err)
		}
	case "reopen":
		if err := s.at(st).Reopen(); err != nil {
			s.t.Fatal(err)
		}
	case "close":
		s.at(st).Close()
	case "gone":
		if !conformance.Until(func() bool { return !s.at(st).Heard() }) {
			s.t.Fatalf("line %d: somebody is still subscribed", st.Line)
		}
	case "requests":
		got = s.at(st).Requested()
	case "query":
		got = s.query(st)
	case "services":
		got = s.services()
	case "view":
		got = s.view()
	case "source":
		got = s.source(st)
	case "server":
		s.base = s.u.start(s.t, s.expand(strings.Join(st.Input, "\n")))
	case "exits":
		return s.u.exits(s.t, s.expand(strings.Join(st.Input, "\n")), want)
	default:
		return s.request(st, want)
	}
	if expected := s.expand(strings.Join(want, "\n")); strings.TrimRight(got, "\n") != expected {
		return got, fmt.Errorf("not as expected")
	}
	return got, nil
}

// settings reads sha256_cbor/0.
func (s *script) settings(text string) hash.Settings {
	algorithm, seed, _ := strings.Cut(text, "/")
	return hash.Settings{Strategy: hash.StrategyVLLM, Algorithm: algorithm, PythonHashSeed: seed, IndexProjection: hash.ProjectionLow64}
}

const profile0 = "sha256_cbor/0"

// prompt hashes one as an engine does.
func (s *script) prompt(st *conformance.Step) {
	s.block = s.key(st, "block", s.block)
	size, err := strconv.Atoi(s.block)
	if err != nil {
		s.t.Fatal(err)
	}
	p, err := hash.NewProfile(s.settings(s.key(st, "profile", profile0)))
	if err != nil {
		s.t.Fatal(err)
	}
	chain, err := p.Chain(s.key(st, "lora", ""), s.key(st, "salt", ""))
	if err != nil {
		s.t.Fatal(err)
	}
	var tokens []uint32
	for _, n := range conformance.Numbers(s.key(st, "tokens", "")) {
		v, err := n.Int64()
		if err != nil {
			s.t.Fatal(err)
		}
		tokens = append(tokens, uint32(v))
	}
	name := s.word(st, 0)
	s.vars[name] = conformance.EncodeJSON(tokens)
	chain.Reset(tokens, size)
	for i := range chain.Len() {
		block := fmt.Sprintf("%s%d", name, i)
		digest := hex.EncodeToString(chain.Digest(i)[:])
		s.vars[block] = strconv.FormatUint(chain.At(i), 10)
		s.vars[block+".digest"], s.vars[block+".low"] = digest, digest[48:]
		s.vars[block+".bin"] = fmt.Sprintf(`{"$bin":%q}`, digest)
		s.vars[block+".tokens"] = conformance.EncodeJSON(tokens[i*size : (i+1)*size])
	}
}

// publish sends the events of a step as one batch and waits until it is applied.
func (s *script) publish(st *conformance.Step, e *publisher) {
	events := make([]any, len(st.Input))
	for i, line := range st.Input {
		events[i] = s.event(st, e, line)
	}
	batch := []any{1.5, events, nil}
	if e.pool {
		batch[0] = masterTime
	}
	if _, ok := st.Keys["rank"]; ok {
		batch[2] = s.number(st, "rank", 0)
	}
	seq := s.number(st, "seq", e.Next)
	e.Publish(s.t, seq, conformance.Encode(batch), st.Has("lost"), st.Has("unkept"))
	if !st.Has("nowait") && !st.Has("lost") && s.u.kind == ours {
		s.settle(st, e, seq)
	}
}

func (s *script) send(st *conformance.Step, e *publisher) {
	var frames [][]byte
	for _, line := range st.Input {
		switch word, rest, _ := strings.Cut(line, " "); word {
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
			frames = append(frames, conformance.Encode(s.value(st, rest)))
		default:
			frames = append(frames, []byte(s.value(st, line).(string)))
		}
	}
	e.Send(s.t, frames)
}
