package server

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/rs/zerolog"
)

// An AccessLog writes one JSON object a line for every request:
//
//	{"ts","trace_id","method","path","model","status","duration_ms"}
//
// Requests append lines in memory, and a timer writes them to the file. A full or slow
// disk costs lines, which are counted. It never costs a request.
//
// Concurrency: every method is safe for concurrent use. mu guards the waiting lines and is
// held for an append. out guards the file and is held during a write. Lock order: out,
// then mu.
type AccessLog struct {
	opts    AccessLogOptions
	dropped atomic.Uint64

	mu      sync.Mutex
	pending []byte // whole lines that are not written
	closed  bool

	out     sync.Mutex
	file    io.WriteCloser // nil after Close
	torn    bool           // the file may end inside a line
	failing bool           // the last write failed
	spare   []byte
}

// AccessLogOptions configures an access log.
type AccessLogOptions struct {
	// Open opens the file for appending, at the start and on every Reopen.
	Open func() (io.WriteCloser, error)
	// Zone is what times are written in; nil is UTC.
	Zone *time.Location
	// Report, if set, receives the error of the first write that loses lines, and nil at
	// the first write that succeeds afterwards. It must not call the log.
	Report func(error)
}

const (
	// How long a line may wait for others to be written with it.
	accessDelay = 50 * time.Millisecond
	// Bytes of waiting lines that are written without delay.
	accessChunk = 64 << 10
	// Bytes that wait in memory while the disk is slow, about 30,000 lines.
	accessPending = 4 << 20
	// Bytes of a trace id or a model name; clients choose both.
	accessText = 1 << 10
)

// NewAccessLog opens the file. It returns the error of Open.
func NewAccessLog(opts AccessLogOptions) (*AccessLog, error) {
	file, err := opts.Open()
	if err != nil {
		return nil, err
	}
	return &AccessLog{opts: opts, file: file}, nil
}

// Dropped returns the number of lost lines, 0 of a nil AccessLog.
func (l *AccessLog) Dropped() uint64 {
	if l == nil {
		return 0
	}
	return l.dropped.Load()
}

// Reopen writes the waiting lines to the old file and continues in a newly opened one, so
// that a renamed log ends with its last request. The old file stays if Open fails. A nil
// AccessLog does nothing.
func (l *AccessLog) Reopen() error {
	if l == nil {
		return nil
	}
	l.out.Lock()
	defer l.out.Unlock()
	if l.file == nil {
		return errors.New("the access log is closed")
	}
	file, err := l.opts.Open()
	if err != nil {
		return err
	}
	l.writeLines()
	l.file.Close()
	l.file, l.torn = file, false
	return nil
}

// Close writes the waiting lines and closes the file. Later lines are dropped. A nil
// AccessLog does nothing.
func (l *AccessLog) Close() error {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.out.Lock()
	defer l.out.Unlock()
	if l.file == nil {
		return nil
	}
	l.writeLines()
	err := l.file.Close()
	l.file = nil
	return err
}

// flush writes the waiting lines unless the log is closed.
func (l *AccessLog) flush() {
	l.out.Lock()
	defer l.out.Unlock()
	if l.file != nil {
		l.writeLines()
	}
}

// writeLines writes the waiting lines to the file. The caller holds out.
func (l *AccessLog) writeLines() {
	l.mu.Lock()
	lines := l.pending
	l.pending = l.spare[:0]
	l.mu.Unlock()
	l.spare = lines[:0]
	if len(lines) == 0 {
		return
	}
	if l.torn {
		if _, err := l.file.Write([]byte{'\n'}); err != nil {
			l.dropLines(lines, err)
			return
		}
		l.torn = false
	}
	n, err := l.file.Write(lines)
	if err != nil {
		l.torn = l.torn || n > 0 && lines[n-1] != '\n'
		l.dropLines(lines[n:], err)
		return
	}
	if l.failing {
		l.failing = false
		l.reportError(nil)
	}
}

