package http

import (
	"net/http"
	"time"

	"github.com/gin-gonic/gin"

	"example.com/conductor/conductor/access"
	"example.com/conductor/conductor/membership"
	"example.com/conductor/conductor/server"
	"example.com/conductor/redact"
)

// errNoFleet is the answer of a server that shares nothing.
var errNoFleet error = &server.Refusal{
	Status: http.StatusNotFound, Reason: "disabled", Text: "this server shares no store with others: store.url is not set",
}

// fleetRow is a source of the registry, or one that a replica follows without that.
type fleetRow struct {
	InstanceID     string
	TenantID       string
	DPRank         int    // -1 for an engine that tells its ranks
	Discover       string `json:",omitempty"`
	Endpoint       string
	ReplayEndpoint string
	Type           string
	ModelName      string
	LoraName       string
	BlockSize      int
	AdditionalSalt string
	// Registered is client, configuration, or empty for a source that is not in the registry.
	Registered   string
	RegisteredAt *time.Time // by the clock of the store
	RegisteredBy string     // replica
	Replicas     []followerRow
}

// followerRow is a replica that follows a source.
type followerRow struct {
	ID    string
	URL   string // empty for a client that may not see endpoints
	State string
}

// fleetServices lists the sources of all replicas.
func (a *api) fleetServices(g *gin.Context) (any, error) {
	if a.opts.Registry == nil {
		return nil, errNoFleet
	}
	all, complete := a.opts.Registry.List(g.Request.Context())
	all = membership.Redacted(all, access.View(a.conductor, g))
	rows := make([]fleetRow, len(all))
	for i, r := range all {
		row := fleetRow{
			InstanceID: r.Instance, TenantID: r.Tenant, DPRank: r.Rank, RegisteredBy: r.By,
			Replicas: make([]followerRow, len(r.Followers)),
		}
		if s := r.Source; s != nil {
			row.Discover, row.Endpoint, row.ReplayEndpoint = redact.URL(s.Discover), s.Endpoint, s.ReplayEndpoint
			row.Type, row.ModelName, row.LoraName, row.BlockSize, row.AdditionalSalt = s.Type, s.Model, s.Lora, s.BlockSize, s.Salt
			row.Registered, row.RegisteredAt = "client", &r.Since
			if r.Configured {
				row.Registered = "configuration"
			}
		}
		for j, f := range r.Followers {
			row.Replicas[j] = followerRow{f.ID, redact.URL(f.URL), f.State}
		}
		rows[i] = row
	}
	return inView(access.View(a.conductor, g), gin.H{"count": len(rows), "services": rows, "complete": complete}), nil
}
