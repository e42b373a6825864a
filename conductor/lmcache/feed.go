package lmcache

import (
	"bytes"
	"encoding/binary"
	"strings"
	"sync/atomic"

	"github.com/vmihailenco/msgpack/v5"
	"github.com/zeebo/xxh3"
)

// Reasons why a feed does not know all that its emitter holds.
const (
	unknown = "history_unknown"   // batches before the first that came, or the content of a shared storage
	Gap     = "gap_unrecoverable" // batches in between
)

// Reasons of Receiver.Drop. They are those of events.
const (
	dropUnknown = "unknown_hash"
	dropBudget  = "over_budget"
	dropGroup   = "other_group"
)

// Media of events.
const (
	mediumHost    = "lmcache-l1"
	mediumStorage = "lmcache-l2-"
)

const (
	// Events leave in batches of about this many bytes.
	flushBytes = 1 << 20
	// wire.DefaultLimits allow 65,536 events.
	flushEvents = 1 << 15
)

// Feed is what one source gets: the entries of one emitter and one model.
type Feed struct {
	Emitter, Model string
	To             Receiver

	hub     *Hub
	filling *Delivery // nil: nothing is in it
	book    *book
	lost    string // as Receiver.Trust
	told    bool
	sent    map[string]bool // instances that reported of a shared storage
	events  bytes.Buffer
	enc     *msgpack.Encoder
	count   int
	lacking atomic.Int64 // blocks of chunks without all shards, when the last batch was read
}

// NewFeed returns the feed of a source whose blocks have blockSize tokens. limit bounds the bytes for
// its chunks.
func NewFeed(emitter, model string, to Receiver, limit int64, blockSize int) *Feed {
	f := &Feed{Emitter: emitter, Model: model, To: to, book: newBook(limit, blockSize), lost: unknown, sent: make(map[string]bool)}
	f.enc = msgpack.NewEncoder(&f.events)
	f.enc.UseCompactInts(true)
	return f
}

// shared reports whether the emitter is a storage that several instances use.
func (f *Feed) shared() bool {
	return strings.HasPrefix(f.Emitter, poolPrefix)
}

// beginBatch prepares the feed for the entries of a batch: from the admission it works out whether the feed has missed
// something, and whether the emitter has lost its memory.
func (f *Feed) beginBatch(b *Batch, a admission, p *attachments) {
	if f.To.Renew() {
		f.book.clearTier("", p.removeChunk)
		f.lost, f.told = unknown, false
	}
	switch {
	case f.shared():
		if a.hole && f.sent[b.Instance] {
			f.setLost(Gap)
		}
	case a.fence:
		f.book.clearTier(host, p.removeChunk)
		f.addCleared(mediumHost)
		if f.book.stored[storage] == 0 {
			f.setLost("")
		}
		if a.hole {
			f.setLost(Gap)
		}
	case a.begins:
		f.setLost("")
	case a.hole:
		f.setLost(Gap)
	}
	if !f.told { // the receiver knows nothing before
		f.told = true
		f.To.Trust(f.lost)
	}
}

// setLost sets why the feed does not know all that its emitter holds. beginBatch tells the receiver if that has changed.
func (f *Feed) setLost(reason string) {
	if f.lost != reason {
		f.lost, f.told = reason, false
	}
}

// applyEntry applies one entry of a batch to the book, and adds the events that follow from it. parent is the parent of the
// chunk, and parentKnown says that it is known.
func (f *Feed) applyEntry(b *Batch, e *Entry, parent string, parentKnown bool, p *attachments) {
	if e.Group != 0 {
		f.To.Drop(dropGroup, 1)
		return
	}
	at := chunkID{b.Tier, e.Salt, e.Hash}
	if b.Type == Delete {
		vanishes, known := f.book.removeObject(at, b.Backend, e)
		if !known {
			f.To.Drop(dropUnknown, 1)
		}
		if vanishes {
			p.removeChunk(at)
			f.addRemoved(b, e)
		}
		return
	}
	c, appears, fits := f.book.storeObject(at, b.Backend, e, parent, parentKnown)
	switch {
	case !fits:
		f.To.Drop(dropBudget, 1)
	case appears:
		w := waiter{feed: f, at: at, backend: b.Backend, parent: c.parent, tokens: c.tokens}
		known := c.parentKnown && len(c.tokens) > 0
		f.addStored(&w, known, p, b.Time)
		f.book.releaseTokens(c)
		p.addChunk(w, known)
	}
	f.flushIfFull(b.Time)
}

