package dynamo

import (
	"bytes"
	"fmt"
	"math"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"

	"example.com/conductor/conductor/body"
	"example.com/conductor/conductor/prompt"
)

// The reference reads a body in the order of the document. Its first fault decides the
// answer: 400 if the text is not JSON, 422 if a field has another type, 413 if a list is
// too long. An answer names the field, the element and the place of the fault.

// rejection is a refused body.
type rejection struct {
	status int // 400 for syntax, 422 for shape, 413 for length
	text   string
}

func (r *rejection) Error() string { return r.text }

// maxDepth is the reference's limit for the nesting of values.
const maxDepth = 128

// shape holds the fields of all requests. decode ignores those of other requests.
var shape = append(body.Shape{{Name: "token_ids", Kind: body.Tokens(body.Token)}, {Name: "block_hashes", Kind: body.Hashes(blockHash)}},
	body.Of("model_name", "modelname", "routing_group", "tenant_id", "lora_name", "cache_salt", "instance_id", "dp_rank", "endpoint",
		"block_size", "replay_endpoint", "additional_salt", "additionalsalt", "url")...)

// blockHash returns the hash that an element spells. To the reference -0 is a float.
func blockHash(text []byte) (uint64, bool) {
	v, ok := body.Hash(text)
	return v, ok && (v != 0 || text[0] != '-')
}

// member is one field that a request may have.
type member struct {
	name, alias string
	// spare is a name that the reference lacks; it counts if name is missing.
	spare    string
	required bool
	seen     bool
	spared   bool // seen under its spare name alone
	read     func(*decoder, *body.Member)
}

// decoder reads the fields of one body. The first fault stays.
type decoder struct {
	in     *body.Request
	limit  int  // elements of a list
	broken bool // the field at hand holds a syntax error
	err    *rejection
}

// decode reads the object in r. kind is the reference's name of its type, limit bounds
// the elements of a list. It ignores text behind the object, and unknown fields.
func decode(r *body.Request, limit int, kind string, members ...member) *rejection {
	d := decoder{in: r, limit: limit}
	d.decode(kind, members)
	return d.err
}

func (d *decoder) decode(kind string, members []member) {
	src := d.in.Src
	start := prompt.Space(src, 0)
	if start == len(src) || src[start] != '{' {
		end, ok := prompt.Skip(src, start, maxDepth)
		d.wrong(body.Error{Index: -1, Offset: start}, src[start:end], ok, "struct "+kind)
		d.syntax(body.Error{Index: -1, Offset: end})
		return
	}
	found, end, fault := d.in.Scan(shape, body.Options{Limit: d.limit, Depth: maxDepth, Tail: true, Unknown: true, Name: paired})
	for i := range found {
		f := &found[i]
		m := find(members, f.Name)
		switch {
		case m == nil, m.seen && f.Name == m.spare:
			continue
		case m.seen && !m.spared:
			d.shape(body.Error{Index: -1, Offset: f.At - 1}, "duplicate field `%s`", m.name)
			return
		}
		m.seen, m.spared = true, f.Name == m.spare
		d.broken = fault != nil && i == len(found)-1 && fault.Field == f.Name
		if m.read(d, f); d.err != nil {
			return
		}
	}
	if fault != nil {
		d.syntax(*fault)
		return
	}
	for i := range members {
		if members[i].required && !members[i].seen {
			d.shape(body.Error{Index: -1, Offset: end}, "missing field `%s`", members[i].name)
			return
		}
	}
}

func find(members []member, key string) *member {
	for i := range members {
		if m := &members[i]; key == m.name || (key == m.alias || key == m.spare) && key != "" {
			return m
		}
	}
	return nil
}

// text reads a string.
func (d *decoder) text(f *body.Member) string {
	if !isString(f.Raw) || !paired(f.Raw) {
		d.field(f, "a string")
		return ""
	}
	return string(body.Unquoted(f.Raw))
}

// isString reports whether text is a whole JSON string.
func isString(text []byte) bool {
	if len(text) == 0 || text[0] != '"' {
		return false
	}
	_, _, ok := prompt.String(text, 0)
	return ok
}

func isNull(f *body.Member) bool { return string(f.Raw) == "null" }

// unsigned reads an integer in 0..most; kind is the reference's name of its type.
func (d *decoder) unsigned(f *body.Member, most uint64, kind string) uint64 {
	v, ok := body.Unsigned(f.Raw)
	if !ok || v > most {
		d.field(f, kind)
	}
	return v
}

