package http

import (
	"strconv"
	"time"

	"github.com/gin-gonic/gin"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/access"
	"example.com/conductor/conductor/discovery"
	"example.com/conductor/conductor/invalid"
	"example.com/conductor/conductor/reply"
	"example.com/conductor/conductor/status"
)

// services lists the registered sources: GET /services, or those of all replicas: GET /services?fleet=1.
func (a *api) services(g *gin.Context) (any, error) {
	if ofFleet, err := reply.ReadFlag(g, "fleet"); err != nil {
		return nil, err
	} else if ofFleet {
		return a.fleetServices(g)
	}
	all := access.View(a.conductor, g).Services()
	rows := make([]status.Service, len(all))
	for i := range all {
		rows[i] = all[i].Service()
	}
	out := inView(access.View(a.conductor, g), gin.H{"count": len(rows), "services": rows})
	if asked := a.asked(access.View(a.conductor, g)); len(asked) > 0 {
		out["discovery"] = asked
	}
	if all := reporters(access.View(a.conductor, g)); len(all) > 0 {
		out["lmcache"] = all
	}
	if all := topics(access.View(a.conductor, g)); len(all) > 0 {
		out["unclaimed"] = all
	}
	if all := unregistered(access.View(a.conductor, g)); len(all) > 0 {
		out["unregistered"] = all
	}
	return out, nil
}

// inView adds to an answer the tenants whose sources are in it, unless it has those of all.
func inView(v conductor.View, answer gin.H) gin.H {
	if tenants := v.Tenants(); !tenants.All() {
		answer["tenants"] = tenants
	}
	return answer
}

// askedRow is one engine, or fleet of them, that is asked where it publishes.
type askedRow struct {
	InstanceID string
	TenantID   string
	DPRank     *int   `json:",omitempty"` // of a source whose first events tell its block size; none for an engine that tells its ranks
	URL        string // empty for a client that may not see endpoints
	Addresses  int    // 0 without sources for a client that may not see causes
	Sources    int
	State      string // found, learning or waiting
	LastError  string
}

// asked lists the targets of discovery that the client may see.
func (a *api) asked(v conductor.View) (rows []askedRow) {
	if a.opts.Discovery == nil {
		return nil
	}
	reader := v.Reader()
	for _, s := range a.opts.Discovery.List() {
		if !reader.Tenants.Has(s.Tenant) {
			continue
		}
		row := askedRow{s.Instance, s.Tenant, nil, s.URL, s.Addresses, s.Sources, discovery.WordFor(&s, reader),
			discovery.ErrorFor(&s, reader)}
		if s.URL == "" {
			row.DPRank = &s.Rank
		}
		if !reader.Secrets {
			row.URL = ""
		}
		if s.Sources == 0 && !reader.Causes {
			row.Addresses = 0 // an address counts once it was asked: at once where the port is closed
		}
		rows = append(rows, row)
	}
	return rows
}

// reporterRow is an instance of LMCache that has reported lately.
type reporterRow struct {
	InstanceID string
	State      string
	LastSeq    uint64
	Unclaimed  []unclaimedRow
}

// unclaimedRow is what no source of type LMCache is registered for.
type unclaimedRow struct {
	InstanceID, ModelName string
	Entries               uint64
}

// reporters lists the instances of LMCache that the client may see.
func reporters(v conductor.View) (rows []reporterRow) {
	for _, r := range v.Inspect().Reporters() {
		row := reporterRow{r.Instance, r.State(), r.Seq, make([]unclaimedRow, 0, len(r.Unclaimed))}
		for _, u := range r.Unclaimed {
			row.Unclaimed = append(row.Unclaimed, unclaimedRow{u.Emitter, u.Model, u.Entries})
		}
		rows = append(rows, row)
	}
	return rows
}

// topicRow is a topic on a bound socket that no source claims.
type topicRow struct {
	Endpoint, Topic, From string // endpoint and address are empty for a client that may not see endpoints
	DPRank                *int   // null where the batches name none
	Messages              uint64
	LastAt                time.Time
	InstanceID, ModelName string // of a registration that would claim it; empty if none can
	Advice                string
}

// topics lists the topics without a source that the client may see.
func topics(v conductor.View) (rows []topicRow) {
	for _, t := range v.Inspect().UnclaimedTopics() {
		row := topicRow{t.Endpoint, t.Topic, t.From, nil, t.Messages, t.At.UTC(), t.Instance, t.Model, t.Advice}
		if t.Rank >= 0 {
			row.DPRank = &t.Rank
		}
		rows = append(rows, row)
	}
	return rows
}

// unregisteredRow is what queries ask for and no engine is registered for.
type unregisteredRow struct {
	TenantID, ModelName string
	BlockSize           int
	Queries             uint64
	LastAt              time.Time
	Advice              string
}

// unregistered lists what the client's tenants ask for in vain.
func unregistered(v conductor.View) (rows []unregisteredRow) {
	for _, u := range v.UnregisteredQueries() {
		rows = append(rows, unregisteredRow{u.Tenant, u.Model, u.BlockSize, u.Queries, u.At.UTC(), u.Advice})
	}
	return rows
}

// contextRow is one entry of model_contexts in /global_view.
type contextRow struct {
	ModelName      string `json:"model_name"`
	LoraName       string `json:"lora_name"`
	BlockSize      int    `json:"block_size"`
	AdditionalSalt string `json:"additional_salt"`
	TenantID       string `json:"tenant_id"`
	InstanceID     string `json:"instance_id"`
	Blocks         int    `json:"blocks"`
	Truncated      bool   `json:"truncated"`

	Aliases []string `json:"aliases,omitempty"` // of the model, by the sources of the instance
}

// defaultViewLimit bounds the aliases listed per context, so that looking at a
// large index does not cost what holding it costs.
const defaultViewLimit = 10_000

// globalView shows contexts and hash aliases: GET /global_view?limit=N.
// hashmap[i] belongs to model_contexts[i]: engine hash to canonical seq hash.
func (a *api) globalView(g *gin.Context) (any, error) {
	limit := defaultViewLimit
	if text, given := g.GetQuery("limit"); given {
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 {
			return nil, invalid.Field("limit", "invalid_value", "limit must be a number of hashes per context, got %q", text)
		}
		limit = n
	}
	views := access.View(a.conductor, g).Inspect().GlobalView(limit)
	contexts := make([]contextRow, len(views))
	hashes := make([]map[string]uint64, len(views))
	for i, v := range views {
		contexts[i] = contextRow{
			ModelName: v.Model, LoraName: v.Lora, BlockSize: v.BlockSize, AdditionalSalt: v.Salt,
			TenantID: v.Tenant, InstanceID: v.Instance, Blocks: v.Blocks, Truncated: v.Truncated, Aliases: v.Aliases,
		}
		hashes[i] = make(map[string]uint64, len(v.Hashes))
		for engine, seq := range v.Hashes {
			hashes[i][strconv.FormatUint(engine, 10)] = seq
		}
	}
	return gin.H{"context_count": len(views), "model_contexts": contexts, "hashmap": hashes}, nil
}

// health says that the process is alive: GET /health.
func (a *api) health(*gin.Context) (any, error) {
	return gin.H{"status": "ok", "version": a.opts.Version}, nil
}
