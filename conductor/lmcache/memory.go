package lmcache

// Bytes that an entry of a table takes, about, with its share of the table.
const (
	cursorBytes   = 160
	sentBytes     = 48
	linkBytes     = 240 // with its entries in ends and oldest
	heldBytes     = 72  // of a chunk that a source holds
	attachedBytes = 56
	waitBytes     = 320
)

// Bytes returns the memory of what the hub and its feeds know, without the deliveries that wait.
func (h *Hub) Bytes() int64 { return h.bytes.Load() }

// countBytes computes what Bytes returns. mu is held.
func (h *Hub) countBytes() {
	n := h.gate.bytes
	for _, feeds := range h.feeds {
		for _, f := range feeds {
			n += f.book.bytes + int64(len(f.sent))*sentBytes + int64(f.events.Cap())
		}
	}
	for _, c := range h.chains {
		p := c.attachments
		n += c.bytes + int64(len(c.links))*linkBytes + int64(len(p.held))*heldBytes + int64(len(p.attached))*attachedBytes + p.bytes
	}
	h.bytes.Store(n)
}
