package http

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"unicode/utf8"

	"github.com/gin-gonic/gin"

	"example.com/conductor/conductor/body"
	"example.com/conductor/conductor/invalid"
	"example.com/conductor/conductor/reply"
)

// readObject reads one JSON object of a shape within the size limit, and returns its fields. also are the codecs that the
// path reads besides, in whichever dialect.
func (a *api) readObject(g *gin.Context, r *body.Request, s body.Shape, also ...body.Codec) (fields, error) {
	if err := r.Fill(g.Writer, g.Request, a.opts.MaxBody); err != nil {
		return fields{}, err
	}
	return scanBody(r, body.JSON, s, a.opts.MaxTokens, also...)
}

// readForm reads the body of a request that is no query, and notes the warnings about its unknown fields.
func (a *api) readForm(g *gin.Context, r *body.Request, s body.Shape, also ...body.Codec) (f fields, err error) {
	strict, err := reply.ReadFlag(g, "strict")
	if err == nil {
		f, err = a.readObject(g, r, s, also...)
	}
	if err == nil {
		f.warnings, err = a.checkNames(r, body.JSON, s, strict, true)
	}
	return f, err
}

// scanBody reads the body in r.Src, in a codec. Text behind the object is an error, and so is text in JSON that
// is not UTF-8.
func scanBody(r *body.Request, in body.Codec, s body.Shape, limit int, also ...body.Codec) (fields, error) {
	members, end, err := r.Scan(s, body.Options{Codec: in, Limit: limit})
	switch {
	case in == body.Msgpack && (err != nil || end < len(r.Src)):
		return fields{}, wordPackedError(r.Src, err, also...)
	case err != nil:
		return fields{}, wordSyntaxError(r.Src, err, also...)
	}
	if name := body.Repeated(members); name != "" {
		return fields{}, duplicateField(name)
	}
	return fields{codec: in, body: members, shape: s}, nil
}

func duplicateField(name string) error {
	return invalid.Field(name, "duplicate", "%s is given more than once", name)
}

// wordSyntaxError words an error of a body that is not a JSON object, as encoding/json does.
func wordSyntaxError(src []byte, e *body.Error, also ...body.Codec) error {
	if looks := body.Looks(src, body.JSON, also...); looks != "" {
		return invalidJSON("request body is not JSON: " + looks)
	}
	if !utf8.Valid(src) {
		return wordBodyError(e, "request body is not valid UTF-8")
	}
	trimmed := bytes.TrimLeft(src, " \t\r\n")
	if len(trimmed) == 0 {
		return invalidJSON("request body is empty, a JSON object is expected")
	}
	var any struct{}
	err := json.Unmarshal(src, &any)
	var syntax *json.SyntaxError
	switch {
	case errors.As(err, &syntax):
		text := "Invalid JSON object: " + err.Error()
		if strings.HasSuffix(text, "'{' after top-level value") { // as in NDJSON
			text += "; one object is expected, so send each in a request of its own"
		}
		return wordBodyError(e, text)
	case trimmed[0] != '{':
		return invalidJSON("request body must be a JSON object")
	}
	return wordBodyError(e, "Invalid JSON object")
}

// wordPackedError words an error of a body that is not a map in msgpack; nil is one of the bytes behind the map.
func wordPackedError(src []byte, e *body.Error, also ...body.Codec) error {
	text := "Invalid msgpack object"
	switch looks := body.Looks(src, body.Msgpack, also...); {
	case looks != "":
		text = "request body is not msgpack: " + looks
	case e == nil:
		text += ": bytes follow it"
	case e.Reason == body.NotObject:
		text = "request body must be a msgpack map"
	case e.Reason == body.BadName:
		text = "the keys of a map must be strings"
	}
	return &body.Error{Index: -1, Reason: invalidMsgpack, Err: errors.New(text)}
}

// invalidMsgpack is the reason of a body that is not in msgpack, as invalid_json is for JSON.
const invalidMsgpack = "invalid_msgpack"

// wordBodyError puts an error of the body as a whole into words.
func wordBodyError(e *body.Error, text string) error {
	if e.Within != "" {
		text += ", in " + e.Within
	}
	e.Err = errors.New(text)
	return e
}

func invalidJSON(text string) error {
	return &body.Error{Index: -1, Reason: body.Syntax, Err: errors.New(text)}
}
