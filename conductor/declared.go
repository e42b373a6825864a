package conductor

import (
	"kvconductor/conductor/doctor"
	"kvconductor/events"

	"kvconductor/conductor/scope"
)

// A source of type Standard declares that its hashes are canonical keys. Then a block
// is where its hash says, also where its tokens alone would not place it: behind a
// parent nobody has announced, or in the middle of a prompt. The declaration is
// verified on the beginnings of prompts that come with tokens. Where it proves wrong
// the source's hashes are an engine's like any other until the publisher restarts.
//
// Where a block's place is known its tokens are hashed all the same, which gives the
// same key, so that dumps tell its local hash.

// maxVerified is how many blocks of one event are compared.
const maxVerified = 32

// declared is what became of a source's declaration. The zero value believes it; it
// belongs to the source's goroutine.
type declared struct {
	verified int // events compared
	refuted  bool
}

// believe returns the local hashes to store a stored event's blocks with, nil where
// their own hashes are taken as keys.
func (s *source) believe(e *events.Event, at scope.Context, local []uint64) []uint64 {
	if s.reg.Type != TypeStandard || !e.Envelope || local == nil {
		return local
	}
	s.verify(e, local)
	switch {
	case s.declared.refuted, !e.HasParent && e.BaseBlock <= 0:
		return local
	case e.HasParent:
		if ns := s.index[at]; ns != nil && s.knows(ns, e, parentHash) {
			return local
		}
	}
	return nil
}

// verify compares the hashes of the first events that begin a prompt with those of
// their tokens. What standardized hashes leave open is not compared: images, pairs.
func (s *source) verify(e *events.Event, local []uint64) {
	d := &s.declared
	if d.refuted || d.verified >= doctor.Sample || len(local) == 0 || e.HasParent || e.BaseBlock > 0 || e.Ahead > 0 || e.Items != nil {
		return
	}
	d.verified++
	scheme := s.conductor.scheme
	seq := local[0]
	for i, h := range e.Hashes[:min(len(e.Hashes), maxVerified)] {
		if i > 0 {
			seq = scheme.Next(seq, local[i])
		}
		if h != seq {
			d.refuted = true
			s.doctor.Report(doctor.FindingHashScheme, "block %d of a prompt has hash %#x, its tokens have %#x with hash.seed %d: the publisher's seed differs, or its hashes are of another scheme; they are not taken for keys until it restarts, blocks with tokens are named by those; set hash.seed to the publisher's, or register the type of the engine",
				i, h, seq, scheme.Seed)
			return
		}
	}
}
