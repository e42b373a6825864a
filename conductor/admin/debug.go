package admin

import (
	"bytes"
	"fmt"
	"net/http"
	"runtime/pprof"
	"runtime/trace"
	"time"

	"github.com/gin-gonic/gin"

	"example.com/conductor/conductor/reply"
	"example.com/conductor/conductor/server"
)

// Seconds of a profile over time.
const defaultProfile, maxProfile = 30, 60

// profile returns a profile of the process, as go tool pprof and go tool trace read it. No profile
// has the contents of memory: GET /debug/pprof/NAME?seconds=N&debug=N.
func (a *api) profile(g *gin.Context) (any, error) {
	seconds, err := reply.ReadNumber(g, "seconds", 1, maxProfile, defaultProfile)
	if err != nil {
		return nil, err
	}
	form, err := reply.ReadNumber(g, "debug", 0, 2, 0)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	switch name := g.Param("profile"); name {
	case "profile":
		if err := pprof.StartCPUProfile(&out); err != nil {
			return nil, fmt.Errorf("%w: %w", server.ErrBusy, err)
		}
		waitFor(g, seconds)
		pprof.StopCPUProfile()
	case "trace":
		if err := trace.Start(&out); err != nil {
			return nil, fmt.Errorf("%w: %w", server.ErrBusy, err)
		}
		waitFor(g, seconds)
		trace.Stop()
	default:
		p := pprof.Lookup(name)
		if p == nil {
			return reply.Result{Status: http.StatusNotFound,
				Body: reply.ErrorBody{Error: fmt.Sprintf("there is no profile %q", name), Reason: "not_found"}}, nil
		}
		if err := p.WriteTo(&out, int(form)); err != nil {
			return nil, err
		}
	}
	return reply.File{ContentType: "application/octet-stream", Bytes: out.Bytes()}, nil
}

// waitFor returns after some seconds, or when the client goes away.
func waitFor(g *gin.Context, seconds uint64) {
	t := time.NewTimer(time.Duration(seconds) * time.Second)
	defer t.Stop()
	select {
	case <-t.C:
	case <-g.Request.Context().Done():
	}
}
