package admin

import (
	"maps"
	"net/http"
	"slices"

	"github.com/gin-gonic/gin"

	"example.com/conductor/conductor/access"
	"example.com/conductor/conductor/cluster"
	"example.com/conductor/conductor/server"
	"example.com/conductor/redact"
)

// errNoShards says that replicas send no calls of gRPC here.
var errNoShards error = &server.Refusal{
	Status: http.StatusNotFound, Reason: "disabled", Text: "calls of gRPC come here only from replicas with cluster.mode: shards",
}

// clusterRow is the answer of /admin/cluster.
type clusterRow struct {
	Mode    string     `json:"mode"`    // replicas or shards
	Replica string     `json:"replica"` // that answers, empty without shards
	Owners  int        `json:"owners"`  // that each shard is to have, 0 without shards
	Known   bool       `json:"known"`   // the registry was read
	Moves   uint64     `json:"moves"`
	Shards  []shardRow `json:"shards"`
}

// shardRow is all deployments of a tenant's model.
type shardRow struct {
	Tenant   string         `json:"tenant_id"`
	Model    string         `json:"model_name"`
	Sources  int            `json:"sources"`
	Queries  float64        `json:"queries_per_s"`
	Owners   []string       `json:"owners"`
	Moving   bool           `json:"moving"`
	Replicas []shardReplica `json:"replicas"`
}

// shardReplica is a replica that has a part in a shard.
type shardReplica struct {
	ID      string  `json:"id"`
	URL     string  `json:"url"` // empty for a client that may not see the server as a whole
	Phase   string  `json:"phase"`
	Whole   int     `json:"synced"`
	Queries float64 `json:"queries_per_s"`
}

// cluster tells which replica serves which shards: GET /admin/cluster.
func (a *api) cluster(g *gin.Context) (any, error) {
	row := clusterRow{Mode: "replicas", Shards: []shardRow{}}
	c := a.opts.Cluster
	if c == nil {
		return row, nil
	}
	reader := access.View(a.conductor, g).Reader()
	now := c.State()
	row.Mode, row.Replica, row.Owners, row.Known, row.Moves = "shards", now.Me, now.Owners, now.Known, now.Moves
	for _, s := range now.Rows {
		if reader.Tenants.Has(s.Tenant) {
			row.Shards = append(row.Shards, shardRowOf(s, &now, reader.Tenants.All()))
		}
	}
	return row, nil
}

// shardRowOf returns the row of a shard, with the URLs of replicas if the client may see them.
func shardRowOf(s *cluster.Row, now *cluster.State, urls bool) shardRow {
	row := shardRow{
		Tenant: s.Tenant, Model: s.Model, Sources: s.Sources, Queries: s.Load, Owners: append([]string{}, s.Owners...),
		Moving: s.Moving(), Replicas: []shardReplica{},
	}
	for _, id := range slices.Sorted(maps.Keys(s.Told)) {
		f := s.Told[id]
		if f.Phase == cluster.Absent {
			continue
		}
		r := shardReplica{ID: id, Phase: f.Phase.String(), Whole: f.Whole, Queries: f.Queries}
		if urls {
			r.URL = redact.URL(now.URLs[id])
		}
		row.Replicas = append(row.Replicas, r)
	}
	return row
}
