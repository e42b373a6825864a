package server

import (
	"net/http"
	"time"

	"github.com/gin-gonic/gin"

	"example.com/conductor/conductor/body"
)

// Lists bounds how many answers of GET requests are made at once: a list of a large fleet
// takes megabytes while it is made. The place of a request is free again once the answer is
// there; slow clients hold none.
type Lists struct{ places *Admission }

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
	if err := l.places.Enter(g.Request.Context(), flow); err != nil {
		SendError(g, body.JSON, http.StatusServiceUnavailable, "busy", "too many lists are asked for at once: try again")
		g.Abort()
		return
	}
	w := &listWriter{ResponseWriter: g.Writer, leave: func() { l.places.Leave(flow) }}
	g.Writer = w
	defer w.givePlaceBack()
	g.Next()
}

// listWriter gives the place back when the answer is there.
type listWriter struct {
	gin.ResponseWriter
	leave func() // nil when it is given back
}

// givePlaceBack gives the place back, unless that is done already.
func (w *listWriter) givePlaceBack() {
	if w.leave != nil {
		w.leave()
		w.leave = nil
	}
}

// Write implements io.Writer.
func (w *listWriter) Write(p []byte) (int, error) {
	w.givePlaceBack()
	return w.ResponseWriter.Write(p)
}

// Unwrap is for http.ResponseController.
func (w *listWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
