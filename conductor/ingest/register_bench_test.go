package ingest

import (
	"fmt"
	"testing"

	"github.com/rs/zerolog"

	"example.com/conductor/conductor/registration"
	"example.com/conductor/events/stream"
	"example.com/conductor/events/tape"
	"example.com/conductor/internal/must"
)

// BenchmarkRegister registers sources of one deployment, next to those that are there.
func BenchmarkRegister(b *testing.B) {
	for _, there := range []int{100, 1000, 4000} {
		b.Run(fmt.Sprint(there), func(b *testing.B) {
			c := newServer(serverOptions{HashSeed: 1337, Log: zerolog.Nop()})
			defer c.Close()
			c.sources.FeedBy(func(registration.Registration, bool, *tape.Recorder, func(stream.State, string)) Feed {
				return idle{make(chan struct{})}
			})
			register := func(i int) {
				must.Succeed(b, c.Register(registration.Registration{Endpoint: fmt.Sprintf("tcp://e%d:1", i), Type: registration.TypeVLLM,
					Model: "m", Instance: fmt.Sprint(i), BlockSize: 16}, RegisterOptions{}))
			}
			for i := range there {
				register(i)
			}
			b.ResetTimer()
			for i := range b.N {
				register(there + i)
				b.StopTimer()
				c.Unregister(registration.Key{Instance: fmt.Sprint(there + i)})
				b.StartTimer()
			}
		})
	}
}

// idle is a feed that has nothing.
type idle struct{ closed chan struct{} }

func (f idle) Next() (stream.Step, bool) { <-f.closed; return stream.Step{}, false }
func (f idle) Status() stream.Status     { return stream.Status{State: stream.Synced} }
func (f idle) Resync(string)             {}
func (f idle) ResumeBehind(stream.Mark)  {}
func (f idle) MarkIncomplete(string)     {}
func (f idle) MarkUnusable(string)       {}
func (f idle) Close()                    { close(f.closed) }
