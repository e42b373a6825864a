package dynamo

import (
	"cmp"
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/gin-gonic/gin"

	"example.com/conductor/conductor/access"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/conductor/status"
)

// Statuses of a listener, from bad to good: a worker has the worst of its
// listeners', and one that works counts before one that was paused.
const (
	statusFailed  = "failed"
	statusPending = "pending"
	statusActive  = "active"
	statusPaused  = "paused"
)

var statuses = []string{statusFailed, statusPending, statusActive, statusPaused}

// listenerStatus is the state of a source in Dynamo's words. To it a listener is
// active once the recovery from peers is over: connecting is the transport's own
// business.
func listenerStatus(s *status.Source) string { return statusOf(string(s.State), s.Pending) }

func statusOf(state string, pending bool) string {
	switch {
	case state == "failed":
		return statusFailed
	case state == "paused":
		return statusPaused
	case pending:
		return statusPending
	}
	return statusActive
}

// workerRow is one row of /workers.
type workerRow struct {
	InstanceID   instanceID             `json:"instance_id"`
	Source       string                 `json:"source"`
	Status       string                 `json:"status"`
	Model        string                 `json:"model_name"`
	RoutingGroup string                 `json:"routing_group"`
	BlockSize    int                    `json:"block_size"`
	Endpoints    map[string]string      `json:"endpoints"`
	Listeners    map[string]listenerRow `json:"listeners"`
}

// listenerRow is one rank of a worker. What follows LastError is ours.
type listenerRow struct {
	Endpoint  string  `json:"endpoint"`
	Status    string  `json:"status"`
	LastError string  `json:"last_error,omitempty"`
	State     string  `json:"state"`
	Reason    string  `json:"reason"`
	Epoch     uint64  `json:"epoch"`
	Watermark *uint64 `json:"watermark"` // null before the first batch
}

// workers lists the workers: GET /workers?model_name=M&routing_group=G. tenant_id
// is no filter, and may be there once.
func (d *Dialect) workers(g *gin.Context) {
	filter, repeated := queryString(g.Request.URL.RawQuery, "model_name", "routing_group", "tenant_id")
	if repeated != "" {
		plain(g, http.StatusBadRequest, "Failed to deserialize query string: duplicate field `"+repeated+"`")
		return
	}
	group := filter["routing_group"]
	if group != nil && *group == "" {
		group = nil // as in all other requests
	}
	rows := workerRows(access.View(d.conductor, g).Services(), filter["model_name"], group)
	body, err := json.Marshal(rows)
	if err != nil {
		panic("BUG: workers cannot be encoded: " + err.Error())
	}
	g.Data(http.StatusOK, "application/json", body)
}

// listed is what the sources of one row of /workers have in common.
type listed struct {
	instance, model, tenant string
	blockSize               int
}

func listedAs(r *registration.Registration) listed {
	return listed{r.Instance, r.Model, r.Tenant, r.BlockSize}
}

// workerRows groups sources by worker; nil filters nothing.
func workerRows(services []status.Source, model, group *string) []workerRow {
	rows := make(map[listed]*workerRow)
	for i := range services {
		s := &services[i]
		if !isListener(s) || model != nil && *model != s.Model || group != nil && *group != s.Tenant {
			continue
		}
		key := listedAs(&s.Registration)
		row := rows[key]
		if row == nil {
			row = &workerRow{
				InstanceID: instanceID(s.Instance), Source: "zmq", Status: statusPaused, Model: s.Model, RoutingGroup: s.Tenant,
				BlockSize: s.BlockSize, Endpoints: make(map[string]string), Listeners: make(map[string]listenerRow),
			}
			rows[key] = row
		}
		rank, status := strconv.Itoa(s.Rank), listenerStatus(s)
		row.Endpoints[rank] = s.Endpoint
		row.Listeners[rank] = listenerRow{
			Endpoint: s.Endpoint, Status: status, LastError: s.LastError,
			State: string(s.State), Reason: s.Reason, Epoch: s.Epoch, Watermark: s.LastSeq,
		}
		if slices.Index(statuses, status) < slices.Index(statuses, row.Status) {
			row.Status = status
		}
	}
	all := make([]workerRow, 0, len(rows))
	for _, row := range rows {
		all = append(all, *row)
	}
	slices.SortFunc(all, func(a, b workerRow) int {
		return cmp.Or(compareIDs(string(a.InstanceID), string(b.InstanceID)), strings.Compare(a.Model, b.Model),
			strings.Compare(a.RoutingGroup, b.RoutingGroup), a.BlockSize-b.BlockSize)
	})
	return all
}

// Workers returns how many workers there are.
func (d *Dialect) Workers() int {
	type worker struct {
		scope.Shard
		instance string
	}
	all := make(map[worker]bool)
	for _, r := range d.conductor.Registrations() {
		if isWorker(&r) {
			all[worker{scope.Shard{Tenant: r.Tenant, Model: r.Model}, r.Instance}] = true
		}
	}
	return len(all)
}

// queryString reads the named parameters of a query string, and tells the first
// that is there twice. What cannot be decoded stands for itself.
func queryString(raw string, names ...string) (values map[string]*string, repeated string) {
	values = make(map[string]*string)
	for pair := range strings.SplitSeq(raw, "&") {
		name, value, _ := strings.Cut(pair, "=")
		name, value = unescape(name), unescape(value)
		if !slices.Contains(names, name) {
			continue
		}
		if values[name] != nil {
			return nil, name
		}
		values[name] = &value
	}
	return values, ""
}

func unescape(s string) string {
	if plain, err := url.QueryUnescape(s); err == nil {
		return plain
	}
	return s
}
