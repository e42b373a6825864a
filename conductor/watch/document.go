package watch

import (
	"cmp"
	"encoding/json"
	"math"
	"slices"
	"strconv"
	"time"

	"example.com/conductor/conductor/doctor"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/events/stream"
	"example.com/conductor/tiers"
)

// Snapshots are those that the server keeps on its disk.
type Snapshots struct {
	Enabled bool       `json:"enabled"`
	Last    *time.Time `json:"last"`  // of the newest, null before the first
	Age     *float64   `json:"age_s"` // of it in seconds
	Bytes   int64      `json:"bytes"` // of it
	Error   string     `json:"error"` // why the last try failed, "" if it did not
}

// Replica is a peer that the server compares itself with.
type Replica struct {
	Peer        string     `json:"peer"`
	Compared    *time.Time `json:"compared"` // null before the first time
	State       string     `json:"state"`    // the worst result of a source, unreachable, or none before the first comparison
	Differences int        `json:"differences"`
	Behind      uint64     `json:"behind"` // batches
	Error       string     `json:"error"`
}

// Store is what replicas share.
type Store struct {
	Address string    `json:"address"` // without user and password
	Up      bool      `json:"up"`
	Since   time.Time `json:"since"` // of Up
	Error   string    `json:"error"` // of the last beat, "" for none
	Lost    uint64    `json:"lost"`  // how often it had lost what it was told
	// Unproven is how many replicas in the store do not prove that they know the token of this one.
	Unproven int      `json:"unproven"`
	Members  []Member `json:"replicas"`
}

// Member is a replica that shares the store.
type Member struct {
	ID      string    `json:"id"`
	URL     string    `json:"url"`
	Self    bool      `json:"self"` // it is this server
	Version string    `json:"version"`
	Weight  float64   `json:"weight"`
	Started time.Time `json:"started"`
	Lease   float64   `json:"lease_s"` // left of it
}

// header is what /admin/stats has besides sources.
type header struct {
	Time    time.Time  `json:"time"`
	Version string     `json:"version,omitempty"`
	Started *time.Time `json:"started,omitempty"`
	// Tenants are those whose sources the credentials see, as /services names them: absent from changes, and if they see all.
	Tenants scope.Tenants `json:"tenants,omitzero"`
	Ready   readyRow      `json:"ready"`
	Totals  totalsRow     `json:"totals"`

	Summary  string `json:"summary"` // of /ready, but of the sources in view
	Severity string `json:"summary_severity"`

	States    map[stream.State]int `json:"states"`
	Tiers     []tierRow            `json:"tiers"`
	History   *historyRow          `json:"history,omitempty"`
	Point     pointRow             `json:"point,omitempty"`
	Snapshots *Snapshots           `json:"snapshots,omitempty"`
	Replicas  *[]Replica           `json:"replicas,omitempty"`
	Store     *Store               `json:"store,omitempty"`
	Process   *Process             `json:"process,omitempty"`
	Gone      *[]string            `json:"gone,omitempty"`
	listsRow
}

type readyRow struct {
	Ready      bool `json:"ready"`
	Recovering bool `json:"recovering"`
	Draining   bool `json:"draining"`
	Synced     int  `json:"synced"`
	Waiting    int  `json:"waiting"`
	GivenUp    int  `json:"given_up"`
}

type totalsRow struct {
	Sources     int     `json:"sources"`
	Instances   int     `json:"instances"`
	Blocks      int     `json:"blocks"`
	Memberships int     `json:"memberships"`
	Duplication float64 `json:"duplication"`
	Bytes       *int64  `json:"bytes,omitempty"`
	BytesLimit  *int64  `json:"bytes_limit,omitempty"`
	Events      float64 `json:"events_per_s"`
	Queries     float64 `json:"queries_per_s"`
	Asked       uint64  `json:"asked_tokens"`
	Cached      uint64  `json:"cached_tokens"`
	Ranks       int     `json:"ranks"`

	Findings findingsRow `json:"findings"`
}

// findingsRow counts findings, and what leads to no source, by how much they matter.
type findingsRow struct {
	Errors   int `json:"error"`
	Warnings int `json:"warning"`
	Infos    int `json:"info"`
}

// add counts n findings of a severity.
func (f *findingsRow) add(s doctor.Severity, n int) {
	switch s {
	case doctor.Error:
		f.Errors += n
	case doctor.Warning:
		f.Warnings += n
	case doctor.Info:
		f.Infos += n
	}
}

// addAll adds other counts.
func (f *findingsRow) addAll(o findingsRow) {
	f.Errors += o.Errors
	f.Warnings += o.Warnings
	f.Infos += o.Infos
}

type tierRow struct {
	Tier   string         `json:"tier"`
	Blocks int            `json:"blocks"`
	Media  map[string]int `json:"media"`
}

type historyRow struct {
	Step   int        `json:"step_s"`
	Points []pointRow `json:"points"`
}

// historyOf returns the history of some tenants, or of one of their models. mu is held.
func (h *Hub) historyOf(tenants scope.Tenants, model string) *historyRow {
	out := &historyRow{Step: int(step / time.Second), Points: []pointRow{}}
	for _, p := range h.history.pointsOf(tenants, model) {
		out.Points = append(out.Points, p.row())
	}
	return out
}

