package conductor

import (
	"fmt"

	"example.com/conductor/conductor/statelog"
	"example.com/conductor/events/stream"
)

// SourceStory is one source with what has happened to it.
type SourceStory struct {
	Service
	// Events are the last changes of its state, gaps, and times that its blocks were dropped, the oldest first; Older
	// counts those before.
	Events []statelog.Event
	Older  uint64
}

// Source returns one source of the client's tenants by its printed key, or ErrNotFound.
func (v Inspection) Source(key string) (SourceStory, error) {
	for _, s := range v.conductor.sources.registered() {
		if !v.reader.Tenants.Has(s.reg.Tenant) || s.reg.Key().String() != key {
			continue
		}
		story := SourceStory{Service: servicesOf([]*source{s})[0]}
		View(v).conceal(&story.Service)
		story.Events, story.Older = s.states.History()
		for i := range story.Events {
			switch e := &story.Events[i]; e.To {
			case stream.Connecting, stream.Stale, stream.Failed:
				e.Reason = View(v).fault(e.To, e.Reason)
			}
		}
		return story, nil
	}
	return SourceStory{}, fmt.Errorf("%w: %s", ErrNotFound, key)
}
