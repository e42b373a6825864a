package ingest

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/vmihailenco/msgpack/v5"

	"example.com/conductor/lab/bench/streams"
)

// Recorded is how a recorded stream is published; all processes know it.
//
// Publisher p sends what engine p modulo the recording's engines announced. From the second
// time on that an engine is sent, its hashes and the first blocks of its prompts differ, as
// those of an engine with other prompts would.
type Recorded struct {
	Stream     string // file of the recording
	Publishers int
	Batches    int // of the recording to send, 0 for all
	// Process is which of Processes this one is: it has the publishers whose number is Process
	// modulo Processes.
	Process, Processes int
	Rate               float64 // batches/s of all publishers, 0 for as fast as they are read
	// Every is the pause between two markers of all processes, 0 for one behind the last batch of each
	// publisher alone. A marker is a batch of one block; a query for it shows when a server has applied it.
	Every time.Duration
}

// copyOf returns which engine a publisher replays, and how many publishers before it replay the same one.
func copyOf(publisher, engines int) (engine int, salt uint64) {
	return publisher % engines, uint64(publisher / engines)
}

// recording is a stream as messages.
type recording struct {
	engines  int
	groups   []streams.Event // further groups of blocks, each as its first store has it
	messages []recordedBatch
	held     []map[heldBlock]int // by engine: copies of what it holds at the end, of its first group
}

// heldBlock is a block on a tier.
type heldBlock struct {
	hash  uint64
	lower bool // not on the device
}

// recordedBatch is the payload of a batch, and where it differs between copies of its engine.
type recordedBatch struct {
	engine  int
	events  int
	payload []byte
	hashes  []int32 // offsets of engine hashes, 8 bytes big-endian
	roots   []int32 // offsets of the first tokens of prompts, 4 bytes big-endian
}

// firstRoot is the first token of a prompt of the first copy. The tokens of recordings are smaller.
const firstRoot = 200_000

// readStream reads the stream. It keeps the payloads of the engines that want returns true for.
func (r *Recorded) readStream(want func(engine, engines int) bool) (*recording, error) {
	var records []streams.Record
	out := new(recording)
	for record, err := range streams.ReadRecords(r.Stream) {
		if err != nil {
			return nil, err
		}
		if record.Engine < 0 {
			continue
		}
		records = append(records, record)
		out.engines = max(out.engines, record.Engine+1)
		if len(records) == r.Batches {
			break
		}
	}
	if len(records) < r.Batches || len(records) == 0 {
		return nil, fmt.Errorf("%s has %d batches, fewer than the %d to send", r.Stream, len(records), r.Batches)
	}
	out.held = make([]map[heldBlock]int, out.engines)
	for i := range out.held {
		out.held[i] = make(map[heldBlock]int)
	}
	for i := range records {
		record := &records[i]
		for j := range record.Events {
			e := &record.Events[j]
			if e.Group > 0 {
				if !e.Removed && !slices.ContainsFunc(out.groups, func(g streams.Event) bool { return g.Group == e.Group }) {
					out.groups = append(out.groups, *e)
				}
				continue
			}
			for _, h := range e.Hashes {
				b, held := heldBlock{h, e.Medium != "" && e.Medium != onDevice}, out.held[record.Engine]
				switch {
				case !e.Removed && (!b.lower || held[b] == 0): // below the device there is one
					held[b]++
				case e.Removed && held[b] > 1:
					held[b]--
				case e.Removed:
					delete(held, b)
				}
			}
		}
		m := recordedBatch{engine: record.Engine, events: len(record.Events)}
		if want(record.Engine, out.engines) {
			m.encodeEvents(record.Events)
		}
		out.messages = append(out.messages, m)
		record.Events = nil
	}
	return out, nil
}

// onDevice is vLLM's name of the device.
const onDevice = "GPU"

// timeIn is where the time is in a payload: behind the heads of the array and of the number.
const timeIn = 2

