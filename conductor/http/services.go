package http

import (
	"strconv"
	"time"

	"github.com/gin-gonic/gin"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/access"
	"example.com/conductor/conductor/discovery"
	"example.com/conductor/conductor/invalid"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/conductor/reply"
	"example.com/conductor/conductor/status"
	"example.com/conductor/events"
)

// serviceRow is one row of /services. The upper-case names are the published
// ones.
type serviceRow struct {
	Endpoint         string
	ReplayEndpoint   string
	SnapshotEndpoint string `json:",omitempty"`
	Type             string
	ModelName        string
	LoraName         string
	TenantID         string
	InstanceID       string
	BlockSize        int
	DPRank           int
	AdditionalSalt   string
	Serves           []string          `json:",omitempty"` // a pool's instances; none for all
	Aliases          []string          `json:",omitempty"` // further names of the model
	Copies           string            `json:",omitempty"` // where it is not stream.copies
	Reports          string            `json:",omitempty"` // as registered
	Owned            string            `json:",omitempty"` // drop
	Clear            string            `json:",omitempty"` // device
	MayAnnounce      []string          `json:",omitempty"` // tenants besides TenantID
	HashProfile      *profileRow       `json:",omitempty"`
	Sequence         string            `json:",omitempty"` // where it is not that of Type
	Events           string            `json:",omitempty"` // none
	CapacityBlocks   int               `json:",omitempty"` // of an engine that publishes nothing
	Approximate      string            `json:",omitempty"` // count
	TTL              string            `json:",omitempty"` // of media that have none of their own
	MediaTTL         map[string]string `json:",omitempty"` // by medium

	Registered   string // by what: configuration, client, discovery, replica or peer
	RegisteredBy string // name of the client, URL that was asked, or id of the replica; empty for a client that may not see endpoints
	RegisteredAt time.Time

	State   string
	Reason  string
	Epoch   uint64
	LastSeq *uint64
	Blocks  int
	Orphans int
	Objects *int   `json:",omitempty"` // of a pool
	AgeMs   *int64 // since the last batch, null before the first
	// HistoryFrom is engine_snapshot, snapshot, peer, shelf, replay, live or reports.
	HistoryFrom     string
	EngineSnapshots *engineSnapshots `json:",omitempty"` // of a source with SnapshotEndpoint
	Gaps            uint64
	Replayed        uint64
	Restarts        uint64
	Overruns        uint64
	Duplicates      uint64
	Reconnects      uint64
	Dropped         uint64
	DroppedBy       map[events.Reason]uint64
	LastError       string
	Findings        []findingRow
	Expected        *expectedRow `json:",omitempty"` // of an instance that routers report prompts for
}

// expectedRow is how good the expectations of the instance were, in tokens.
type expectedRow struct {
	Prompts                                                           uint64
	Tokens, Confirmed, Expired, TakenBack, Dropped, Evicted, Pending  uint64
	ConfirmedShare, DelayP50Seconds, DelayP90Seconds, DelayP99Seconds *float64 // null while none is known
	TTLSeconds                                                        *float64 // null where blocks stay until there is no room
}

func expectedOf(e *status.Expectations) *expectedRow {
	if e == nil {
		return nil
	}
	row := &expectedRow{
		Prompts: e.Prompts, Tokens: e.Expected, Confirmed: e.Confirmed, Expired: e.Expired, TakenBack: e.TakenBack, Dropped: e.Dropped,
		Evicted: e.Evicted,
		Pending: e.Pending,
	}
	if ttl := e.TTL.Seconds(); ttl > 0 {
		row.TTLSeconds = &ttl
	}
	if share, known := e.Share(); known {
		row.ConfirmedShare = &share
	}
	for i, to := range []**float64{&row.DelayP50Seconds, &row.DelayP90Seconds, &row.DelayP99Seconds} {
		if s := e.Delay[i].Seconds(); s > 0 {
			*to = &s
		}
	}
	return row
}

// engineSnapshots are the requests for snapshots of the engine.
type engineSnapshots struct {
	State   string // waiting, applying, applied or failed
	Blocks  int    // that the last snapshot left
	Applied uint64
	Failed  map[string]uint64 // by reason
	Reason  string            // why the last request failed; empty after a snapshot
}

