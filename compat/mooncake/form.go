package mooncake

import (
	"net/http"
	"strings"

	"github.com/gin-gonic/gin"
)

// Form is how requests and answers are written.
type Form uint8

const (
	Msgpack Form = iota // by clients of August 2026 and later
	JSON                // by those of July 2026
)

// ContentType is that of every body in msgpack.
const ContentType = "application/msgpack"

// wanted reports whether a request on a listener of another dialect wants this one:
// msgpack by Content-Type, and where there is no body also by Accept; JSON by
// dialect=v2 in the query string.
func (f Form) wanted(g *gin.Context) bool {
	if f == JSON {
		return dialectOf(g) == "v2"
	}
	return speaks(g.GetHeader("Content-Type")) || g.Request.Method == http.MethodGet && codec(g.Request.Header, JSON) == Msgpack
}

// dialectOf is what the query string asks for, "" as a rule.
func dialectOf(g *gin.Context) string {
	if g.Request.URL.RawQuery == "" {
		return ""
	}
	return g.Query("dialect")
}

// speaks reports whether a header names the media type, among others or with
// parameters.
func speaks(header string) bool { return strings.Contains(strings.ToLower(header), ContentType) }

// invalid returns the fault of a body as a whole.
func (f Form) invalid(text string) *failure {
	if f == JSON {
		return &failure{status: http.StatusBadRequest, text: text, reason: "invalid_json"}
	}
	return invalidBody(text)
}

// dict is what clients call a map.
func (f Form) dict() string {
	if f == JSON {
		return "an object"
	}
	return "a map"
}

// answer sends what was asked for, in the codec the client accepts. In JSON end follows
// it, which is a newline everywhere but behind /services.
func (d *Dialect) answer(g *gin.Context, packed []byte, end string) {
	d.send(g, http.StatusOK, packed, end)
}

func (d *Dialect) send(g *gin.Context, status int, packed []byte, end string) {
	if codec(g.Request.Header, d.cfg.Form) == Msgpack {
		g.Data(status, ContentType, packed)
		return
	}
	text, _ := appendJSON(make([]byte, 0, 2*len(packed)), packed)
	g.Data(status, jsonType, append(text, end...))
}

// refuse answers with an error. In JSON those of the operation, which have no reason,
// are lines of text.
func (d *Dialect) refuse(g *gin.Context, err error) {
	f := describe(err)
	if f.status == http.StatusRequestEntityTooLarge && g.Request.ProtoMajor < 2 {
		// The rest of the body is not read, so the connection cannot go on.
		g.Header("Connection", "close")
	}
	if d.cfg.Form == JSON && f.reason == "" {
		g.Data(f.status, "text/plain; charset=utf-8", []byte(f.text+"\n"))
		return
	}
	d.send(g, f.status, f.appendTo(nil), "")
}
