package stream

import (
	"sync"
	"testing"

	"example.com/conductor/internal/must"
)

// consumer pulls steps until the stream is closed.
type consumer struct {
	t      *testing.T
	mu     sync.Mutex
	steps  []Step
	follow *follower
	done   chan struct{}
}

func consume(t *testing.T, s *Stream, firstSeq uint64) *consumer {
	return consumeAs(t, s, newFollower(firstSeq))
}

func consumeAs(t *testing.T, s *Stream, follow *follower) *consumer {
	c := &consumer{t: t, follow: follow, done: make(chan struct{})}
	go func() {
		defer close(c.done)
		for {
			step, ok := s.Next()
			if !ok {
				return
			}
			c.mu.Lock()
			c.steps = append(c.steps, step)
			must.Report(t, c.follow.take(step))
			c.mu.Unlock()
		}
	}()
	return c
}

// seqs returns what was applied since the last reset.
func (c *consumer) seqs() []uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []uint64
	for _, s := range c.steps {
		if s.Kind == DropBlocks {
			all = nil
			continue
		}
		all = append(all, s.Seq)
	}
	return all
}