// findingRow is one finding of the doctor.
type findingRow struct {
	Code     string
	Severity string // error, warning or info
	Message  string
	Since    time.Time
}

// services lists the registered sources: GET /services, or those of all replicas: GET /services?fleet=1.
func (a *api) services(g *gin.Context) (any, error) {
	if ofFleet, err := reply.ReadFlag(g, "fleet"); err != nil {
		return nil, err
	} else if ofFleet {
		return a.fleetServices(g)
	}
	all := access.View(a.conductor, g).Services()
	rows := make([]serviceRow, len(all))
	for i := range all {
		rows[i] = rowOf(&all[i])
	}
	out := gin.H{"count": len(rows), "services": rows}
	if asked := a.asked(access.View(a.conductor, g)); len(asked) > 0 {
		out["discovery"] = asked
	}
	if all := reporters(access.View(a.conductor, g)); len(all) > 0 {
		out["lmcache"] = all
	}
	if all := topics(access.View(a.conductor, g)); len(all) > 0 {
		out["unclaimed"] = all
	}
	return out, nil
}

// rowOf returns the row of a source.
func rowOf(s *status.Source) serviceRow {
	row := serviceRow{
		Endpoint: s.Endpoint, ReplayEndpoint: s.ReplayEndpoint, SnapshotEndpoint: s.SnapshotEndpoint, Type: s.Type,
		ModelName: s.Model, LoraName: s.Lora, TenantID: s.Tenant, InstanceID: s.Instance,
		BlockSize: s.BlockSize, DPRank: s.Rank, AdditionalSalt: s.Salt, Serves: s.Serves, Aliases: s.Aliases,
		Copies: s.Copies, Reports: s.Reports, Owned: s.Owned, Clear: s.Clear, MayAnnounce: s.MayAnnounce,
		HashProfile: profileOf(s.Profile), Sequence: s.Sequence,
		Events: s.Registration.Events, CapacityBlocks: s.CapacityBlocks, Approximate: s.Approximate,
		Registered: s.By.Kind, RegisteredBy: s.By.Name, RegisteredAt: s.By.At.UTC(),
		State: string(s.State), Reason: s.Reason, Epoch: s.Epoch, LastSeq: s.LastSeq,
		Blocks: s.Blocks, Orphans: s.Orphans, HistoryFrom: s.HistoryFrom, Gaps: s.Gaps, Replayed: s.Replayed, Restarts: s.Restarts,
		Overruns: s.Overruns, Duplicates: s.Duplicates, Reconnects: s.Reconnects,
		DroppedBy: s.Dropped, LastError: s.LastError, Findings: make([]findingRow, 0, len(s.Findings)),
		Expected: expectedOf(s.Expected),
	}
	if s.AsksSnapshots {
		row.EngineSnapshots = &engineSnapshots{s.SnapshotState, s.SnapshotBlocks, s.Snapshots, s.SnapshotFailures, s.SnapshotReason}
	}
	if s.TTL > 0 {
		row.TTL = s.TTL.String()
	}
	for medium, ttl := range s.MediaTTL {
		if row.MediaTTL == nil {
			row.MediaTTL = make(map[string]string)
		}
		row.MediaTTL[medium] = ttl.String()
	}
	if s.Type == registration.TypeMooncake {
		row.Objects = &s.Objects
	}
	if s.Age >= 0 {
		ms := s.Age.Milliseconds()
		row.AgeMs = &ms
	}
	for _, f := range s.Findings {
		row.Findings = append(row.Findings, findingRow{f.Code, string(f.Severity()), f.Message, f.Since})
	}
	for _, n := range s.Dropped {
		row.Dropped += n
	}
	return row
}

// askedRow is one engine, or fleet of them, that is asked where it publishes.
type askedRow struct {
	InstanceID string
	TenantID   string
	DPRank     *int   `json:",omitempty"` // of a source whose first events tell its block size; none for an engine that tells its ranks
	URL        string // empty for a client that may not see endpoints
	Addresses  int    // 0 without sources for a client that may not see causes
	Sources    int
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
		row := askedRow{s.Instance, s.Tenant, nil, s.URL, s.Addresses, s.Sources, discovery.ErrorFor(&s, reader)}
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
