package http

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/gin-gonic/gin"
	"github.com/vmihailenco/msgpack/v5"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/body"
	"example.com/conductor/conductor/forward"
	"example.com/conductor/conductor/reply"
)

// elsewhere is an answer that lacks what other replicas say. It is an error, so that the slot of the request
// is given back before they are asked: replicas that hold slots while they wait for each other's
// would wait for ever.
type elsewhere interface {
	error
	// joinAnswers asks them and completes the answer in r. A part that fails costs its prompts alone.
	joinAnswers(g *gin.Context, r *body.Request)
}

// split is a list of prompts that other replicas answer in parts.
type split struct {
	codec  body.Codec    // of the request
	list   string        // the field that has the prompts
	shared []body.Member // what counts for all of them, and the list
	parts  forward.Parts
}

func (s *split) Error() string { return "parts of " + s.list + " are served elsewhere" }

// askReplicas asks the other replicas, all at once, and calls use with what each answers. Calls of use run side by side.
func (s *split) askReplicas(g *gin.Context, use func(p *forward.Part, answer []byte, err error)) {
	var all [][]byte // prompts as text
	for _, m := range s.shared {
		if m.Name == s.list {
			all = slices.Collect(s.codec.Elements(m.Raw))
		}
	}
	forwarder := forward.Of(g)
	s.parts.Ask(func(p *forward.Part) {
		answer, err := forwarder.Ask(g, s.bodyOf(all, p), p.To)
		if errors.Is(err, body.ErrMemory) {
			err = body.ErrMemory // of this replica, not of that one
		}
		use(p, answer, err)
	})
}

// bodyOf returns the body of a part.
func (s *split) bodyOf(all [][]byte, p *forward.Part) []byte {
	e := body.Encoder{Codec: s.codec}
	e.Map(len(s.shared)) // the list is one of them
	for _, m := range s.shared {
		if m.Name != s.list {
			e.Key(m.Name)
			e.Raw(m.Raw)
		}
	}
	e.Key(s.list)
	e.List(len(p.At))
	for _, i := range p.At {
		e.Raw(all[i])
	}
	e.EndList()
	e.EndMap()
	return e.Out
}

// wrongNumber is the error of an answer that is not about the prompts of a part.
func wrongNumber(n int, p *forward.Part) error {
	return fmt.Errorf("%w: %d answers for %d prompts", forward.ErrReplicas, n, len(p.At))
}

// decode reads the answer of another replica.
func decode(text []byte, codec body.Codec, into any) (err error) {
	if codec == body.Msgpack {
		d := msgpack.NewDecoder(bytes.NewReader(text))
		d.SetCustomStructTag("json")
		err = d.Decode(into)
	} else {
		err = json.Unmarshal(text, into)
	}
	if err != nil {
		err = fmt.Errorf("%w: its answer cannot be read: %w", forward.ErrReplicas, err)
	}
	return err
}

// splitBatch is a split of queries. Its answer has a null in the place of each answer of another replica.
type splitBatch struct {
	split
	gaps []gap
}

// gap is where the answer of another replica goes.
type gap struct {
	query    int // in the batch
	from, to int // of its null, in the answer
}

// leaveGap leaves a place for the answer of query i.
func (s *splitBatch) leaveGap(e *body.Encoder, i int, to *conductor.UnservedError) {
	null := body.Encoder{Codec: e.Codec}
	null.Null()
	e.Raw(null.Out)
	s.gaps = append(s.gaps, gap{i, len(e.Out) - len(null.Out), len(e.Out)})
	s.parts.Add(i, to)
}

// joinAnswers puts the answers of the other replicas into that of r.
func (s *splitBatch) joinAnswers(g *gin.Context, r *body.Request) {
	answers := make([][]byte, len(r.Items))
	s.askReplicas(g, func(p *forward.Part, answer []byte, err error) {
		var part [][]byte
		if err == nil {
			part, err = answersOf(answer, r.Codec)
		}
		if err == nil && len(part) != len(p.At) {
			err = wrongNumber(len(part), p)
		}
		if err != nil {
			_, row := reply.DescribeError(err)
			part = slices.Repeat([][]byte{reply.Encode(r.Codec, row)}, len(p.At))
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

// answersOf returns the answers of a batch, each as it stands there.
func answersOf(text []byte, codec body.Codec) (all [][]byte, err error) {
	if codec == body.Msgpack {
		var of struct {
			Answers []msgpack.RawMessage `json:"answers"`
		}
		err = decode(text, codec, &of)
		for _, a := range of.Answers {
			all = append(all, a)
		}
	} else {
		var of struct {
			Answers []json.RawMessage `json:"answers"`
		}
		err = decode(text, codec, &of)
		for _, a := range of.Answers {
			all = append(all, a)
		}
	}
	return all, err
}
