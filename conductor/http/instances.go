package http

import (
	"encoding/json"
	"math"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/gin-gonic/gin"

	"example.com/conductor/bounds"
	"example.com/conductor/conductor"
	"example.com/conductor/conductor/access"
	"example.com/conductor/conductor/body"
	"example.com/conductor/conductor/reply"
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

// Watches are the open watches of instances, over all listeners. Make one with NewWatches.
type Watches struct {
	slots  *bounds.Slots
	most   int
	over   chan struct{}
	ending sync.Once
}

// NewWatches returns a Watches for at most a number of open watches, of which one client has a quarter.
func NewWatches(most int) *Watches {
	return &Watches{slots: bounds.NewSlots(most, (most+3)/4), most: most, over: make(chan struct{})}
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

// changes are what is new since the event before.
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
	known := conductor.Instances(access.View(a.conductor, g))
	if !send(event("instances", gin.H{"instances": listed(known)})) {
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
		if now.Sub(checkedAt) >= watchAlive {
			if checkedAt = now; a.opts.Again != nil && !a.opts.Again(g) {
				return
			}
		}
		next := conductor.Instances(access.View(a.conductor, g))
		if c := changesOf(known, next); len(c.Changed)+len(c.Gone) > 0 {
			if known = next; !send(event("changes", c)) {
				return
			}
		} else if now.Sub(sentAt) >= watchAlive && !send([]byte(": alive\n\n")) {
			return
		}
	}
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
