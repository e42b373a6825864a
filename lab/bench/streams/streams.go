// Package streams reads recorded streams: what the cache managers of released engines
// announced while they served a trace, and the prompts that arrived in between.
//
//	trace --> engine's own cache managers --> recording --> this package --> bench index, bench ingest
//	          vllm_stream.py,                  msgpack
//	          sglang_stream.py
//
// A recording is a sequence of msgpack values, plain or compressed with zstd. Each value
// is a batch of one engine, or a prompt:
//
//	[engine, [event, ...]]                       a batch, its events in the engine's order
//	["S", [hash, ...], parent, [local, ...]]     an event: blocks stored; parent is nil at the start of a prompt
//	["S", [hash, ...], nil, []]                  blocks stored and announced by their hashes alone
//	["R", [hash, ...]]                           an event: blocks removed
//	[-1, [local, ...]]                           a prompt that arrives
//
// An event may have its medium as one more element; without it, or with "", the medium is the device. Events of a model
// with several groups of blocks go on with the number of the group, and stores with its kind and its window in tokens:
//
//	["S", [hash, ...], parent, [local, ...], medium, group, kind, window]
//	["R", [hash, ...], medium, group]
//
// Such a store may have fewer hashes than blocks, even none, of a group that keeps some of its blocks only.
//
// hash is the engine's name of a block, local stands for its BlockSize tokens. Recordings in
// this repository number both by first appearance, because that compresses well; other
// recordings may have 64-bit digests there. Either way the reader spreads them over 64 bits by
// a fixed bijection each, so equal numbers stay equal and tables see hashes.
package streams

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"

	"github.com/klauspost/compress/zstd"
	"github.com/vmihailenco/msgpack/v5"
)

// BlockSize is the tokens of a block of every recording.
const BlockSize = 16

// Record is a batch of one engine, or a prompt.
type Record struct {
	Engine int      // from 0; -1 for a prompt
	Events []Event  // of a batch
	Prompt []uint64 // local hashes of the whole blocks of a prompt
}

// Event is one event as the engine made it.
type Event struct {
	Removed   bool
	HasParent bool
	Parent    uint64   // engine hash of the block before the first one stored
	Hashes    []uint64 // the engine's own, one or more
	// Locals are of stored blocks, one for each hash; empty if they are announced by their hashes alone. There are more
	// if the group keeps only some of them.
	Locals []uint64
	Medium string // "" is the device
	Group  int    // of blocks, 0 if the event has none
	Kind   string // of the group; stores have it
	Window int    // of the group in tokens, 0 for none; likewise
}

// AppendTokens appends the BlockSize token ids that stand for a block with this local hash.
func AppendTokens(dst []uint32, local uint64) []uint32 {
	const vocabulary = 150_001
	for k := range uint32(BlockSize) {
		dst = append(dst, uint32(local>>(4*k)%vocabulary)+k)
	}
	return dst
}

// ReadRecords reads a file. A failure comes once, as the last pair, and says where in the file,
// counted in records and in bytes of the uncompressed file. The caller may keep records.
func ReadRecords(path string) iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		f, err := os.Open(path)
		if err != nil {
			yield(Record{}, fmt.Errorf("cannot open the recorded stream: %w", err))
			return
		}
		defer f.Close()
		for r, err := range readRecords(f) {
			if err != nil {
				err = fmt.Errorf("%s: %w", path, err)
			}
			if !yield(r, err) {
				return
			}
		}
	}
}

// zstdMagic begins a compressed file. As msgpack it would be a number, which is no record.
const zstdMagic = "\x28\xb5\x2f\xfd"

// readRecords reads records up to the end of from.
func readRecords(from io.Reader) iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		plain := bufio.NewReader(from)
		if magic, _ := plain.Peek(len(zstdMagic)); string(magic) == zstdMagic {
			z, err := zstd.NewReader(plain, zstd.WithDecoderConcurrency(1))
			if err != nil {
				yield(Record{}, fmt.Errorf("cannot decompress: %w", err))
				return
			}
			defer z.Close()
			plain = bufio.NewReader(z)
		}
		at := &position{Reader: plain}
		d := decoder{msgpack.NewDecoder(at)}
		for n := 0; ; n++ {
			if _, err := plain.Peek(1); errors.Is(err, io.EOF) {
				if n == 0 {
					yield(Record{}, errors.New("no records"))
				}
				return
			}
			begin := at.bytes
			r, err := d.readRecord()
			if err != nil {
				yield(Record{}, fmt.Errorf("record %d, which begins at byte %d, is damaged at byte %d: %w", n, begin, at.bytes, err))
				return
			}
			if !yield(r, nil) {
				return
			}
		}
	}
}

// position counts the bytes that the decoder has read.
type position struct {
	*bufio.Reader
	bytes int64
}

func (p *position) Read(b []byte) (int, error) {
	n, err := p.Reader.Read(b)
	p.bytes += int64(n)
	return n, err
}

func (p *position) ReadByte() (byte, error) {
	b, err := p.Reader.ReadByte()
	if err == nil {
		p.bytes++
	}
	return b, err
}

func (p *position) UnreadByte() error {
	err := p.Reader.UnreadByte()
	if err == nil {
		p.bytes--
	}
	return err
}

