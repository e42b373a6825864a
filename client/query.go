package client

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
)

// Query asks which instances hold how long a prefix of a prompt.
type Query struct {
	Model     string
	BlockSize int    // tokens
	Tenant    string // "" is the default tenant
	Adapter   string // LoRA name
	Salt      string
	Instance  string // limits the answer to one instance
	// Tokens of the prompt, or SeqHashes: hashes of its blocks, of the kind HashKind.
	Tokens    []uint32
	SeqHashes []uint64
	HashKind  HashKind
	// MinMatched leaves out rows with shorter prefixes, in tokens; Top keeps the longest.
	MinMatched, Top int
	// Detail adds the states of the sources to each row.
	Detail bool
	// Expected adds to each row what its instance is expected to have soon, because routers have
	// reported prompts with Routed. MinMatched and Top then go by that.
	Expected bool
}

// HashKind says what hashes of a query are, see the rule QUERY-8.
type HashKind string

const (
	Canonical HashKind = ""       // keys of the index
	Engine    HashKind = "engine" // as engines announced them
	VLLM      HashKind = "vllm"   // digests, computed as vLLM does
	SGLang    HashKind = "sglang" // digests, computed as SGLang does
)

// prompt returns the fields of a body that say what the prompt is, with numbers as bytes if it is
// packed.
func (q *Query) prompt(packed bool) map[string]any {
	body := map[string]any{"model": q.Model, "block_size": q.BlockSize}
	for name, text := range map[string]string{"tenant_id": q.Tenant, "lora_name": q.Adapter, "cache_salt": q.Salt} {
		if text != "" {
			body[name] = text
		}
	}
	if q.SeqHashes != nil && q.HashKind != Canonical {
		body["hash"] = q.HashKind
	}
	switch {
	case q.SeqHashes != nil && packed:
		body["seq_hashes"] = littleEndian(q.SeqHashes)
	case q.SeqHashes != nil:
		body["seq_hashes"] = q.SeqHashes
	case packed:
		body["token_ids"] = littleEndian(q.Tokens)
	default:
		body["token_ids_b64"] = base64Of(q.Tokens)
	}
	return body
}

// body returns the path and the body of a query, with numbers as bytes if it is packed.
func (q *Query) body(packed bool) (path string, body map[string]any) {
	body = q.prompt(packed)
	if q.Instance != "" {
		body["instance_id"] = q.Instance
	}
	for name, n := range map[string]int{"min_matched": q.MinMatched, "top": q.Top} {
		if n > 0 {
			body[name] = n
		}
	}
	if path = "/conductor/v1/query"; q.SeqHashes != nil {
		path += "_by_hash"
	}
	switch {
	case q.Expected && packed:
		path += "?expected=1" // that dialect knows its own fields alone
	case q.Expected:
		body["expected"] = true
	}
	if q.Detail {
		path += "?detail=1"
	}
	return path, body
}

// Row is what one instance has of a prompt, in tokens.
type Row struct {
	Instance string
	Longest  int // by all media together
	// Expected is the prefix that the instance has or is expected to have soon, with
	// Query.Expected: at least Longest.
	Expected int
	// Approximate says that the engine publishes no events, so that the reports of routers are all
	// that is known of it.
	Approximate bool
	// UpperBound says that the engine's events do not tell all that it needs of its cache, so that it may take less of a
	// prompt than the row says. The finding unknown_layers names the reason.
	UpperBound bool
	// Media has the leading tokens on each medium, such as GPU, CPU and DISK; nil in msgpack.
	Media map[string]int
	Ranks []Rank // by rank
	// Truncated says that the rows may be longer than shown; Window is the largest sliding
	// window of the instance, with Query.Detail.
	Truncated bool
	Window    int
	// Detail has the sources of the instance by rank, Pools those of the pools whose blocks
	// count, by key; with Query.Detail.
	Detail map[int]Source
	Pools  map[string]Source
}

// Rank is how far the media of a data-parallel rank reach, each with those before, in tokens.
type Rank struct {
	Rank           int
	GPU, CPU, Disk int
	// Expected is how far they reach if the blocks expected of the rank count as well, with Query.Expected:
	// at least Disk.
	Expected int
}

// Source is how current a source was before the index was read.
type Source struct {
	State     string  `json:"state"`
	Reason    string  `json:"reason"`
	Epoch     uint64  `json:"epoch"`
	Watermark *uint64 `json:"watermark"`
	AgeMS     *int64  `json:"age_ms"`
	// Stay has, by medium, the part of the blocks that is there after "1s" and after "10s".
	Stay map[string]map[string]float64 `json:"stay"`
}

// Rows are an answer, sorted by instance.
type Rows []Row

// Longest returns the row with the longest prefix, of equal ones the first; nil if there is no row.
func (r Rows) Longest() *Row {
	if len(r) == 0 {
		return nil
	}
	best := 0
	for i := range r {
		if r[i].Longest > r[best].Longest {
			best = i
		}
	}
	return &r[best]
}

