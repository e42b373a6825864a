package dynamo

import (
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strings"

	"github.com/gin-gonic/gin"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/access"
	"example.com/conductor/conductor/body"
	"example.com/conductor/conductor/forward"
	"example.com/conductor/conductor/server"
)

const (
	statusBadRequest    = http.StatusBadRequest
	statusUnprocessable = http.StatusUnprocessableEntity
	statusTooLarge      = http.StatusRequestEntityTooLarge
)

// exchange is one request with a body.
type exchange struct {
	gin   *gin.Context
	in    *body.Request
	limit int // elements of a list
}

// view returns the Conductor as the client sees it.
func (r *exchange) view(d *Dialect) conductor.View { return access.View(d.conductor, r.gin) }

// decode reads the body. It returns a *rejection.
func (r *exchange) decode(kind string, members ...member) error {
	if why := decode(r.in, r.limit, kind, members...); why != nil {
		return why
	}
	return nil
}

// body reads a body of at most limit bytes for a handler: the type, then the
// length, then, in the handler, the JSON. A handler sends its answer, or returns an
// error.
func (d *Dialect) body(limit int64, handle func(*exchange) error) gin.HandlerFunc {
	return func(g *gin.Context) {
		r := &exchange{gin: g, in: body.Get(), limit: d.cfg.MaxTokens}
		defer r.in.Release()
		err := r.fill(limit)
		if err == nil {
			err = handle(r)
		}
		if err != nil {
			fail(g, err)
		}
	}
}

// fill reads the bytes of the body.
func (r *exchange) fill(limit int64) error {
	if !isJSON(r.gin.GetHeader("Content-Type")) {
		return &rejection{http.StatusUnsupportedMediaType, "Expected request with `Content-Type: application/json`"}
	}
	const failed = "Failed to buffer the request body: "
	err := r.in.Fill(r.gin.Writer, r.gin.Request, limit)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, errors.ErrUnsupported):
		return &rejection{http.StatusUnsupportedMediaType, failed + errors.Unwrap(err).Error()}
	case errors.Is(err, body.ErrMemory):
		r.gin.Header("Retry-After", "1") // seconds
		return refusef(http.StatusServiceUnavailable, "%v", body.ErrMemory)
	case errors.As(err, new(*http.MaxBytesError)):
		return &rejection{statusTooLarge, failed + "length limit exceeded"}
	case errors.Is(err, io.ErrUnexpectedEOF):
		return &rejection{statusBadRequest, failed + "it ends early"}
	}
	return &rejection{statusBadRequest, failed + errors.Unwrap(err).Error()}
}

// queryBody lets a handler write the answer of a query to in.Out within a slot.
func (d *Dialect) queryBody(handle func(*exchange) error) gin.HandlerFunc {
	return d.body(maxQuery, func(r *exchange) error {
		err := d.cfg.Admission.Do(r.gin, func() error { return handle(r) })
		if err != nil {
			return forward.Send(r.gin, r.in.Src, err)
		}
		r.gin.Data(http.StatusOK, "application/json", r.in.Out)
		return nil
	})
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
func ok(g *gin.Context, status int) error {
	g.Data(status, "application/json", []byte(`{"status":"ok"}`))
	return nil
}

// A serviceError is an error of the service itself.
type serviceError struct {
	status int
	text   string
}

func (e *serviceError) Error() string { return e.text }

// refusef returns a *serviceError.
func refusef(status int, format string, args ...any) error {
	return &serviceError{status, fmt.Sprintf(format, args...)}
}

// fail answers with an error: plain text before the reference's service is asked, else
// {"error": text}.
func fail(g *gin.Context, err error) {
	var (
		rejected *rejection
		refused  *serviceError
	)
	status, reason := server.Status(err)
	if reason == server.NotDurable {
		g.Header("Retry-After", "1") // seconds
	}
	switch {
	case errors.As(err, &rejected):
		plain(g, rejected.status, rejected.text)
		return
	case errors.As(err, &refused):
		status = refused.status
	}
	row := body.AppendString([]byte(`{"error":`), err.Error(), false)
	g.Data(status, "application/json", append(row, '}'))
}

func plain(g *gin.Context, status int, text string) {
	server.Send(g, status, "text/plain; charset=utf-8", []byte(text))
}

func empty(g *gin.Context, status int) {
	g.Status(status)
	g.Writer.WriteHeaderNow()
}
