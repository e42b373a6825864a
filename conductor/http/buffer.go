package http

import (
	"net/http"
	"strconv"
	"sync"

	"github.com/gin-gonic/gin"
)

// buffer is a result that is JSON already. It is sent in one piece and used again.
type buffer struct{ text []byte }

// maxBuffer is how large a buffer may be to be used again: an answer of thousands of
// rows fits, one of a hundred thousand does not stay.
const maxBuffer = 4 << 20

var buffers = sync.Pool{New: func() any { return new(buffer) }}

func newBuffer() *buffer {
	b := buffers.Get().(*buffer)
	b.text = b.text[:0]
	return b
}

var jsonType = []string{"application/json"}

// send writes the result and gives the buffer back.
func (b *buffer) send(g *gin.Context) {
	header := g.Writer.Header()
	header["Content-Type"] = jsonType
	header["Content-Length"] = []string{strconv.Itoa(len(b.text))}
	g.Status(http.StatusOK)
	if _, err := g.Writer.Write(b.text); err != nil {
		g.Abort() // nobody reads on
	}
	if cap(b.text) <= maxBuffer {
		buffers.Put(b)
	}
}