// UnmarshalJSON implements json.Unmarshaler.
func (r *Row) UnmarshalJSON(text []byte) error {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(text, &fields); err != nil {
		return err
	}
	*r = Row{Media: make(map[string]int)}
	for name, raw := range fields {
		var err error
		switch name {
		case "longest_matched":
			err = json.Unmarshal(raw, &r.Longest)
		case "rank_matches":
			var ranks map[string]rankMatch
			if err = json.Unmarshal(raw, &ranks); err == nil {
				err = r.setRanks(ranks)
			}
		case "expected":
			err = json.Unmarshal(raw, &r.Expected)
		case "approximate":
			err = json.Unmarshal(raw, &r.Approximate)
		case "upper_bound":
			err = json.Unmarshal(raw, &r.UpperBound)
		case "truncated":
			err = json.Unmarshal(raw, &r.Truncated)
		case "window":
			err = json.Unmarshal(raw, &r.Window)
		case "detail":
			err = json.Unmarshal(raw, &r.Detail)
		case "pools":
			err = json.Unmarshal(raw, &r.Pools)
		case "DP":
		default:
			var n int
			if json.Unmarshal(raw, &n) == nil { // a field of a later server is none of ours
				r.Media[name] = n
			}
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// setRanks sets the ranks of an answer, by rank.
func (r *Row) setRanks(ranks map[string]rankMatch) error {
	for name, m := range ranks {
		n, err := strconv.Atoi(name)
		if err != nil {
			return err
		}
		r.Ranks = append(r.Ranks, Rank{n, m.GPU, m.CPU, m.Disk, m.Expected})
	}
	slices.SortFunc(r.Ranks, func(a, b Rank) int { return cmp.Compare(a.Rank, b.Rank) })
	return nil
}

// tenantRows are the rows of a tenant, by instance. An answer with details may also have warnings:
// a list, which reads as no instance.
type tenantRows map[string]Row

// UnmarshalJSON implements json.Unmarshaler.
func (i *tenantRows) UnmarshalJSON(text []byte) error {
	if text[0] == '[' {
		return nil
	}
	return json.Unmarshal(text, (*map[string]Row)(i))
}

// Rows returns the rows of an answer, which has one tenant.
func rowsOf(answer map[string]tenantRows) (rows Rows) {
	for _, of := range answer {
		for name, row := range of {
			row.Instance = name
			rows = append(rows, row)
		}
	}
	slices.SortFunc(rows, func(a, b Row) int { return cmp.Compare(a.Instance, b.Instance) })
	return rows
}

// Query returns one row for each instance that is registered for the model, the block size and the
// adapter. No rows is an answer: there is no such instance.
func (c *Client) Query(ctx context.Context, q Query) (Rows, error) {
	packed := c.msgpack && q.packable()
	path, body := q.body(packed)
	if packed {
		var answer struct {
			Instances map[string]packedRow `json:"instances"`
		}
		if err := c.doIn(ctx, msgpackCodec, http.MethodPost, path, body, &answer); err != nil {
			return nil, err
		}
		return rowsOfPacked(answer.Instances)
	}
	var answer map[string]tenantRows
	if err := c.do(ctx, http.MethodPost, path, body, &answer); err != nil {
		return nil, err
	}
	return rowsOf(answer), nil
}

// BatchAnswer is the answer to one query of a batch, or its error.
type BatchAnswer struct {
	Rows Rows
	Err  error // *Error with the status that StatusOf has for its reason
}

// QueryBatch asks up to 256 queries at once and returns as many answers, in order. None has
// SeqHashes; all or none have Detail.
func (c *Client) QueryBatch(ctx context.Context, all []Query) ([]BatchAnswer, error) {
	items, path := make([]map[string]any, len(all)), "/conductor/v1/query_batch"
	for i := range all {
		if all[i].SeqHashes != nil {
			return nil, fmt.Errorf("query %d of the batch has SeqHashes: a batch takes tokens", i)
		}
		_, items[i] = all[i].body(false)
	}
	if len(all) > 0 && all[0].Detail {
		path += "?detail=1"
	}
	var answer struct{ Answers []json.RawMessage }
	if err := c.do(ctx, http.MethodPost, path, map[string]any{"queries": items}, &answer); err != nil {
		return nil, err
	}
	if len(answer.Answers) != len(all) {
		return nil, fmt.Errorf("conductor: %d answers to %d queries", len(answer.Answers), len(all))
	}
	out := make([]BatchAnswer, len(all))
	for i, raw := range answer.Answers {
		refused := new(Error)
		if json.Unmarshal(raw, refused) == nil && refused.Message != "" {
			refused.Status = StatusOf(refused.Reason)
			out[i].Err = refused
			continue
		}
		var rows map[string]tenantRows
		if err := json.Unmarshal(raw, &rows); err != nil {
			return nil, err
		}
		out[i].Rows = rowsOf(rows)
	}
	return out, nil
}
