package http

import (
	"encoding/json"
	"math"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/prometheus/client_golang/prometheus"

	"example.com/conductor/bounds"
	"example.com/conductor/conductor"
	"example.com/conductor/conductor/access"
	"example.com/conductor/conductor/body"
	"example.com/conductor/conductor/reply"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/conductor/server"
	"example.com/conductor/conductor/status"
)

const (
	// watchPace is how often a watch compares the instances with those it has sent.
	watchPace = 250 * time.Millisecond
	// watchAlive is how long a watch sends nothing at most. Then it also looks whether its client may still watch.
	watchAlive = 15 * time.Second
	// watchPatience is how long a client may take for what it was sent.
	watchPatience = 30 * time.Second
)

// Watches are the open watches of instances, over all listeners. Make one with NewWatches. It is a prometheus.Collector.
type Watches struct {
	conductor *conductor.Conductor
	slots     *bounds.Slots
	over      chan struct{}
	ending    sync.Once
	alive     time.Duration // watchAlive, shorter in tests

	mu   sync.Mutex // guards the rest
	read time.Time  // when all was read
	all  []status.Instance
}

// NewWatches returns the watches of a server. At most most may be open at once, and one client may have a quarter of them.
func NewWatches(c *conductor.Conductor, most int) *Watches {
	return &Watches{conductor: c, slots: bounds.NewSlots(most, (most+3)/4), over: make(chan struct{}), alive: watchAlive}
}

// instances returns all instances of all tenants, as they were less than watchPace ago. All watches share the list, which is the same
// one while nothing has changed, and is not to be changed.
func (w *Watches) instances() []status.Instance {
	w.mu.Lock()
	defer w.mu.Unlock()
	if now := time.Now(); now.Sub(w.read) >= watchPace*9/10 { // the ticks of two watches are not in step
		w.read = now
		equal := func(a, b status.Instance) bool { return a.Equal(&b) }
		if all := conductor.Instances(w.conductor.For(conductor.Reader{})); w.all == nil || !slices.EqualFunc(all, w.all, equal) {
			w.all = listed(all)
		}
	}
	return w.all
}

var descWatches = prometheus.NewDesc("conductor_instance_watches", "Open watches of GET /instances.", nil, nil)

// Describe implements prometheus.Collector.
func (w *Watches) Describe(ch chan<- *prometheus.Desc) { ch <- descWatches }

// Collect implements prometheus.Collector.
func (w *Watches) Collect(ch chan<- prometheus.Metric) {
	open, _ := w.slots.Count()
	ch <- prometheus.MustNewConstMetric(descWatches, prometheus.GaugeValue, float64(open))
}

// Close ends all watches, and those that still come.
func (w *Watches) Close() { w.ending.Do(func() { close(w.over) }) }

// enter takes a slot for a watch. It returns a *server.Refusal if there is none.
func (w *Watches) enter(flow string) error {
	if w == nil {
		return &server.Refusal{Status: http.StatusNotFound, Reason: "disabled", Text: "this server has no watches"}
	}
	if w.slots.TryEnter(bounds.Flow{Name: flow}) == nil {
		return nil
	}
	return &server.Refusal{Status: http.StatusServiceUnavailable, Reason: "busy",
		Text: "too many watches are open, of this client or of all together"}
}

// instances lists where requests may go: GET /instances. With Accept: text/event-stream the answer goes on with what changes.
func (a *api) instances(g *gin.Context, codec body.Codec) {
	if !strings.Contains(g.GetHeader("Accept"), "text/event-stream") {
		reply.Send(g, codec, http.StatusOK, gin.H{"instances": listed(conductor.Instances(access.View(a.conductor, g)))})
		return
	}
	flow := server.FlowOf(g).Name
	if err := a.opts.Watches.enter(flow); err != nil {
		reply.Refuse(g, codec, err)
		return
	}
	defer a.opts.Watches.slots.Leave(bounds.Flow{Name: flow})
	a.watchInstances(g)
}

