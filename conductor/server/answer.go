package server

import (
	"net/http"
	"strconv"
	"sync/atomic"

	"github.com/gin-gonic/gin"

	"example.com/conductor/conductor/body"
)

// answerTypes are the media types of answers in the codecs, which have no parameters.
var answerTypes = [...][]string{body.JSON: {body.JSON.ContentType()}, body.Msgpack: {body.Msgpack.ContentType()}}

// SendAnswer sends the answer of a query. It allocates nothing if an answer of that length was sent lately.
func SendAnswer(g *gin.Context, codec body.Codec, text []byte) {
	header := g.Writer.Header()
	header["Content-Type"], header["Content-Length"] = answerTypes[codec], lengthValue(len(text))
	g.Status(http.StatusOK)
	g.Writer.Write(text)
}

// lengths remembers values of Content-Length, each at its length modulo len(lengths).
var lengths [1 << 14]atomic.Pointer[length]

// length is a value of Content-Length as headers have it. It never changes.
type length struct {
	bytes int
	value [1]string
}

// lengthValue returns the value of Content-Length for n bytes. Headers share it, so it must not be changed.
func lengthValue(n int) []string {
	at := &lengths[n%len(lengths)]
	l := at.Load()
	if l == nil || l.bytes != n {
		l = &length{n, [1]string{strconv.Itoa(n)}}
		at.Store(l)
	}
	return l.value[:]
}
