package dynamo_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"example.com/conductor/compat/internal/conformance"
	"example.com/conductor/conductor/scripttest"
	"example.com/conductor/internal/must"
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
// The notation of scripts is that of package scripttest, and package conformance has the
// common commands. The kinds of servers are ours and dynamo. $A to $Z are instance ids and
// $M a model name that no other script has; $NAME is what step NAME opened; $TMP is a folder.
//
//	GET|POST|... path    the body of a request is sent as it is; @pad N is a JSON
//	                     document of N bytes
//	publish P            one batch, an event per line (JSON; {"$bin": hex} is bytes).
//	                     rank=, seq=, form=map, lost (not live), unkept (no replay)
//	settle P             publishes a marker and waits until it is indexed for
//	                     instance= (rank=): all before it is applied then
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
	conformance.Scripts(t, func(t *testing.T, name, file string) {
		if strings.HasPrefix(name, "peer") {
			t.Parallel() // on servers of their own, which pause a second before they recover
		}
		runScript(t, u, name, file)
	})
}

// script is one file being run.
type script struct {
	conformance.Script
	u     *target
	peers map[string]*fakePeer
	marks map[string]float64
	rows  int // wire rows so far
}

func runScript(t *testing.T, u *target, name, file string) {
	steps, comments := scripttest.Parse(t, file, "server", "exits", "mark", "delta")
	for _, s := range steps {
		if (s.Name == "server" || s.Name == "exits") && len(u.command.Line) == 0 {
			must.Skip(t, "needs a command to start servers with flags: DYNAMO_CONFORMANCE_COMMAND")
		}
	}
	s := &script{u: u, peers: make(map[string]*fakePeer), marks: make(map[string]float64)}
	first := 1 + rand.Uint64N(1<<31)*100
	vars := map[string]string{"TMP": t.TempDir()}
	for i := range uint64(26) {
		vars[string(rune('A'+i))] = strconv.FormatUint(first+i, 10)
	}
	vars["M"] = fmt.Sprintf("conformance-%s-%d", name, first)
	s.Script = conformance.Script{
		Runner: scripttest.Runner{T: t, Kind: u.kind, Vars: vars, Rewrite: *rewrite, Execute: s.execute},
		Base:   u.url(t), Topic: "kv-events", Engines: make(map[string]*conformance.Engine),
	}
	t.Cleanup(s.clean)
	s.Run(file, steps, comments)
}

// execute runs a step once. An output that has to be equal is compared here;
// requests compare themselves.
func (s *script) execute(st *scripttest.Step, want []string) (got string, bad error) {
	switch st.Name {
	case "publish":
		s.publish(st, s.At(st), st.Input)
	case "settle":
		s.settle(st, s.At(st), s.Key(st, "instance", s.Vars["A"]), s.Key(st, "model", s.Vars["M"]))
	case "query":
		got = s.query(st)
	case "dump":
		got = s.dump(s.Key(st, "model", s.Vars["M"]), s.Key(st, "group", "default"))
	case "wire":
		got = s.wire(st)
	case "mark":
		s.marks[s.Word(st, 0)] = s.metric(s.Word(st, 0))
	case "delta":
		got = strconv.FormatFloat(s.metric(s.Word(st, 0))-s.marks[s.Word(st, 0)], 'f', -1, 64)
	case "peer":
		name := s.Word(st, 0)
		lines, before := st.Input, func() {}
		if from, ok := st.Keys["first"]; ok {
			end := slices.Index(lines, "--")
			e, batch := s.Engines[from], lines[:end]
			before, lines = sync.OnceFunc(func() { s.publish(st, e, batch) }), lines[end+1:]
		}
		s.peers[name] = newFakePeer(s.T, int(s.Number(st, "status", 200)), s.Expand(strings.Join(lines, "\n")), before)
		s.Vars[name] = s.peers[name].URL
	case "asked":
		got = s.peers[s.Word(st, 0)].asked()
	case "server":
		s.Base = s.u.start(s.T, s.ExpandAll(st.Words[1:]), s.ExpandAll(st.Input))
		s.Vars[st.Words[0]] = s.Base
	case "use":
		s.Base = s.Word(st, 0)
	case "exits":
		return s.u.command.Exits(s.T, s.ExpandAll(st.Words), s.ExpandAll(st.Input), s.ExpandAll(want))
	case "file":
		return s.file(st, want)
	case "rename":
		must.Succeed(s.T, os.Rename(s.Word(st, 0), s.Word(st, 1)))
	default:
		var ok bool
		if got, ok = s.Common(st); !ok {
			return s.request(st, want)
		}
	}
	return got, s.Same(got, want)
}

