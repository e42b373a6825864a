// Package wire turns one msgpack payload into an events.Batch.
//
//	payload: [ts, [event, event, ...], dp_rank]     or the same three as a map
//	                 |
//	          array  |  map                          chosen by each event's own
//	        +--------+--------+                      first byte, never by
//	        v                 v                      configuration
//	    array.go         mapform.go  --keys it       vLLM, SGLang, TensorRT-LLM,
//	    vLLM, SGLang,         |        lacks-->      LMCache, llm-d ...
//	    llm-d fs, and         |      standard.go     standardized events and
//	    obsolete.go           |           |          the Mooncake master
//	        +-------> form <--+-----------+
//	                    |
//	         event.go: finishEvent, salt.go, items.go     one events.Event
//
// cut.go is for who sends events on: it takes batches apart into the bytes of their events, and puts others together in
// the same form.
//
// Invariants:
//
//  1. An error means the payload is not one complete batch, or is over a limit
//     of the whole message; nothing of it is returned. Whatever is wrong inside
//     one event costs that event: it is skipped to its exact end and counted in
//     Batch.Dropped, its siblings stay.
//  2. Batch.Count plus all of Batch.Dropped is the number of elements the event list
//     has on the wire: an event of Batch.Events may stand for several (join.go).
//  3. A header is believed only as far as bytes are there: every announced
//     element takes at least one byte, so memory is bounded by the payload.
//  4. Nothing returned points into the payload. Events of one batch may share
//     backing arrays and name pointers with each other; both are read-only.
//     Batches share nothing with each other unless one was released.
//  5. Nesting costs no stack: unknown values are skipped by a loop. What calls itself
//     for each level reads only values that Limits.MaxDepth has let pass.
//
// Decode is safe for concurrent use; between calls it keeps nothing but memory to
// use again. Its cost is one pass over the bytes (a dropped event is read twice,
// extra keys up to three times) and a constant number of allocations per batch of
// like events, none per block; where batches are released, only those of names. An
// event with multimodal items allocates for them.
package wire

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"example.com/conductor/events"
)

// Limits bound what one payload may make the decoder do. A field that is zero
// or less stands for its value in DefaultLimits.
type Limits struct {
	// MaxPayload is in bytes. A larger payload fails unread.
	MaxPayload int
	// MaxEvents is elements of the event list; more fail the payload.
	MaxEvents int
	// MaxHashes and MaxTokens are per event; an event with more is dropped.
	MaxHashes int
	MaxTokens int
	// MaxDepth is levels of arrays and maps inside one value that the decoder
	// does not know and steps over, at most 32. An event that has a deeper one
	// is dropped; so is the payload if the value is none of its events.
	MaxDepth int
}

// DefaultLimits let every known publisher pass at its worst and stop the rest.
var DefaultLimits = Limits{
	// 16-token blocks take about 100 bytes, so this is 300,000 of them: more
	// than the device and host caches of one rank hold together.
	MaxPayload: 32 << 20,
	// A scheduler step of 64k tokens evicts at most 4,096 blocks of 16, one
	// event each; the Mooncake master queues 65,536 events in all.
	MaxEvents: 1 << 16,
	// A prompt of a million tokens at SGLang's smallest page, one token.
	MaxHashes: 1 << 20,
	// Twice that prompt: sparse stores span tokens of blocks they leave out.
	MaxTokens: 2 << 20,
	// Multimodal keys, the deepest value publishers send, have three levels.
	MaxDepth: 16,
}

// withDefaults replaces unset limits and caps the depth at what skip can track.
func (l Limits) withDefaults() Limits {
	set := func(v *int, def int) {
		if *v <= 0 {
			*v = def
		}
	}
	set(&l.MaxPayload, DefaultLimits.MaxPayload)
	set(&l.MaxEvents, DefaultLimits.MaxEvents)
	set(&l.MaxHashes, DefaultLimits.MaxHashes)
	set(&l.MaxTokens, DefaultLimits.MaxTokens)
	set(&l.MaxDepth, DefaultLimits.MaxDepth)
	l.MaxDepth = min(l.MaxDepth, depthCap)
	return l
}

