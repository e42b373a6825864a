package main

import (
	"bytes"
	"io"
	"os/signal"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/rs/zerolog"

	"example.com/conductor/cmd/internal/cli"
	"example.com/conductor/config"
)

// newLogger writes to w, which is standard error, as log.level and log.format say. Call flush before the process ends.
//
// The program that reads standard error may stop reading, or go away. Nothing else of the process waits for that: lines go through a
// queue, and a pipe without a reader is no signal that ends the process.
func newLogger(c config.Log, w io.Writer) (log zerolog.Logger, flush func()) {
	level, err := zerolog.ParseLevel(c.Level)
	if err != nil {
		panic("BUG: a checked log level does not parse: " + err.Error())
	}
	signal.Ignore(syscall.SIGPIPE)
	queue := startLogQueue(w, logLines)
	var out io.Writer = printableLines{queue}
	if c.Format == "console" {
		out = zerolog.ConsoleWriter{Out: queue, TimeFormat: time.TimeOnly, NoColor: !cli.Coloured(w),
			FormatPrepare: printMessage, FormatFieldValue: printField}
	}
	log = zerolog.New(out).Level(level).With().Timestamp().Logger()
	queue.tellLost = func(n int64) {
		log.Warn().Int64("lines", n).Msg("lines of the log are lost, because they were not read in time")
	}
	return log, func() { finishesBefore(time.After(logTime), queue.close) }
}

// setLevel sets the least level of all log lines.
func setLevel(text string) {
	level, err := zerolog.ParseLevel(text)
	if err != nil {
		panic("BUG: a checked log level does not parse: " + err.Error())
	}
	zerolog.SetGlobalLevel(level)
}

const (
	logLines = 10_000          // that may wait, some megabytes
	logTime  = 2 * time.Second // how long the last lines may take
)

// logQueue has lines that wait to be written. If it is full, further ones are lost, and counted.
type logQueue struct {
	lines    chan []byte
	lost     atomic.Int64
	tellLost func(n int64) // logs how many
	done     chan struct{} // closed once all is written
}

func startLogQueue(w io.Writer, most int) *logQueue {
	q := &logQueue{lines: make(chan []byte, most), done: make(chan struct{})}
	go func() {
		defer close(q.done)
		for line := range q.lines {
			if line == nil {
				return
			}
			_, _ = w.Write(line) // there is nowhere else to say that it failed
			if n := q.lost.Swap(0); n > 0 {
				q.tellLost(n)
			}
		}
	}()
	return q
}

// Write takes a line. It never waits.
func (q *logQueue) Write(line []byte) (int, error) {
	select {
	case q.lines <- bytes.Clone(line):
	default:
		q.lost.Add(1)
	}
	return len(line), nil
}

// close writes what waits. Lines that are written later may be lost.
func (q *logQueue) close() {
	q.lines <- nil
	<-q.done
}
