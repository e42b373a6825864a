// Package reply turns what a handler of the Conductor dialect or of /admin returns, a value or an error, into a status
// and a body.
//
//	request --> Handler(*gin.Context) (any, error) --Wrap--> status, and a body in JSON or msgpack
//
// Wrap alone decides statuses and the bodies of errors. Each of those is
// {"error", "reason"[, "field"][, "index"][, "known"]}.
//
// All functions are safe for concurrent use. Encode costs what encoding/json costs: the answers of queries are written by
// their dialect instead.
package reply

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"

	"github.com/gin-gonic/gin"
	"github.com/vmihailenco/msgpack/v5"

	"example.com/conductor/conductor/body"
	"example.com/conductor/conductor/catalog"
	"example.com/conductor/conductor/invalid"
	"example.com/conductor/conductor/match"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/conductor/server"
)

// Handler answers a request with a value to encode, which may be a Result, NoContent, Sent or File, or with an error.
type Handler func(*gin.Context) (any, error)

// Result is a value with a status other than 200.
type Result struct {
	Status int
	Body   any
}

// NoContent is a result without a body: status 204.
type NoContent struct{}

// Sent is a result that the handler has sent itself.
type Sent struct{}

// File is a result that is encoded already.
type File struct {
	ContentType string
	Bytes       []byte
}

// ErrorBody is the body of every error.
type ErrorBody struct {
	Error  string `json:"error"`
	Reason string `json:"reason"`
	Field  string `json:"field,omitempty"`
	Index  *int   `json:"index,omitempty"`
	// Known are the names that the tenant has in place of an unknown one.
	Known *[]string `json:"known,omitempty"`
}

// ErrRecovering is the error of a server that has not got its own blocks back yet.
var ErrRecovering error = &server.Refusal{
	Status: http.StatusServiceUnavailable, Reason: "recovering", Text: "this server is recovering itself",
}

// Wrap returns what runs a handler and sends what it returns.
func Wrap(h Handler) server.Handler {
	return func(g *gin.Context, codec body.Codec) {
		result, err := h(g)
		if err != nil {
			Refuse(g, codec, err)
			return
		}
		switch v := result.(type) {
		case Sent:
		case NoContent:
			g.Status(http.StatusNoContent)
		case Result:
			Send(g, codec, v.Status, v.Body)
		case File:
			server.Send(g, http.StatusOK, v.ContentType, v.Bytes)
		default:
			Send(g, codec, http.StatusOK, v)
		}
	}
}

// InJSON is Wrap for a path whose answers are in JSON alone.
func InJSON(h Handler) gin.HandlerFunc {
	handle := Wrap(h)
	return func(g *gin.Context) { handle(g, body.JSON) }
}

// Send sends a value that is not the answer of a query.
func Send(g *gin.Context, codec body.Codec, status int, v any) {
	text := Encode(codec, v)
	if codec == body.JSON {
		server.Send(g, status, "application/json; charset=utf-8", text)
		return
	}
	g.Header("Content-Length", strconv.Itoa(len(text)))
	server.Send(g, status, codec.ContentType(), text)
}

// Encode encodes a value by its tags for JSON, also in msgpack.
func Encode(codec body.Codec, v any) []byte {
	var b bytes.Buffer
	var err error
	if codec == body.JSON {
		err = json.NewEncoder(&b).Encode(v)
		b.Truncate(max(b.Len()-1, 0)) // the newline
	} else {
		e := msgpack.NewEncoder(&b)
		e.SetCustomStructTag("json")
		e.UseCompactInts(true)
		err = e.Encode(v)
	}
	if err != nil {
		panic("BUG: an answer cannot be encoded: " + err.Error())
	}
	return b.Bytes()
}

// Refuse sends an error.
func Refuse(g *gin.Context, codec body.Codec, err error) {
	status, row := DescribeError(err)
	Send(g, codec, status, row)
}

// RefuseRoute sends why no route answers. It is the Refuse of a server.Dialect.
func RefuseRoute(g *gin.Context, _ body.Codec, why *server.Refusal) {
	text := why.Text
	if allowed := g.Writer.Header().Get("Allow"); why.Status == http.StatusMethodNotAllowed && allowed != "" {
		text += ": " + g.Request.URL.Path + " takes " + allowed
	}
	Send(g, body.JSON, why.Status, ErrorBody{Error: text, Reason: why.Reason, Field: why.Field})
}

// DescribeError returns the status and body of an error. Any other error is 500 with the reason internal.
func DescribeError(err error) (int, ErrorBody) {
	var (
		refusal  *server.Refusal
		field    *invalid.FieldError
		conflict *registration.ConflictError
		profile  *catalog.ProfileConflictError
		invalid  *body.Error
		unknown  *match.UnknownNameError

		forgotten *match.UnknownAnswerError
	)
	status, reason := server.Status(err)
	row := ErrorBody{Error: err.Error(), Reason: reason}
	switch {
	case errors.As(err, &refusal):
		status, row.Reason = refusal.Status, refusal.Reason
	case errors.As(err, &field):
		row.Error, row.Field = field.Message, field.Field
		if field.Index >= 0 {
			row.Index = &field.Index
		}
	case errors.As(err, &invalid):
		if row.Field = invalid.Field; invalid.Field != "" && invalid.Index >= 0 {
			row.Index = &invalid.Index
		}
		if reason == body.Unreadable {
			row.Reason = body.Syntax
		}
	case errors.As(err, &unknown):
		known := append([]string{}, unknown.Known...)
		if status = http.StatusNotFound; unknown.Reason == match.UnknownBlockSizeReason {
			status = http.StatusBadRequest
		}
		return status, ErrorBody{Error: unknown.Error(), Reason: unknown.Reason, Field: unknown.Field, Known: &known}
	case errors.As(err, &forgotten):
		return http.StatusNotFound, ErrorBody{Error: forgotten.Error(), Reason: match.UnknownAnswerReason, Field: "answer_id"}
	case errors.As(err, &conflict):
		return http.StatusConflict, ErrorBody{Error: conflict.Error(), Reason: "conflict", Field: conflict.Field}
	case errors.As(err, &profile):
		return http.StatusConflict, ErrorBody{Error: profile.Error(), Reason: "conflict", Field: "hash_profile"}
	}
	return status, row
}
