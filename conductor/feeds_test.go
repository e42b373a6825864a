package conductor

import (
	"time"

	"example.com/conductor/conductor/ingest"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/events"
	"example.com/conductor/events/stream"
	"example.com/conductor/events/tape"
)

// handed are feeds that a test hands events to, by instance.
type handed map[string]*ingest.RecordedFeed

// handedTo lets a test hand events to the sources that are registered from now on.
func handedTo(c *Conductor) handed {
	all := make(handed)
	c.Sources().FeedBy(func(r registration.Registration, _ bool, _ *tape.Recorder, _ func(stream.State, string)) ingest.Feed {
		f := ingest.NewRecorded(time.Now, 0)
		all[r.Instance] = f
		return f
	})
	return all
}

// apply lets the source of an instance apply an event.
func (h handed) apply(instance string, e events.Event) {
	batch := events.Batch{Events: []events.Event{e}, Rank: -1}
	h[instance].ApplyStep(stream.Step{Kind: stream.ApplyBatch, Epoch: 1, Batch: batch}, time.Now())
}
