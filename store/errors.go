package store

import (
	"context"
	"errors"
	"io"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
)

// Explain returns an error as operators read it. A store that ends a connection does not say why: the
// text names the setting to look at.
func (s *Store) Explain(err error) string {
	switch {
	case !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.EPIPE):
		return err.Error()
	case s.secured:
		return err.Error() + ": the store ended the connection, as one does that wants another certificate than store.cert"
	}
	return err.Error() + ": the store ended the connection, as one does that wants TLS; store.url begins with rediss:// then"
}

// Refusal returns the last error that the store answered to a command later than a time, "" for none.
func (s *Store) Refusal(later time.Time) string {
	if last := s.refusals.last.Load(); last != nil && last.at.After(later) {
		return last.text
	}
	return ""
}

// refusals is a hook of connections that remembers the last error that the store answered. Callers
// count most errors, and try again.
type refusals struct{ last atomic.Pointer[refusal] }

type refusal struct {
	text string
	at   time.Time
}

// note remembers an error if the store has answered it. A script that the store does not know is sent
// again, and is no refusal.
func (r *refusals) note(err error) {
	var answer redis.Error
	if errors.As(err, &answer) && !errors.Is(err, redis.Nil) && !redis.HasErrorPrefix(err, "NOSCRIPT") {
		r.last.Store(&refusal{err.Error(), time.Now()})
	}
}

// DialHook changes nothing.
func (r *refusals) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook notes the error of a command.
func (r *refusals) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		r.note(err)
		return err
	}
}

// ProcessPipelineHook notes the error of each command.
func (r *refusals) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		err := next(ctx, cmds)
		for _, cmd := range cmds {
			r.note(cmd.Err())
		}
		return err
	}
}
