package workload

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
)

// span is a range of lengths, both ends included.
type span struct{ min, max int }

func (s span) draw(r *rand.Rand) int { return s.min + r.IntN(s.max-s.min+1) }

// shape is how sessions of one kind of application look, in tokens.
type shape struct {
	shared int  // how many different beginnings there are
	system span // length of a beginning
	turns  span // requests of one session
	input  span // tokens added before each request
	output span
	live   int // sessions that take turns at the same time
}

// shapes are the built-in kinds. The lengths follow what the public traces
// show: assistants with short turns, agents with long beginnings and long tool
// results between short answers. The devices of the default fleet cannot hold all
// open sessions.
var shapes = map[string]shape{
	"system": {shared: 12, system: span{1500, 6000}, turns: span{1, 1}, input: span{50, 1200}, output: span{50, 400}, live: 1},
	"chat":   {shared: 6, system: span{200, 1200}, turns: span{3, 12}, input: span{30, 600}, output: span{60, 500}, live: 150},
	"tools":  {shared: 4, system: span{3000, 9000}, turns: span{4, 16}, input: span{100, 2000}, output: span{20, 150}, live: 50},
}

// Kinds are the names NewGenerator knows.
var Kinds = []string{"mixed", "system", "chat", "tools"}

// Generator makes requests for ever.
type Generator struct {
	kind  string
	rng   *rand.Rand
	apps  []*app
	fresh uint64 // identity of the next new segment
}

// app is one application: its beginnings and its open sessions.
type app struct {
	shape
	starts   []Segment
	sessions []*session
}

type session struct {
	prompt []Segment
	turns  int // requests left
}

// NewGenerator returns a source of one of Kinds; mixed takes all in turn.
func NewGenerator(kind string, seed uint64) (*Generator, error) {
	if !slices.Contains(Kinds, kind) {
		return nil, fmt.Errorf("workload %q is none of %s", kind, strings.Join(Kinds, ", "))
	}
	g := &Generator{kind: kind, rng: rand.New(rand.NewPCG(seed, 0x636f6e64756374))}
	// Another seed means other tokens too.
	g.fresh = g.rng.Uint64() >> 1
	for _, name := range Kinds[1:] {
		if kind != name && kind != "mixed" {
			continue
		}
		a := &app{shape: shapes[name]}
		for range a.shared {
			a.starts = append(a.starts, g.segment(a.system))
		}
		g.apps = append(g.apps, a)
	}
	return g, nil
}

func (g *Generator) segment(length span) Segment {
	g.fresh++
	return Segment{ID: g.fresh, Len: length.draw(g.rng)}
}

// Next returns the next turn of some session.
func (g *Generator) Next() (Request, bool) {
	a := g.apps[g.rng.IntN(len(g.apps))]
	for len(a.sessions) < a.live {
		a.sessions = append(a.sessions, g.open(a))
	}
	at := g.rng.IntN(len(a.sessions))
	s := a.sessions[at]
	s.prompt = append(s.prompt, g.segment(a.input))
	r := Request{Prompt: slices.Clone(s.prompt), Output: g.segment(a.output)}
	s.prompt = append(s.prompt, r.Output)
	if s.turns--; s.turns == 0 {
		a.sessions = slices.Delete(a.sessions, at, at+1)
	}
	return r, true
}

// open begins a session. The first beginnings are the popular ones.
func (g *Generator) open(a *app) *session {
	n := min(g.rng.IntN(len(a.starts)), g.rng.IntN(len(a.starts)))
	return &session{prompt: []Segment{a.starts[n]}, turns: a.turns.draw(g.rng)}
}

// Len returns -1: there is no end.
func (g *Generator) Len() int { return -1 }

// String returns the kind.
func (g *Generator) String() string { return "workload " + g.kind }
