package admin

import (
	"strconv"
	"time"

	"github.com/gin-gonic/gin"

	"example.com/conductor/conductor/access"
	"example.com/conductor/conductor/explain"
	"example.com/conductor/conductor/invalid"
	"example.com/conductor/conductor/prefixes"
)

// popularRow is what queries ask of a deployment.
type popularRow struct {
	TenantID     string            `json:"tenant_id"`
	ModelName    string            `json:"model_name"`
	BlockSize    int               `json:"block_size"`
	Queries      uint64            `json:"queries"`
	AskedTokens  uint64            `json:"asked_tokens"`
	CachedTokens uint64            `json:"cached_tokens"`
	MediaTokens  map[string]uint64 `json:"media_tokens"`
	Reuse        []reuseRow        `json:"reuse"`
	Prefixes     []prefixRow       `json:"prefixes"`
}

// reuseRow counts prompts by how many queries lay between two for the same prefix.
type reuseRow struct {
	Below   uint64 `json:"below"`
	Queries uint64 `json:"queries"`
}

// prefixRow is a prefix that queries ask for.
type prefixRow struct {
	Prefix   string    `json:"prefix"`
	Parent   string    `json:"parent,omitempty"`
	LoraName string    `json:"lora_name,omitempty"`
	Salted   bool      `json:"salted,omitempty"`
	Depth    int       `json:"depth"`
	Tokens   int       `json:"tokens"`
	Queries  uint64    `json:"queries"`
	Error    uint64    `json:"error"`
	Held     int       `json:"held"`
	Holders  []string  `json:"holders"`
	Last     time.Time `json:"last"`
}

// Bounds of the parameter top.
const defaultTop, maxTop = 20, 1000

// popular returns what queries ask for most: GET /admin/prefixes?top=N.
func (a *api) popular(g *gin.Context) (any, error) {
	top, err := topOf(g, defaultTop, maxTop)
	if err != nil {
		return nil, err
	}
	rows := []popularRow{}
	for _, p := range access.View(a.conductor, g).Inspect().Popular(top) {
		rows = append(rows, popularOf(&p))
	}
	lives := []lifeRow{}
	for _, l := range access.View(a.conductor, g).Inspect().Lives() {
		lives = append(lives, lifeOf(&l))
	}
	reports := []feedbackRow{}
	for _, f := range access.View(a.conductor, g).Inspect().Reported() {
		reports = append(reports, feedbackRow{f.Tenant, f.Instance, f.Medium, f.Reports, f.Precision, f.Recall})
	}
	return gin.H{"sampled": prefixes.Every, "deployments": rows, "lifetimes": lives, "feedback": reports}, nil
}

// topOf reads the parameter top.
func topOf(g *gin.Context, otherwise, most int) (int, error) {
	text, given := g.GetQuery("top")
	if !given {
		return otherwise, nil
	}
	top, err := strconv.Atoi(text)
	if err != nil || top < 0 || top > most {
		return 0, invalid.Field("top", "out_of_range", "top must be from 0 to %d, got %q", most, text)
	}
	return top, nil
}

func popularOf(p *explain.Popular) popularRow {
	size := uint64(p.BlockSize)
	row := popularRow{
		TenantID: p.Tenant, ModelName: p.Model, BlockSize: p.BlockSize, Queries: p.Queries, AskedTokens: p.Asked * size,
		CachedTokens: p.Cached * size,
		MediaTokens:  make(map[string]uint64), Reuse: []reuseRow{}, Prefixes: []prefixRow{},
	}
	for _, m := range p.Media {
		row.MediaTokens[m.Name] = m.Blocks * size
	}
	for i, n := range p.Reuse {
		if n > 0 {
			row.Reuse = append(row.Reuse, reuseRow{1 << i, n})
		}
	}
	for i := range p.Prefixes {
		row.Prefixes = append(row.Prefixes, prefixOf(&p.Prefixes[i], p.BlockSize))
	}
	return row
}

