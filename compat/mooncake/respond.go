package mooncake

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"net/http"
	"slices"
	"unicode/utf8"

	"github.com/gin-gonic/gin"

	"example.com/conductor/conductor/access"
	"example.com/conductor/conductor/body"
	"example.com/conductor/conductor/forward"
	"example.com/conductor/conductor/invalid"
	"example.com/conductor/conductor/prompt"
	"example.com/conductor/conductor/server"
)

// failure is an error as clients see it. Those of the operation, unlike those of the
// request, have no reason.
type failure struct {
	status int
	text   string
	reason string
	field  string
	index  int // of an element, -1 when there is none; counts only with a field
}

func (f *failure) Error() string { return f.text }

// bad returns the fault of a field.
func bad(field, reason, format string, args ...any) *failure {
	return &failure{status: http.StatusBadRequest, text: fmt.Sprintf(format, args...), reason: reason, field: field, index: -1}
}

// badElement returns the fault of an element of a field.
func badElement(field string, index int, reason, text string) *failure {
	return &failure{status: http.StatusBadRequest, text: text, reason: reason, field: field, index: index}
}

// invalid returns the fault of a body as a whole.
func (d *handlers) invalid(text string) *failure {
	f := &failure{status: http.StatusBadRequest, text: text, reason: "invalid_msgpack"}
	if d.cfg.Codec == body.JSON {
		f.reason = "invalid_json"
	}
	return f
}

// write writes the error.
func (f *failure) write(e *body.Encoder) {
	pairs := 1
	if f.reason != "" {
		pairs++
	}
	if f.field != "" {
		pairs++
		if f.index >= 0 {
			pairs++
		}
	}
	e.Map(pairs)
	e.TextField("error", f.text)
	if f.reason != "" {
		e.TextField("reason", f.reason)
	}
	if f.field != "" {
		e.TextField("field", f.field)
		if f.index >= 0 {
			e.IntField("index", f.index)
		}
	}
	e.EndMap()
}

// describe maps an error to what clients see.
func (d *handlers) describe(err error) *failure {
	var (
		known *failure
		field *invalid.FieldError
	)
	switch {
	case errors.As(err, &known):
		return known
	case errors.As(err, &field):
		return &failure{status: http.StatusBadRequest, text: field.Message, reason: field.Reason, field: field.Field, index: field.Index}
	}
	status, reason := server.Status(err)
	switch reason {
	case body.Unreadable:
		return d.invalid(err.Error())
	case "shutting_down":
		status, reason = http.StatusInternalServerError, ""
	case "not_found", "internal":
		reason = ""
	}
	return &failure{status: status, text: err.Error(), reason: reason}
}

// body reads a map of a shape for a handler and sends what that writes. In JSON text may
// follow the object.
func (d *handlers) body(of body.Shape, handle func(*gin.Context, fields, *body.Encoder) error) server.Handler {
	return d.exchange(func(g *gin.Context, r *body.Request) error {
		f, err := d.parse(r, of, true)
		if err != nil {
			return err
		}
		return handle(g, f, &r.Encoder)
	})
}

// queryBody is body for a query, which is answered within a slot.
func (d *handlers) queryBody(p promptField) server.Handler {
	return d.exchange(func(g *gin.Context, r *body.Request) error {
		expected, ok := server.Flag(g, "expected") // ours, so not in the body: bodies are strict
		if !ok {
			return bad("expected", "invalid_value", "expected must be 1 or 0, got %q", g.Query("expected"))
		}
		err := d.cfg.Admission.Do(g, func() error {
			f, err := d.parse(r, p.shape, false)
			if err != nil {
				return err
			}
			return d.query(access.View(d.conductor, g), r, f, p, expected)
		})
		return forward.Send(g, r.Src, err)
	})
}

// exchange reads a body, lets work write the answer and sends that.
func (d *handlers) exchange(work func(*gin.Context, *body.Request) error) server.Handler {
	return func(g *gin.Context, codec body.Codec) {
		r := body.Get()
		defer r.Release()
		r.Codec = codec
		err := d.read(g, r)
		if err == nil {
			err = work(g, r)
		}
		switch {
		case err != nil:
			d.refuse(g, codec, err)
		case !g.Writer.Written(): // by another replica
			if codec == body.JSON {
				r.Out = append(r.Out, '\n')
			}
			server.SendAnswer(g, codec, r.Out)
		}
	}
}

// read reads the bytes of a request.
func (d *handlers) read(g *gin.Context, r *body.Request) error {
	if kind := d.cfg.Codec; kind == body.Msgpack && !server.Speaks(g.GetHeader("Content-Type"), kind) {
		return &failure{
			status: http.StatusBadRequest, text: "Content-Type must be " + kind.ContentType(), reason: "unsupported_content_type",
		}
	}
	return r.Fill(g.Writer, g.Request, d.cfg.MaxBody)
}

