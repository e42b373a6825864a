package server

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"

	"github.com/gin-gonic/gin"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// Routers may compress what they send:
//
//	socket --at most limit bytes--> packed --decoder--> at most the dialect's bound --> handler
//
// A decoder takes up to maxWindow, and more, whatever the client has sent. So a body gets one once all of it is there, and
// gives it back at its end: no client holds one while the server waits for it.
//
// Decoded runs before every handler and replaces the body by its decoder. Each dialect
// reads, bounds and refuses bodies in its own words, compressed or not. The first read
// returns the error of an encoding: errors.ErrUnsupported for an unknown coding (415),
// any other error for a damaged body (400).

// supported lists the codings in answers to requests in another coding.
const supported = "gzip, zstd"

// tokenCharacters may be in the name of a coding, in lower case (RFC 9110, 5.6.2).
const tokenCharacters = "abcdefghijklmnopqrstuvwxyz0123456789!#$%&'*+-.^_`|~"

// maxWindow is how far back a zstd body may refer: what a content coding may use
// (RFC 9659), and the most a decoder keeps apart from its tables.
const maxWindow = 8 << 20

// Decoded decompresses request bodies. It reads at most limit bytes of a compressed body.
func Decoded(limit int64) gin.HandlerFunc {
	return func(g *gin.Context) {
		named := g.Request.Header["Content-Encoding"]
		if len(named) == 0 {
			return
		}
		b, err := newCodedBody(named)
		switch {
		case err != nil:
			if errors.Is(err, errors.ErrUnsupported) {
				g.Header("Accept-Encoding", supported)
			}
			g.Request.Body = refusedBody{err}
			return
		case b == nil:
			return
		}
		b.sent, b.size = http.MaxBytesReader(g.Writer, g.Request.Body, limit), g.Request.ContentLength
		b.Closer = g.Request.Body
		g.Request.Body = b
		g.Request.ContentLength = -1
		g.Request.Header.Del("Content-Encoding")
		g.Request.Header.Del("Content-Length")
		g.Next()
		b.err = http.ErrBodyReadAfterClose
		b.releaseDecoder() // a decoder that panicked is not used again
	}
}

// codedBody is a request body while it is decoded.
type codedBody struct {
	io.Closer
	name    string
	sent    io.Reader         // as it comes
	size    int64             // of it, in bytes; -1 if unknown
	reserve func(n int) error // memory for bytes of it; nil reserves none
	codings *sync.Pool
	coding  *coding // nil before the first read, and behind the end
	begun   bool
	err     error // of the last read, which is that of all that follow
}

// newCodedBody returns the body of a request with such a header, nil if the body needs no decoding.
func newCodedBody(named []string) (*codedBody, error) {
	text := strings.Join(named, ", ")
	name := strings.ToLower(strings.Trim(text, " \t"))
	var codings *sync.Pool
	switch {
	case name == "" || name == "identity":
		return nil, nil
	case strings.Contains(name, ","):
		return nil, fmt.Errorf("content encoding %q names several codings, one is allowed", text)
	case strings.ContainsFunc(name, func(r rune) bool { return !strings.ContainsRune(tokenCharacters, r) }):
		return nil, fmt.Errorf("content encoding %q is no name of a coding", text)
	case name == "gzip" || name == "x-gzip":
		codings = &gzips
	case name == "zstd":
		codings = &zstds
	default:
		return nil, &unsupportedError{text}
	}
	return &codedBody{name: name, codings: codings}, nil
}

func (b *codedBody) Read(p []byte) (int, error) {
	if b.err != nil {
		return 0, b.err
	}
	if !b.begun {
		b.begun = true
		if b.err = b.fetch(); b.err != nil {
			return 0, b.err
		}
	}
	n, err := b.coding.decoder.Read(p)
	if err == io.EOF && b.coding.wire.err == io.EOF {
		b.err = io.EOF
	} else {
		b.err = b.describeFault(err)
	}
	if b.err != nil {
		b.releaseDecoder()
	}
	return n, b.err
}

// fetch waits for the whole body, and gets a decoder for it.
func (b *codedBody) fetch() error {
	packed := new(bytes.Buffer)
	packed.Grow(int(max(min(b.size, maxFrame), 0)) + bytes.MinRead)
	if _, err := packed.ReadFrom(reserved{b}); err != nil {
		return err
	}
	b.coding = b.codings.Get().(*coding)
	b.coding.wire.Reader = packed
	if err := b.describeFault(b.coding.decoder.Reset(&b.coding.wire)); err != nil {
		b.releaseDecoder()
		return err
	}
	return nil
}

// reserved reads a body as it comes, within the memory that there is for it.
type reserved struct{ of *codedBody }

func (r reserved) Read(p []byte) (int, error) {
	n, err := r.of.sent.Read(p)
	if r.of.reserve != nil {
		if failed := r.of.reserve(n); failed != nil {
			return 0, failed
		}
	}
	return n, err
}

// describeFault returns the error that the client is given for an error of the decoder.
func (b *codedBody) describeFault(err error) error {
	switch {
	case err == nil:
		return nil
	case err == io.EOF:
		err = io.ErrUnexpectedEOF
	case errors.Is(err, gzip.ErrHeader), errors.Is(err, zstd.ErrMagicMismatch):
		err = fmt.Errorf("%w: the body is not in %s; leave Content-Encoding out if it is not compressed", err, b.name)
	}
	return fmt.Errorf("content encoding %s: %w", b.name, err)
}

// releaseDecoder gives the decoder back, if the body has one.
func (b *codedBody) releaseDecoder() {
	if b.coding == nil {
		return
	}
	b.coding.wire = wire{}
	b.codings.Put(b.coding)
	b.coding = nil
}

// coding is a decoder with the body that it reads. Codings are reused, with their windows. Between two bodies they refer to
// neither.
type coding struct {
	wire    wire
	decoder interface {
		io.Reader
		Reset(io.Reader) error
	}
}

// wire is the body as it comes, and why it ended.
type wire struct {
	io.Reader
	err error
}

func (w *wire) Read(p []byte) (n int, err error) {
	n, err = w.Reader.Read(p)
	if err != nil {
		w.err = err
	}
	return n, err
}

var (
	gzips = sync.Pool{New: func() any { return &coding{decoder: new(gzip.Reader)} }}
	zstds = sync.Pool{New: func() any {
		// One at a time is decoding where it is read, without goroutines.
		d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(maxWindow))
		if err != nil {
			panic("BUG: options of the zstd decoder: " + err.Error())
		}
		return &coding{decoder: d}
	}}
)

// refusedBody is a body in a coding that cannot be read.
type refusedBody struct{ err error }

func (b refusedBody) Read([]byte) (int, error) { return 0, b.err }
func (b refusedBody) Close() error             { return nil }

// unsupportedError is errors.ErrUnsupported, of a coding.
type unsupportedError struct{ name string }

func (e *unsupportedError) Error() string {
	return fmt.Sprintf("content encoding %q is not supported, gzip and zstd are", e.name)
}

func (e *unsupportedError) Is(target error) bool { return target == errors.ErrUnsupported }
