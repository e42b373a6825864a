package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"example.com/conductor/config"
)

// startupTime is how long a command waits for a server that does not listen yet. A server opens its ports within a second;
// on a machine that is busy with other things it takes some more.
const startupTime = 10 * time.Second

// redialEvery is the pause between two attempts.
const redialEvery = 50 * time.Millisecond

// patience lets the first connection of a command to a server wait for it, as it may have been started in the line before.
type patience struct {
	within time.Duration
	tell   func(address string) // says once that the command waits
	once   sync.Once
	over   sync.Map // addresses that have listened, or for which the time is up
}

type dialFunc = func(ctx context.Context, network, address string) (net.Conn, error)

// waitingDial returns a dial that tries again while connections are refused.
func (p *patience) waitingDial(dial dialFunc) dialFunc {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		for began := time.Now(); ; {
			conn, err := dial(ctx, network, address)
			_, over := p.over.Load(address)
			if over || !errors.Is(err, syscall.ECONNREFUSED) || time.Since(began) >= p.within {
				p.over.Store(address, nil)
				return conn, err
			}
			p.once.Do(func() { p.tell(address) })
			select {
			case <-ctx.Done():
				return nil, err
			case <-time.After(redialEvery):
			}
		}
	}
}

// newPatience returns the patience of a command, as long as CONDUCTOR_WAIT says. Its line goes to errs.
func newPatience(program string, errs func() io.Writer) (*patience, error) {
	within := startupTime
	if text := os.Getenv(config.EnvWait); text != "" {
		var err error
		if within, err = time.ParseDuration(text); err != nil || within < 0 {
			return nil, Usagef("%s: %q is not a duration, such as %s, or 0s not to wait", config.EnvWait, text, startupTime)
		}
	}
	return &patience{within: within, tell: func(address string) {
		fmt.Fprintf(errs(), "%s: no server listens at %s yet; waiting for it up to %s\n", cmp.Or(program, "conductor"), address, within)
	}}, nil
}
