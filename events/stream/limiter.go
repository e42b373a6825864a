package stream

import "context"

// Limiter bounds how many streams replay at once. A replay makes a publisher stream its
// ring from the thread that also publishes. The time a stream waits for its turn does not
// count as silence of its publisher.
type Limiter struct{ slots chan struct{} }

// NewLimiter lets n streams replay at once.
func NewLimiter(n int) *Limiter { return &Limiter{slots: make(chan struct{}, max(n, 1))} }

// acquire returns false if ctx ends first. A nil limiter has no bound.
func (l *Limiter) acquire(ctx context.Context) bool {
	if l == nil {
		return ctx.Err() == nil
	}
	select {
	case l.slots <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

func (l *Limiter) release() {
	if l != nil {
		<-l.slots
	}
}
