package mooncake

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"unicode/utf8"

	"kvconductor/conductor"
	"kvconductor/conductor/body"
	"kvconductor/conductor/prompt"
)

// promptField is the field a query gives its prompt in, and how that is read.
type promptField struct {
	name string
	read func(d *Dialect, r *exchange, v *value, q *conductor.Query) *failure
}

var (
	byTokens = promptField{tokenField, (*Dialect).tokens}
	byHashes = promptField{hashField, (*Dialect).hashes}
)

// query answers for a prompt given as tokens: POST /query.
func (d *Dialect) query(r *exchange) ([]byte, error) { return d.ask(r, byTokens) }

// queryByHash answers for a prompt given as canonical seq hashes: POST /query_by_hash.
func (d *Dialect) queryByHash(r *exchange) ([]byte, error) { return d.ask(r, byHashes) }

// asked is a query as far as it is read.
type asked struct {
	conductor.Query
	d        *Dialect
	r        *exchange
	prompt   promptField
	instance *string
}

// take reads one field.
func (a *asked) take(name string, v *value) (err *failure) {
	switch name {
	case "model":
		a.Model, err = v.nonEmpty(name)
	case "block_size":
		a.BlockSize, err = v.blockSize(name, a.r.form)
	case a.prompt.name:
		err = a.prompt.read(a.d, a.r, v, &a.Query)
	case "tenant_id":
		a.Tenant, err = v.text(name)
	case "lora_name":
		a.Lora, err = v.text(name)
	case "cache_salt":
		if a.Salt = ""; v.kind == text {
			a.Salt = string(v.raw)
		} else if v.kind != null {
			err = bad(name, "invalid_type", "cache_salt must be a string or null")
		}
	case "instance_id":
		var s string
		s, err = v.text(name)
		a.instance = &s
	default:
		err = unknownField(name)
	}
	return err
}

// takeAll reads the fields in the order they came in, and missing ones last. Of a
// field that is there twice both are checked and the last counts.
func (a *asked) takeAll() *failure {
	for i := range a.r.entries {
		e := &a.r.entries[i]
		if err := a.take(e.name, &e.value); err != nil {
			return err
		}
	}
	f := a.r.fields()
	for _, name := range []string{"model", "block_size", a.prompt.name} {
		if f.field(name) == nil {
			return missing(name)
		}
	}
	return nil
}

// takeInOrder reads the fields in an order of their own, unknown ones first.
func (a *asked) takeInOrder() *failure {
	order := []string{"model", "block_size", a.prompt.name, "tenant_id", "lora_name", "cache_salt", "instance_id"}
	for i := range a.r.entries {
		if name := a.r.entries[i].name; !slices.Contains(order, name) {
			return unknownField(name)
		}
	}
	f := a.r.fields()
	for i, name := range order {
		v := f.field(name)
		switch {
		case v == nil && i < 3:
			return missing(name)
		case v == nil:
			continue
		}
		if err := a.take(name, v); err != nil {
			return err
		}
	}
	return nil
}

// ask answers for a prompt.
func (d *Dialect) ask(r *exchange, p promptField) ([]byte, error) {
	a := asked{d: d, r: r, prompt: p}
	take := a.takeAll
	if r.form == JSON {
		take = a.takeInOrder
	}
	if err := take(); err != nil {
		return nil, err
	}
	write := func(ans *conductor.Answer) { r.Out = appendAnswer(r.Out[:0], ans, a.instance) }
	if utf8.ValidString(a.Lora) && utf8.ValidString(a.Salt) {
		d.conductor.Answer(&a.Query, write)
	} else {
		write(&conductor.Answer{})
	}
	return r.Out, nil
}

// blockSize reads the size of a block in tokens.
func (v *value) blockSize(name string, form Form) (int, *failure) {
	n, ok := v.int()
	switch {
	case v.kind != integer, !ok && form == JSON:
		return 0, bad(name, "invalid_type", "block_size must be an integer")
	case form == JSON && n <= 0:
		return 0, bad(name, "out_of_range", "block_size must be greater than zero")
	case !ok || n <= 0:
		return 0, bad(name, "out_of_range", "block_size must be a positive integer")
	}
	return int(n), nil
}

// notList refuses a prompt that is neither a list nor, in msgpack, a bin.
func (f Form) notList(name string) *failure {
	if f == JSON {
		return bad(name, "not_array", "%s must be an array", name)
	}
	return bad(name, "invalid_type", "%s must be a bin or an array", name)
}

