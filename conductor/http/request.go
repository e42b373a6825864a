package http

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"sync"
	"unicode/utf8"

	"github.com/gin-gonic/gin"

	"kvconductor/conductor"
	"kvconductor/conductor/prompt"
)

// request is one request body and what was read out of it. Requests are used again,
// with their buffers, so nothing of one may be kept.
type request struct {
	src     []byte
	members []member
	tokens  []uint32
	hashes  []uint64
	items   []item // of a batch
}

// item is one object of an array of objects, or what is there instead of one.
type item struct {
	from, to int    // its members
	object   bool   // else it is something else
	twice    string // a field that is there more than once
}

var requests = sync.Pool{New: func() any { return new(request) }}

// release gives the buffers back, but for those that one giant request has made.
func (r *request) release() {
	const most = 1 << 12 // members and items; a full batch has fewer
	clear(r.members)
	r.src, r.members, r.items = prompt.Kept(r.src, prompt.KeepBytes), prompt.Kept(r.members, most), prompt.Kept(r.items, most)
	r.tokens, r.hashes = prompt.Kept(r.tokens, prompt.KeepNumbers), prompt.Kept(r.hashes, prompt.KeepNumbers)
	requests.Put(r)
}

// read reads one JSON object of a shape within the size limit, and returns its
// fields. What follows the object is an error, as is text that is not UTF-8.
func (a *api) read(g *gin.Context, r *request, s shape) (fields, error) {
	if err := a.readBytes(g, r); err != nil {
		return fields{}, err
	}
	return r.scan(s, a.opts.MaxTokens)
}

// scan reads the body that src is.
func (r *request) scan(s shape, limit int) (fields, error) {
	sc := scanner{r: r, src: r.src, limit: limit, index: -1}
	last, twice, ok := sc.document(s)
	if !ok {
		return fields{}, sc.explain()
	}
	if twice != "" {
		return fields{}, duplicate(twice)
	}
	return fields{body: r.members[last:], shape: s}, nil
}

func duplicate(name string) error {
	return conductor.Invalid(name, "duplicate", "%s is given more than once", name)
}

// readBytes reads the body as it comes.
func (a *api) readBytes(g *gin.Context, r *request) error {
	var err error
	if size := g.Request.ContentLength; size > a.opts.MaxBody {
		err = &http.MaxBytesError{Limit: a.opts.MaxBody}
	} else {
		r.src, err = prompt.Read(r.src[:0], http.MaxBytesReader(g.Writer, g.Request.Body, a.opts.MaxBody), size)
	}
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return &statusError{status: http.StatusRequestEntityTooLarge, reason: "too_large",
			text: "request body exceeds limits.max_body of " + strconv.FormatInt(large.Limit, 10) + " bytes"}
	case errors.Is(err, errors.ErrUnsupported):
		return &statusError{status: http.StatusUnsupportedMediaType, reason: "unsupported_encoding", text: err.Error()}
	case err != nil:
		return invalidJSON("request body could not be read: " + err.Error())
	}
	return nil
}

// explain says why a body is no JSON object: the words are those of encoding/json, the
// place is ours.
func (s *scanner) explain() error {
	if !utf8.Valid(s.src) {
		return s.place("request body is not valid UTF-8")
	}
	trimmed := bytes.TrimLeft(s.src, " \t\r\n")
	if len(trimmed) == 0 {
		return invalidJSON("request body is empty, a JSON object is expected")
	}
	var any struct{}
	err := json.Unmarshal(s.src, &any)
	var syntax *json.SyntaxError
	switch {
	case errors.As(err, &syntax):
		return s.place("Invalid JSON object: " + err.Error())
	case trimmed[0] != '{':
		return invalidJSON("request body must be a JSON object")
	}
	return s.place("Invalid JSON object")
}

// place is an error of the body as a whole, with the field it shows in, if in any.
func (s *scanner) place(text string) error {
	if s.inner != "" {
		text += ", in " + s.inner
	}
	return &bodyError{text, s.field, s.index}
}

// bodyError is a body that is no JSON, and the field and element where that shows.
type bodyError struct {
	text, field string
	index       int // -1 outside of arrays
}

func (e *bodyError) Error() string { return e.text }

func invalidJSON(text string) error { return &bodyError{text: text, index: -1} }
