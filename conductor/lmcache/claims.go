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

// Emitters returns the emitters that sources are registered for.
func (h *Hub) Emitters() map[string]bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := make(map[string]bool, len(h.feeds))
	for at := range h.feeds {
		all[at.emitter] = true
	}
	return all
}
