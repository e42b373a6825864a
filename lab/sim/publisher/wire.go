package publisher

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/vmihailenco/msgpack/v5"

	"example.com/conductor/lab/harness"
	"example.com/conductor/lab/sim/digest"
	"example.com/conductor/lab/sim/engine"
	"example.com/conductor/lab/sim/truth"
)

// Wire returns an event as a publisher writes it: a map or an array, with tokens per
// block where the event describes tokens.
type Wire interface {
	event(ev *engine.Event, blockSize int) any
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

// encoder writes batches.
type encoder struct {
	o   Options
	buf bytes.Buffer
	mp  *msgpack.Encoder
}

func newEncoder(o Options) *encoder {
	e := &encoder{o: o}
	e.mp = msgpack.NewEncoder(&e.buf)
	e.mp.UseCompactInts(true)
	return e
}

// batch returns [seconds, [events], rank].
func (e *encoder) batch(now time.Time, events []engine.Event) ([]byte, error) {
	list := make([]any, 0, len(events))
	for i := range events {
		ev, size := &events[i], e.o.BlockSize
		if len(ev.Tokens) == 0 {
			size = 0
		}
		for _, one := range offloadedApart(e.o.Wire, ev, size) {
			list = append(list, e.o.Wire.event(&one, size))
		}
	}
	return e.encode([]any{float64(now.UnixNano()) / 1e9, list, e.o.Rank})
}

// offloadedApart returns an event as vLLM's connector announces it if it describes blocks below the device: an event for each chunk,
// which is one block here.
func offloadedApart(w Wire, ev *engine.Event, size int) []engine.Event {
	switch w.(type) {
	case VLLMMap, VLLMArray:
		if ev.Kind == engine.Stored && ev.Tier != truth.Device && size > 0 {
			break
		}
		return []engine.Event{*ev}
	default:
		return []engine.Event{*ev}
	}
	all := make([]engine.Event, len(ev.Hashes))
	for i := range all {
		all[i] = *ev
		all[i].Hashes, all[i].Tokens = ev.Hashes[i:i+1], ev.Tokens[i*size:(i+1)*size]
		if ahead := len(ev.Ahead) / len(ev.Hashes); ahead > 0 {
			all[i].Ahead = ev.Ahead[i*ahead : (i+1)*ahead]
		}
		if i > 0 {
			all[i].Parent, all[i].HasParent = ev.Hashes[i-1], true
		}
	}
	return all
}

func (e *encoder) encode(v any) ([]byte, error) {
	e.buf.Reset()
	err := e.mp.Encode(v)
	return bytes.Clone(e.buf.Bytes()), err
}

// fields is a map: keys and their values in turn.
type fields []any

// EncodeMsgpack writes the map in the order of its keys here.
func (f fields) EncodeMsgpack(e *msgpack.Encoder) error {
	err := e.EncodeMapLen(len(f) / 2)
	for _, v := range f {
		err = errors.Join(err, e.Encode(v))
	}
	return err
}

// values returns the values without their keys.
func (f fields) values() (list []any) {
	for i := 1; i < len(f); i += 2 {
		list = append(list, f[i])
	}
	return list
}

type tokens = harness.Compact[uint32]

// windows returns the look-ahead of each block as a list of its own.
func windows(ev *engine.Event) (list []tokens) {
	for ahead := range slices.Chunk(ev.Ahead, len(ev.Ahead)/len(ev.Hashes)) {
		list = append(list, ahead)
	}
	return list
}

// pairs returns each token with its successor, the last with the look-ahead of the last
// block, which is one token.
func pairs(ev *engine.Event) []tokens {
	if len(ev.Ahead) != len(ev.Hashes) {
		panic("BUG: pairs show one token behind a block")
	}
	list := make([]tokens, len(ev.Tokens))
	for i, t := range ev.Tokens {
		next := ev.Ahead[len(ev.Ahead)-1]
		if i+1 < len(ev.Tokens) {
			next = ev.Tokens[i+1]
		}
		list[i] = tokens{t, next}
	}
	return list
}

// hashForm is how a publisher writes a block hash.
type hashForm func(*msgpack.Encoder, digest.Digest) error

// unsigned is vLLM's default: the last 8 bytes of the digest.
func unsigned(e *msgpack.Encoder, d digest.Digest) error { return e.EncodeUint(d.Last64()) }

// signed is SGLang's: the first 8 bytes of the digest, two's complement.
func signed(e *msgpack.Encoder, d digest.Digest) error { return e.EncodeInt(int64(d.First64())) }

// whole is vLLM's with VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES=0: all 32 bytes.
func whole(e *msgpack.Encoder, d digest.Digest) error { return e.EncodeBytes(d[:]) }

// hashes is the list of an event's hashes.
type hashes struct {
	form hashForm
	list []digest.Digest
}

// EncodeMsgpack writes an array.
func (h hashes) EncodeMsgpack(e *msgpack.Encoder) error {
	err := e.EncodeArrayLen(len(h.list))
	for _, d := range h.list {
		if err == nil {
			err = h.form(e, d)
		}
	}
	return err
}

// parent is the hash before the first of an event, nil if there is none.
type parent struct {
	form hashForm
	ev   *engine.Event
}

// EncodeMsgpack writes the hash.
func (p parent) EncodeMsgpack(e *msgpack.Encoder) error {
	if !p.ev.HasParent {
		return e.EncodeNil()
	}
	return p.form(e, p.ev.Parent)
}
