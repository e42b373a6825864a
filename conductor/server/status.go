package server

import (
	"errors"
	"net/http"

	"github.com/gin-gonic/gin"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/body"
	"example.com/conductor/conductor/forward"
	"example.com/conductor/conductor/ingest"
	"example.com/conductor/conductor/invalid"
)

// NotDurable is the reason of conductor.ErrNotDurable.
const NotDurable = "not_durable"

// durableHeader is "false" in the answer to a registration that is only in memory.
const durableHeader = "Conductor-Durable"

// TellDurable adds the header Conductor-Durable to the answer unless the registration is durable.
func TellDurable(g *gin.Context, durable bool) {
	if !durable {
		g.Header(durableHeader, "false")
	}
}

// Status returns the HTTP status of an error that no dialect knows better, and its
// reason.
func Status(err error) (status int, reason string) {
	var (
		unread *body.Error
		field  *invalid.FieldError
	)
	switch {
	case errors.As(err, &field):
		return http.StatusBadRequest, field.Reason
	case errors.As(err, &unread):
		switch unread.Reason {
		case body.TooLarge:
			return http.StatusRequestEntityTooLarge, unread.Reason
		case body.NoMemory:
			return http.StatusServiceUnavailable, unread.Reason
		case body.Unsupported:
			return http.StatusUnsupportedMediaType, unread.Reason
		}
		return http.StatusBadRequest, unread.Reason
	case errors.Is(err, body.ErrMemory):
		return http.StatusServiceUnavailable, body.NoMemory
	case errors.Is(err, ingest.ErrPast):
		return http.StatusForbidden, "read_only"
	case errors.Is(err, conductor.ErrForbidden):
		return http.StatusForbidden, "forbidden"
	case errors.Is(err, ingest.ErrNotFound):
		return http.StatusNotFound, "not_found"
	case errors.Is(err, conductor.ErrNotDurable):
		return http.StatusServiceUnavailable, NotDurable
	case errors.Is(err, ingest.ErrTooManySources):
		return http.StatusServiceUnavailable, "limit"
	case errors.Is(err, ErrBusy), errors.Is(err, ingest.ErrBehind):
		return http.StatusServiceUnavailable, "busy"
	case errors.Is(err, ingest.ErrClosed):
		return http.StatusServiceUnavailable, "shutting_down"
	case errors.Is(err, forward.ErrMisdirected):
		return http.StatusMisdirectedRequest, "misdirected"
	case errors.Is(err, forward.ErrReplicas):
		return http.StatusServiceUnavailable, "replicas"
	case errors.As(err, new(*conductor.UnservedError)):
		return http.StatusServiceUnavailable, "unserved"
	}
	return http.StatusInternalServerError, "internal"
}

// SendError sends an error in the two fields that all dialects of JSON and msgpack have.
func SendError(g *gin.Context, codec body.Codec, status int, reason, text string) {
	e := body.Encoder{Codec: codec}
	e.Map(2)
	e.TextField("error", text)
	e.TextField("reason", reason)
	e.EndMap()
	Send(g, status, codec.ContentType(), e.Out)
}

// Send sends an answer. An HTTP/1 connection ends with a request that is too large, because
// the server does not read the rest.
func Send(g *gin.Context, status int, contentType string, text []byte) {
	if status == http.StatusServiceUnavailable && g.Writer.Header().Get("Retry-After") == "" {
		g.Header("Retry-After", "1") // seconds
	}
	if status == http.StatusRequestEntityTooLarge && g.Request.ProtoMajor < 2 {
		g.Header("Connection", "close")
	}
	g.Data(status, contentType, text)
}
