package statelog

import (
	"time"
	"unsafe"

	"example.com/conductor/events/stream"
)

// MaxEvents is how many of its last events the history of a source keeps.
const MaxEvents = 64

// Kinds of Event.
const (
	EventState   = "state"   // the state has changed: From, To, Reason
	EventGap     = "gap"     // Count gaps were found in the numbers of the batches since the event before
	EventLost    = "lost"    // Count batches will never come: no replay has them any more
	EventDropped = "dropped" // all blocks were dropped for Reason, and Count is the epoch that begins
)

// Event is something that happened to the stream of a source.
type Event struct {
	At       time.Time
	Kind     string
	From, To stream.State
	Reason   string
	Count    uint64
}

// history has the last events of a source, the oldest at next if it is full. It is small until there are events.
type history struct {
	events []Event
	next   int
	older  uint64 // events that were here and have made room
}

// add keeps an event. A reason that is there already is shared: a source that comes and goes repeats a few.
func (h *history) add(e Event) {
	for i := range h.events {
		if h.events[i].Reason == e.Reason {
			e.Reason = h.events[i].Reason
			break
		}
	}
	if len(h.events) < MaxEvents {
		h.events = append(h.events, e)
		return
	}
	h.events[h.next] = e
	h.next = (h.next + 1) % MaxEvents
	h.older++
}

// bytes returns the memory of the events. It leaves out reasons, because most are constants.
func (h *history) bytes() int { return cap(h.events) * int(unsafe.Sizeof(Event{})) }

// History returns the last events, the oldest first, and how many older ones there were.
func (l *Log) History() (events []Event, older uint64) {
	if l == nil {
		return nil, 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return append(append([]Event{}, l.history.events[l.history.next:]...), l.history.events[:l.history.next]...), l.history.older
}

// Bytes is the memory that the history takes.
func (l *Log) Bytes() int {
	if l == nil {
		return 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.history.bytes()
}

// Lost notes that some batches will never come.
func (l *Log) Lost(batches uint64) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.history.add(Event{At: time.Now(), Kind: EventLost, Count: batches})
}

// noteGaps notes gaps that were found since the call before. mu is held.
func (l *Log) noteGaps(gaps uint64, now time.Time) {
	if gaps > l.gaps {
		l.history.add(Event{At: now, Kind: EventGap, Count: gaps - l.gaps})
	}
	l.gaps = gaps
}

// noteChange notes a change of state. The replay after a connection is not worth an event of its own: the state
// that it ends in has one. mu is held.
func (l *Log) noteChange(c *change, now time.Time) {
	if c.to == stream.Replaying && c.from == stream.Connecting {
		return
	}
	l.history.add(Event{At: now, Kind: EventState, From: c.from, To: c.to, Reason: c.reason})
}
