package mooncake_test

import (
	"encoding/hex"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	"example.com/conductor/compat/internal/conformance"
	"example.com/conductor/conductor/scripttest"
	"example.com/conductor/index/hash"
	"example.com/conductor/internal/must"
)

var rewrite = flag.Bool("conformance.rewrite", false, "write the answers of this run into testdata/conformance")

// TestConformance runs testdata/conformance/*.txt against a server of the dialect, over
// real HTTP and real ZeroMQ sockets: the one at MOONCAKE_CONFORMANCE_URL, else our own.
// Scripts that start servers with a file need ours.
//
// The notation of scripts is that of package scripttest, and package conformance has the
// common commands. The kinds of servers are ours and mooncake. $M is a model that no other script has, $E.live what publisher E is
// connected to, $P the tokens of prompt P, $P0 what the engine calls its first block,
// $P0.digest its digest in hex, $P0.low the end of that, $P0.bin the digest as bytes, $P0.tokens its tokens.
//
//	GET|POST|... path     the body of a request is JSON, which is sent as msgpack
//	                      ({"$bin": hex} is bytes), or "hex ..."
//	prompt P              tokens=1..48, block=, profile=sha256_cbor/0, lora=, salt=. The
//	                      last block= is that of steps that name none
//	publisher E           pool: its events are a Mooncake master's
//	register I at=E       type=, rank=, block=, profile= (or none), tenant=, lora=, model=,
//	                      replay: with its replay endpoint; then a line of JSON with other fields. Expected: ok, or status,
//	                      reason, field and error
//	unregister I          rank=, tenant=. Expected: the removed keys or the error
//	publish E             one batch, an event per line; then waits until it is applied,
//	                      unless nowait. rank=, seq=, lost, unkept
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
	conformance.Scripts(t, func(t *testing.T, name, file string) { runScript(t, u, name, file) })
}

// script is one file being run.
type script struct {
	conformance.Script
	u     *target
	pools map[*conformance.Engine]bool // the masters
	block string                       // size of steps that name none
}

// runScript runs one file. A foreign server does not tell when it has applied an event, so
// there the script waits for what the event brings about.
func runScript(t *testing.T, u *target, name, file string) {
	steps, comments := scripttest.Parse(t, file, "server", "exits")
	for _, s := range steps {
		if (s.Name == "server" || s.Name == "exits") && len(u.command.Line) == 0 {
			t.Skip("starts servers, and another one is under test")
		}
	}
	s := &script{u: u, pools: make(map[*conformance.Engine]bool), block: "4"}
	vars := map[string]string{"M": fmt.Sprintf("conformance-%s-%d", name, rand.Uint32())}
	s.Script = conformance.Script{
		Runner: scripttest.Runner{T: t, Kind: u.kind, Vars: vars, Rewrite: *rewrite, Execute: s.execute,
			Patient: func(st *scripttest.Step) bool {
				return u.kind != conformance.Ours && slices.Contains([]string{"query", "view", "services"}, st.Name)
			}},
		Base: u.url(t), Engines: make(map[string]*conformance.Engine),
	}
	t.Cleanup(s.clean)
	s.Run(file, steps, comments)
}

// execute runs a step once. An output that has to be equal is compared here; requests
// and processes compare themselves.
func (s *script) execute(st *scripttest.Step, want []string) (got string, bad error) {
	switch st.Name {
	case "prompt":
		s.prompt(st)
	case "register":
		got = s.register(st)
	case "unregister":
		got = s.unregister(st)
	case "publish":
		s.publish(st, s.At(st))
	case "query":
		got = s.query(st)
	case "services":
		got = s.services()
	case "view":
		got = s.view()
	case "source":
		got = s.source(st)
	case "server":
		s.Base = s.u.start(s.T, s.Expand(strings.Join(st.Input, "\n")))
	case "exits":
		return s.u.exits(s.T, s.Expand(strings.Join(st.Input, "\n")), want)
	default:
		var ok bool
		if got, ok = s.Common(st); !ok {
			return s.request(st, want)
		}
		if st.Has("pool") {
			e := s.At(st)
			s.pools[e], e.Next = true, 1 // as masters count
		}
	}
	return got, s.Same(got, want)
}

// settings reads sha256_cbor/0.
func (s *script) settings(text string) hash.Settings {
	algorithm, seed, _ := strings.Cut(text, "/")
	return hash.Settings{Strategy: hash.StrategyVLLM, Algorithm: algorithm, PythonHashSeed: seed, IndexProjection: hash.ProjectionLow64}
}

const profile0 = "sha256_cbor/0"

// prompt hashes one as an engine does.
func (s *script) prompt(st *scripttest.Step) {
	s.block = s.Key(st, "block", s.block)
	size, err := strconv.Atoi(s.block)
	must.Succeed(s.T, err)
	p, err := hash.NewProfile(s.settings(s.Key(st, "profile", profile0)))
	must.Succeed(s.T, err)
	chain, err := p.NewDigestChain(s.Key(st, "lora", ""), s.Key(st, "salt", ""))
	must.Succeed(s.T, err)
	var tokens []uint32
	for _, n := range conformance.Numbers(s.Key(st, "tokens", "")) {
		v, err := n.Int64()
		must.Succeed(s.T, err)
		tokens = append(tokens, uint32(v))
	}
	name := s.Word(st, 0)
	s.Vars[name] = conformance.EncodeJSON(tokens)
	chain.Reset(tokens, size)
	for i := range chain.Len() {
		block := fmt.Sprintf("%s%d", name, i)
		digest := hex.EncodeToString(chain.Digest(i)[:])
		s.Vars[block] = strconv.FormatUint(chain.At(i), 10)
		s.Vars[block+".digest"], s.Vars[block+".low"] = digest, digest[48:]
		s.Vars[block+".bin"] = fmt.Sprintf(`{"$bin":%q}`, digest)
		s.Vars[block+".tokens"] = conformance.EncodeJSON(tokens[i*size : (i+1)*size])
	}
}

// publish sends the events of a step as one batch and waits until it is applied.
func (s *script) publish(st *scripttest.Step, e *conformance.Engine) {
	events := make([]any, len(st.Input))
	for i, line := range st.Input {
		events[i] = s.event(st, e, line)
	}
	batch := []any{1.5, events, nil}
	if s.pools[e] {
		batch[0] = masterTime
	}
	if _, ok := st.Keys["rank"]; ok {
		batch[2] = s.Number(st, "rank", 0)
	}
	seq := s.Number(st, "seq", e.Next)
	e.Publish(s.T, seq, conformance.Encode(batch), st.Has("lost"), st.Has("unkept"))
	if !st.Has("nowait") && !st.Has("lost") && s.u.kind == conformance.Ours {
		s.settle(st, e, seq)
	}
}
