package dynamo

import (
	"errors"
	"io"
	"mime"
	"net/http"
	"strings"

	"github.com/gin-gonic/gin"

	"kvconductor/conductor"
	"kvconductor/conductor/body"
)

const (
	statusBadRequest    = http.StatusBadRequest
	statusUnprocessable = http.StatusUnprocessableEntity
	statusTooLarge      = http.StatusRequestEntityTooLarge
)

// exchange is one request with a body.
type exchange struct {
	*gin.Context
	in     *body.Request
	limit  int  // elements of a list
	inside bool // counts as a query
}

// decode reads the body, or answers why not.
func (r *exchange) decode(kind string, members ...member) bool {
	if why := decode(r.in, r.limit, kind, members...); why != nil {
		reject(r.Context, why)
		return false
	}
	return true
}

// body reads a body of at most limit bytes for a handler: the type, then the
// length, then, in the handler, the JSON.
func (d *Dialect) body(limit int64, handle func(*exchange)) gin.HandlerFunc {
	return func(g *gin.Context) {
		if !isJSON(g.GetHeader("Content-Type")) {
			plain(g, http.StatusUnsupportedMediaType, "Expected request with `Content-Type: application/json`")
			return
		}
		r := &exchange{Context: g, in: body.Get(), limit: d.cfg.MaxTokens}
		defer r.in.Release()
		if err := r.in.Fill(g.Writer, g.Request, limit); err != nil {
			switch {
			case errors.Is(err, errors.ErrUnsupported):
				plain(g, http.StatusUnsupportedMediaType, "Failed to buffer the request body: "+errors.Unwrap(err).Error())
			case errors.As(err, new(*http.MaxBytesError)):
				reject(g, &rejection{statusTooLarge, "Failed to buffer the request body: length limit exceeded"})
			case errors.Is(err, io.ErrUnexpectedEOF):
				plain(g, statusBadRequest, "Failed to buffer the request body: it ends early")
			default:
				plain(g, statusBadRequest, "Failed to buffer the request body: "+errors.Unwrap(err).Error())
			}
			return
		}
		handle(r)
	}
}

// queryBody makes a handler count, from the last byte of its body to its answer, as one of
// the queries there may be at once.
func (d *Dialect) queryBody(handle func(*exchange)) gin.HandlerFunc {
	return d.body(maxQuery, func(r *exchange) {
		if err := d.conductor.Enter(r.Request.Context()); err != nil {
			r.Header("Retry-After", "1") // the least it can say
			refuseError(r.Context, err)
			return
		}
		r.inside = true
		defer d.leave(r)
		handle(r)
	})
}

// answer sends the answer of a query, which from then on counts as none.
func (d *Dialect) answer(r *exchange) {
	d.leave(r)
	r.Data(http.StatusOK, "application/json", r.in.Out)
}

func (d *Dialect) leave(r *exchange) {
	if r.inside {
		r.inside = false
		d.conductor.Leave()
	}
}

// isJSON reports whether a content type is application/json or application/*+json.
func isJSON(contentType string) bool {
	kind, _, err := mime.ParseMediaType(contentType)
	if err != nil && !errors.Is(err, mime.ErrInvalidMediaParameter) {
		return false
	}
	sub, ok := strings.CutPrefix(kind, "application/")
	return ok && (sub == "json" || strings.HasSuffix(sub, "+json"))
}

// ok answers that something was done.
func ok(g *gin.Context, status int) { g.Data(status, "application/json", []byte(`{"status":"ok"}`)) }

// refuse answers with the service's own error.
func refuse(g *gin.Context, status int, text string) {
	row := body.AppendString([]byte(`{"error":`), text, false)
	g.Data(status, "application/json", append(row, '}'))
}

// refuseError answers with an error of the Conductor.
func refuseError(g *gin.Context, err error) {
	var field *conductor.FieldError
	status := http.StatusInternalServerError
	switch {
	case errors.As(err, &field):
		status = http.StatusBadRequest
	case errors.Is(err, conductor.ErrPast):
		status = http.StatusForbidden
	case errors.Is(err, conductor.ErrTooManySources), errors.Is(err, conductor.ErrClosed), errors.Is(err, conductor.ErrBusy):
		status = http.StatusServiceUnavailable
	}
	refuse(g, status, err.Error())
}

// reject answers as the reference's framework does, before its service is asked.
func reject(g *gin.Context, why *rejection) {
	if why.status == statusTooLarge && g.Request.ProtoMajor < 2 {
		// The rest of the body is not read, so the connection cannot go on.
		g.Header("Connection", "close")
	}
	plain(g, why.status, why.text)
}

func plain(g *gin.Context, status int, text string) {
	g.Data(status, "text/plain; charset=utf-8", []byte(text))
}

func empty(g *gin.Context, status int) {
	g.Status(status)
	g.Writer.WriteHeaderNow()
}
