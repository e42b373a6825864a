package http

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/gin-gonic/gin"
	"github.com/vmihailenco/msgpack/v5"

	"kvconductor/conductor"
	"kvconductor/conductor/body"
	"kvconductor/conductor/server"
)

// split is a batch that other replicas answer in parts. Its answer has a null in the place of each
// answer of theirs. It is an error, so that the place of the batch is given back before they are
// asked: replicas that hold places while they wait for each other's would wait for ever.
type split struct {
	shared []body.Member // what counts for all queries, and the queries
	items  []splitItem
	parts  map[string]*part // by the replicas that serve it
}

// splitItem is a query that another replica answers.
type splitItem struct {
	index    int // in the batch
	from, to int // of its null, in the answer
	part     *part
	at       int // in the part
}

// part is what one replica is asked.
type part struct {
	to      *conductor.UnservedError
	queries []int // their places in the batch
	answers [][]byte
	err     error
}

func (s *split) Error() string { return "parts of the batch are served elsewhere" }

// add leaves a place for the answer of query i.
func (s *split) add(e *body.Encoder, i int, to *conductor.UnservedError) {
	key := to.ServedBy()
	if s.parts == nil {
		s.parts = make(map[string]*part)
	}
	p := s.parts[key]
	if p == nil {
		p = &part{to: to}
		s.parts[key] = p
	}
	null := body.Encoder{Codec: e.Codec}
	null.Null()
	e.Raw(null.Out)
	s.items = append(s.items, splitItem{i, len(e.Out) - len(null.Out), len(e.Out), p, len(p.queries)})
	p.queries = append(p.queries, i)
}

// join asks the other replicas and puts their answers into that of r. A part that fails costs its
// queries alone.
func (s *split) join(g *gin.Context, r *body.Request) {
	var all [][]byte // queries as text
	for _, m := range s.shared {
		if m.Name == "queries" {
			all = slices.Collect(body.Elements(m.Raw))
		}
	}
	forwarder := server.ForwarderOf(g)
	var asking sync.WaitGroup
	for _, p := range s.parts {
		asking.Go(func() { p.ask(g, forwarder, s.body(all, p), r.Codec) })
	}
	asking.Wait()
	out := make([]byte, 0, 2*len(r.Out))
	done := 0
	for _, it := range s.items {
		out = append(out, r.Out[done:it.from]...)
		done = it.to
		if it.part.err != nil {
			_, row := describe(it.part.err)
			out = append(out, encode(r.Codec, row)...)
			continue
		}
		out = append(out, it.part.answers[it.at]...)
	}
	r.Out = append(out, r.Out[done:]...)
}

// body returns the batch of a part.
func (s *split) body(all [][]byte, p *part) []byte {
	b := []byte{'{'}
	for _, m := range s.shared {
		if m.Name != "queries" {
			b = body.AppendString(b, m.Name, false)
			b = append(append(append(b, ':'), m.Raw...), ',')
		}
	}
	b = append(b, `"queries":[`...)
	for n, i := range p.queries {
		if n > 0 {
			b = append(b, ',')
		}
		b = append(b, all[i]...)
	}
	return append(b, "]}"...)
}

// ask asks one replica for the answers of a part.
func (p *part) ask(g *gin.Context, f server.Forwarder, text []byte, codec body.Codec) {
	answer, err := f.Ask(g, text, p.to)
	if err == nil {
		p.answers, err = answersOf(answer, codec)
	}
	if errors.Is(err, body.ErrMemory) {
		err = body.ErrMemory // of this replica, not of that one
	}
	if err == nil && len(p.answers) != len(p.queries) {
		err = fmt.Errorf("%w: %d answers for %d queries", server.ErrReplicas, len(p.answers), len(p.queries))
	}
	p.err = err
}

// answersOf returns the answers of a batch, each as it stands there.
func answersOf(text []byte, codec body.Codec) (all [][]byte, err error) {
	if codec == body.Msgpack {
		var of struct {
			Answers []msgpack.RawMessage `msgpack:"answers"`
		}
		err = msgpack.Unmarshal(text, &of)
		for _, a := range of.Answers {
			all = append(all, a)
		}
	} else {
		var of struct {
			Answers []json.RawMessage `json:"answers"`
		}
		err = json.Unmarshal(text, &of)
		for _, a := range of.Answers {
			all = append(all, a)
		}
	}
	if err != nil {
		err = fmt.Errorf("%w: its answer cannot be read: %w", server.ErrReplicas, err)
	}
	return all, err
}
