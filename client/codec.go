package client

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"

	"github.com/vmihailenco/msgpack/v5"
)

// codec is a form of bodies and answers.
type codec struct {
	mediaType string
	marshal   func(any) ([]byte, error)
	unmarshal func([]byte, any) error
}

var (
	jsonCodec    = codec{"application/json", json.Marshal, json.Unmarshal}
	msgpackCodec = codec{"application/msgpack", msgpack.Marshal, unmarshalMsgpack}
)

// unmarshalMsgpack reads names of fields from the tags that JSON has.
func unmarshalMsgpack(text []byte, out any) error {
	d := msgpack.NewDecoder(bytes.NewReader(text))
	d.SetCustomStructTag("json")
	return d.Decode(out)
}

// WithMsgpack sends queries in msgpack: token ids are bytes that the server need not parse, and
// answers are shorter. The server answers such a query as Mooncake's second server does: its rows
// have Longest, the reach of the best rank, Ranks, Expected, Approximate and UpperBound alone. Candidates and
// reports go in msgpack as well, with everything that they have in JSON. A query with MinMatched, Top or Detail, a
// batch of queries, and all other requests go in JSON.
func WithMsgpack() Option { return func(c *Client) { c.msgpack = true } }

// packable reports whether the second server's dialect has all fields of the query.
func (q *Query) packable() bool { return q.MinMatched == 0 && q.Top == 0 && !q.Detail }

// packedRow is a Row in msgpack.
type packedRow struct {
	Longest     int                  `json:"longest_matched"`
	Expected    int                  `json:"expected"`
	Approximate bool                 `json:"approximate"`
	UpperBound  bool                 `json:"upper_bound"`
	Ranks       map[string]rankMatch `json:"rank_matches"`
}

// rankMatch is a Rank as answers have it, in either codec.
type rankMatch struct {
	GPU      int `json:"gpu"`
	CPU      int `json:"cpu"`
	Disk     int `json:"disk"`
	Expected int `json:"expected"`
}

// rowsOfPacked returns the rows of an answer in msgpack.
func rowsOfPacked(instances map[string]packedRow) (Rows, error) {
	named := make(map[string]Row, len(instances))
	for name, p := range instances {
		row := Row{Longest: p.Longest, Expected: p.Expected, Approximate: p.Approximate, UpperBound: p.UpperBound}
		if err := row.setRanks(p.Ranks); err != nil {
			return nil, err
		}
		named[name] = row
	}
	return rowsOf(map[string]tenantRows{"": named}), nil
}

// littleEndian returns numbers as the server reads them fastest.
func littleEndian[T uint32 | uint64](numbers []T) []byte {
	raw := make([]byte, 0, binary.Size(numbers))
	raw, _ = binary.Append(raw, binary.LittleEndian, numbers) // integers always have a form
	return raw
}

// base64Of returns token ids for a body in JSON.
func base64Of(tokens []uint32) string {
	return base64.StdEncoding.EncodeToString(littleEndian(tokens))
}