// flushIfFull sends the events if they fill a batch.
func (f *Feed) flushIfFull(time float64) {
	if f.count >= flushEvents || f.events.Len() >= flushBytes {
		f.flush(time)
	}
}

// blockHashOf returns the hash that names a chunk in events. Without a salt it is the one that LMCache's coordinator uses: the
// last eight bytes of the digest. With one it depends on the salt, which LMCache's digests do not contain.
func blockHashOf(salt, digest string) uint64 {
	if salt != "" {
		return xxh3.HashString(salt + "\x00" + digest)
	}
	var b [8]byte
	copy(b[max(0, 8-len(digest)):], digest[max(0, len(digest)-8):])
	return binary.BigEndian.Uint64(b[:])
}

// mediumOf returns the medium that events name for a tier and a backend.
func mediumOf(tier, backend string) string {
	if tier == host {
		return mediumHost
	}
	return mediumStorage + backend
}

// addStored adds a stored event. A chunk whose parent is not known is announced by its hash
// alone.
func (f *Feed) addStored(w *waiter, known bool, p *attachments, time float64) {
	tokens := w.tokens
	switch {
	case !known:
		tokens = nil
	case w.parent != "":
		f.deliverAfter(chunkName{w.at.salt, w.parent}, p, time)
	}
	f.beginEvent("BlockStored", 6, w.at.salt)
	f.encodeHash(blockHashOf(w.at.salt, w.at.hash))
	f.encodeTexts("parent_block_hash")
	if known && w.parent != "" {
		f.must(f.enc.EncodeUint(blockHashOf(w.at.salt, w.parent)))
	} else {
		f.must(f.enc.EncodeNil())
	}
	f.encodeTexts("token_ids")
	f.must(f.enc.EncodeArrayLen(len(tokens)))
	for _, t := range tokens {
		f.must(f.enc.EncodeUint(uint64(t)))
	}
	f.encodeTexts("block_size")
	f.must(f.enc.EncodeInt(int64(len(tokens))))
	f.encodeTexts("medium", mediumOf(w.at.tier, w.backend))
}

// addRemoved adds a removed event.
func (f *Feed) addRemoved(b *Batch, e *Entry) {
	f.beginEvent("BlockRemoved", 3, "")
	f.encodeHash(blockHashOf(e.Salt, e.Hash))
	f.encodeTexts("medium", mediumOf(b.Tier, b.Backend))
}

// addCleared adds a cleared event of a medium.
func (f *Feed) addCleared(medium string) {
	f.beginEvent("AllBlocksCleared", 2, "")
	f.encodeTexts("medium", medium)
}

// beginEvent begins an event of n fields, type included. If salt is not "", it adds a field for that.
func (f *Feed) beginEvent(kind string, n int, salt string) {
	f.count++
	if salt != "" {
		n++
	}
	f.must(f.enc.EncodeMapLen(n))
	f.encodeTexts("type", kind)
	if salt != "" {
		f.encodeTexts("cache_salt", salt)
	}
}

func (f *Feed) encodeHash(hash uint64) {
	f.encodeTexts("block_hashes")
	f.must(f.enc.EncodeArrayLen(1))
	f.must(f.enc.EncodeUint(hash))
}

func (f *Feed) encodeTexts(all ...string) {
	for _, s := range all {
		f.must(f.enc.EncodeString(s))
	}
}

func (f *Feed) must(err error) {
	if err != nil {
		panic("BUG: a buffer refuses bytes: " + err.Error())
	}
}
