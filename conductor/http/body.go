package http

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"math"
	"net/http"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/gin-gonic/gin"

	"kvconductor/conductor"
)

// body is a JSON object with its fields still encoded. Unknown fields are
// ignored; a field that is null counts as absent.
type body map[string]json.RawMessage

// readBody reads one JSON object within the size limit. What follows the object
// is an error, as is text that is not UTF-8.
func (a *api) readBody(g *gin.Context) (body, error) {
	raw, err := io.ReadAll(http.MaxBytesReader(g.Writer, g.Request.Body, a.opts.MaxBody))
	if err != nil {
		var large *http.MaxBytesError
		if errors.As(err, &large) {
			return nil, &statusError{http.StatusRequestEntityTooLarge, "too_large",
				"request body exceeds limits.max_body of " + strconv.FormatInt(large.Limit, 10) + " bytes"}
		}
		return nil, invalidJSON("request body could not be read: " + err.Error())
	}
	if !utf8.Valid(raw) {
		return nil, invalidJSON("request body is not valid UTF-8")
	}
	trimmed := bytes.TrimLeft(raw, " \t\r\n")
	if len(trimmed) == 0 {
		return nil, invalidJSON("request body is empty, a JSON object is expected")
	}
	if trimmed[0] != '{' {
		if json.Valid(raw) {
			return nil, invalidJSON("request body must be a JSON object")
		}
	}
	var b body
	if err := json.Unmarshal(raw, &b); err != nil {
		return nil, invalidJSON("Invalid JSON object: " + err.Error())
	}
	return b, nil
}

func invalidJSON(text string) error {
	return &statusError{http.StatusBadRequest, "invalid_json", text}
}

// field returns the first of several spellings that is present and not null.
func (b body) field(names ...string) (string, json.RawMessage) {
	for _, name := range names {
		if raw, ok := b[name]; ok && string(raw) != "null" {
			return name, raw
		}
	}
	return names[0], nil
}

// fields collects the first error of several field readers, so that a handler
// reads all its fields and checks once.
type fields struct {
	body body
	err  error
}

func (f *fields) fail(err error) {
	if f.err == nil {
		f.err = err
	}
}

// text reads a string; absent and null are "". Further names are aliases.
func (f *fields) text(names ...string) string {
	v := f.optional(names...)
	if v == nil {
		return ""
	}
	return *v
}

// optional reads a string and keeps absent apart from "".
func (f *fields) optional(names ...string) *string {
	name, raw := f.body.field(names...)
	if raw == nil {
		return nil
	}
	var v string
	if raw[0] != '"' || json.Unmarshal(raw, &v) != nil {
		f.fail(conductor.Invalid(name, "invalid_type", "%s must be a string", name))
		return nil
	}
	return &v
}

// texts reads an array of strings.
func (f *fields) texts(name string) []string {
	_, raw := f.body.field(name)
	if raw == nil {
		return nil
	}
	var items []json.RawMessage
	if raw[0] != '[' || json.Unmarshal(raw, &items) != nil {
		f.fail(conductor.Invalid(name, "invalid_type", "%s must be an array of strings", name))
		return nil
	}
	texts := make([]string, len(items))
	for i, item := range items {
		if item[0] != '"' || json.Unmarshal(item, &texts[i]) != nil {
			f.fail(&conductor.FieldError{Field: name, Index: i, Reason: "invalid_type", Message: name + " element must be a string"})
			return nil
		}
	}
	return texts
}

// required reads a non-empty string.
func (f *fields) required(names ...string) string {
	name, raw := f.body.field(names...)
	if raw == nil {
		f.fail(conductor.Invalid(name, "missing", "%s is required", name))
		return ""
	}
	v := f.optional(names...)
	if v != nil && *v == "" {
		f.fail(conductor.Invalid(name, "invalid_value", "%s must not be empty", name))
	}
	if v == nil {
		return ""
	}
	return *v
}

// boolean reads true or false; absent and null are false.
func (f *fields) boolean(name string) bool {
	_, raw := f.body.field(name)
	if raw == nil {
		return false
	}
	var v bool
	if json.Unmarshal(raw, &v) != nil {
		f.fail(conductor.Invalid(name, "invalid_type", "%s must be true or false", name))
	}
	return v
}

// duration reads a time with its unit, such as "10m"; absent and null are 0.
func (f *fields) duration(name string) time.Duration {
	text := f.optional(name)
	if text == nil {
		return 0
	}
	d, err := time.ParseDuration(*text)
	if err != nil || d < 0 {
		f.fail(conductor.Invalid(name, "invalid_value", "%s must be a time such as 10m, got %q", name, *text))
	}
	return d
}

// integer reads a required integer within [low, high].
func (f *fields) integer(name string, low, high int64) int {
	_, raw := f.body.field(name)
	if raw == nil {
		f.fail(conductor.Invalid(name, "missing", "%s is required", name))
		return 0
	}
	v, err := strconv.ParseInt(string(raw), 10, 64)
	if err != nil {
		if errors.Is(err, strconv.ErrRange) {
			f.fail(outOfRange(name, raw, low, high))
		} else {
			f.fail(conductor.Invalid(name, "invalid_type", "%s must be an integer", name))
		}
		return 0
	}
	if v < low || v > high {
		f.fail(outOfRange(name, raw, low, high))
		return 0
	}
	return int(v)
}

// bound reads an integer from low up; absent and null are 0.
func (f *fields) bound(name string, low int64) int {
	if _, raw := f.body.field(name); raw == nil {
		return 0
	}
	return f.integer(name, low, math.MaxInt32)
}

func outOfRange(name string, raw json.RawMessage, low, high int64) error {
	return conductor.Invalid(name, "out_of_range", "%s must be in %d..%d, got %s", name, low, high, raw)
}

// blockSize reads the required block_size, in tokens.
func (f *fields) blockSize() int { return f.integer("block_size", 1, math.MaxInt32) }