func prefixOf(p *prefixes.Prefix, blockSize int) prefixRow {
	row := prefixRow{
		Prefix: strconv.FormatUint(p.Key, 16), LoraName: p.Adapter, Salted: p.Salted, Depth: p.Depth, Tokens: p.Depth * blockSize,
		Queries: p.Queries, Error: p.Error, Held: p.Held, Holders: append([]string{}, p.Holders...), Last: p.Last,
	}
	if p.Parent != 0 {
		row.Parent = strconv.FormatUint(p.Parent, 16)
	}
	return row
}

// lifeRow is how long blocks of a model stay on a medium. A quantile is given to a factor of two.
type lifeRow struct {
	TenantID   string   `json:"tenant_id"`
	ModelName  string   `json:"model_name"`
	BlockSize  int      `json:"block_size"`
	Medium     string   `json:"medium"`
	Evicted    uint64   `json:"evicted"`
	P10Seconds *float64 `json:"p10_s"`
	P50Seconds *float64 `json:"p50_s"`
	P90Seconds *float64 `json:"p90_s"`
	Hazard     float64  `json:"evictions_per_block_second"`
}

func lifeOf(l *explain.MediumLife) lifeRow {
	row := lifeRow{TenantID: l.Tenant, ModelName: l.Model, BlockSize: l.BlockSize, Medium: l.Medium, Evicted: l.Evicted, Hazard: l.Hazard}
	if l.Evicted > 0 {
		for part, to := range map[float64]**float64{0.1: &row.P10Seconds, 0.5: &row.P50Seconds, 0.9: &row.P90Seconds} {
			s := l.Ages.Quantile(part).Seconds()
			*to = &s
		}
	}
	return row
}

// feedbackRow is what was reported of an instance and medium.
type feedbackRow struct {
	TenantID   string  `json:"tenant_id"`
	InstanceID string  `json:"instance_id"`
	Medium     string  `json:"medium"`
	Reports    uint64  `json:"reports"`
	Precision  float64 `json:"precision"`
	Recall     float64 `json:"recall"`
}

// lossRow is the loss of an instance in one context.
type lossRow struct {
	TenantID       string `json:"tenant_id"`
	ModelName      string `json:"model_name"`
	LoraName       string `json:"lora_name"`
	BlockSize      int    `json:"block_size"`
	AdditionalSalt string `json:"additional_salt"`
	HeldTokens     int    `json:"held_tokens"`
	AloneTokens    int    `json:"alone_tokens"`
}

// lostRow is a prefix that an instance alone held.
type lostRow struct {
	TenantID  string `json:"tenant_id"`
	ModelName string `json:"model_name"`
	BlockSize int    `json:"block_size"`
	prefixRow
}

// drain returns the loss of an instance: GET /admin/drain?instance=NAME.
func (a *api) drain(g *gin.Context) (any, error) {
	name := g.Query("instance")
	if name == "" {
		return nil, invalid.Field("instance", "missing", "instance is required")
	}
	loss, err := access.View(a.conductor, g).Inspect().Loss(name)
	if err != nil {
		return nil, err
	}
	ranks, rows, lost := []string{}, []lossRow{}, []lostRow{}
	tenants := make(map[string]int)
	held, alone := 0, 0
	for _, k := range loss.Ranks {
		ranks = append(ranks, k.String())
	}
	for _, x := range loss.Contexts {
		row := lossRow{x.Tenant, x.Model, x.Lora, x.BlockSize, x.Salt, x.Held * x.BlockSize, x.Alone * x.BlockSize}
		rows = append(rows, row)
		held += row.HeldTokens
		alone += row.AloneTokens
		tenants[x.Tenant] += row.AloneTokens
	}
	for _, p := range loss.Prefixes {
		lost = append(lost, lostRow{p.Tenant, p.Model, p.BlockSize, prefixOf(&p.Prefix, p.BlockSize)})
	}
	return gin.H{"instance_id": name, "sources": ranks, "held_tokens": held, "alone_tokens": alone, "alone_by_tenant": tenants,
		"contexts": rows, "prefixes": lost}, nil
}