// list checks a list of numbers of a type.
func (d *decoder) list(f *body.Member, kind string) {
	l := &f.List
	switch {
	case !f.Read:
		d.field(f, "a sequence")
	case l.Bad >= 0 && l.Bad < d.limit:
		d.wrong(body.Error{Field: f.Name, Index: l.Bad, Offset: l.At}, l.Text, true, kind)
	case l.N > d.limit:
		d.err = &rejection{statusTooLarge, fmt.Sprintf("%s has more than %d elements, the most limits.max_tokens allows", f.Name, d.limit)}
	}
}

// field refuses a field that is not of the wanted type.
func (d *decoder) field(f *body.Member, want string) {
	d.wrong(body.Error{Field: f.Name, Index: -1, Offset: f.At}, f.Raw, !d.broken, want)
}

// wrong refuses text, a value at e that is not of the wanted type. It leaves a scalar
// that is not whole to the syntax error behind it.
func (d *decoder) wrong(e body.Error, text []byte, whole bool, want string) {
	if len(text) == 0 || !whole && text[0] != '[' && text[0] != '{' {
		return
	}
	got, reason := "", "type"
	switch text[0] {
	case '[':
		got = "sequence"
	case '{':
		got = "map"
	case '"':
		if !paired(text) {
			e.Offset += len(text) - 1
			d.syntax(e)
			return
		}
		got = "string " + strconv.Quote(string(body.Unquoted(text)))
	case 'n':
		got = "null"
	case 't', 'f':
		got = "boolean `" + string(text) + "`"
	default:
		v, _ := strconv.ParseFloat(string(text), 64)
		got = "floating point `" + string(text) + "`"
		if _, ok := blockHash(text); ok {
			if got = "integer `" + string(text) + "`"; want[0] == 'u' { // of u32 and u64
				reason = "value"
			}
		} else if math.IsInf(v, 0) {
			e.Offset += len(text) - 1
			d.syntax(e)
			return
		}
	}
	if text[0] != '[' && text[0] != '{' {
		e.Offset += len(text)
	}
	d.shape(e, "invalid %s: %s, expected %s", reason, got, want)
}

// paired reports whether no half of a surrogate pair stands alone in a JSON string.
func paired(text []byte) bool {
	unit := func(at int) rune {
		v, _ := strconv.ParseUint(string(text[at:at+4]), 16, 16)
		return rune(v)
	}
	for i := 0; i < len(text); i++ {
		if text[i] != '\\' {
			continue
		}
		if i++; text[i] != 'u' {
			continue
		}
		high := unit(i + 1)
		if i += 4; !utf16.IsSurrogate(high) {
			continue
		}
		if len(text)-i < 7 || text[i+1] != '\\' || text[i+2] != 'u' || utf16.DecodeRune(high, unit(i+3)) == utf8.RuneError {
			return false
		}
		i += 6
	}
	return true
}

// syntax refuses a body whose text is not JSON at the offset of e.
func (d *decoder) syntax(e body.Error) {
	text := "invalid syntax"
	if looks := body.Looks(d.in.Src, body.JSON); looks != "" {
		text += " (" + looks + ")"
	}
	if src := bytes.TrimRight(d.in.Src, " \t\r\n"); e.Offset == len(d.in.Src) {
		switch {
		case len(src) == 0 || src[len(src)-1] == ':' || src[len(src)-1] == ',':
			text = "EOF while parsing a value"
		case e.Index >= 0:
			text = "EOF while parsing a list"
		default:
			text = "EOF while parsing an object"
		}
	}
	e.Offset = min(e.Offset+1, len(d.in.Src))
	d.fail(statusBadRequest, "Failed to parse the request body as JSON: ", e, text)
}

// shape refuses a body that is JSON of another shape.
func (d *decoder) shape(e body.Error, format string, args ...any) {
	d.fail(statusUnprocessable, "Failed to deserialize the JSON body into the target type: ", e, fmt.Sprintf(format, args...))
}

func (d *decoder) fail(status int, text string, e body.Error, fault string) {
	if d.err != nil {
		return
	}
	if text += e.Field; e.Field != "" && e.Index >= 0 {
		text += "[" + strconv.Itoa(e.Index) + "]"
	}
	if e.Field != "" {
		text += ": "
	}
	read := d.in.Src[:e.Offset]
	d.err = &rejection{status, fmt.Sprintf("%s%s at line %d column %d", text, fault, 1+bytes.Count(read, []byte{'\n'}),
		e.Offset-1-bytes.LastIndexByte(read, '\n'))}
}
