package dynamo

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"strings"
	"sync"

	"github.com/gin-gonic/gin"

	"kvconductor/conductor"
	"kvconductor/conductor/prompt"
)

const (
	statusBadRequest    = http.StatusBadRequest
	statusUnprocessable = http.StatusUnprocessableEntity
	statusTooLarge      = http.StatusRequestEntityTooLarge
)

// exchange is one request with a body, and what is read from that. Exchanges are
// used again, with their buffers.
type exchange struct {
	*gin.Context
	src    []byte
	tokens []uint32
	hashes []uint64
	inside bool // counts as a query
}

var exchanges = sync.Pool{New: func() any { return new(exchange) }}

// release gives the buffers back, but for those that one giant request has made.
func (r *exchange) release() {
	r.Context = nil
	r.src = prompt.Kept(r.src, prompt.KeepBytes)
	r.tokens, r.hashes = prompt.Kept(r.tokens, prompt.KeepNumbers), prompt.Kept(r.hashes, prompt.KeepNumbers)
	exchanges.Put(r)
}

// decode reads the body, or answers why not.
func (r *exchange) decode(kind string, members ...member) bool {
	if why := decode(r.src, kind, members...); why != nil {
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
		r := exchanges.Get().(*exchange)
		defer r.release()
		r.Context = g
		var err error
		if r.src, err = prompt.Read(r.src[:0], http.MaxBytesReader(g.Writer, g.Request.Body, limit), g.Request.ContentLength); err != nil {
			var large *http.MaxBytesError
			switch {
			case errors.Is(err, errors.ErrUnsupported):
				plain(g, http.StatusUnsupportedMediaType, "Failed to buffer the request body: "+err.Error())
			case errors.As(err, &large):
				reject(g, &rejection{statusTooLarge, "Failed to buffer the request body: length limit exceeded"})
			case errors.Is(err, io.ErrUnexpectedEOF):
				plain(g, statusBadRequest, "Failed to buffer the request body: it ends early")
			default:
				plain(g, statusBadRequest, "Failed to buffer the request body: "+err.Error())
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
func (d *Dialect) answer(r *exchange, body []byte) {
	d.leave(r)
	r.Data(http.StatusOK, "application/json", body)
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
	body := appendString([]byte(`{"error":`), text)
	g.Data(status, "application/json", append(body, '}'))
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

// appendString appends a JSON string.
func appendString(dst []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c == '"' || c == '\\' || c >= 0x7f {
			return appendEscaped(dst, s)
		}
	}
	return append(append(append(dst, '"'), s...), '"')
}

func appendEscaped(dst []byte, s string) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(s); err != nil {
		panic("BUG: a string cannot be encoded: " + err.Error())
	}
	return append(dst, bytes.TrimSuffix(b.Bytes(), []byte{'\n'})...)
}
