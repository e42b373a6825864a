package admin

import (
	"time"

	"github.com/gin-gonic/gin"

	"example.com/conductor/conductor/access"
	"example.com/conductor/conductor/doctor"
	"example.com/conductor/conductor/ingest"
	"example.com/conductor/conductor/invalid"
	"example.com/conductor/conductor/statelog"
)

// sourceRow is one source: where it is, who registered it, and what has happened to it.
type sourceRow struct {
	Source           string        `json:"source"`
	Endpoint         string        `json:"endpoint"`
	ReplayEndpoint   string        `json:"replay_endpoint"`
	SnapshotEndpoint string        `json:"snapshot_endpoint"`
	Registered       registeredRow `json:"registered"`
	Reconnects       uint64        `json:"reconnects"`
	Replayed         uint64        `json:"replayed"`
	Groups           []groupRow    `json:"attention_groups"` // empty if each rank has one, and that has full attention
	Events           []eventRow    `json:"events"`           // the oldest first
	Older            uint64        `json:"older_events"`     // that made room
}

// groupRow is an attention group that the engine has announced.
type groupRow struct {
	Rank      int    `json:"dp_rank"`
	Group     int    `json:"group"`
	Kind      string `json:"kind"`
	Window    int    `json:"window"`     // tokens, 0 without one
	BlockSize int    `json:"block_size"` // tokens, 0 if no event has said it
	Blocks    int    `json:"blocks"`
}

type registeredRow struct {
	By   string    `json:"by"`   // configuration, client, discovery, replica or peer
	Name string    `json:"name"` // of the client, the URL that was asked, or the id of the replica
	At   time.Time `json:"at"`
}

// eventRow is something that happened to the stream of a source. Each kind has its own fields.
type eventRow struct {
	Time time.Time `json:"time"`
	Kind string    `json:"kind"`
	// Severity is that of the new state. What is missed is a warning.
	Severity doctor.Severity `json:"severity"`

	From   string `json:"from,omitempty"`
	To     string `json:"to,omitempty"`
	Reason string `json:"reason,omitempty"`
	Gaps   uint64 `json:"gaps,omitempty"`
	Lost   uint64 `json:"batches,omitempty"`
	Epoch  uint64 `json:"epoch,omitempty"`
}

// source shows one source: GET /admin/source?source=INSTANCE|TENANT|RANK.
func (a *api) source(g *gin.Context) (any, error) {
	key := g.Query("source")
	if key == "" {
		return nil, invalid.Field("source", "missing", "source is required: the key of a source, such as engine-1|default|0")
	}
	s, err := access.View(a.conductor, g).Inspect().Source(key)
	if err != nil {
		return nil, err
	}
	row := sourceRow{
		Source: key, Endpoint: s.Endpoint, ReplayEndpoint: s.ReplayEndpoint, SnapshotEndpoint: s.SnapshotEndpoint,
		Registered: registeredRow{s.By.Kind, s.By.Name, s.By.At.UTC()}, Reconnects: s.Reconnects, Replayed: s.Replayed,
		Events: make([]eventRow, len(s.Events)), Older: s.Older, Groups: make([]groupRow, len(s.Groups)),
	}
	for i, g := range s.Groups {
		row.Groups[i] = groupRow{g.Rank, g.Number, g.Kind, g.Window, g.BlockSize, g.Blocks}
	}
	for i, e := range s.Events {
		r := &row.Events[i]
		*r = eventRow{Time: e.At.UTC(), Kind: e.Kind, Severity: doctor.Warning, From: string(e.From), To: string(e.To), Reason: e.Reason}
		if e.Kind == statelog.EventState {
			r.Severity = doctor.SeverityOf(string(e.To))
		}
		switch e.Kind {
		case statelog.EventGap:
			r.Gaps = e.Count
		case statelog.EventLost:
			r.Lost = e.Count
		case statelog.EventDropped:
			r.Epoch = e.Count
		}
	}
	return row, nil
}

// Setting is one setting in use, without secrets.
type Setting struct {
	Path    string `json:"name"`
	Value   string `json:"value"`
	Default string `json:"default"`
	Changed bool   `json:"changed"`
	Live    bool   `json:"live"` // a reload takes a change over
	Help    string `json:"help"`
}

// settings shows the settings in use: GET /admin/settings.
func (a *api) settings(*gin.Context) (any, error) {
	if a.opts.Settings == nil {
		return nil, ingest.ErrPast
	}
	file, all := a.opts.Settings()
	return gin.H{"file": file, "settings": all}, nil
}