// encodeEvents writes events as vLLM 0.32 does: maps with the keys of its structures, in their order.
func (m *recordedBatch) encodeEvents(list []streams.Event) {
	var out bytes.Buffer
	e := msgpack.NewEncoder(&out)
	must := func(err error) {
		if err != nil {
			panic("BUG: a buffer refuses bytes: " + err.Error())
		}
	}
	text := func(s string) { must(e.EncodeString(s)) }
	number := func(n uint64) { must(e.EncodeUint(n)) }
	hash := func(h uint64) {
		m.hashes = append(m.hashes, int32(out.Len()+1))
		must(e.EncodeUint64(h))
	}
	hashes := func(list []uint64) {
		text("block_hashes")
		must(e.EncodeArrayLen(len(list)))
		for _, h := range list {
			hash(h)
		}
	}
	var tokens []uint32
	must(e.EncodeArrayLen(3))
	must(e.EncodeFloat64(0))
	must(e.EncodeArrayLen(len(list)))
	for i := range list {
		event := &list[i]
		medium := event.Medium
		if medium == "" {
			medium = onDevice
		}
		if event.Removed {
			must(e.EncodeMapLen(4))
			text("type")
			text("BlockRemoved")
			hashes(event.Hashes)
			text("medium")
			text(medium)
			text("group_idx")
			number(uint64(event.Group))
			continue
		}
		fields := 11
		if event.Window > 0 {
			fields++
		}
		must(e.EncodeMapLen(fields))
		text("type")
		text("BlockStored")
		hashes(event.Hashes)
		text("parent_block_hash")
		if event.HasParent {
			hash(event.Parent)
		} else {
			must(e.EncodeNil())
		}
		text("token_ids")
		tokens = tokens[:0]
		for _, local := range event.Locals {
			tokens = streams.AppendTokens(tokens, local)
		}
		must(e.EncodeArrayLen(len(tokens)))
		for i, token := range tokens {
			if i == 0 && !event.HasParent {
				m.roots = append(m.roots, int32(out.Len()+1))
				must(e.EncodeUint32(firstRoot))
				continue
			}
			number(uint64(token))
		}
		text("block_size")
		number(streams.BlockSize)
		text("lora_id")
		must(e.EncodeNil())
		text("medium")
		text(medium)
		text("lora_name")
		must(e.EncodeNil())
		text("extra_keys")
		must(e.EncodeArrayLen(len(event.Hashes)))
		for range event.Hashes {
			must(e.EncodeNil())
		}
		text("group_idx")
		number(uint64(event.Group))
		text("kv_cache_spec_kind")
		text(cmp.Or(event.Kind, "full_attention"))
		if event.Window > 0 {
			text("kv_cache_spec_sliding_window")
			number(uint64(event.Window))
		}
	}
	number(0) // rank
	m.payload = out.Bytes()
}

// appendPayload appends the payload of a copy at a time.
func (m *recordedBatch) appendPayload(dst []byte, salt uint64, at time.Time) []byte {
	dst = append(dst, m.payload...)
	binary.BigEndian.PutUint64(dst[timeIn:], math.Float64bits(float64(at.UnixNano())/1e9))
	if salt > 0 {
		for _, i := range m.hashes {
			binary.BigEndian.PutUint64(dst[i:], saltHash(binary.BigEndian.Uint64(dst[i:]), salt))
		}
		for _, i := range m.roots {
			binary.BigEndian.PutUint32(dst[i:], firstRoot+uint32(salt))
		}
	}
	return dst
}

// saltHash returns the hash of a block in a copy of its engine, in the first one h itself.
func saltHash(h, salt uint64) uint64 { return h ^ salt*0x9e3779b97f4a7c15 }

// markerOf returns the hash of a publisher's n-th marker, and the tokens of its one block, which no prompt
// begins with.
func markerOf(publisher, n int) (hash uint64, tokens []uint64) {
	tokens = make([]uint64, streams.BlockSize)
	for i := range tokens {
		tokens[i] = firstRoot + 100_000 + uint64(i)
	}
	tokens[1], tokens[2] = uint64(publisher), uint64(n)
	return saltHash(uint64(n)<<32|1<<31, uint64(publisher)<<16|1), tokens
}

// markerBatch returns the batch that stores a marker, in the first group and in further ones.
func markerBatch(publisher, n int, further []streams.Event) *recordedBatch {
	h, tokens := markerOf(publisher, n)
	var m recordedBatch
	var out bytes.Buffer
	marker := storedMarker{
		Type: "BlockStored", Hashes: []uint64{h}, Tokens: tokens, BlockSize: streams.BlockSize, Medium: onDevice,
		Extra: []any{nil}, Kind: "full_attention",
	}
	list := []any{marker}
	for i := range further {
		marker.Group, marker.Kind, marker.Window = further[i].Group, further[i].Kind, further[i].Window
		list = append(list, marker)
	}
	err := msgpack.NewEncoder(&out).Encode([]any{float64(0), list, 0})
	if err != nil {
		panic("BUG: a marker has no encoding: " + err.Error())
	}
	m.payload = out.Bytes()
	return &m
}

// storedMarker is an event as recordedBatch.encode writes it.
type storedMarker struct {
	Type      string   `msgpack:"type"`
	Hashes    []uint64 `msgpack:"block_hashes"`
	Parent    any      `msgpack:"parent_block_hash"`
	Tokens    []uint64 `msgpack:"token_ids"`
	BlockSize int      `msgpack:"block_size"`
	LoraID    any      `msgpack:"lora_id"`
	Medium    string   `msgpack:"medium"`
	LoraName  any      `msgpack:"lora_name"`
	Extra     []any    `msgpack:"extra_keys"`
	Group     int      `msgpack:"group_idx"`
	Kind      string   `msgpack:"kv_cache_spec_kind"`
	Window    int      `msgpack:"kv_cache_spec_sliding_window,omitempty"`
}