// notInteger refuses an element of a prompt that is no integer.
func (f Form) notInteger(name string, index int) *failure {
	if f == JSON {
		return badElement(name, index, "invalid_type", name+" element must be a JSON integer")
	}
	return badElement(name, index, "invalid_type", name+" element must be an integer")
}

// tokens reads token ids: a list of integers, or little-endian int32 in a bin.
func (d *Dialect) tokens(r *exchange, v *value, q *conductor.Query) *failure {
	const name = tokenField
	early := r.ahead
	r.ahead = ahead{} // the buffer is taken, of a field given twice by the last
	switch v.kind {
	case bin:
		if len(v.raw)%4 != 0 {
			return bad(name, "invalid_value", "token_ids bin size must be a multiple of 4")
		}
		if err := d.bound(name, len(v.raw)/4); err != nil {
			return err
		}
		r.Tokens = prompt.Words(r.Tokens[:0], v.raw)
	case list:
		if err := d.bound(name, v.n); err != nil {
			return err
		}
		if l := v.list; l != nil {
			if l.Bad >= 0 {
				return badToken(name, l)
			}
			r.Tokens = r.Tokens[l.From:l.To]
			break
		}
		i, rest := 0, v.raw
		if early.of(v) {
			i, rest = early.n, v.raw[early.next:]
		} else {
			r.Tokens = slices.Grow(r.Tokens[:0], v.n)
		}
		r.Tokens = r.Tokens[:v.n]
		for ; ; i++ {
			read, behind := readTokens(r.Tokens[i:], rest)
			if i += read; i == v.n {
				break
			}
			t, next, err := r.form.token(name, i, behind)
			if err != nil {
				return err
			}
			r.Tokens[i], rest = t, next
		}
	default:
		return r.form.notList(name)
	}
	q.Tokens = r.Tokens
	return nil
}

// token reads the token id that src begins with: an integer of 32 bits.
func (f Form) token(name string, i int, src []byte) (t uint32, rest []byte, err *failure) {
	e, rest, _ := read(src, maxDepth)
	n, ok := e.int()
	switch {
	case e.kind != integer:
		return 0, nil, f.notInteger(name, i)
	case !ok || n < math.MinInt32 || n > math.MaxInt32:
		return 0, nil, notInt32(i)
	}
	return uint32(n), rest, nil
}

func notInt32(index int) *failure {
	return badElement(tokenField, index, "out_of_range", "token_ids element is outside the int32 range")
}

// badToken is the fault of a list of token ids in JSON.
func badToken(name string, l *body.List) *failure {
	if _, ok := body.Hash(l.Text); ok {
		return notInt32(l.Bad)
	}
	return JSON.notInteger(name, l.Bad)
}

// hashes reads seq hashes: a list of integers, negative ones by two's complement, or
// little-endian u64 in a bin.
func (d *Dialect) hashes(r *exchange, v *value, q *conductor.Query) *failure {
	const name = hashField
	switch v.kind {
	case bin:
		r.Hashes = r.Hashes[:0]
		if len(v.raw)%8 != 0 {
			return bad(name, "invalid_value", "seq_hashes bin size must be a multiple of 8")
		}
		if err := d.bound(name, len(v.raw)/8); err != nil {
			return err
		}
		for rest := v.raw; len(rest) > 0; rest = rest[8:] {
			r.Hashes = append(r.Hashes, binary.LittleEndian.Uint64(rest))
		}
	case list:
		if err := d.bound(name, v.n); err != nil {
			return err
		}
		if l := v.list; l != nil {
			if l.Bad >= 0 {
				return r.form.notInteger(name, l.Bad)
			}
			r.Hashes = r.Hashes[l.From:l.To]
			break
		}
		r.Hashes = r.Hashes[:0]
		var e value
		rest := v.raw
		for i := range v.n {
			if e, rest, _ = read(rest, maxDepth); e.kind != integer {
				return r.form.notInteger(name, i)
			}
			r.Hashes = append(r.Hashes, e.bits)
		}
	default:
		return r.form.notList(name)
	}
	q.Hashes, q.ByHash = r.Hashes, true
	return nil
}

func (d *Dialect) bound(name string, n int) *failure {
	if n <= d.cfg.MaxTokens {
		return nil
	}
	return badElement(name, d.cfg.MaxTokens, "out_of_range", fmt.Sprintf("%s has %d elements, limits.max_tokens allows %d", name, n, d.cfg.MaxTokens))
}
