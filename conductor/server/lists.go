package server

import (
	"net/http"
	"time"

	"github.com/gin-gonic/gin"

	"example.com/conductor/conductor/body"
)

// Lists bounds how many answers of GET requests are made at once: a list of a large fleet
// takes megabytes while it is made. The slot of a request is free again once the answer is
// there; slow clients hold none.
type Lists struct{ slots *Admission }

// Bounds of Lists.
const (
	maxLists  = 2
	listsWait = 5 * time.Second
)

// NewLists returns a Lists.
func NewLists() *Lists { return &Lists{NewAdmission(maxLists, listsWait)} }

// Bound is the middleware of the paths whose answers are lists. A nil Lists bounds nothing.
func (l *Lists) Bound(g *gin.Context) {
	if l == nil {
		return
	}
	flow := FlowOf(g)
	if err := l.slots.Enter(g.Request.Context(), flow); err != nil {
		SendError(g, body.JSON, http.StatusServiceUnavailable, "busy", "too many lists are asked for at once: try again")
		g.Abort()
		return
	}
	w := &listWriter{ResponseWriter: g.Writer, leave: func() { l.slots.Leave(flow) }}
	g.Writer = w
	defer w.giveSlotBack()
	g.Next()
}

// listWriter gives the slot back when the answer is there.
type listWriter struct {
	gin.ResponseWriter
	leave func() // nil when it is given back
}

// giveSlotBack gives the slot back, unless that is done already.
func (w *listWriter) giveSlotBack() {
	if w.leave != nil {
		w.leave()
		w.leave = nil
	}
}

// Write implements io.Writer.
func (w *listWriter) Write(p []byte) (int, error) {
	w.giveSlotBack()
	return w.ResponseWriter.Write(p)
}

// Unwrap is for http.ResponseController.
func (w *listWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