// Error says why a payload is no batch.
type Error struct {
	// Reason is events.BadPayload or events.TooLarge.
	Reason events.Reason
	// Offset is the byte at which decoding stopped; negative if it did not begin.
	Offset int
	what   string
}

func (e *Error) Error() string {
	if e.Offset < 0 {
		return e.what
	}
	return fmt.Sprintf("cannot decode batch at byte %d: %s", e.Offset, e.what)
}

// OversizeError is the error of a batch whose message was too large to be read.
func OversizeError(bytes uint64) error {
	return &Error{Reason: events.TooLarge, Offset: -1, what: fmt.Sprintf("its message of %d bytes is larger than the limit", bytes)}
}

// ReasonOf classifies an error of Decode: events.BadPayload or events.TooLarge,
// "" for nil.
func ReasonOf(err error) events.Reason {
	var e *Error
	switch {
	case err == nil:
		return ""
	case errors.As(err, &e):
		return e.Reason
	}
	return events.BadPayload
}

// Decode reads payload as one batch. The error, if any, is an *Error. The
// payload is not retained. The batch may be given to Release.
func Decode(payload []byte, lim Limits) (events.Batch, error) {
	m := memories.Get().(*memory)
	b, err := m.decodeBatch(payload, lim)
	if err != nil || b.Memory == nil {
		m.resetForReuse()
		memories.Put(m)
	}
	return b, err
}

// decodeBatch is Decode with the memory for it, which is lent to the batch, if that has
// events.
func (m *memory) decodeBatch(payload []byte, lim Limits) (events.Batch, error) {
	d := decoder{in: cursor{b: payload}, lim: lim.withDefaults(), memory: m}
	d.hashes.free, d.hashes.chunk = m.hashes, m.hashes
	d.tokens.free, d.tokens.chunk = m.tokens, m.tokens
	d.in.maxDepth = d.lim.MaxDepth
	b := events.Batch{Rank: -1}
	if len(payload) > d.lim.MaxPayload {
		d.in.setError(events.TooLarge, "payload of %d bytes is over the limit of %d", len(payload), d.lim.MaxPayload)
		return events.Batch{}, d.in.err
	}
	switch k, n := d.in.readHeader(); k {
	case kArray:
		d.decodeBatchArray(&b, int(n))
	case kMap:
		d.decodeBatchMap(&b, int(n))
	default:
		d.in.setError(events.BadPayload, "a batch is an array or a map, not %s", k)
	}
	if d.in.err == nil && d.in.bytesLeft() > 0 {
		d.in.setError(events.BadPayload, "%d trailing bytes", d.in.bytesLeft())
	}
	if d.in.err != nil {
		return events.Batch{}, d.in.err
	}
	b.Offsets, b.Ambiguous = d.offsets, d.ambiguous
	if len(b.Events) > 0 {
		m.hashes, m.usedHashes = d.hashes.chunk, d.hashes.used
		m.tokens, m.usedTokens = d.tokens.chunk, d.tokens.used
		m.lent, b.Memory = true, m
	}
	return b, nil
}

// decodeBatchArray reads [ts, events], [ts, events, rank] and whatever later builds
// append.
func (d *decoder) decodeBatchArray(b *events.Batch, n int) {
	if n < 2 {
		d.in.setError(events.BadPayload, "a batch has at least 2 elements, not %d", n)
		return
	}
	d.readBatchTime(b)
	d.decodeEvents(b)
	if n > 2 {
		d.readBatchRank(b)
	}
	for range n - 3 {
		d.skipBatchValue()
	}
}

