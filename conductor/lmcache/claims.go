package lmcache

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
	return h.listEmitters()
}

// listEmitters does what Emitters does, for callers that hold mu.
func (h *Hub) listEmitters() map[string]bool {
	all := make(map[string]bool, len(h.feeds))
	for at := range h.feeds {
		all[at.emitter] = true
	}
	return all
}
