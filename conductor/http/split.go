package http

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"

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
	gaps   []gap
	parts  server.Parts
}

// gap is where the answer of another replica goes.
type gap struct {
	query    int // in the batch
	from, to int // of its null, in the answer
}

func (s *split) Error() string { return "parts of the batch are served elsewhere" }

// add leaves a place for the answer of query i.
func (s *split) add(e *body.Encoder, i int, to *conductor.UnservedError) {
	null := body.Encoder{Codec: e.Codec}
	null.Null()
	e.Raw(null.Out)
	s.gaps = append(s.gaps, gap{i, len(e.Out) - len(null.Out), len(e.Out)})
	s.parts.Add(i, to)
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
	forwarder, answers := server.ForwarderOf(g), make([][]byte, len(all))
	s.parts.Ask(func(p *server.Part) {
		part, err := ask(g, forwarder, s.body(all, p), p, r.Codec)
		if err != nil {
			_, row := describe(err)
			part = slices.Repeat([][]byte{encode(r.Codec, row)}, len(p.At))
		}
		for n, i := range p.At {
			answers[i] = part[n]
		}
	})
	out := make([]byte, 0, 2*len(r.Out))
	done := 0
	for _, at := range s.gaps {
		out = append(append(out, r.Out[done:at.from]...), answers[at.query]...)
		done = at.to
	}
	r.Out = append(out, r.Out[done:]...)
}

// body returns the batch of a part.
func (s *split) body(all [][]byte, p *server.Part) []byte {
	b := []byte{'{'}
	for _, m := range s.shared {
		if m.Name != "queries" {
			b = body.AppendString(b, m.Name, false)
			b = append(append(append(b, ':'), m.Raw...), ',')
		}
	}
	b = append(b, `"queries":[`...)
	for n, i := range p.At {
		if n > 0 {
			b = append(b, ',')
		}
		b = append(b, all[i]...)
	}
	return append(b, "]}"...)
}

// ask asks one replica for the answers of a part.
func ask(g *gin.Context, f server.Forwarder, text []byte, p *server.Part, codec body.Codec) (answers [][]byte, err error) {
	answer, err := f.Ask(g, text, p.To)
	if err == nil {
		answers, err = answersOf(answer, codec)
	}
	if errors.Is(err, body.ErrMemory) {
		err = body.ErrMemory // of this replica, not of that one
	}
	if err == nil && len(answers) != len(p.At) {
		err = fmt.Errorf("%w: %d answers for %d queries", server.ErrReplicas, len(answers), len(p.At))
	}
	return answers, err
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
