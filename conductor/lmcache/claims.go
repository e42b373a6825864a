package lmcache

// Emitter returns what sources of the batch are registered as: the instance, or pool:<backend>
// where the storage is shared.
func (b *Batch) Emitter() string {
	if b.Shared {
		return poolPrefix + b.Backend
	}
	return b.Instance
}

// Claimed reports whether a source is registered for an emitter and a model.
func (h *Hub) Claimed(emitter, model string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.feeds[claim{emitter, model}]) > 0
}

// Follows reports whether a source is registered for an emitter.
func (h *Hub) Follows(emitter string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for at := range h.feeds {
		if at.emitter == emitter {
			return true
		}
	}
	return false
}
