package query

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"

	"github.com/gin-gonic/gin"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/match"
)

// plainQuery is a body of POST /query as encoding/json reads it.
type plainQuery struct {
	Model     string   `json:"model"`
	BlockSize int      `json:"block_size"`
	TokenIDs  []uint32 `json:"token_ids"`
	Tenant    string   `json:"tenant_id"`
	Lora      string   `json:"lora_name"`
	Salt      string   `json:"cache_salt"`
	Instance  *string  `json:"instance_id"`
}

// plainReach is how far a rank reaches, in tokens.
type plainReach struct {
	GPU  int `json:"gpu"`
	CPU  int `json:"cpu"`
	Disk int `json:"disk"`
}

// newBaseline returns a handler that answers POST /query as the Conductor dialect does, by
// encoding/json both ways. It is the server's handler without a parser and a writer of its own.
func newBaseline(k *conductor.Conductor, maxBody int64) http.Handler {
	gin.SetMode(gin.ReleaseMode)
	r := gin.New()
	r.Use(gin.Recovery())
	r.POST("/query", func(g *gin.Context) {
		raw, err := io.ReadAll(http.MaxBytesReader(g.Writer, g.Request.Body, maxBody))
		var q plainQuery
		if err == nil {
			err = json.Unmarshal(raw, &q)
		}
		if err == nil && (q.Model == "" || q.BlockSize < 1 || q.TokenIDs == nil) {
			err = errors.New("model, block_size and token_ids are required")
		}
		if err != nil {
			g.JSON(http.StatusBadRequest, gin.H{"error": err.Error()})
			return
		}
		ans := k.Query(match.Query{
			Tenant: q.Tenant, Model: q.Model, Lora: q.Lora, Salt: q.Salt, BlockSize: q.BlockSize, Tokens: q.TokenIDs, Instance: q.Instance,
		})
		g.JSON(http.StatusOK, plainAnswer(&ans))
	})
	return r
}

// plainRow is the row of an instance whose blocks are on media of usual names, as
// those of the bench are.
type plainRow struct {
	Longest int                   `json:"longest_matched"`
	GPU     int                   `json:"GPU"`
	CPU     int                   `json:"CPU"`
	Disk    int                   `json:"DISK"`
	DP      map[string]int        `json:"DP"`
	Ranks   map[string]plainReach `json:"rank_matches"`
}

func plainAnswer(ans *match.Answer) map[string]map[string]plainRow {
	if len(ans.Rows) == 0 {
		return map[string]map[string]plainRow{}
	}
	instances := make(map[string]plainRow, len(ans.Rows))
	for i := range ans.Rows {
		row, size := &ans.Rows[i], ans.BlockSize
		plain := plainRow{
			Longest: row.Longest * size, GPU: row.Media[0].Blocks * size, CPU: row.Media[1].Blocks * size, Disk: row.Media[2].Blocks * size,
			DP: make(map[string]int, len(row.Ranks)), Ranks: make(map[string]plainReach, len(row.Ranks)),
		}
		for _, r := range row.Ranks {
			name := strconv.Itoa(int(r.Rank))
			plain.DP[name] = r.Blocks * size
			plain.Ranks[name] = plainReach{r.Device * size, r.Host * size, r.Disk * size}
		}
		instances[row.Instance] = plain
	}
	return map[string]map[string]plainRow{ans.Tenant: instances}
}