// decodeBatchMap reads the same three under their names, in any order.
func (d *decoder) decodeBatchMap(b *events.Batch, n int) {
	seen := false
	for range n {
		k, size := d.in.readHeader()
		if k != kStr {
			d.in.setError(events.BadPayload, "a key of the batch is %s, not a str", k)
			return
		}
		switch string(d.in.readBytes(size)) {
		case "ts":
			d.readBatchTime(b)
		case "events":
			if seen {
				d.in.setError(events.BadPayload, "the batch has two event lists")
				return
			}
			seen = true
			d.decodeEvents(b)
		case "data_parallel_rank", "attn_dp_rank", "dp_rank":
			d.readBatchRank(b)
		default:
			d.skipBatchValue()
		}
		if d.in.err != nil {
			return
		}
	}
	if !seen {
		d.in.setError(events.BadPayload, "the batch has no event list")
	}
}

// readBatchTime reads seconds as a float or milliseconds as an integer (Mooncake
// master). The value is informational, so NaN and infinities become 0: they
// have no place in an answer.
func (d *decoder) readBatchTime(b *events.Batch) {
	switch k, n := d.in.readHeader(); k {
	case kFloat:
		b.Time = math.Float64frombits(n)
		if math.IsNaN(b.Time) || math.IsInf(b.Time, 0) {
			b.Time = 0
		}
	case kUint:
		b.Time = float64(n) / 1000
	case kInt:
		b.Time = float64(int64(n)) / 1000
	case kNil:
		b.Time = 0
	default:
		d.in.setError(events.BadPayload, "the batch's time is %s, not a number", k)
	}
}

// readBatchRank reads a data-parallel rank; nil and negative numbers mean none. A
// rank of another type fails the batch: its blocks could not be attributed.
func (d *decoder) readBatchRank(b *events.Batch) {
	switch k, n := d.in.readHeader(); {
	case k == kUint && n <= math.MaxInt32:
		b.Rank = int(n)
	case k == kNil || k == kInt:
		b.Rank = -1
	default:
		d.in.setError(events.BadPayload, "the batch's rank is %s, not a small integer or nil", k)
	}
}

// skipBatchValue steps over one value that belongs to no event.
func (d *decoder) skipBatchValue() {
	if d.in.deep = false; d.in.skipValue() != "" {
		d.in.setError(events.TooLarge, "a value is nested deeper than %d", d.lim.MaxDepth)
	}
}

// minEvent is the shortest event that decodes, in bytes: ["BlockRemoved", []].
const minEvent = 15

// decodeEvents reads the event list; nil is an empty one.
func (d *decoder) decodeEvents(b *events.Batch) {
	k, size := d.in.readHeader()
	n := int(size)
	switch {
	case k == kNil:
		return
	case k != kArray:
		d.in.setError(events.BadPayload, "the event list is %s, not an array", k)
		return
	case n > d.lim.MaxEvents:
		d.in.setError(events.TooLarge, "%d events are over the limit of %d", n, d.lim.MaxEvents)
		return
	case n == 0:
		return
	}
	// A slot for each event that fits into the bytes, one to try the next in.
	list := d.memory.takeEvents(min(n, d.in.bytesLeft()/minEvent+1))
	good := 0
	for i := range n {
		d.siblings = n - i - 1
		if good > 0 && d.joinRepeatedEvent(&list[good-1]) {
			continue
		}
		ev := &list[good]
		ev.Group, ev.BaseBlock = -1, -1
		start := d.in.i
		d.lists, d.ambiguousBefore = 0, d.ambiguous
		why := d.decodeEvent(ev)
		if d.in.err != nil {
			return
		}
		if why == "" && (good == 0 || !d.joinNextBlock(&list[good-1], ev)) {
			d.rememberEvent(ev, start)
			good++
			continue
		}
		*ev = events.Event{}
		if why == "" {
			continue
		}
		d.previous = previous{}
		b.CountDropped(why, 1)
		switch why {
		case events.BadEvent:
			if b.Note == "" {
				b.Note = describeEvent(d.in.b[start:d.in.i])
			}
		case events.UnknownType:
			if name := findUnknownType(d.in.b[start:d.in.i]); len(b.Unknown) < events.MaxUnknown && !slices.Contains(b.Unknown, name) {
				b.Unknown = append(b.Unknown, name)
			}
		}
	}
	b.Events = list[:good]
	d.memory.dirty = min(d.memory.dirty, good)
}
