package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/net/http/httpguts"

	"example.com/conductor/conductor/telemetry"
	"example.com/conductor/config"
)

// newTracer begins to send traces, if they are to go anywhere.
func newTracer(loaded *config.Loaded, log zerolog.Logger) (*telemetry.Tracer, error) {
	c := loaded.Config.Tracing
	if c.Endpoint == "" {
		return nil, nil
	}
	to := telemetry.TracerConfig{Endpoint: c.Endpoint, Sample: c.Sample, Version: version, Log: log}
	var err error
	if c.HeadersFile != "" {
		if to.Headers, err = readHeaders(c.HeadersFile); err != nil {
			return nil, fmt.Errorf("%s: tracing.headers_file: %w", loaded.Place("tracing.headers_file"), err)
		}
	}
	t, err := telemetry.NewTracer(to)
	if err != nil {
		return nil, fmt.Errorf("%s: tracing.endpoint: %w", loaded.Place("tracing.endpoint"), err)
	}
	return t, nil
}

// maxHeaders bounds a file of headers in bytes.
const maxHeaders = 64 << 10

// readHeaders reads a file with a header in each line, as name: value. Empty lines, and those that
// begin with #, say nothing. No error has a value in it.
func readHeaders(name string) (map[string]string, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxHeaders+1))
	if err != nil {
		return nil, err
	}
	if len(text) > maxHeaders {
		return nil, fmt.Errorf("%s: more than %d bytes", name, maxHeaders)
	}
	headers := make(map[string]string)
	var wrong []error
	for i, line := range strings.Split(string(text), "\n") {
		if line = strings.TrimSpace(line); line == "" || line[0] == '#' {
			continue
		}
		key, value, ok := strings.Cut(line, ":")
		key, value = strings.TrimSpace(key), strings.TrimSpace(value)
		if !ok || !httpguts.ValidHeaderFieldName(key) || !httpguts.ValidHeaderFieldValue(value) {
			wrong = append(wrong, fmt.Errorf("%s:%d: a line must be a header: value", name, i+1))
		}
		headers[key] = value
	}
	return headers, errors.Join(wrong...)
}

// closeTracer sends the last traces, for a second at most.
func closeTracer(t *telemetry.Tracer, log zerolog.Logger) {
	ctx, cancel := context.WithTimeoutCause(context.Background(), time.Second, errors.New("the collector is too slow"))
	defer cancel()
	if err := t.Close(ctx); err != nil {
		log.Warn().Err(err).Msg("traces were lost")
	}
}