// decoder reads the parts of records.
type decoder struct{ in *msgpack.Decoder }

// mostEngines bounds what readers make for each engine.
const mostEngines = 1 << 16

func (d decoder) readRecord() (r Record, err error) {
	if err := d.readArrayHead("a record", 2, 2); err != nil {
		return r, err
	}
	if r.Engine, err = d.in.DecodeInt(); err != nil {
		return r, fmt.Errorf("the engine: %w", err)
	}
	switch {
	case r.Engine == -1:
		r.Prompt, err = d.readNumbers("the prompt", spreadLocal)
		return r, err
	case r.Engine < 0 || r.Engine >= mostEngines:
		return r, fmt.Errorf("engine is %d, must be between -1 and %d", r.Engine, mostEngines-1)
	}
	n, err := d.in.DecodeArrayLen()
	if err != nil {
		return r, fmt.Errorf("the events: %w", err)
	}
	for i := range n {
		e, err := d.readEvent()
		if err != nil {
			return r, fmt.Errorf("event %d: %w", i, err)
		}
		r.Events = append(r.Events, e)
	}
	return r, nil
}

func (d decoder) readEvent() (e Event, err error) {
	n, err := d.in.DecodeArrayLen()
	if err != nil {
		return e, err
	}
	kind, err := d.in.DecodeString()
	if err != nil {
		return e, fmt.Errorf("the kind: %w", err)
	}
	least, grouped := 4, 8 // elements without medium and group, and with both
	if kind == "R" {
		least, grouped = 2, 4
	}
	if kind != "S" && kind != "R" || n != least && n != least+1 && n != grouped {
		return e, fmt.Errorf("%q with %d elements; want \"S\" with 4, 5 or 8, or \"R\" with 2, 3 or 4", kind, n)
	}
	e.Removed = kind == "R"
	if e.Hashes, err = d.readNumbers("the hashes", spreadHash); err != nil {
		return e, err
	}
	if len(e.Hashes) == 0 && (n < grouped || e.Removed) {
		return e, errors.New("no hashes")
	}
	if !e.Removed {
		if err := d.readStored(&e); err != nil {
			return e, err
		}
	}
	if n > least {
		if e.Medium, err = d.in.DecodeString(); err != nil {
			return e, fmt.Errorf("the medium: %w", err)
		}
	}
	if n == grouped {
		if err := d.readGroup(&e); err != nil {
			return e, fmt.Errorf("the group: %w", err)
		}
	}
	switch blocks := len(e.Locals); {
	case e.Removed || blocks == len(e.Hashes) || blocks == 0 && n < grouped:
	case n < grouped || blocks < len(e.Hashes):
		return e, fmt.Errorf("%d hashes and %d local hashes", len(e.Hashes), blocks)
	}
	return e, nil
}

// readGroup reads the group of an event.
func (d decoder) readGroup(e *Event) (err error) {
	if e.Group, err = d.in.DecodeInt(); err != nil {
		return err
	}
	if e.Group < 0 {
		return fmt.Errorf("it is %d, must not be negative", e.Group)
	}
	if e.Removed {
		return nil
	}
	if e.Kind, err = d.in.DecodeString(); err == nil {
		e.Window, err = d.in.DecodeInt()
	}
	return err
}

// readStored reads parent and local hashes.
func (d decoder) readStored(e *Event) error {
	code, err := d.in.PeekCode()
	if err != nil {
		return fmt.Errorf("the parent: %w", err)
	}
	const null = 0xc0
	if code == null {
		err = d.in.DecodeNil()
	} else {
		e.HasParent = true
		e.Parent, err = d.in.DecodeUint64()
		e.Parent = spreadHash(e.Parent)
	}
	if err != nil {
		return fmt.Errorf("the parent: %w", err)
	}
	e.Locals, err = d.readNumbers("the local hashes", spreadLocal)
	return err
}

// readArrayHead reads the head of an array whose length lies between least and most.
func (d decoder) readArrayHead(what string, least, most int) error {
	n, err := d.in.DecodeArrayLen()
	if err != nil {
		return err
	}
	if n < least || n > most {
		return fmt.Errorf("%s has %d elements, want %d to %d", what, n, least, most)
	}
	return nil
}

// readNumbers reads an array and spreads its numbers.
func (d decoder) readNumbers(what string, spread func(uint64) uint64) ([]uint64, error) {
	n, err := d.in.DecodeArrayLen()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	const trusted = 1 << 16 // a damaged length must not take memory that the file does not fill
	list := make([]uint64, 0, min(max(n, 0), trusted))
	for range n {
		v, err := d.in.DecodeUint64()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", what, err)
		}
		list = append(list, spread(v))
	}
	return list, nil
}

// golden is the increment of SplitMix64.
const golden = 0x9e3779b97f4a7c15

func spreadHash(n uint64) uint64  { return mix(n + golden) }
func spreadLocal(n uint64) uint64 { return mix(n - golden) }

// mix is the output function of SplitMix64.
func mix(h uint64) uint64 {
	h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
	h = (h ^ h>>27) * 0x94d049bb133111eb
	return h ^ h>>31
}
