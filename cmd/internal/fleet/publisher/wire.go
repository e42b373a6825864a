package publisher

import (
	"bytes"
	"fmt"
	"slices"
	"time"

	"github.com/vmihailenco/msgpack/v5"

	"kvconductor/cmd/internal/fleet/digest"
	"kvconductor/cmd/internal/fleet/engine"
	"kvconductor/cmd/internal/fleet/truth"
)

// Wire is how a publisher writes one event.
type Wire interface {
	event(e *encoder, ev *engine.Event)
}

// Media are the names a publisher gives its tiers.
type Media struct{ Device, Host, Disk string }

func (m Media) name(t truth.Tier) string {
	switch t {
	case truth.Device:
		return m.Device
	case truth.Host:
		return m.Host
	case truth.Disk:
		return m.Disk
	}
	panic(fmt.Sprintf("BUG: no medium for %v", t))
}

// encoder writes batches. The first error stays until the batch is done.
type encoder struct {
	wire      Wire
	rank      int
	blockSize int
	buf       bytes.Buffer
	mp        *msgpack.Encoder
	err       error
}

func newEncoder(o Options) *encoder {
	e := &encoder{wire: o.Wire, rank: o.Rank, blockSize: o.BlockSize}
	e.mp = msgpack.NewEncoder(&e.buf)
	return e
}

// batch returns [seconds, [events], rank].
func (e *encoder) batch(now time.Time, events []engine.Event) ([]byte, error) {
	e.buf.Reset()
	e.err = nil
	e.array(3)
	e.keep(e.mp.EncodeFloat64(float64(now.UnixNano()) / 1e9))
	e.array(len(events))
	for i := range events {
		e.wire.event(e, &events[i])
	}
	e.int(e.rank)
	return bytes.Clone(e.buf.Bytes()), e.err
}

func (e *encoder) keep(err error) {
	if e.err == nil {
		e.err = err
	}
}

func (e *encoder) array(n int)  { e.keep(e.mp.EncodeArrayLen(n)) }
func (e *encoder) fields(n int) { e.keep(e.mp.EncodeMapLen(n)) }
func (e *encoder) nil()         { e.keep(e.mp.EncodeNil()) }
func (e *encoder) str(s string) { e.keep(e.mp.EncodeString(s)) }
func (e *encoder) int(n int)    { e.keep(e.mp.EncodeInt(int64(n))) }

func (e *encoder) tokens(tokens []uint32) {
	e.array(len(tokens))
	for _, t := range tokens {
		e.keep(e.mp.EncodeUint(uint64(t)))
	}
}

// windows writes the look-ahead of each block as a list of its own.
func (e *encoder) windows(ev *engine.Event) {
	e.array(len(ev.Hashes))
	for ahead := range slices.Chunk(ev.Ahead, len(ev.Ahead)/len(ev.Hashes)) {
		e.tokens(ahead)
	}
}

// pairs writes each token with its successor, the last with the look-ahead of the last
// block, which is one token.
func (e *encoder) pairs(ev *engine.Event) {
	if len(ev.Ahead) != len(ev.Hashes) {
		panic("BUG: pairs show one token behind a block")
	}
	e.array(len(ev.Tokens))
	for i, t := range ev.Tokens {
		next := ev.Ahead[len(ev.Ahead)-1]
		if i+1 < len(ev.Tokens) {
			next = ev.Tokens[i+1]
		}
		e.tokens([]uint32{t, next})
	}
}

// nils writes one nil per block: extra keys of text without adapter or salt.
func (e *encoder) nils(n int) {
	e.array(n)
	for range n {
		e.nil()
	}
}

// hashForm is how a publisher writes its block hashes.
type hashForm func(e *encoder, hash digest.Digest)

// unsigned is vLLM's default: the last 8 bytes of the digest.
func unsigned(e *encoder, hash digest.Digest) { e.keep(e.mp.EncodeUint(hash.Last64())) }

// signed is SGLang's: the first 8 bytes of the digest, two's complement.
func signed(e *encoder, hash digest.Digest) { e.keep(e.mp.EncodeInt(int64(hash.First64()))) }

// whole is vLLM's with VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES=0: all 32 bytes.
func whole(e *encoder, hash digest.Digest) { e.keep(e.mp.EncodeBytes(hash[:])) }

func (e *encoder) hashes(form hashForm, hashes []digest.Digest) {
	e.array(len(hashes))
	for _, h := range hashes {
		form(e, h)
	}
}

func (e *encoder) parent(form hashForm, ev *engine.Event) {
	if !ev.HasParent {
		e.nil()
		return
	}
	form(e, ev.Parent)
}

// size writes tokens per block; 0 where the event describes no tokens.
func (e *encoder) size(ev *engine.Event) {
	if len(ev.Tokens) == 0 {
		e.int(0)
		return
	}
	e.int(e.blockSize)
}
