package index

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"example.com/conductor/index/hash"
	"example.com/conductor/lab/sim/workload"
)

// segmentTokens is how many tokens one hash id of a trace stands for.
const segmentTokens = 512

// copyShift sets the identities of the copies of a trace apart.
const copyShift = 40

// depth is how many blocks a synthetic family has.
const depth = 128

// block is one block under its prefix.
type block struct {
	seq, local uint64
	parent     int32 // position in blocks, -1 for the first of a prompt
	content    uint64
	part       uint32 // which block of the content it is
}

// prompts are chains of blocks that share beginnings.
type prompts struct {
	blocks []block
	bySeq  map[uint64]int32
	chains [][]int32 // positions in blocks
	size   int       // tokens per block
}

func newPrompts(size int) *prompts {
	return &prompts{bySeq: map[uint64]int32{}, size: size}
}

// openPrompts reads a trace, or makes the built-in shape. Copies are interleaved: all
// copies of a request arrive before the next request.
func openPrompts(c *Config) (*prompts, error) {
	next := builtIn(c.Requests)
	if c.Trace != "" {
		trace, err := workload.OpenTrace(c.Trace)
		if err != nil {
			return nil, err
		}
		next = trace.Next
	}
	p := newPrompts(c.BlockSize)
	locals := map[uint64][]uint64{} // by content
	for req, ok := next(); ok; req, ok = next() {
		if req.PromptLen() < c.BlockSize {
			continue
		}
		for n := range uint64(c.Copies) {
			chain := make([]int32, 0, req.PromptLen()/c.BlockSize)
			for _, s := range req.Prompt {
				if s.ID >= 1<<copyShift {
					return nil, fmt.Errorf("hash id %d is too large to be copied", s.ID)
				}
				content := s.ID | n<<copyShift
				ls := locals[content]
				if ls == nil {
					ls = p.hashContent(content, segmentTokens/c.BlockSize)
					locals[content] = ls
				}
				for i := range s.Len / c.BlockSize {
					chain = p.extendChain(chain, ls[i], content, uint32(i))
				}
			}
			p.chains = append(p.chains, chain)
		}
	}
	return p, nil
}

// builtIn returns prompts in the shape of Mooncake's conversation trace: all begin with
// one segment, two of five go on with an earlier prompt, and the median is 7,000 tokens.
func builtIn(requests int) func() (workload.Request, bool) {
	const recent, longest = 2000, 247
	r := rand.New(rand.NewPCG(12031, 0))
	var talks [][]workload.Segment
	id := uint64(0)
	return func() (req workload.Request, ok bool) {
		if requests == 0 {
			return req, false
		}
		requests--
		req.Prompt = []workload.Segment{{ID: 0, Len: segmentTokens}}
		if len(talks) > 0 && r.IntN(5) < 2 {
			req.Prompt = slices.Clone(talks[r.IntN(len(talks))])
		}
		fresh := int(3 * math.Pow(16, r.Float64())) // log-uniform
		for ; fresh > 0 && len(req.Prompt) < longest; fresh-- {
			id++
			req.Prompt = append(req.Prompt, workload.Segment{ID: id, Len: segmentTokens})
		}
		if talks = append(talks, req.Prompt); len(talks) > recent {
			talks = talks[1:]
		}
		return req, true
	}
}

// makeFamilies makes families of chains without a common beginning; the last one
// may be shorter.
func makeFamilies(n, size int) *prompts {
	p := newPrompts(size)
	p.blocks = make([]block, 0, n)
	p.bySeq = nil // no two families meet
	r := rand.New(rand.NewPCG(1, uint64(n)))
	for len(p.blocks) < n {
		chain := make([]int32, 0, depth)
		for len(chain) < depth && len(p.blocks) < n {
			chain = p.extendChain(chain, r.Uint64()|1, uint64(len(p.chains)), uint32(len(chain)))
		}
		p.chains = append(p.chains, chain)
	}
	return p
}

// hashContent returns the local hashes of the first n blocks of a content.
func (p *prompts) hashContent(content uint64, n int) []uint64 {
	tokens := workload.AppendTokens(nil, workload.Segment{ID: content, Len: n * p.size})
	return hash.DefaultScheme().AppendLocals(nil, tokens, p.size)
}

// appendTokens appends the tokens of a block of a trace.
func (p *prompts) appendTokens(dst []uint32, b *block) []uint32 {
	skip := int(b.part) * p.size
	at := len(dst)
	dst = workload.AppendTokens(dst, workload.Segment{ID: b.content, Len: skip + p.size})
	return append(dst[:at], dst[at+skip:]...)
}

// extendChain appends a block to a chain.
func (p *prompts) extendChain(chain []int32, local, content uint64, part uint32) []int32 {
	b := block{seq: local, local: local, parent: -1, content: content, part: part}
	if len(chain) > 0 {
		b.parent = chain[len(chain)-1]
		b.seq = hash.DefaultScheme().Next(p.blocks[b.parent].seq, local)
	}
	if p.bySeq == nil {
		p.blocks = append(p.blocks, b)
		return append(chain, int32(len(p.blocks)-1))
	}
	id, known := p.bySeq[b.seq]
	if !known {
		id = int32(len(p.blocks))
		p.blocks = append(p.blocks, b)
		p.bySeq[b.seq] = id
	}
	return append(chain, id)
}
