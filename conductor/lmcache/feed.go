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
	Unheard = "history_unknown"   // batches before the first that came, or the content of a shared storage
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

// Feed is what one source hears: the entries of one emitter and one model.
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
	f := &Feed{Emitter: emitter, Model: model, To: to, book: newBook(limit, blockSize), lost: Unheard, sent: make(map[string]bool)}
	f.enc = msgpack.NewEncoder(&f.events)
	f.enc.UseCompactInts(true)
	return f
}

// shared reports whether the emitter is a storage that several instances use.
func (f *Feed) shared() bool {
	return strings.HasPrefix(f.Emitter, poolPrefix)
}

// begin notes what an admission says about what the feed has missed.
func (f *Feed) begin(b *Batch, a admission, p *places) {
	if f.To.Renew() {
		f.book.clear("", p.vanish)
		f.lost, f.told = Unheard, false
	}
	switch {
	case f.shared():
		if a.hole && f.sent[b.Instance] {
			f.trust(Gap)
		}
	case a.fence:
		f.book.clear(host, p.vanish)
		f.clear(mediumHost)
		if f.book.stored[storage] == 0 {
			f.trust("")
		}
		if a.hole {
			f.trust(Gap)
		}
	case a.begins:
		f.trust("")
	case a.hole:
		f.trust(Gap)
	}
	if !f.told { // the receiver knows nothing before
		f.told = true
		f.To.Trust(f.lost)
	}
}

func (f *Feed) trust(reason string) {
	if f.lost != reason {
		f.lost, f.told = reason, false
	}
}

// apply takes one entry. parent is that of the chunk, if placed.
func (f *Feed) apply(b *Batch, e *Entry, parent string, placed bool, p *places) {
	if e.Group != 0 {
		f.To.Drop(dropGroup, 1)
		return
	}
	at := chunkID{b.Tier, e.Salt, e.Hash}
	if b.Type == Delete {
		vanishes, known := f.book.remove(at, b.Backend, e)
		if !known {
			f.To.Drop(dropUnknown, 1)
		}
		if vanishes {
			p.vanish(at)
			f.removed(b, e)
		}
		return
	}
	c, appears, fits := f.book.store(at, b.Backend, e, parent, placed)
	switch {
	case !fits:
		f.To.Drop(dropBudget, 1)
	case appears:
		w := waiter{feed: f, at: at, backend: b.Backend, parent: c.parent, tokens: c.tokens}
		known := c.placed && len(c.tokens) > 0
		f.appeared(&w, known, p, b.Time)
		f.book.release(c)
		p.appear(w, known)
	}
	f.flushFull(b.Time)
}

// flushFull hands the events to the receiver if they are many.
func (f *Feed) flushFull(time float64) {
	if f.count >= flushEvents || f.events.Len() >= flushBytes {
		f.flush(time)
	}
}

// name is the block hash of a chunk: as the coordinator's, and another for each salt, which
// LMCache's digests do not contain.
func name(salt, digest string) uint64 {
	if salt != "" {
		return xxh3.HashString(salt + "\x00" + digest)
	}
	var b [8]byte
	copy(b[max(0, 8-len(digest)):], digest[max(0, len(digest)-8):])
	return binary.BigEndian.Uint64(b[:])
}

func medium(tier, backend string) string {
	if tier == host {
		return mediumHost
	}
	return mediumStorage + backend
}

// appeared adds a stored event. A chunk whose parent is not known is announced by its hash
// alone.
func (f *Feed) appeared(w *waiter, known bool, p *places, time float64) {
	tokens := w.tokens
	switch {
	case !known:
		tokens = nil
	case w.parent != "":
		f.follow(chunkName{w.at.salt, w.parent}, p, time)
	}
	f.open("BlockStored", 6, w.at.salt)
	f.hashes(name(w.at.salt, w.at.hash))
	f.text("parent_block_hash")
	if known && w.parent != "" {
		f.must(f.enc.EncodeUint(name(w.at.salt, w.parent)))
	} else {
		f.must(f.enc.EncodeNil())
	}
	f.text("token_ids")
	f.must(f.enc.EncodeArrayLen(len(tokens)))
	for _, t := range tokens {
		f.must(f.enc.EncodeUint(uint64(t)))
	}
	f.text("block_size")
	f.must(f.enc.EncodeInt(int64(len(tokens))))
	f.text("medium", medium(w.at.tier, w.backend))
}

// removed adds a removed event.
func (f *Feed) removed(b *Batch, e *Entry) {
	f.open("BlockRemoved", 3, "")
	f.hashes(name(e.Salt, e.Hash))
	f.text("medium", medium(b.Tier, b.Backend))
}

// clear adds a cleared event of a medium.
func (f *Feed) clear(medium string) {
	f.open("AllBlocksCleared", 2, "")
	f.text("medium", medium)
}

// open begins an event of n fields, and one for a salt.
func (f *Feed) open(kind string, n int, salt string) {
	f.count++
	if salt != "" {
		n++
	}
	f.must(f.enc.EncodeMapLen(n))
	f.text("type", kind)
	if salt != "" {
		f.text("cache_salt", salt)
	}
}

func (f *Feed) hashes(hash uint64) {
	f.text("block_hashes")
	f.must(f.enc.EncodeArrayLen(1))
	f.must(f.enc.EncodeUint(hash))
}

func (f *Feed) text(all ...string) {
	for _, s := range all {
		f.must(f.enc.EncodeString(s))
	}
}

func (f *Feed) must(err error) {
	if err != nil {
		panic("BUG: a buffer refuses bytes: " + err.Error())
	}
}
