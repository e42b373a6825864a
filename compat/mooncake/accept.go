package mooncake

import (
	"bytes"
	"net/http"
	"strconv"
	"strings"

	"github.com/gin-gonic/gin"
)

// What a request is sent in says which dialect answers, and Accept in which codec:
//
//	Content-Type       Accept          answer
//	application/json   -, json, */*    published dialect, JSON
//	application/json   msgpack         published dialect, msgpack (transcode)
//	application/msgpack  -, msgpack, */*  this dialect, msgpack
//	application/msgpack  json            this dialect, JSON
//	none, of a GET     msgpack         this dialect, msgpack

// codec returns the form an answer is written in: of those that Accept allows the one it
// likes best, own where it likes both alike or neither.
func codec(header http.Header, own Form) Form {
	accept := header["Accept"]
	if len(accept) == 0 || len(accept) == 1 && accept[0] == "*/*" {
		return own
	}
	text := strings.Join(accept, ",")
	mine, other := liking(text, own.contentType()), liking(text, own.other().contentType())
	if other > mine {
		return own.other()
	}
	return own
}

// liking is the quality an Accept header gives a media type, 0 if it does not have it:
// that of the most specific range the type is in.
func liking(accept, mediaType string) (quality float64) {
	family, _, _ := strings.Cut(mediaType, "/")
	best := -1
	for part := range strings.SplitSeq(accept, ",") {
		name, params, _ := strings.Cut(part, ";")
		at := -1
		switch strings.ToLower(strings.TrimSpace(name)) {
		case "*/*":
			at = 0
		case family + "/*":
			at = 1
		case mediaType:
			at = 2
		}
		if at > best {
			best, quality = at, weight(params)
		}
	}
	return quality
}

// weight is the q among the parameters of a media range, 1 if there is none, 0 if it is
// none that there can be.
func weight(params string) float64 {
	for p := range strings.SplitSeq(params, ";") {
		name, value, _ := strings.Cut(p, "=")
		if !strings.EqualFold(strings.TrimSpace(name), "q") {
			continue
		}
		if q, err := strconv.ParseFloat(strings.TrimSpace(value), 64); err == nil && q >= 0 && q <= 1 {
			return q
		}
		return 0
	}
	return 1
}

// contentType is the media type of a form's bodies.
func (f Form) contentType() string {
	if f == JSON {
		return jsonType
	}
	return ContentType
}

const jsonType = "application/json"

func (f Form) other() Form {
	if f == JSON {
		return Msgpack
	}
	return JSON
}

// transcode runs the handlers of the published dialect and packs what they answer.
func transcode(g *gin.Context) {
	direct := g.Writer
	held := &heldWriter{ResponseWriter: direct}
	g.Writer = held
	defer func() { g.Writer = direct }() // a panic is told by who recovers from it
	g.Next()
	body := held.text.Bytes()
	if strings.HasPrefix(direct.Header().Get("Content-Type"), jsonType) {
		if packed, ok := packAnswer(nil, body); ok {
			direct.Header().Set("Content-Type", ContentType)
			body = packed
		}
	}
	direct.Header().Set("Content-Length", strconv.Itoa(len(body)))
	direct.Write(body)
}

// heldWriter keeps a body back.
type heldWriter struct {
	gin.ResponseWriter
	text bytes.Buffer
}

func (w *heldWriter) Write(b []byte) (int, error)       { return w.text.Write(b) }
func (w *heldWriter) WriteString(s string) (int, error) { return w.text.WriteString(s) }
func (w *heldWriter) WriteHeaderNow()                   {}
func (w *heldWriter) Flush()                            {}
