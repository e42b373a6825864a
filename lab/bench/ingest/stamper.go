package ingest

import (
	"bytes"
	"encoding/binary"
	"math"
	"time"

	"github.com/vmihailenco/msgpack/v5"
)

// Load is the shape of the published events; both processes know it.
type Load struct {
	Sources   int
	First     int  // number of the first source, if other processes publish those before
	Blocks    int  // of one stored event, as vLLM announces a prefill chunk
	BlockSize int  // tokens
	Hold      int  // blocks a source holds
	Holders   int  // sources next to each other that publish the same blocks, 1 when 0
	Clear     bool // further blocks are cleared at once instead of removed one by one
}

// Stamper makes the messages of one source. All have one shape: a vLLM map that stores
// new blocks, and one that removes the oldest. It patches them in place, for encoding would
// cost more than publishing. One goroutine uses it.
type Stamper struct {
	load    Load
	source  uint64 // or the holders it is one of
	wire    []byte // a whole multipart message
	at      offsets
	cleared []byte // one that clears
}

// offsets are offsets of the bytes that differ between messages.
type offsets struct {
	stored  []int // hashes, 8 bytes big-endian
	removed []int
	tokens  []int // first token of each block, 4 bytes big-endian
}

// Marks no other byte of a message has.
const (
	markHash  = 0xF1F2_F3F4_F500_0000
	markGone  = 0xE1E2_E3E4_E500_0000
	markToken = 0xD1D2_0000
)

// NewStamper returns the Stamper of a source.
func NewStamper(l Load, source int) *Stamper {
	s := &Stamper{load: l, source: uint64(source / max(l.Holders, 1))}
	var stored, removed []uint64
	var tokens []uint32
	for i := range l.Blocks {
		stored = append(stored, markHash+uint64(i))
		removed = append(removed, markGone+uint64(i))
		tokens = append(tokens, markToken+uint32(i))
		for j := 1; j < l.BlockSize; j++ {
			tokens = append(tokens, laterToken(i, j))
		}
	}
	list := []any{
		map[string]any{
			"type": "BlockStored", "block_hashes": stored, "parent_block_hash": nil, "token_ids": tokens, "block_size": l.BlockSize,
			"lora_id": nil, "medium": "GPU", "lora_name": nil, "extra_keys": nil, "group_idx": 0, "kv_cache_spec_kind": "full_attention",
		},
	}
	if l.Clear {
		removed = nil
	} else {
		list = append(list, map[string]any{"type": "BlockRemoved", "block_hashes": removed, "medium": "GPU", "group_idx": 0})
	}
	s.wire = frameMessage(list)
	s.cleared = frameMessage([]any{map[string]any{"type": "AllBlocksCleared"}})
	for i := timeAt + 8; i+8 <= len(s.wire); i++ {
		switch word := binary.BigEndian.Uint64(s.wire[i:]); {
		case word&^0xFFFF == markHash:
			s.at.stored = append(s.at.stored, i)
		case word&^0xFFFF == markGone:
			s.at.removed = append(s.at.removed, i)
		case word>>32&^0xFFFF == markToken:
			s.at.tokens = append(s.at.tokens, i)
		}
	}
	if len(s.at.stored) != l.Blocks || len(s.at.removed) != len(removed) || len(s.at.tokens) != l.Blocks {
		panic("BUG: marks are not found")
	}
	return s
}

// Where the sequence and the time are in every message: behind the empty topic,
// and behind two headers and the array's and the float's.
const (
	seqAt     = 4
	payloadAt = seqAt + 8 + 9
	timeAt    = payloadAt + 2
)

// frameMessage makes a message of topic, sequence and payload, the last with a long size.
func frameMessage(events []any) []byte {
	var payload bytes.Buffer
	e := msgpack.NewEncoder(&payload)
	e.SetSortMapKeys(true)
	if err := e.Encode([]any{1.5, events, 0}); err != nil {
		panic("BUG: " + err.Error())
	}
	wire := append([]byte{1, 0, 1, 8}, 0, 0, 0, 0, 0, 0, 0, 0, 2)
	wire = binary.BigEndian.AppendUint64(wire, uint64(payload.Len()))
	return append(wire, payload.Bytes()...)
}

// StampPayload returns the payload of a sequence, the same bytes each time. It is valid until the
// next call.
func (s *Stamper) StampPayload(seq uint64) []byte {
	return s.stampMessage(seq, float64(seq))[payloadAt:]
}

// stampedMessage returns the message of a sequence with the time of now; it is valid until the next call.
func (s *Stamper) stampedMessage(seq uint64) []byte {
	return s.stampMessage(seq, float64(time.Now().UnixNano())/1e9)
}

func (s *Stamper) stampMessage(seq uint64, at float64) []byte {
	wire := s.wire
	if s.load.Clear && seq%uint64(max(s.load.Hold/s.load.Blocks, 1)) == 0 {
		wire = s.cleared
	}
	binary.BigEndian.PutUint64(wire[seqAt:], seq)
	binary.BigEndian.PutUint64(wire[timeAt:], math.Float64bits(at))
	if &wire[0] != &s.wire[0] {
		return wire
	}
	first := seq * uint64(s.load.Blocks)
	for i, at := range s.at.stored {
		n := first + uint64(i)
		binary.BigEndian.PutUint64(s.wire[at:], s.engineHash(n))
		if len(s.at.removed) > 0 {
			binary.BigEndian.PutUint64(s.wire[s.at.removed[i]:], s.engineHash(n-uint64(s.load.Hold)))
		}
		binary.BigEndian.PutUint32(s.wire[s.at.tokens[i]:], s.firstToken(n))
	}
	return s.wire
}

// TokensOf returns the tokens of the blocks that a batch stores.
func (s *Stamper) TokensOf(seq uint64) (tokens []uint32) {
	for i := range s.load.Blocks {
		tokens = append(tokens, s.firstToken(seq*uint64(s.load.Blocks)+uint64(i)))
		for j := 1; j < s.load.BlockSize; j++ {
			tokens = append(tokens, laterToken(i, j))
		}
	}
	return tokens
}

// firstToken is the first token of a source's n-th block: no other block has it.
func (s *Stamper) firstToken(n uint64) uint32 { return uint32(s.engineHash(n)>>32) | 1<<31 }

// laterToken is the j-th token of the i-th block of every batch, from 1 on.
func laterToken(i, j int) uint32 { return uint32((i*7919 + j*104729) % 151_936) }

// engineHash returns the engine hash of a source's n-th block.
func (s *Stamper) engineHash(n uint64) uint64 {
	h := (n<<16 | s.source) * 0x9e3779b97f4a7c15
	return h ^ h>>29
}