// publish sends the events of lines as one batch.
func (s *script) publish(st *scripttest.Step, e *conformance.Engine, lines []string) {
	events := make([]any, len(lines))
	for i, l := range lines {
		events[i] = s.Value(st, l)
	}
	batch := []any{1.5, events, nil}
	if rank, ok := st.Keys["rank"]; ok {
		n, err := strconv.ParseInt(rank, 10, 32)
		must.Succeed(s.T, err)
		batch[2] = n
	}
	var payload any = batch
	if s.Key(st, "form", "array") == "map" {
		payload = conformance.Object{{Key: "ts", Value: 1.5}, {Key: "events", Value: events}, {Key: "data_parallel_rank", Value: batch[2]}}
	}
	e.Publish(s.T, s.Number(st, "seq", e.Next), conformance.Encode(payload), st.Has("lost"), st.Has("unkept"))
}

// settle waits until the server has applied all that e published: a block of
// its own comes last, and is asked for.
func (s *script) settle(st *scripttest.Step, e *conformance.Engine, instance, model string) {
	e.Counted++
	token := uint64(4_000_000_000) + e.Counted
	size := s.Number(st, "block", 4)
	tokens := make([]any, size)
	for i := range tokens {
		tokens[i] = token
	}
	event := []any{"BlockStored", []any{token}, nil, tokens, size}
	e.Publish(s.T, e.Next, conformance.Encode([]any{1.5, []any{event}, nil}), false, false)
	asked := fmt.Sprintf(`{"token_ids":%s,"model_name":%q}`, conformance.EncodeJSON(tokens), model)
	var last string
	if !scripttest.Until(func() bool {
		_, _, last = s.do("POST", "/query", map[string]string{"Content-Type": "application/json"}, asked)
		return strings.Contains(last, `"`+instance+`"`)
	}) {
		s.T.Fatalf("line %d: the marker %d of instance %s is not indexed: %s", st.Line, token, instance, last)
	}
	// Other tiers may be applied during the marker's; a dump waits for all.
	s.do("GET", "/dump", nil, "")
}

// wire gives a new instance the batches of the input and returns its dump.
func (s *script) wire(st *scripttest.Step) string {
	e, err := conformance.Open("", "3", true)
	must.Succeed(s.T, err)
	defer e.Close()
	s.rows++
	instance, model := s.Vars["W"], fmt.Sprintf("%s-%d", s.Vars["M"], s.rows)
	size := s.Number(st, "block", 4)
	body := fmt.Sprintf(`{"instance_id":%s,"endpoint":%q,"model_name":%q,"block_size":%d}`, instance, e.Live, model, size)
	json := map[string]string{"Content-Type": "application/json"}
	if status, _, answer := s.do("POST", "/register", json, body); status != 201 {
		s.T.Fatalf("line %d: register: %d %s", st.Line, status, answer)
	}
	e.Await(s.T)
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
	if status, _, answer := s.do("POST", "/unregister", json,
		fmt.Sprintf(`{"instance_id":%s,"model_name":%q}`, instance, model)); status != 200 {
		s.T.Fatalf("line %d: unregister: %d %s", st.Line, status, answer)
	}
	return out
}
