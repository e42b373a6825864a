package conductorv2

import (
	"encoding/binary"
	"math"
	"unicode/utf8"

	"kvconductor/conductor"
)

// prompt is the field a query gives its prompt in, and how that is read.
type prompt struct {
	name string
	read func(d *Dialect, r *exchange, v *value, q *conductor.Query) *failure
}

var (
	byTokens = prompt{"token_ids", (*Dialect).tokens}
	byHashes = prompt{"seq_hashes", (*Dialect).hashes}
)

// query answers for a prompt given as tokens: POST /query.
func (d *Dialect) query(r *exchange) ([]byte, error) { return d.ask(r, byTokens) }

// queryByHash answers for a prompt given as canonical seq hashes: POST /query_by_hash.
func (d *Dialect) queryByHash(r *exchange) ([]byte, error) { return d.ask(r, byHashes) }

// ask checks the fields in the order they came in. Of a field that is there twice both
// are checked and the last counts.
func (d *Dialect) ask(r *exchange, p prompt) ([]byte, error) {
	var q conductor.Query
	var instance *string
	var hasModel, hasSize, hasPrompt bool
	for i := range r.entries {
		e := &r.entries[i]
		var err *failure
		switch e.name {
		case "model":
			hasModel = true
			q.Model, err = e.nonEmpty(e.name)
		case "block_size":
			hasSize = true
			q.BlockSize, err = e.blockSize()
		case p.name:
			hasPrompt = true
			err = p.read(d, r, &e.value, &q)
		case "tenant_id":
			q.Tenant, err = e.text(e.name)
		case "lora_name":
			q.Lora, err = e.text(e.name)
		case "cache_salt":
			if q.Salt = ""; e.kind == text {
				q.Salt = string(e.raw)
			} else if e.kind != null {
				err = bad(e.name, "invalid_type", "cache_salt must be a string or null")
			}
		case "instance_id":
			var s string
			s, err = e.text(e.name)
			instance = &s
		default:
			err = unknownField(e.name)
		}
		if err != nil {
			return nil, err
		}
	}
	for _, f := range []struct {
		name  string
		given bool
	}{{"model", hasModel}, {"block_size", hasSize}, {p.name, hasPrompt}} {
		if !f.given {
			return nil, missing(f.name)
		}
	}
	var ans conductor.Answer
	if utf8.ValidString(q.Lora) && utf8.ValidString(q.Salt) {
		ans = d.conductor.Query(q)
	}
	r.out = appendAnswer(r.out[:0], &ans, instance)
	return r.out, nil
}

// blockSize reads the size of a block in tokens.
func (e *entry) blockSize() (int, *failure) {
	n, ok := e.int()
	switch {
	case e.kind != integer:
		return 0, bad(e.name, "invalid_type", "block_size must be an integer")
	case !ok || n <= 0:
		return 0, bad(e.name, "out_of_range", "block_size must be a positive integer")
	}
	return int(n), nil
}

// tokens reads token ids: a list of integers, or little-endian int32 in a bin.
func (d *Dialect) tokens(r *exchange, v *value, q *conductor.Query) *failure {
	const name = "token_ids"
	r.tokens = r.tokens[:0]
	switch v.kind {
	case bin:
		if len(v.raw)%4 != 0 {
			return bad(name, "invalid_value", "token_ids bin size must be a multiple of 4")
		}
		if err := d.bound(name, len(v.raw)/4); err != nil {
			return err
		}
		for rest := v.raw; len(rest) > 0; rest = rest[4:] {
			r.tokens = append(r.tokens, binary.LittleEndian.Uint32(rest))
		}
	case list:
		if err := d.bound(name, v.n); err != nil {
			return err
		}
		var e value
		rest := v.raw
		for i := range v.n {
			e, rest, _ = read(rest, maxDepth)
			n, ok := e.int()
			switch {
			case e.kind != integer:
				return badElement(name, i, "invalid_type", "token_ids element must be an integer")
			case !ok || n < math.MinInt32 || n > math.MaxInt32:
				return badElement(name, i, "out_of_range", "token_ids element is outside the int32 range")
			}
			r.tokens = append(r.tokens, uint32(n))
		}
	default:
		return bad(name, "invalid_type", "token_ids must be a bin or an array")
	}
	q.Tokens = r.tokens
	return nil
}

// hashes reads seq hashes: a list of integers, negative ones by two's complement, or
// little-endian u64 in a bin.
func (d *Dialect) hashes(r *exchange, v *value, q *conductor.Query) *failure {
	const name = "seq_hashes"
	r.hashes = r.hashes[:0]
	switch v.kind {
	case bin:
		if len(v.raw)%8 != 0 {
			return bad(name, "invalid_value", "seq_hashes bin size must be a multiple of 8")
		}
		if err := d.bound(name, len(v.raw)/8); err != nil {
			return err
		}
		for rest := v.raw; len(rest) > 0; rest = rest[8:] {
			r.hashes = append(r.hashes, binary.LittleEndian.Uint64(rest))
		}
	case list:
		if err := d.bound(name, v.n); err != nil {
			return err
		}
		var e value
		rest := v.raw
		for i := range v.n {
			if e, rest, _ = read(rest, maxDepth); e.kind != integer {
				return badElement(name, i, "invalid_type", "seq_hashes element must be an integer")
			}
			r.hashes = append(r.hashes, e.bits)
		}
	default:
		return bad(name, "invalid_type", "seq_hashes must be a bin or an array")
	}
	q.Hashes, q.ByHash = r.hashes, true
	return nil
}

func (d *Dialect) bound(name string, n int) *failure {
	if n <= d.cfg.MaxTokens {
		return nil
	}
	return bad(name, "out_of_range", "%s has %d elements, limits.max_tokens allows %d", name, n, d.cfg.MaxTokens)
}

// appendAnswer writes {"instances": {instance: row}}, of all instances or of one. All
// counts are tokens.
func appendAnswer(dst []byte, ans *conductor.Answer, only *string) []byte {
	rows := ans.Rows
	if only != nil {
		rows = nil
		for i := range ans.Rows {
			if ans.Rows[i].Instance == *only {
				rows = ans.Rows[i : i+1]
			}
		}
	}
	dst = appendMap(appendText(appendMap(dst, 1), "instances"), len(rows))
	for i := range rows {
		dst = appendRow(appendText(dst, rows[i].Instance), &rows[i], ans.BlockSize)
	}
	return dst
}

// appendRow writes what each rank reaches from its device down, and the best of that.
func appendRow(dst []byte, row *conductor.Row, blockSize int) []byte {
	var device, host, disk int
	for _, r := range row.Ranks {
		device, host, disk = max(device, r.Device), max(host, r.Host), max(disk, r.Disk)
	}
	dst = appendIntField(appendMap(dst, 6), "longest_matched", disk*blockSize)
	dst = appendMap(appendText(dst, "dp"), len(row.Ranks))
	for _, r := range row.Ranks {
		dst = appendInt(appendRank(dst, int(r.Rank)), r.Device*blockSize)
	}
	dst = appendMap(appendText(dst, "rank_matches"), len(row.Ranks))
	for _, r := range row.Ranks {
		dst = appendBoundaries(appendMap(appendRank(dst, int(r.Rank)), 3), r.Device*blockSize, r.Host*blockSize, r.Disk*blockSize)
	}
	return appendBoundaries(dst, device*blockSize, host*blockSize, disk*blockSize)
}

func appendBoundaries(dst []byte, gpu, cpu, disk int) []byte {
	return appendIntField(appendIntField(appendIntField(dst, "gpu", gpu), "cpu", cpu), "disk", disk)
}
