package http

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"

	"github.com/gin-gonic/gin"

	"kvconductor/conductor"
	"kvconductor/conductor/body"
	"kvconductor/conductor/server"
	"kvconductor/conductor/snapshot"
)

// snapshot sends what all sources hold, for another replica: GET /admin/snapshot[?id=ID]. With
// the id, which the header ETag has, it is the snapshot that was sent before, so that a
// peer whose connection broke goes on with a Range.
func (a *api) snapshot(g *gin.Context) {
	s, err := a.spooled(g)
	if err != nil {
		refuse(g, body.JSON, err)
		return
	}
	if s == nil {
		respond(g, body.JSON, http.StatusGone, errorBody{Error: "the snapshot is not kept any more", Reason: "gone", Field: "id"})
		return
	}
	defer s.Release()
	h := g.Writer.Header()
	h.Set("Content-Type", snapshot.MediaType)
	h.Set("ETag", fmt.Sprintf(`"%016x"`, s.ID))
	h.Set("Conductor-Blocks", strconv.Itoa(s.Blocks))
	h.Add("Vary", "Accept-Encoding")
	to, done := server.CodedWriter(g)
	if to == nil {
		http.ServeContent(g.Writer, g.Request, "", s.Time, s.Reader())
		return
	}
	g.Status(http.StatusOK)
	if _, err := io.Copy(to, s.Reader()); err == nil {
		done()
	}
}

// spooled returns the snapshot to send, nil if it is not kept any more.
func (a *api) spooled(g *gin.Context) (*snapshot.Spooled, error) {
	if a.opts.Snapshots == nil {
		return nil, errors.New("this server takes no snapshots")
	}
	if text, again := g.GetQuery("id"); again {
		id, err := strconv.ParseUint(text, 16, 64)
		if err != nil {
			return nil, conductor.Invalid("id", "invalid_value", "id must be the hexadecimal number of a snapshot, got %q", text)
		}
		return a.opts.Snapshots.Again(id), nil
	}
	if a.conductor.Ready().Recovering {
		return nil, errRecovering
	}
	return a.opts.Snapshots.Take(a.conductor)
}

// errRecovering is the answer of a server that has not got its own blocks yet.
var errRecovering = errors.New("this server is recovering itself")
