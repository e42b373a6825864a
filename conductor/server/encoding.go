package server

import (
	"io"
	"strconv"
	"strings"

	"github.com/gin-gonic/gin"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// CodedWriter returns a writer that compresses the body of an answer as the request accepts it, and ends it with
// Close; nil if the body goes as it is. A Range is one of the bytes as they are. Answers of queries are never
// compressed: that would cost more than the queries.
func CodedWriter(g *gin.Context) io.WriteCloser {
	if g.GetHeader("Range") != "" {
		return nil
	}
	for _, part := range strings.Split(strings.Join(g.Request.Header.Values("Accept-Encoding"), ","), ",") {
		name, parameters, _ := strings.Cut(part, ";")
		if q, given := strings.CutPrefix(strings.TrimSpace(parameters), "q="); given {
			if weight, err := strconv.ParseFloat(q, 64); err != nil || weight <= 0 {
				continue
			}
		}
		switch name = strings.ToLower(strings.TrimSpace(name)); name {
		case "zstd":
			w, err := zstd.NewWriter(g.Writer, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1))
			if err != nil {
				panic("BUG: options of the zstd encoder: " + err.Error())
			}
			g.Header("Content-Encoding", name)
			return w
		case "gzip":
			w, err := gzip.NewWriterLevel(g.Writer, gzip.BestSpeed)
			if err != nil {
				panic("BUG: the level of the gzip encoder: " + err.Error())
			}
			g.Header("Content-Encoding", name)
			return w
		}
	}
	return nil
}
