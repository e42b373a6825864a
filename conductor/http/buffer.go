package http

import (
	"net/http"
	"strconv"
	"sync"

	"github.com/gin-gonic/gin"

	"kvconductor/conductor/body"
)

// buffer is the answer of a query. It is sent in one piece and used again.
type buffer struct{ body.Encoder }

// maxBuffer is how large a buffer may be to be used again: an answer of thousands of
// rows fits, one of a hundred thousand does not stay.
const maxBuffer = 4 << 20

var buffers = sync.Pool{New: func() any { return new(buffer) }}

func newBuffer(codec body.Codec) *buffer {
	b := buffers.Get().(*buffer)
	b.Encoder = body.Encoder{Out: b.Out[:0], Codec: codec, HTML: true}
	return b
}

// contentTypes are the media types of answers by codec.
var contentTypes = [...][]string{body.JSON: {body.JSON.ContentType()}, body.Msgpack: {body.Msgpack.ContentType()}}

// send writes the result and gives the buffer back.
func (b *buffer) send(g *gin.Context) {
	header := g.Writer.Header()
	header["Content-Type"] = contentTypes[b.Codec]
	header["Content-Length"] = []string{strconv.Itoa(len(b.Out))}
	g.Status(http.StatusOK)
	if _, err := g.Writer.Write(b.Out); err != nil {
		g.Abort() // the client does not read on
	}
	b.release()
}

// release gives the buffer back.
func (b *buffer) release() {
	if cap(b.Out) <= maxBuffer {
		buffers.Put(b)
	}
}
