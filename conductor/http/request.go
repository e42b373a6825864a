package http

import (
	"bytes"
	"encoding/json"
	"errors"
	"unicode/utf8"

	"github.com/gin-gonic/gin"

	"kvconductor/conductor"
	"kvconductor/conductor/body"
)

// read reads one JSON object of a shape within the size limit, and returns its fields.
func (a *api) read(g *gin.Context, r *body.Request, s body.Shape) (fields, error) {
	if err := r.Fill(g.Writer, g.Request, a.opts.MaxBody); err != nil {
		return fields{}, err
	}
	return scan(r, s, a.opts.MaxTokens)
}

// form reads the body of a request that is no query, and notes the warnings about its unknown fields.
func (a *api) form(g *gin.Context, r *body.Request, s body.Shape) (f fields, err error) {
	strict, err := flag(g, "strict")
	if err == nil {
		f, err = a.read(g, r, s)
	}
	if err == nil {
		f.warnings, err = a.checkNames(r, s, strict, true)
	}
	return f, err
}

// scan reads the body in r.Src. Text behind the object is an error, and so is text that
// is not UTF-8.
func scan(r *body.Request, s body.Shape, limit int) (fields, error) {
	members, _, err := r.Scan(s, body.Options{Limit: limit})
	if err != nil {
		return fields{}, explain(r.Src, err)
	}
	if name := body.Repeated(members); name != "" {
		return fields{}, duplicate(name)
	}
	return fields{body: members, shape: s}, nil
}

func duplicate(name string) error {
	return conductor.Invalid(name, "duplicate", "%s is given more than once", name)
}

// explain words an error of a body that is not a JSON object, as encoding/json does.
func explain(src []byte, e *body.Error) error {
	if !utf8.Valid(src) {
		return place(e, "request body is not valid UTF-8")
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
		return place(e, "Invalid JSON object: "+err.Error())
	case trimmed[0] != '{':
		return invalidJSON("request body must be a JSON object")
	}
	return place(e, "Invalid JSON object")
}

// place puts an error of the body as a whole into words.
func place(e *body.Error, text string) error {
	if e.Within != "" {
		text += ", in " + e.Within
	}
	e.Err = errors.New(text)
	return e
}

func invalidJSON(text string) error {
	return &body.Error{Index: -1, Reason: body.Syntax, Err: errors.New(text)}
}