// listed returns rows that are an empty list in JSON if there are none.
func listed[T any](rows []T) []T {
	if rows == nil {
		return []T{}
	}
	return rows
}

// gone names an instance that has left.
type gone struct {
	Tenant    string `json:"tenant_id"`
	Model     string `json:"model"`
	BlockSize int    `json:"block_size"`
	Name      string `json:"instance_id"`
}

// changes says how the instances differ from those of the event before.
type changes struct {
	Changed []status.Instance `json:"changed"` // or new
	Gone    []gone            `json:"gone"`
}

// watchInstances sends the event "instances" with all of them, and then "changes" whenever there are any. It ends with the client, with
// its permission, and when the server leaves.
func (a *api) watchInstances(g *gin.Context) {
	header := g.Writer.Header()
	header.Set("Content-Type", "text/event-stream")
	header.Set("Cache-Control", "no-store")
	header.Set("X-Accel-Buffering", "no") // proxies of that kind hold streams back
	g.Status(http.StatusOK)
	control := http.NewResponseController(g.Writer)
	sentAt, checkedAt := time.Now(), time.Now()
	send := func(frame []byte) bool {
		sentAt = time.Now()
		_ = control.SetWriteDeadline(sentAt.Add(watchPatience)) // a recorder in a test has none
		_, err := g.Writer.Write(frame)
		g.Writer.Flush()
		return err == nil
	}
	tenants := access.View(a.conductor, g).Tenants()
	whole := a.opts.Watches.instances()
	known := visible(whole, tenants)
	if !send(event("instances", gin.H{"instances": known})) {
		return
	}
	pace := time.NewTicker(watchPace)
	defer pace.Stop()
	for {
		select {
		case <-pace.C:
		case <-a.opts.Watches.over:
			return
		case <-g.Request.Context().Done():
			return
		}
		now := time.Now()
		if now.Sub(checkedAt) >= a.opts.Watches.alive {
			if checkedAt = now; a.opts.Again != nil && !a.opts.Again(g) {
				return
			}
		}
		var c changes
		if next := a.opts.Watches.instances(); len(next) != len(whole) || len(next) > 0 && &next[0] != &whole[0] {
			all := visible(next, tenants)
			whole, known, c = next, all, changesOf(known, all)
		}
		if len(c.Changed)+len(c.Gone) > 0 {
			if !send(event("changes", c)) {
				return
			}
		} else if now.Sub(sentAt) >= a.opts.Watches.alive && !send([]byte(": alive\n\n")) {
			return
		}
	}
}

// visible returns the instances of some tenants.
func visible(all []status.Instance, tenants scope.Tenants) []status.Instance {
	if tenants.All() {
		return all
	}
	return slices.DeleteFunc(slices.Clone(all), func(i status.Instance) bool { return !tenants.Has(i.Tenant) })
}

// event returns a server-sent event.
func event(name string, data any) []byte {
	text, err := json.Marshal(data)
	if err != nil {
		panic("BUG: an event cannot be encoded: " + err.Error())
	}
	return append(append([]byte("event: "+name+"\ndata: "), text...), "\n\n"...)
}

// changesOf compares two sorted lists.
func changesOf(before, now []status.Instance) (c changes) {
	c = changes{Changed: []status.Instance{}, Gone: []gone{}}
	for len(before) > 0 || len(now) > 0 {
		order := math.MaxInt
		switch {
		case len(now) == 0:
			order = -1
		case len(before) > 0:
			order = before[0].Compare(&now[0])
		}
		switch {
		case order < 0:
			left := &before[0]
			c.Gone, before = append(c.Gone, gone{left.Tenant, left.Model, left.BlockSize, left.Name}), before[1:]
		case order > 0:
			c.Changed, now = append(c.Changed, now[0]), now[1:]
		default:
			if !before[0].Equal(&now[0]) {
				c.Changed = append(c.Changed, now[0])
			}
			before, now = before[1:], now[1:]
		}
	}
	return c
}
