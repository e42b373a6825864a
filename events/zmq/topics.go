package zmq

import (
	"slices"
	"strings"
	"sync"
)

// maxSubscriptions bounds the topics of one connection.
const maxSubscriptions = 64

// Topics are what a subscriber that connected to us wants, as prefixes of topics. Its methods may be called from any
// goroutine.
type Topics struct {
	First <-chan struct{} // closed at the first subscription

	mu    sync.Mutex
	all   []string
	first chan struct{} // First; nil once it is closed
}

// NewTopics returns the topics of a subscriber that has not subscribed to any yet.
func NewTopics() *Topics {
	first := make(chan struct{})
	return &Topics{First: first, first: first}
}

// Follow reads what a subscriber subscribes to, and no more, until its connection ends.
func (t *Topics) Follow(p *Peer) {
	for {
		m, err := p.Receive()
		if err != nil {
			return
		}
		if len(m.Frames) == 1 && len(m.Frames[0]) > 0 {
			t.update(m.Frames[0][0], string(m.Frames[0][1:]))
		}
		m.Block.Release()
	}
}

// update subscribes to a topic, or ends a subscription.
func (t *Topics) update(what byte, topic string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch at := slices.Index(t.all, topic); {
	case what == 1 && len(t.all) < maxSubscriptions:
		t.all = append(t.all, topic)
		if t.first != nil {
			close(t.first)
			t.first = nil
		}
	case what == 0 && at >= 0:
		t.all = slices.Delete(t.all, at, at+1)
	}
}

// Match reports whether a topic is subscribed to.
func (t *Topics) Match(topic string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.ContainsFunc(t.all, func(prefix string) bool { return strings.HasPrefix(topic, prefix) })
}
