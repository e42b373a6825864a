package mooncake

import (
	"fmt"
	"math"
	"unicode/utf8"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/body"
	"example.com/conductor/conductor/match"
)

// promptField is the field a query gives its prompt in: token ids, integers of 32 bits
// with sign, or seq hashes, negative ones by two's complement. In msgpack either is a list
// of integers, or a bin of little-endian numbers.
type promptField struct {
	name     string
	bytes    int        // of a number in a bin
	required int        // first fields of shape that a query must have
	shape    body.Shape // fields in the order in which those of JSON are checked
}

var (
	byTokens = newPrompt(4, body.Field{Name: "token_ids", Kind: body.Tokens(tokenOf)})
	byHashes = newPrompt(8, body.Field{Name: "seq_hashes", Kind: body.Hashes(body.Hash)})
)

func newPrompt(bytes int, f body.Field) promptField {
	shape := append(append(body.Of("model", "block_size"), f), body.Of("tenant_id", "lora_name", "cache_salt", "instance_id")...)
	if bytes == 8 {
		shape = append(shape, body.Field{Name: "hash"}) // ours: what the hashes are
	}
	return promptField{name: f.Name, bytes: bytes, required: 3, shape: shape}
}

// tokenOf returns the token id that an element spells.
func tokenOf(text []byte) (uint32, bool) {
	v, ok := body.Hash(text)
	if text[0] == '-' {
		return uint32(v), ok && int64(v) >= math.MinInt32 && int64(v) <= 0
	}
	return uint32(v), ok && v <= math.MaxInt32
}

// asked is a query as far as it is read.
type asked struct {
	match.Query
	fields
	r        *body.Request
	prompt   promptField
	instance *string
}

// take reads one field.
func (a *asked) take(m *body.Member) (err *failure) {
	switch m.Name {
	case "model":
		a.Model, err = a.nonEmpty(m)
	case "block_size":
		a.BlockSize, err = a.blockSize(m)
	case a.prompt.name:
		err = a.numbers(m)
	case "hash":
		if !a.prompt.shape.Has(m.Name) {
			return unknownField(m.Name)
		}
		err = a.hashKind(m)
	case "tenant_id":
		a.Tenant, err = a.textOf(m)
	case "lora_name":
		a.Lora, err = a.textOf(m)
	case "cache_salt":
		if a.Salt = ""; a.kind(m) == body.Text {
			a.Salt, err = a.textOf(m)
		} else if a.kind(m) != body.Null {
			err = bad(m.Name, "invalid_type", "cache_salt must be a string or null")
		}
	case "instance_id":
		var s string
		s, err = a.textOf(m)
		a.instance = &s
	default:
		err = unknownField(m.Name)
	}
	return err
}

// hashKind reads what the hashes are.
func (a *asked) hashKind(m *body.Member) *failure {
	name, err := a.textOf(m)
	if err != nil {
		return err
	}
	kind, wrong := match.ParseHashKind(m.Name, name)
	if wrong != nil {
		return bad(m.Name, "invalid_value", "%s", wrong)
	}
	a.HashKind = kind
	return nil
}

// takeAll reads the fields in the order they came in, and missing ones last. Of a field
// that is there twice both are checked and the last counts.
func (a *asked) takeAll() *failure {
	for i := range a.members {
		if err := a.take(&a.members[i]); err != nil {
			return err
		}
	}
	for _, f := range a.prompt.shape[:a.prompt.required] {
		if a.field(f.Name) == nil {
			return missing(f.Name)
		}
	}
	return nil
}

// takeInOrder reads the fields in the order of the shape, unknown ones first.
func (a *asked) takeInOrder() *failure {
	for i := range a.members {
		if name := a.members[i].Name; !a.prompt.shape.Has(name) {
			return unknownField(name)
		}
	}
	for i, f := range a.prompt.shape {
		m := a.field(f.Name)
		switch {
		case m == nil && i < a.prompt.required:
			return missing(f.Name)
		case m == nil:
			continue
		}
		if err := a.take(m); err != nil {
			return err
		}
	}
	return nil
}

// query answers for a prompt: POST /query and POST /query_by_hash.
func (d *handlers) query(view conductor.View, r *body.Request, f fields, p promptField, expected bool) error {
	a := asked{fields: f, r: r, prompt: p}
	a.Expected = expected
	take := a.takeAll
	if d.cfg.Codec == body.JSON {
		take = a.takeInOrder
	}
	if err := take(); err != nil {
		return err
	}
	write := func(ans *match.Answer) { writeAnswer(&r.Encoder, ans, a.instance) }
	if utf8.ValidString(a.Lora) && utf8.ValidString(a.Salt) {
		return view.Answer(&a.Query, write)
	}
	if err := view.May(a.Tenant); err != nil {
		return err
	}
	write(&match.Answer{})
	return nil
}

// blockSize reads the size of a block in tokens.
func (f *fields) blockSize(m *body.Member) (int, *failure) {
	inJSON := f.d.cfg.Codec == body.JSON
	n, ok := f.d.cfg.Codec.Int(m.Raw)
	switch {
	case f.kind(m) != body.Integer, !ok && inJSON:
		return 0, bad(m.Name, "invalid_type", "block_size must be an integer")
	case inJSON && n <= 0:
		return 0, bad(m.Name, "out_of_range", "block_size must be greater than zero")
	case !ok || n <= 0:
		return 0, bad(m.Name, "out_of_range", "block_size must be a positive integer")
	}
	return int(n), nil
}

// numbers reads the prompt, which the scanner has put into the buffers of the request.
func (a *asked) numbers(m *body.Member) *failure {
	name, l, codec, most := m.Name, &m.List, a.d.cfg.Codec, a.d.cfg.MaxTokens
	switch {
	case !m.Read && codec == body.JSON:
		return bad(name, "not_array", "%s must be an array", name)
	case !m.Read:
		return bad(name, "invalid_type", "%s must be a bin or an array", name)
	case l.Rest != 0:
		return bad(name, "invalid_value", "%s bin size must be a multiple of %d", name, a.prompt.bytes)
	case l.N > most:
		return badElement(name, most, "out_of_range", fmt.Sprintf("%s has %d elements, limits.max_tokens allows %d", name, l.N, most))
	case l.Bad >= 0 && a.prompt.bytes == 4 && codec.Type(l.Text) == body.Integer:
		return badElement(name, l.Bad, "out_of_range", name+" element is outside the int32 range")
	case l.Bad >= 0 && codec == body.JSON:
		return badElement(name, l.Bad, "invalid_type", name+" element must be a JSON integer")
	case l.Bad >= 0:
		return badElement(name, l.Bad, "invalid_type", name+" element must be an integer")
	case a.prompt.bytes == 4:
		a.Tokens = a.r.Tokens[:l.N]
	default:
		a.Hashes, a.ByHash = a.r.Hashes[:l.N], true
	}
	return nil
}
