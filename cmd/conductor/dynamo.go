package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"example.com/conductor/compat/dynamo"
	"example.com/conductor/conductor/server"
	"example.com/conductor/config"
)

// accessLog opens the access log of the dialect, nil where none is configured.
func accessLog(cfg config.DynamoDialect, log zerolog.Logger) (*server.AccessLog, error) {
	if cfg.AccessLog == "" {
		return nil, nil
	}
	opts := server.AccessLogOptions{
		Open: func() (io.WriteCloser, error) {
			return openAccessLog(cfg.AccessLog)
		},
		Report: func(err error) {
			if err != nil {
				log.Error().Err(err).Msg("the access log cannot be written; lines are lost")
				return
			}
			log.Info().Msg("the access log is written again")
		},
	}
	if cfg.AccessLogLocalTime {
		opts.Zone = time.Local
	}
	l, err := server.NewAccessLog(opts)
	if err != nil {
		var pe *os.PathError
		if errors.As(err, &pe) {
			err = pe.Err
		}
		return nil, fmt.Errorf("failed to open access log %s: %w", cfg.AccessLog, err)
	}
	return l, nil
}

// accessLogLosses counts the lines that a disk did not take.
func accessLogLosses(l *server.AccessLog) prometheus.Collector {
	return prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "conductor_access_log_dropped_total", Help: "Lines of the access log that could not be written.",
	}, func() float64 { return float64(l.Dropped()) })
}

// openAccessLog opens a file to append to. A missing one is made, for its owner alone. A symbolic
// link, a pipe or a device is refused, except /dev/stdout and /dev/stderr: it may lead to a place
// that another user chose, or hold up the server.
func openAccessLog(name string) (*os.File, error) {
	if name == "/dev/stdout" || name == "/dev/stderr" {
		return os.OpenFile(name, os.O_APPEND|os.O_WRONLY, 0)
	}
	file, err := os.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_WRONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0o600)
	if errors.Is(err, syscall.ELOOP) || errors.Is(err, syscall.ENXIO) {
		return nil, &os.PathError{Op: "open", Path: name, Err: errNoFile}
	}
	if err != nil {
		return nil, err
	}
	if info, err := file.Stat(); err != nil || !info.Mode().IsRegular() {
		file.Close()
		return nil, &os.PathError{Op: "open", Path: name, Err: cmp.Or(err, errNoFile)}
	}
	return file, nil
}

var errNoFile = errors.New("it is no regular file")

// closeAccessLog writes what waits, unless the disk hangs.
func closeAccessLog(l *server.AccessLog, log zerolog.Logger) {
	if !finishesBefore(time.After(time.Second), func() { l.Close() }) {
		log.Warn().Msg("the access log was not written to its end")
	}
}

// workersPause lies between looks at how many workers there are.
const workersPause = 100 * time.Millisecond

// waitForWorkers waits for the least number of workers. false is an end of ctx.
func waitForWorkers(ctx context.Context, cfg config.DynamoDialect, d *dynamo.Dialect, log zerolog.Logger) bool {
	waits := false
	for d.Workers() < cfg.MinInitialWorkers {
		if !waits {
			waits = true
			log.Info().Int("workers", d.Workers()).Int("least", cfg.MinInitialWorkers).Msg("waiting for workers")
		}
		select {
		case <-ctx.Done():
			return false
		case <-time.After(workersPause):
		}
	}
	return ctx.Err() == nil
}
