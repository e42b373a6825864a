package admin

import (
	"net/http"
	"time"

	"github.com/gin-gonic/gin"

	"example.com/conductor/conductor/access"
	"example.com/conductor/conductor/reply"
	"example.com/conductor/conductor/status"
)

// stateRow is one source of /ready.
type stateRow struct {
	Source string `json:"source"`
	State  string `json:"state"`
	Reason string `json:"reason"`
}

// readyRow is the answer of /ready. People read it from its beginning, so it begins with the summary.
type readyRow struct {
	Summary    string       `json:"summary"`
	Severity   string       `json:"summary_severity"` // error, warning or ok
	Ready      bool         `json:"ready"`
	Draining   bool         `json:"draining"`
	Recovering bool         `json:"recovering"`
	Synced     int          `json:"synced"`
	MinSources int          `json:"min_sources"`
	Waiting    []stateRow   `json:"waiting"`
	GivenUp    []stateRow   `json:"given_up"`
	Index      *indexRow    `json:"index,omitempty"`
	Store      *storeRow    `json:"store,omitempty"`
	Recovery   *progressRow `json:"recovery,omitempty"`
}

// indexRow says how much of index.max_bytes_total the indexes take.
type indexRow struct {
	Bytes int64 `json:"bytes"`
	Limit int64 `json:"limit"`
	Full  bool  `json:"full"`
}

// storeRow says whether the store that replicas share answers, and since when that is so.
type storeRow struct {
	Up    bool      `json:"up"`
	Since time.Time `json:"since"`
}

// ready says whether the recovery from peers is over and every configured source
// synced or given up on: GET /ready, 503 while something is still being brought up, and once
// the server is about to leave.
func (a *api) ready(g *gin.Context) (any, error) {
	r, draining := access.View(a.conductor, g).Ready(), a.opts.Draining != nil && a.opts.Draining()
	r.Ready = r.Ready && !draining
	rows := func(list []status.SourceState) []stateRow {
		all := make([]stateRow, len(list))
		for i, s := range list {
			all[i] = stateRow{Source: s.Key.String(), State: string(s.State), Reason: s.Reason}
		}
		return all
	}
	status := http.StatusOK
	if !r.Ready {
		status = http.StatusServiceUnavailable
	}
	row := readyRow{
		Ready: r.Ready, Draining: draining, Recovering: r.Recovering, Synced: r.Synced, MinSources: r.MinSynced,
		Waiting: rows(r.Waiting), GivenUp: rows(r.GivenUp), Recovery: a.progress(),
	}
	if client := access.Of(g); row.Recovery != nil && (client.Roles&access.Admin == 0 || !client.Tenants.All()) {
		row.Recovery.Name = "" // a path, the URL of a peer or a tenant's model
	}
	text, severity := r.Summary(nil, draining)
	row.Summary, row.Severity = text, string(severity)
	if r.IndexLimit > 0 {
		row.Index = &indexRow{r.IndexBytes, r.IndexLimit, r.IndexBytes >= r.IndexLimit}
	}
	if up, since, known := a.opts.Dialect.Registry.Store(); known {
		row.Store = &storeRow{up, since.UTC()}
	}
	return reply.Result{Status: status, Body: row}, nil
}

// progressRow is a recovery under way, in /ready.
type progressRow struct {
	From       string   `json:"from"`
	Name       string   `json:"name"`
	Blocks     int      `json:"blocks"`
	Bytes      int64    `json:"bytes"`
	TotalBytes int64    `json:"total_bytes"` // 0 while it is not known
	Rate       float64  `json:"blocks_per_second"`
	Left       *float64 `json:"seconds_left"` // null while it is not known
}

// progress returns the recovery under way, nil for none.
func (a *api) progress() *progressRow {
	if a.opts.Progress == nil {
		return nil
	}
	p, now := a.opts.Progress(), time.Now()
	if p.From == "" {
		return nil
	}
	row := &progressRow{From: p.From, Name: p.Name, Blocks: p.Blocks, Bytes: p.Bytes, TotalBytes: p.TotalBytes, Rate: p.Rate(now)}
	if left := p.Left(now); left >= 0 {
		seconds := left.Seconds()
		row.Left = &seconds
	}
	return row
}