const (
	// maxDepth bounds how deep values are nested; no request needs more than 2.
	maxDepth = 64
	// maxFields bounds the pairs of a map, which take more room here than in the body.
	maxFields = 64
)

// parse reads the fields of a request. tail reports whether text may follow an object in
// JSON. The fields of a map in msgpack keep their order, those in JSON come in
// alphabetical order, of several with one name the last.
func (d *handlers) parse(r *body.Request, of body.Shape, tail bool) (fields, error) {
	codec := d.cfg.Codec
	members, end, err := r.Scan(of, body.Options{Codec: codec, Limit: d.cfg.MaxTokens, Depth: maxDepth, Tail: tail, Every: maxFields})
	f := fields{d: d, members: members}
	if codec == body.Msgpack {
		if err == nil {
			return f, nil
		}
		if looks := body.Looks(r.Src, codec, d.also()...); looks != "" {
			return f, d.invalid("request body is not msgpack: " + looks)
		}
		return f, d.invalid(map[string]string{
			body.Syntax: "Invalid msgpack object", body.NotObject: "request body must be a msgpack map",
			body.TooMany: "request body has too many fields", body.BadName: "map keys must be strings",
		}[err.Reason])
	}
	if err != nil {
		if looks := body.Looks(r.Src, codec, d.also()...); looks != "" {
			return f, d.invalid("request body is not JSON: " + looks)
		}
	}
	switch {
	case err != nil && err.Reason == body.Syntax, !utf8.Valid(r.Src[end:]):
		if tail {
			return f, &failure{status: http.StatusBadRequest, text: "Invalid JSON"}
		}
		return f, d.invalid("Invalid JSON object")
	case err != nil, slices.ContainsFunc(members, func(m body.Member) bool { return !m.Read && crowded(m.Raw) }):
		return f, d.invalid("an object has too many fields")
	}
	sortFields(members)
	return f, nil
}

// also returns the codecs that other dialects read at the same paths.
func (d *handlers) also() []body.Codec {
	if d.cfg.Alone {
		return nil
	}
	return []body.Codec{body.Msgpack - d.cfg.Codec}
}

func sortFields(members []body.Member) {
	slices.SortFunc(members, func(a, b body.Member) int { return cmp.Compare(a.Name, b.Name) })
}

// crowded reports whether an object in valid JSON has more than maxFields fields.
func crowded(raw []byte) bool {
	var fields [maxDepth + 1]int // by depth
	depth := 0
	for at := 0; at < len(raw); at++ {
		switch raw[at] {
		case '"':
			at, _, _ = prompt.String(raw, at)
			at--
		case '{':
			depth++
			fields[depth] = 1
		case '[':
			depth++
			fields[depth] = math.MinInt
		case '}', ']':
			depth--
		case ',':
			if fields[depth]++; fields[depth] > maxFields {
				return true
			}
		}
	}
	return false
}

// respond sends an answer. In JSON end follows it, which is a newline everywhere but behind
// /services and errors.
func respond(g *gin.Context, status int, e *body.Encoder, end string) {
	if e.Codec == body.JSON {
		e.Out = append(e.Out, end...)
	}
	server.Send(g, status, e.Codec.ContentType(), e.Out)
}

// refused words an error of the server. Without a route GET and POST have a text of their
// own if the other method has one.
func (d *handlers) refused(g *gin.Context, codec body.Codec, why *server.Refusal) {
	f := &failure{status: why.Status, text: why.Text, reason: why.Reason, field: why.Field, index: -1}
	m := g.Request.Method
	switch {
	case why.Status == http.StatusNotFound, why.Status == http.StatusMethodNotAllowed && m != http.MethodGet && m != http.MethodPost:
		f.status, f.text, f.reason = http.StatusNotFound, "no such path: "+g.Request.URL.Path, ""
	case why.Status == http.StatusMethodNotAllowed:
		f.reason = ""
	}
	d.refuse(g, codec, f)
}

// refuse answers with an error. In JSON those of the operation, which have no reason,
// are lines of text.
func (d *handlers) refuse(g *gin.Context, codec body.Codec, err error) {
	f := d.describe(err)
	if d.cfg.Codec == body.JSON && f.reason == "" {
		g.Data(f.status, "text/plain; charset=utf-8", []byte(f.text+"\n"))
		return
	}
	e := body.Encoder{Codec: codec}
	f.write(&e)
	respond(g, f.status, &e, "")
}
