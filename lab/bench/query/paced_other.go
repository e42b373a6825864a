//go:build !linux

package query

import (
	"context"
	"errors"
	"time"

	"example.com/conductor/lab/harness"
)

type pacer struct{ late harness.Latencies }

func newPacer(*client, string, float64) (*pacer, error) {
	return nil, errors.New("--load needs Linux, whose epoll it waits by")
}

func (*pacer) close() {}

func (*pacer) run(context.Context, time.Duration, *harness.Latencies) error { return nil }
