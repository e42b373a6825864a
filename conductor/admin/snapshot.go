package admin

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"

	"github.com/gin-gonic/gin"

	"example.com/conductor/conductor/body"
	"example.com/conductor/conductor/ingest"
	"example.com/conductor/conductor/invalid"
	"example.com/conductor/conductor/reply"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/conductor/server"
	"example.com/conductor/history"
	"example.com/conductor/history/peer"
)

// snapshot sends what sources hold, for another replica: GET /admin/snapshot. They are those of one
// deployment with tenant_id, model and block_size. With the id, which the header ETag has, it is the
// snapshot that was sent before, so that a peer whose connection broke goes on with a Range.
func (a *api) snapshot(g *gin.Context) {
	s, err := a.spooled(g)
	if err != nil {
		reply.Refuse(g, body.JSON, err)
		return
	}
	if s == nil {
		reply.Send(g, body.JSON, http.StatusGone, reply.ErrorBody{Error: "the snapshot is not kept any more", Reason: "gone", Field: "id"})
		return
	}
	defer s.Release()
	h := g.Writer.Header()
	h.Set("Content-Type", history.MediaType)
	h.Set("ETag", fmt.Sprintf(`"%016x"`, s.ID))
	h.Set("Conductor-Blocks", strconv.Itoa(s.Blocks))
	h.Add("Vary", "Accept-Encoding")
	to := server.CodedWriter(g)
	if to == nil {
		http.ServeContent(g.Writer, g.Request, "", s.Time, s.Reader())
		return
	}
	g.Status(http.StatusOK)
	if _, err := io.Copy(to, s.Reader()); err == nil {
		to.Close()
	}
}

// spooled returns the snapshot to send, nil if it is not kept any more.
func (a *api) spooled(g *gin.Context) (*peer.Spooled, error) {
	if a.opts.Snapshots == nil {
		return nil, errors.New("this server takes no snapshots")
	}
	if text, again := g.GetQuery("id"); again {
		id, err := strconv.ParseUint(text, 16, 64)
		if err != nil {
			return nil, invalid.Field("id", "invalid_value", "id must be the hexadecimal number of a snapshot, got %q", text)
		}
		return a.opts.Snapshots.FindSnapshot(id), nil
	}
	of, err := snapshotScope(g)
	if err != nil {
		return nil, err
	}
	if a.conductor.Ready().Recovering {
		return nil, reply.ErrRecovering
	}
	if of != (scope.Deployment{}) && !a.conductor.Sources().Snapshots().Registered(of) {
		return nil, fmt.Errorf("%w: no source of this deployment is registered here", ingest.ErrNotFound)
	}
	return a.opts.Snapshots.MakeSnapshot(a.conductor, of)
}

// snapshotScope reads which deployment is asked for; the zero value is all.
func snapshotScope(g *gin.Context) (of scope.Deployment, err error) {
	model, size := g.Query("model"), g.Query("block_size")
	tenant, tenanted := g.GetQuery("tenant_id")
	switch {
	case model == "" && size == "" && !tenanted:
		return of, nil
	case model == "":
		return of, invalid.Field("model", "missing", "model must name the model of the deployment")
	}
	n, err := strconv.ParseUint(size, 10, 31)
	if err != nil || n == 0 {
		return of, invalid.Field("block_size", "invalid_value",
			"block_size must be the number of tokens in a block of the deployment, got %q", size)
	}
	return scope.Deployment{Tenant: cmp.Or(tenant, scope.DefaultTenant), Model: model, BlockSize: int(n)}, nil
}
