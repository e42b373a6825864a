package mooncake

import (
	"errors"
	"fmt"
	"net/http"
	"sync"

	"github.com/gin-gonic/gin"

	"kvconductor/conductor"
	"kvconductor/conductor/body"
	"kvconductor/conductor/server"
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

// invalidBody returns the fault of a body as a whole.
func invalidBody(text string) *failure {
	return &failure{status: http.StatusBadRequest, text: text, reason: "invalid_msgpack"}
}

// appendTo packs the error.
func (f *failure) appendTo(dst []byte) []byte {
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
	dst = appendTextField(appendMap(dst, pairs), "error", f.text)
	if f.reason != "" {
		dst = appendTextField(dst, "reason", f.reason)
	}
	if f.field != "" {
		dst = appendTextField(dst, "field", f.field)
		if f.index >= 0 {
			dst = appendIntField(dst, "index", f.index)
		}
	}
	return dst
}

// describe maps an error of the Conductor to what clients see.
func describe(err error) *failure {
	var known *failure
	switch {
	case errors.As(err, &known):
		return known
	case errors.Is(err, conductor.ErrPast):
		return &failure{status: http.StatusForbidden, text: err.Error(), reason: "read_only"}
	case errors.Is(err, conductor.ErrNotFound):
		return &failure{status: http.StatusNotFound, text: err.Error()}
	case errors.Is(err, conductor.ErrTooManySources):
		return &failure{status: http.StatusServiceUnavailable, text: err.Error(), reason: "limit"}
	case errors.Is(err, server.ErrBusy):
		return &failure{status: http.StatusServiceUnavailable, text: err.Error(), reason: "busy"}
	}
	return &failure{status: http.StatusInternalServerError, text: err.Error()}
}

// entry is one pair of a request.
type entry struct {
	name string
	value
}

// exchange is one request with a body. Exchanges are used again, with their buffers.
type exchange struct {
	body.Request
	form    Form
	entries []entry
	ahead   ahead // of the numbers in Tokens before the field is taken
	most    int   // elements of a list
}

var exchanges = sync.Pool{New: func() any { return new(exchange) }}

// release gives the buffers back, but for those that one giant request has made.
func (r *exchange) release() {
	clear(r.entries)
	r.entries = r.entries[:0]
	r.ahead = ahead{}
	r.Reset()
	exchanges.Put(r)
}

// body reads a map for a handler and sends what that returns. In JSON more says whether
// text behind the object is let be; what is no object is then told as a line of text.
func (d *Dialect) body(handle func(*exchange) ([]byte, error), more bool) gin.HandlerFunc {
	return d.exchange(func(_ *gin.Context, r *exchange) ([]byte, error) {
		if err := r.parse(more); err != nil {
			return nil, err
		}
		return handle(r)
	})
}

// queryBody is body for a query: from its last byte to its answer it counts as one of those
// there may be at once.
func (d *Dialect) queryBody(handle func(*exchange) ([]byte, error)) gin.HandlerFunc {
	return d.exchange(func(g *gin.Context, r *exchange) (packed []byte, err error) {
		err = d.cfg.Admission.Do(g.Writer, g.Request, func() (err error) {
			if err = r.parse(false); err == nil {
				packed, err = handle(r)
			}
			return err
		})
		return packed, err
	})
}

// exchange reads a body, lets work answer it and sends that.
func (d *Dialect) exchange(work func(*gin.Context, *exchange) ([]byte, error)) gin.HandlerFunc {
	return func(g *gin.Context) {
		r := exchanges.Get().(*exchange)
		defer r.release()
		r.form, r.most = d.cfg.Form, d.cfg.MaxTokens
		err := d.read(g, r)
		var packed []byte
		if err == nil {
			packed, err = work(g, r)
		}
		if err != nil {
			d.refuse(g, err)
			return
		}
		d.answer(g, packed, "\n")
	}
}

// read reads the bytes of a request.
func (d *Dialect) read(g *gin.Context, r *exchange) error {
	if r.form == Msgpack && !speaks(g.GetHeader("Content-Type")) {
		return &failure{status: http.StatusBadRequest, text: "Content-Type must be " + ContentType, reason: "unsupported_content_type"}
	}
	err := r.Fill(g.Writer, g.Request, d.cfg.MaxBody)
	switch {
	case err == nil:
		return nil
	case errors.As(err, new(*http.MaxBytesError)):
		return &failure{status: http.StatusRequestEntityTooLarge, text: err.Error(), reason: body.TooLarge}
	case errors.Is(err, errors.ErrUnsupported):
		return &failure{status: http.StatusUnsupportedMediaType, text: err.Error(), reason: body.Unsupported}
	}
	return r.form.invalid(err.Error())
}

// parse reads the pairs of a request.
func (r *exchange) parse(more bool) error {
	if r.form == Msgpack {
		return r.parsePacked(r.Src)
	}
	return r.parseJSON(more)
}

// maxFields bounds the pairs of a map, which take more room here than in the body.
const maxFields = 64

// parsePacked reads the pairs of a packed body. What follows the map is let be.
func (r *exchange) parsePacked(src []byte) error {
	r.entries, r.ahead = r.entries[:0], ahead{}
	invalid := invalidBody("Invalid msgpack object")
	whole, rest, ok := readHead(src)
	switch {
	case !ok:
		return invalid
	case whole.kind != dict:
		if _, _, ok := read(src, maxDepth); !ok {
			return invalid
		}
		return invalidBody("request body must be a msgpack map")
	}
	if whole.n > maxFields {
		return invalidBody("request body has too many fields")
	}
	texts := true
	for range whole.n {
		var key value
		e := entry{}
		if key, rest, ok = read(rest, maxDepth-1); !ok {
			return invalid
		}
		texts = texts && key.kind == text
		e.name = string(key.raw)
		if e.name == tokenField && r.ahead.n == 0 {
			e.value, rest, ok = r.list(rest, maxDepth-1, r.most)
		} else {
			e.value, rest, ok = read(rest, maxDepth-1)
		}
		if !ok {
			return invalid
		}
		r.entries = append(r.entries, e)
	}
	if !texts {
		return invalidBody("map keys must be strings")
	}
	return nil
}
