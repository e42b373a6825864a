package http

import (
	"encoding/json"
	"strconv"

	"github.com/gin-gonic/gin"

	"kvconductor/conductor"
)

// query answers for a prompt given as tokens: POST /query.
func (a *api) query(g *gin.Context) (any, error) {
	return a.ask(g, func(f *fields, q *conductor.Query) {
		q.Tokens = f.tokens(a.opts.MaxTokens)
	})
}

// queryByHash answers for a prompt given as canonical seq hashes: POST
// /query_by_hash. block_hash is the name earlier drafts used.
func (a *api) queryByHash(g *gin.Context) (any, error) {
	return a.ask(g, func(f *fields, q *conductor.Query) {
		q.ByHash = true
		q.Hashes = f.hashes(a.opts.MaxTokens, "seq_hashes", "block_hash", "block_hashes")
	})
}

// ask reads what both queries share, lets prompt read the rest, and answers.
func (a *api) ask(g *gin.Context, prompt func(*fields, *conductor.Query)) (any, error) {
	detail, err := flag(g, "detail")
	if err != nil {
		return nil, err
	}
	b, err := a.readBody(g)
	if err != nil {
		return nil, err
	}
	f := fields{body: b}
	q := conductor.Query{
		Model:     f.required("model", "modelname", "model_name"),
		BlockSize: f.blockSize(),
		Detail:    detail,
	}
	prompt(&f, &q)
	q.Tenant = f.text("tenant_id")
	q.Lora = f.text("lora_name")
	q.Salt = f.text("cache_salt")
	q.Instance = f.optional("instance_id")
	if f.err != nil {
		return nil, f.err
	}
	ans := a.conductor.Query(q)
	return encoded(appendAnswer(make([]byte, 0, 64+192*len(ans.Rows)), &ans)), nil
}

// flag reads a boolean of the query string; absent is false.
func flag(g *gin.Context, name string) (bool, error) {
	text, given := g.GetQuery(name)
	if !given || text == "" {
		return given, nil
	}
	v, err := strconv.ParseBool(text)
	if err != nil {
		return false, conductor.Invalid(name, "invalid_value", "%s must be 1 or 0, got %q", name, text)
	}
	return v, nil
}

// appendAnswer writes {tenant: {instance: row}}, rows sorted by instance, or {}
// when there is no row. All counts are tokens.
func appendAnswer(dst []byte, ans *conductor.Answer) []byte {
	if len(ans.Rows) == 0 {
		return append(dst, "{}"...)
	}
	dst = append(dst, '{')
	dst = appendString(dst, ans.Tenant)
	dst = append(dst, ':', '{')
	for i := range ans.Rows {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = appendRow(dst, &ans.Rows[i], ans)
	}
	return append(dst, '}', '}')
}

func appendRow(dst []byte, row *conductor.Row, ans *conductor.Answer) []byte {
	blockSize := ans.BlockSize
	dst = appendString(dst, row.Instance)
	dst = append(dst, `:{"longest_matched":`...)
	dst = appendTokens(dst, row.Longest, blockSize)
	for _, m := range row.Media {
		dst = append(dst, ',')
		dst = appendString(dst, mediumKey(m.Name))
		dst = append(dst, ':')
		dst = appendTokens(dst, m.Blocks, blockSize)
	}
	dst = append(dst, `,"DP":{`...)
	for i, r := range row.Ranks {
		dst = appendRank(dst, i, r.Rank)
		dst = appendTokens(dst, r.Blocks, blockSize)
	}
	dst = append(dst, `},"rank_matches":{`...)
	for i, r := range row.Ranks {
		dst = appendRank(dst, i, r.Rank)
		dst = append(dst, `{"gpu":`...)
		dst = appendTokens(dst, r.Device, blockSize)
		dst = append(dst, `,"cpu":`...)
		dst = appendTokens(dst, r.Host, blockSize)
		dst = append(dst, `,"disk":`...)
		dst = appendTokens(dst, r.Disk, blockSize)
		dst = append(dst, '}')
	}
	dst = append(dst, '}')
	if ans.Truncated {
		dst = append(dst, `,"truncated":true`...)
	}
	if row.Detail != nil {
		dst = append(dst, `,"detail":{`...)
		for i := range row.Detail {
			dst = appendRank(dst, i, int32(row.Detail[i].Rank))
			dst = appendDetail(dst, &row.Detail[i])
		}
		dst = append(dst, '}')
	}
	if len(ans.Pools) > 0 {
		dst = append(dst, `,"pools":{`...)
		for i := range ans.Pools {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = append(appendString(dst, ans.Pools[i].Key.String()), ':')
			dst = appendDetail(dst, &ans.Pools[i])
		}
		dst = append(dst, '}')
	}
	return append(dst, '}')
}

// mediumKey is the key of a medium. A medium may have any name, but not that of
// the object beside it.
func mediumKey(name string) string {
	if name == "DP" {
		return "MEDIUM_DP"
	}
	return name
}

func appendDetail(dst []byte, d *conductor.SourceDetail) []byte {
	dst = append(dst, `{"state":`...)
	dst = appendString(dst, string(d.State))
	dst = append(dst, `,"reason":`...)
	dst = appendString(dst, d.Reason)
	dst = append(dst, `,"epoch":`...)
	dst = strconv.AppendUint(dst, d.Epoch, 10)
	dst = append(dst, `,"watermark":`...)
	if d.HasMark {
		dst = strconv.AppendUint(dst, d.Watermark, 10)
	} else {
		dst = append(dst, "null"...)
	}
	dst = append(dst, `,"age_ms":`...)
	if d.Age >= 0 {
		dst = strconv.AppendInt(dst, d.Age.Milliseconds(), 10)
	} else {
		dst = append(dst, "null"...)
	}
	return append(dst, '}')
}

// appendRank writes the key of the i-th rank of an object.
func appendRank(dst []byte, i int, rank int32) []byte {
	if i > 0 {
		dst = append(dst, ',')
	}
	dst = append(dst, '"')
	dst = strconv.AppendInt(dst, int64(rank), 10)
	return append(dst, '"', ':')
}

func appendTokens(dst []byte, blocks, blockSize int) []byte {
	return strconv.AppendInt(dst, int64(blocks)*int64(blockSize), 10)
}

func appendString(dst []byte, s string) []byte {
	quoted, err := json.Marshal(s)
	if err != nil {
		panic("BUG: a string cannot be encoded: " + err.Error())
	}
	return append(dst, quoted...)
}
