package query

import (
	"context"
	"sync/atomic"
	"time"
)

// muteEndpoint is where nobody listens.
const muteEndpoint = "tcp://127.0.0.1:1"

// changing registers further ranks of the first instance, which publish nothing, and unregisters each again.
type changing struct {
	cancel context.CancelFunc
	made   atomic.Int64
	ended  chan struct{}
	err    error // why it ended before it was stopped; read it once ended is closed
}

// startChanges makes so many changes a second, one at a time, and returns after the first. Those that a slow server has no
// time for are left out.
func (s *served) startChanges(ctx context.Context, perSecond, blockSize int) (*changing, error) {
	change := func(ctx context.Context, n int) error {
		path := [...]string{"/register", "/unregister"}[n%2]
		return s.changeSource(ctx, path, muteEndpoint, instanceName(0), blockSize, 1+n/2)
	}
	if err := change(ctx, 0); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	c := &changing{cancel: cancel, ended: make(chan struct{})}
	c.made.Store(1)
	go func() {
		defer close(c.ended)
		tick := time.NewTicker(time.Second / time.Duration(perSecond))
		defer tick.Stop()
		for n := 1; ; n++ {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			if err := change(ctx, n); err != nil {
				if ctx.Err() == nil {
					c.err = err
				}
				return
			}
			c.made.Add(1)
		}
	}()
	return c, nil
}

// stop ends the changes and returns why they ended before, if they did.
func (c *changing) stop() error {
	c.cancel()
	<-c.ended
	return c.err
}