// pointRow is a point: seconds since 1970, blocks on devices, in host memory and on disks, events and queries a
// second, tokens asked for and found, refused requests a second, and the p50 and p99 of queries in seconds. The last
// three are null for clients of some tenants and for a model, times also without queries.
type pointRow []any

func (p *point) row() pointRow {
	row := pointRow{p.at, p.device, p.host, p.disk, p.events, p.queries, p.asked, p.cached}
	for _, v := range []float64{p.refused, p.p50, p.p99} {
		if math.IsNaN(v) {
			row = append(row, nil)
		} else {
			row = append(row, v)
		}
	}
	return row
}

// makeHeader returns the part of documents that does not grow with the fleet. mu is held.
func (h *Hub) makeHeader(tenants scope.Tenants) *header {
	c := h.now
	t := c.totalOf(tenants)
	out := &header{
		Time:  c.at.UTC(),
		Ready: readyRow{Ready: c.ready.Ready, Recovering: c.ready.Recovering, Synced: t.synced, Waiting: t.waiting, GivenUp: t.givenUp},
		Totals: totalsRow{
			Sources: t.sources, Instances: t.instances, Blocks: t.blocks, Memberships: t.memberships, Events: math.Round(10*t.rate) / 10,
			Queries: t.asked, Asked: t.queries.Asked, Cached: t.queries.Matched, Ranks: t.ranks, Findings: t.findings,
		},
		States: t.states,
	}
	lists := c.lists.visibleTo(tenants)
	out.Totals.Findings.addAll(lists.findings())
	if h.cfg.Draining != nil && h.cfg.Draining() {
		out.Ready.Draining, out.Ready.Ready = true, false
	}
	summary, severity := c.ready.Summary(tenants, out.Ready.Draining)
	out.Summary, out.Severity = summary, string(severity)
	if t.blocks > 0 {
		out.Totals.Duplication = math.Round(100*float64(t.memberships)/float64(t.blocks)) / 100
	}
	for tier := tiers.Device; tier <= tiers.Other; tier++ {
		r := tierRow{Tier: tier.String(), Media: make(map[string]int)}
		for m, n := range t.media {
			if m.Tier == tier {
				r.Media[m.Name] += n
				r.Blocks += n
			}
		}
		if tier <= tiers.Disk || len(r.Media) > 0 {
			out.Tiers = append(out.Tiers, r)
		}
	}
	if !tenants.All() {
		return out
	}
	out.Totals.Bytes, out.Totals.BytesLimit = &c.bytes, &c.limit
	out.Snapshots, out.Replicas, out.Process = new(Snapshots), &[]Replica{}, h.processOf()
	if h.cfg.Snapshots != nil {
		*out.Snapshots = h.cfg.Snapshots()
	}
	if h.cfg.Store != nil {
		out.Store = h.cfg.Store()
	}
	if h.cfg.Replicas != nil {
		out.Replicas = new([]Replica)
		*out.Replicas = append([]Replica{}, h.cfg.Replicas()...)
	}
	return out
}

// makeDocument returns the whole state, with at most top sources if that is not 0, and with the history of past, nil for
// none. mu is held.
func (h *Hub) makeDocument(tenants scope.Tenants, top int, past *historyRow) []byte {
	out := h.makeHeader(tenants)
	out.Version, out.Tenants = h.cfg.Version, tenants
	out.listsRow = h.now.lists.visibleTo(tenants)
	started := h.started.UTC()
	out.Started = &started
	out.History = past
	rows := make([]*row, 0, len(h.now.rows))
	for i := range h.now.rows {
		if r := &h.now.rows[i]; tenants.Has(r.key.Tenant) {
			rows = append(rows, r)
		}
	}
	if top > 0 && top < len(rows) {
		slices.SortStableFunc(rows, func(a, b *row) int {
			return cmp.Or(a.worst.Compare(b.worst), cmp.Compare(b.rate, a.rate))
		})
		rows = rows[:top]
	}
	return withRows(out, rows)
}

// makeDifference returns what the newest collection changes. mu is held.
func (h *Hub) makeDifference(tenants scope.Tenants) []byte {
	out := h.makeHeader(tenants)
	out.Gone, out.listsRow = &[]string{}, h.now.lists.changedFor(&h.now.were, tenants)
	for _, key := range h.now.gone {
		if tenants.Has(key.Tenant) {
			*out.Gone = append(*out.Gone, key.String())
		}
	}
	if h.now.point != nil {
		if points := h.history.pointsOf(tenants, ""); len(points) > 0 && points[len(points)-1].at == h.now.point.at {
			out.Point = points[len(points)-1].row()
		}
	}
	var rows []*row
	for _, i := range h.now.changed {
		if r := &h.now.rows[i]; tenants.Has(r.key.Tenant) {
			rows = append(rows, r)
		}
	}
	return withRows(out, rows)
}

// withRows encodes a document with its sources.
func withRows(out *header, rows []*row) []byte {
	head, err := json.Marshal(out)
	if err != nil {
		panic("BUG: a document cannot be encoded: " + err.Error())
	}
	n := len(head) + 32
	for _, r := range rows {
		n += len(r.text) + 32
	}
	text := append(append(make([]byte, 0, n), head[:len(head)-1]...), `,"sources":[`...)
	for i, r := range rows {
		if i > 0 {
			text = append(text, ',')
		}
		text = append(append(text, r.text...), `,"age_ms":`...)
		text = append(strconv.AppendInt(text, r.age, 10), '}')
	}
	return append(text, "]}"...)
}
