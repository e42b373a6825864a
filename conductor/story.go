package conductor

import (
	"fmt"

	"example.com/conductor/conductor/ingest"
	"example.com/conductor/conductor/statelog"
	"example.com/conductor/conductor/status"
	"example.com/conductor/events/stream"
)

// SourceStory is one source with what has happened to it.
type SourceStory struct {
	status.Source
	// Events are the last changes of its state, gaps, and times that its blocks were dropped, the oldest first; Older
	// counts those before.
	Events []statelog.Event
	Older  uint64
}

// Source returns one source of the client's tenants by its printed key, or ErrNotFound.
func (v Inspection) Source(key string) (SourceStory, error) {
	s := v.conductor.sources.FindByPrintedKey(key, v.reader.Tenants)
	if s == nil {
		return SourceStory{}, fmt.Errorf("%w: %s", ingest.ErrNotFound, key)
	}
	var story SourceStory
	story.Source, story.Events, story.Older = s.Story()
	View(v).conceal(&story.Source)
	for i := range story.Events {
		switch e := &story.Events[i]; e.To {
		case stream.Connecting, stream.Stale, stream.Failed:
			e.Reason = View(v).fault(e.To, e.Reason)
		}
	}
	return story, nil
}
