package admin

import (
	"errors"
	"net/http"
	"time"

	"github.com/gin-gonic/gin"

	"example.com/conductor/conductor/access"
	"example.com/conductor/conductor/body"
	"example.com/conductor/conductor/reply"
	"example.com/conductor/conductor/server"
	"example.com/conductor/conductor/watch"
)

const (
	// keepAlive is the pause between comments, which show both ends that the other is there.
	keepAlive = 15 * time.Second
	// recheck is how long a client that may look no more looks on.
	recheck = 2 * keepAlive
	// viewerPatience is how long a viewer may take for what it was sent.
	viewerPatience = 30 * time.Second
)

// live streams how the fleet is, and what changes: GET /admin/live?feed=1. It ends with the
// client, with its permission, and when the server leaves.
func (a *api) live(g *gin.Context) {
	feed, err := reply.ReadFlag(g, "feed")
	if err == nil && a.opts.Watch == nil {
		err = errNotWatched
	}
	if err != nil {
		reply.Refuse(g, body.JSON, err)
		return
	}
	v, err := a.opts.Watch.Join(access.View(a.conductor, g).Tenants(), feed)
	switch {
	case errors.Is(err, watch.ErrDisabled):
		err = &server.Refusal{Status: http.StatusNotFound, Reason: "disabled", Text: err.Error()}
	case errors.Is(err, watch.ErrBusy):
		err = &server.Refusal{Status: http.StatusServiceUnavailable, Reason: "busy", Text: err.Error()}
	}
	if err != nil {
		reply.Refuse(g, body.JSON, err)
		return
	}
	defer a.opts.Watch.Leave(v)
	header := g.Writer.Header()
	header.Set("Content-Type", "text/event-stream")
	header.Set("Cache-Control", "no-store")
	header.Set("X-Accel-Buffering", "no") // proxies of that kind hold streams back
	g.Status(http.StatusOK)
	control := http.NewResponseController(g.Writer)
	send := func(frames ...[]byte) bool {
		control.SetWriteDeadline(time.Now().Add(viewerPatience)) // where there are deadlines
		for _, f := range frames {
			if _, err := g.Writer.Write(f); err != nil {
				return false
			}
		}
		g.Writer.Flush()
		return g.Request.Context().Err() == nil
	}
	if !send() {
		return
	}
	alive := time.NewTicker(keepAlive)
	defer alive.Stop()
	checked := time.Now()
	for {
		for frames := v.Take(); len(frames) > 0; frames = v.Take() {
			if !send(frames...) {
				return
			}
		}
		select {
		case <-v.Wake():
		case <-alive.C:
			if now := time.Now(); now.Sub(checked) >= recheck-time.Second {
				if checked = now; a.opts.Again != nil && !a.opts.Again(g) {
					return
				}
			}
			if !send([]byte(": alive\n\n")) {
				return
			}
		case <-v.Over():
			return
		case <-g.Request.Context().Done():
			return
		}
	}
}
