// Package body reads request bodies for every dialect and writes their answers, in JSON
// and in msgpack.
//
//	socket --Fill--> Src --Scan--> Members, Tokens, Hashes --dialect--> match.Query
//	match.Answer --dialect--> Encoder --> Out
//
// A dialect describes an object by a Shape. Scan reads the object in one pass: lists of
// numbers go into the buffers of the Request, other fields stay text. Members keep the
// order of the document, so that a dialect finds the first fault in it.
//
// Errors are values of type Error. The dialect words them and chooses the status.
//
// Concurrency: a Request belongs to one goroutine between Get and Release.
package body

import (
	"bytes"
	"errors"
	"net/http"
	"strconv"
	"sync"

	"example.com/conductor/conductor/prompt"
)

// Request is one request body and the buffers it is read into. The pool reuses it after
// Release, so callers must not retain its slices.
type Request struct {
	Src     []byte
	Members []Member
	Items   []Item   // objects of an array of objects
	Tokens  []uint32 // token ids
	Hashes  []uint64
	Unknown int // fields that no shape has

	Encoder // of the answer

	digits []byte // of an element
}

// keepOut bounds the answer, in bytes, whose buffer Reset keeps. Thousands of rows fit.
const keepOut = 4 << 20

var requests = sync.Pool{New: func() any { return new(Request) }}

// Get returns an empty request from the pool.
func Get() *Request { return requests.Get().(*Request) }

// Release returns r to the pool. It drops the buffers that a giant body has grown.
func (r *Request) Release() {
	r.Reset()
	requests.Put(r)
}

// Reset empties r and drops the buffers that a giant body has grown.
func (r *Request) Reset() {
	const most = 1 << 12 // members and items; a full batch has fewer
	clear(r.Members)
	r.Src, r.Members, r.Items = prompt.Kept(r.Src, prompt.KeepBytes), prompt.Kept(r.Members, most), prompt.Kept(r.Items, most)
	r.Tokens, r.Hashes = prompt.Kept(r.Tokens, prompt.KeepNumbers), prompt.Kept(r.Hashes, prompt.KeepNumbers)
	r.Encoder = Encoder{Out: prompt.Kept(r.Out, keepOut)}
}

// Reasons of errors that concern the body as a whole.
const (
	TooLarge    = "too_large"            // more bytes than the limit
	Unsupported = "unsupported_encoding" // a content coding that the server lacks
	Unreadable  = "unreadable"           // the connection failed
	Syntax      = "invalid_json"
	TooMany     = "too_many_fields"
	NotObject   = "not_object" // in msgpack
	BadName     = "bad_name"   // in msgpack, a name that is no text
	NoMemory    = "memory"     // bodies and answers in flight leave no room for it
)

// ErrMemory is what a body returns that does not fit into the memory of the server.
var ErrMemory = errors.New("bodies and answers in flight take all of the memory that they may (limits.memory): try again")

// Error is a body that cannot be read.
type Error struct {
	Field  string // the field that holds the fault, "" outside of fields
	Index  int    // the element of Field, -1 outside of arrays
	Within string // field and element of the inner object, if Field is an array of objects
	Reason string
	Offset int   // in bytes, where the fault shows
	Err    error // cause, or the words of a dialect; nil for a fault that Scan found
}

func (e *Error) Error() string {
	var large *http.MaxBytesError
	switch {
	case errors.As(e.Err, &large):
		return "request body exceeds limits.max_body of " + strconv.FormatInt(large.Limit, 10) + " bytes"
	case e.Reason == Unreadable:
		return "request body could not be read: " + e.Err.Error()
	case e.Err != nil:
		return e.Err.Error()
	}
	return "body: " + e.Reason + " at byte " + strconv.Itoa(e.Offset)
}

func (e *Error) Unwrap() error { return e.Err }

// Fill reads the body of q into Src, without a byte order mark. limit is in bytes. It returns an *Error with the
// reason TooLarge, Unsupported or Unreadable.
func (r *Request) Fill(w http.ResponseWriter, q *http.Request, limit int64) error {
	var err error
	switch {
	case q.ContentLength > limit:
		err = &http.MaxBytesError{Limit: limit}
	case q.ContentLength >= 0: // net/http reads no further
		if r.Src, err = prompt.Read(r.Src[:0], q.Body, q.ContentLength); err == nil {
			q.Body.Close() // else net/http looks for the rest of it before it sends the answer
		}
	default:
		r.Src, err = prompt.Read(r.Src[:0], http.MaxBytesReader(w, q.Body, limit), q.ContentLength)
	}
	switch {
	case err == nil:
		if bytes.HasPrefix(r.Src, bom) {
			r.Src = append(r.Src[:0], r.Src[len(bom):]...) // in place, so that the buffer keeps its room
		}
		return nil
	case errors.As(err, new(*http.MaxBytesError)):
		return &Error{Reason: TooLarge, Index: -1, Err: err}
	case errors.Is(err, ErrMemory):
		return &Error{Reason: NoMemory, Index: -1, Err: err}
	case errors.Is(err, errors.ErrUnsupported):
		return &Error{Reason: Unsupported, Index: -1, Err: err}
	}
	return &Error{Reason: Unreadable, Index: -1, Err: err}
}