// dropLines counts lines as dropped, and reports err unless the log was failing already. The first line may be half written.
func (l *AccessLog) dropLines(lines []byte, err error) {
	l.dropped.Add(uint64(bytes.Count(lines, []byte{'\n'})))
	if !l.failing {
		l.failing = true
		l.reportError(err)
	}
}

func (l *AccessLog) reportError(err error) {
	if l.opts.Report != nil {
		l.opts.Report(err)
	}
}

// appendLine adds a line, with its newline, to those that wait to be written. It drops the line if too much waits, or if the
// log is closed.
func (l *AccessLog) appendLine(line []byte) {
	l.mu.Lock()
	waiting := len(l.pending)
	fits := !l.closed && waiting+len(line) <= accessPending
	if fits {
		l.pending = append(l.pending, line...)
	}
	l.mu.Unlock()
	switch {
	case !fits:
		l.dropped.Add(1)
	case waiting == 0:
		time.AfterFunc(accessDelay, l.flush)
	case waiting < accessChunk && waiting+len(line) >= accessChunk:
		go l.flush()
	}
}

// Times carry the offset as digits unless they are in UTC.
const (
	accessTimeUTC   = "2006-01-02T15:04:05.000Z"
	accessTimeLocal = "2006-01-02T15:04:05.000-07:00"
)

// Middleware logs every request but those of /metrics. The trace id is the value of the
// header. The model is the string that the handler sets under the key modelKey in its
// gin.Context. Middleware sees requests without a route if the routes are mounted after
// it. A nil AccessLog logs nothing.
func (l *AccessLog) Middleware(header, modelKey string) gin.HandlerFunc {
	if l == nil {
		return func(*gin.Context) {}
	}
	header = http.CanonicalHeaderKey(header)
	return func(g *gin.Context) {
		if g.FullPath() == "/metrics" {
			return
		}
		start := time.Now()
		status := http.StatusInternalServerError // what a panic is answered with
		defer func() { l.logRequest(g, header, modelKey, start, status) }()
		g.Next()
		status = g.Writer.Status()
	}
}

// logRequest writes the line of a request that has been answered with a status.
func (l *AccessLog) logRequest(g *gin.Context, header, modelKey string, start time.Time, status int) {
	took := time.Since(start)
	layout := accessTimeUTC
	if l.opts.Zone != nil {
		layout = accessTimeLocal
		start = start.In(l.opts.Zone)
	} else {
		start = start.UTC()
	}
	model := "-"
	if v, known := g.Get(modelKey); known {
		model = v.(string)
	}
	var line bytes.Buffer
	lines := zerolog.New(&line) // ends an event with a newline
	lines.Log().                // keys in the order of Dynamo
					Str("ts", start.Format(layout)).
					Str("trace_id", traceID(g.Request.Header[header])).
					Str("method", g.Request.Method).
					Str("path", routeOf(g, status)).
					Str("model", truncate(model)).
					Int("status", status).
					Float64("duration_ms", float64(took.Nanoseconds())/1e6).
					Send()
	l.appendLine(line.Bytes())
}

// routeOf returns the route that a request has matched. For a wrong method gin does not know it, so routeOf returns the path:
// the two are the same, because no route of the dialect has parameters.
func routeOf(g *gin.Context, status int) string {
	switch {
	case g.FullPath() != "":
		return g.FullPath()
	case status == http.StatusMethodNotAllowed:
		return g.Request.URL.Path
	}
	return "unknown"
}

// traceID returns the first value of the header, "-" if it is absent or not printable.
func traceID(values []string) string {
	if len(values) == 0 {
		return "-"
	}
	for i := range len(values[0]) {
		if c := values[0][i]; c != '\t' && (c < ' ' || c > '~') {
			return "-"
		}
	}
	return truncate(values[0])
}

// truncate cuts a text to accessText bytes.
func truncate(s string) string {
	if len(s) > accessText {
		s = strings.ToValidUTF8(s[:accessText], "")
	}
	return s
}
