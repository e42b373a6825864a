package body

import (
	"encoding/binary"
	"math"
	"strconv"
)

// Codec is how a body is written.
type Codec uint8

const (
	JSON Codec = iota
	Msgpack
)

// String returns the name of the codec.
func (c Codec) String() string { return [...]string{JSON: "JSON", Msgpack: "msgpack"}[c] }

// ContentType returns the media type of bodies in the codec, as answers name it.
func (c Codec) ContentType() string { return contentTypes[c][0] }

// contentTypes are the media types of bodies in the codecs, those that we send first. The others of msgpack are older than its
// registration.
var contentTypes = [...][]string{
	JSON:    {"application/json"},
	Msgpack: {"application/msgpack", "application/x-msgpack", "application/vnd.msgpack"},
}

// ContentTypes returns all names that the media type of bodies in the codec has. The list must not be changed.
func (c Codec) ContentTypes() []string { return contentTypes[c] }

// Encoder appends an answer to Out in a codec. In msgpack each value has its shortest
// form. Every map and list states its length, which only msgpack needs.
type Encoder struct {
	Out   []byte
	Codec Codec
	HTML  bool // strings in JSON escape <, > and &
}

// appendComma appends the comma in front of all but the first pair or element in JSON.
func appendComma(out []byte) []byte {
	if n := len(out); n > 0 && out[n-1] != '{' && out[n-1] != '[' && out[n-1] != ':' {
		return append(out, ',')
	}
	return out
}

// Map begins a map. EndMap ends it.
func (e *Encoder) Map(pairs int) {
	if e.Codec == JSON {
		e.Out = append(appendComma(e.Out), '{')
		return
	}
	e.appendLength(pairs, 0x80, 15, 0, 0xde)
}

// EndMap ends the map that Map began.
func (e *Encoder) EndMap() {
	if e.Codec == JSON {
		e.Out = append(e.Out, '}')
	}
}

// List begins a list. EndList ends it.
func (e *Encoder) List(n int) {
	if e.Codec == JSON {
		e.Out = append(appendComma(e.Out), '[')
		return
	}
	e.appendLength(n, 0x90, 15, 0, 0xdc)
}

// EndList ends the list that List began.
func (e *Encoder) EndList() {
	if e.Codec == JSON {
		e.Out = append(e.Out, ']')
	}
}

// literal is a name that stands in the code. Other packages cannot name the type, so that the compiler takes constants
// alone: what comes from outside has to pass Key or Text, which escape it. A literal needs no escapes.
type literal string

// Name appends the name of a pair.
func (e *Encoder) Name(name literal) {
	if e.Codec == JSON {
		e.Out = append(append(append(appendComma(e.Out), '"'), name...), '"', ':')
		return
	}
	e.appendText(string(name))
}

// NumberName is Name for a number, which is a string in both codecs.
func (e *Encoder) NumberName(n int) {
	if e.Codec == JSON {
		e.Out = append(strconv.AppendInt(append(appendComma(e.Out), '"'), int64(n), 10), '"', ':')
		return
	}
	e.appendText(strconv.Itoa(n))
}

// Key is Name for any text.
func (e *Encoder) Key(name string) {
	e.Text(name)
	if e.Codec == JSON {
		e.Out = append(e.Out, ':')
	}
}

// Raw appends an encoded value.
func (e *Encoder) Raw(value []byte) {
	if e.Codec == JSON {
		e.Out = appendComma(e.Out)
	}
	e.Out = append(e.Out, value...)
}

// Pairs appends encoded pairs of a map. In JSON raw begins with a comma.
func (e *Encoder) Pairs(raw []byte) {
	if e.Codec == JSON && e.Out[len(e.Out)-1] == '{' {
		raw = raw[1:]
	}
	e.Out = append(e.Out, raw...)
}

// Text appends a string.
func (e *Encoder) Text(s string) {
	if e.Codec == JSON {
		e.Out = AppendString(appendComma(e.Out), s, e.HTML)
		return
	}
	e.appendText(s)
}

func (e *Encoder) appendText(s string) {
	e.appendLength(len(s), 0xa0, 31, 0xd9, 0xda)
	e.Out = append(e.Out, s...)
}

// appendLength appends the length of a value in the shortest form that its type has: in the tag itself up to most,
// in one byte unless the tag for that is 0, in two bytes or in four.
func (e *Encoder) appendLength(n int, fixed byte, most int, one, two byte) {
	switch {
	case n <= most:
		e.Out = append(e.Out, fixed|byte(n))
	case one != 0 && n <= math.MaxUint8:
		e.Out = append(e.Out, one, byte(n))
	case n <= math.MaxUint16:
		e.Out = binary.BigEndian.AppendUint16(append(e.Out, two), uint16(n))
	default:
		e.Out = binary.BigEndian.AppendUint32(append(e.Out, two+1), uint32(n))
	}
}

// Int appends a number that is not negative.
func (e *Encoder) Int(n int) { e.Uint(uint64(n)) }

// Uint appends a number.
func (e *Encoder) Uint(n uint64) {
	switch {
	case e.Codec == JSON:
		e.Out = strconv.AppendUint(appendComma(e.Out), n, 10)
	case n <= 0x7f:
		e.Out = append(e.Out, byte(n))
	case n <= math.MaxUint8:
		e.Out = append(e.Out, 0xcc, byte(n))
	case n <= math.MaxUint16:
		e.Out = binary.BigEndian.AppendUint16(append(e.Out, 0xcd), uint16(n))
	case n <= math.MaxUint32:
		e.Out = binary.BigEndian.AppendUint32(append(e.Out, 0xce), uint32(n))
	default:
		e.Out = binary.BigEndian.AppendUint64(append(e.Out, 0xcf), n)
	}
}

// Float appends a number, in JSON with at most four digits behind the point.
func (e *Encoder) Float(v float64) {
	if e.Codec == JSON {
		e.Out = strconv.AppendFloat(appendComma(e.Out), math.Round(v*1e4)/1e4, 'f', -1, 64)
		return
	}
	e.Out = binary.BigEndian.AppendUint64(append(e.Out, 0xcb), math.Float64bits(v))
}

// Null appends null, or nil.
func (e *Encoder) Null() {
	if e.Codec == JSON {
		e.Out = append(appendComma(e.Out), "null"...)
		return
	}
	e.Out = append(e.Out, 0xc0)
}

// True appends true.
func (e *Encoder) True() {
	if e.Codec == JSON {
		e.Out = append(appendComma(e.Out), "true"...)
		return
	}
	e.Out = append(e.Out, 0xc3)
}

// TextField appends one pair of a map. Its value is any text.
func (e *Encoder) TextField(name literal, s string) {
	e.Name(name)
	e.Text(s)
}

// UintField appends one pair of a map.
func (e *Encoder) UintField(name literal, n uint64) {
	e.Name(name)
	e.Uint(n)
}

// IntField appends one pair of a map.
func (e *Encoder) IntField(name literal, n int) {
	if e.Codec == JSON {
		e.Out = strconv.AppendUint(append(append(append(appendComma(e.Out), '"'), name...), '"', ':'), uint64(n), 10)
		return
	}
	e.appendText(string(name))
	e.Int(n)
}
