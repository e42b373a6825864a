package normalize

import (
	"example.com/conductor/conductor/doctor"
	"example.com/conductor/events"
)

// A source of type Standard declares that its hashes are canonical keys. Then a block
// is where its hash says, also where its tokens alone would not place it: behind a
// parent that no source has announced, or in the middle of a prompt. The declaration is
// verified on the beginnings of prompts that come with tokens. Where it proves wrong
// the source's hashes are an engine's like any other until the publisher restarts.
//
// Where a block's place is known its tokens are hashed all the same, which gives the
// same key, so that dumps tell its local hash.
//
// Standardized hashes do not say how images and other items enter them. So the hashes of
// blocks with items are not taken for keys: tokens and items together place such a block.

// maxVerified is how many blocks of one event are compared.
const maxVerified = 32

// declared says how far the hashes of a source have been verified. The source has declared them to be standard, and the zero
// value believes it. It belongs to the goroutine of the source.
type declared struct {
	verified int // events compared
	refuted  bool
}

// acceptDeclared reports whether the hashes of a stored event may serve as keys. It first verifies them if the event begins
// a prompt.
func (n *Normalizer) acceptDeclared(e *events.Event, local []uint64) bool {
	n.verifyDeclared(e, local)
	return !n.declared.refuted
}

// verifyDeclared compares the hashes of the first events that begin a prompt with those of their tokens. It does not compare
// blocks with look-ahead, whose hashes the standard leaves open.
func (n *Normalizer) verifyDeclared(e *events.Event, local []uint64) {
	d := &n.declared
	if d.refuted || d.verified >= doctor.Sample || len(local) == 0 || e.HasParent || e.BaseBlock > 0 || e.Ahead > 0 {
		return
	}
	d.verified++
	scheme := n.opts.Scheme
	seq := local[0]
	for i, h := range e.Hashes[:min(len(e.Hashes), maxVerified)] {
		if i > 0 {
			seq = scheme.Next(seq, local[i])
		}
		if h != seq {
			d.refuted = true
			n.opts.Findings.Report(doctor.FindingHashScheme,
				"block %d of a prompt has hash %#x, its tokens have %#x with hash.seed %d: the publisher's seed differs, or its hashes "+
					"are of another scheme; they are not taken for keys until it restarts, blocks with tokens are named by those; set "+
					"hash.seed to the publisher's, or register the type of the engine",
				i, h, seq, scheme.Seed)
			return
		}
	}
}
