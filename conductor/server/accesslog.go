package server

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gin-gonic/gin"
)

// An AccessLog writes one JSON object a line for every request:
//
//	{"ts","trace_id","method","path","model","status","duration_ms"}
//
// Requests put lines into memory; one goroutine takes them to the file. A disk
// that is full or slow costs lines, which are counted, and never a request.
//
// Concurrency: every method may be called at any time from anywhere. mu guards
// the lines that wait and is held for an append; out guards the file and is held
// during a write. Lock order: out, then mu.
type AccessLog struct {
	opts    AccessLogOptions
	dropped atomic.Uint64

	mu      sync.Mutex
	pending []byte // whole lines that are not written yet
	closed  bool

	out     sync.Mutex
	file    io.WriteCloser
	torn    bool // the file may end inside a line
	failing bool // the last write failed
	spare   []byte

	wake, full chan struct{} // one token each: there are lines; there are many
	stop, done chan struct{}
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
	// Bytes of waiting lines at which the writer stops waiting for more.
	accessChunk = 64 << 10
	// What waits in memory while the disk does not take it, some 30,000 lines.
	accessPending = 4 << 20
	// Bytes of a trace id or a model name; clients choose both.
	accessText = 1 << 10
)

// NewAccessLog opens the file and starts writing.
func NewAccessLog(opts AccessLogOptions) (*AccessLog, error) {
	file, err := opts.Open()
	if err != nil {
		return nil, err
	}
	l := &AccessLog{
		opts: opts, file: file,
		wake: make(chan struct{}, 1), full: make(chan struct{}, 1),
		stop: make(chan struct{}), done: make(chan struct{}),
	}
	go l.run()
	return l, nil
}

// Dropped is how many lines were lost; none by a nil AccessLog.
func (l *AccessLog) Dropped() uint64 {
	if l == nil {
		return 0
	}
	return l.dropped.Load()
}

// Reopen goes on in a newly opened file, after what was logged before is in the
// old one, so that a log that was renamed ends with its last request. When the
// new one cannot be opened, the old one stays. A nil AccessLog does nothing.
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
	l.write()
	l.file.Close()
	l.file, l.torn = file, false
	return nil
}

// Close writes what waits and closes the file. Lines that come later are
// dropped. A nil AccessLog does nothing.
func (l *AccessLog) Close() error {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	again := l.closed
	l.closed = true
	l.mu.Unlock()
	if again {
		return nil
	}
	close(l.stop)
	<-l.done
	l.out.Lock()
	defer l.out.Unlock()
	l.write()
	err := l.file.Close()
	l.file = nil
	return err
}

func (l *AccessLog) run() {
	defer close(l.done)
	for {
		select {
		case <-l.stop:
			return
		case <-l.wake:
		}
		select {
		case <-l.stop:
			return
		case <-l.full:
		case <-time.After(accessDelay):
		}
		l.out.Lock()
		l.write()
		l.out.Unlock()
	}
}

// write takes what waits to the file. The caller holds out.
func (l *AccessLog) write() {
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
			l.lose(lines, err)
			return
		}
		l.torn = false
	}
	n, err := l.file.Write(lines)
	if err != nil {
		l.torn = l.torn || n > 0 && lines[n-1] != '\n'
		l.lose(lines[n:], err)
		return
	}
	if l.failing {
		l.failing = false
		l.report(nil)
	}
}

// lose counts lines as dropped. The first may be half written.
func (l *AccessLog) lose(lines []byte, err error) {
	l.dropped.Add(uint64(bytes.Count(lines, []byte{'\n'})))
	if !l.failing {
		l.failing = true
		l.report(err)
	}
}

func (l *AccessLog) report(err error) {
	if l.opts.Report != nil {
		l.opts.Report(err)
	}
}

// append hands a line, with its newline, to the writer.
func (l *AccessLog) append(line []byte) {
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
		token(l.wake)
	case waiting < accessChunk && waiting+len(line) >= accessChunk:
		token(l.full)
	}
}

func token(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// accessLine is one line, its keys in the order Dynamo writes them.
type accessLine struct {
	Time     string  `json:"ts"`
	TraceID  string  `json:"trace_id"`
	Method   string  `json:"method"`
	Path     string  `json:"path"`
	Model    string  `json:"model"`
	Status   int     `json:"status"`
	Duration float64 `json:"duration_ms"`
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
		defer func() { l.log(g, header, modelKey, start, status) }()
		g.Next()
		status = g.Writer.Status()
	}
}

func (l *AccessLog) log(g *gin.Context, header, modelKey string, start time.Time, status int) {
	took := time.Since(start)
	layout := accessTimeUTC
	if l.opts.Zone != nil {
		layout = accessTimeLocal
		start = start.In(l.opts.Zone)
	} else {
		start = start.UTC()
	}
	var line bytes.Buffer
	enc := json.NewEncoder(&line) // ends what it writes with a newline
	enc.SetEscapeHTML(false)
	err := enc.Encode(accessLine{
		Time:     start.Format(layout),
		TraceID:  traceID(g.Request.Header[header]),
		Method:   g.Request.Method,
		Path:     route(g, status),
		Model:    cut(modelOf(g, modelKey)),
		Status:   status,
		Duration: float64(took.Nanoseconds()) / 1e6,
	})
	if err != nil {
		panic("BUG: an access log line does not encode: " + err.Error())
	}
	l.append(line.Bytes())
}

// route is the route that matched. Of one asked for with another method gin does
// not tell; no route of the dialect has parameters, so it is the path.
func route(g *gin.Context, status int) string {
	switch {
	case g.FullPath() != "":
		return g.FullPath()
	case status == http.StatusMethodNotAllowed:
		return g.Request.URL.Path
	}
	return "unknown"
}

func modelOf(g *gin.Context, key string) string {
	if model, ok := g.Get(key); ok {
		return model.(string)
	}
	return "-"
}

// traceID is the first value of the header, "-" when there is none that can be
// shown.
func traceID(values []string) string {
	if len(values) == 0 {
		return "-"
	}
	for i := range len(values[0]) {
		if c := values[0][i]; c != '\t' && (c < ' ' || c > '~') {
			return "-"
		}
	}
	return cut(values[0])
}

func cut(s string) string {
	if len(s) > accessText {
		s = strings.ToValidUTF8(s[:accessText], "")
	}
	return s
}
