package lmcache

import "slices"

// A block finds its place in the index behind its parent, if any source holds the parent then.
// Emitters evict chunks in any order, so a chunk may come while its parent is nowhere, and
// the parent come back at another emitter. The chunk is then announced once more.

// maxWaiters bounds the chunks of a model that wait for their parent, some 1.3 KiB each.
const maxWaiters = 1 << 14

// chunkName is a chunk under a salt, on whatever tier.
type chunkName struct{ salt, hash string }

// attachments knows which chunks of a model are attached: they are held, and follow a chunk that was
// attached when they came, or begin a prompt.
type attachments struct {
	held     map[chunkName]int // how many tiers of emitters hold it
	attached map[chunkName]bool
	fresh    map[chunkName]*Delivery // chunks that are attached once it is applied
	waiting  map[chunkName][]waiter  // by parent
	waiters  int
	bytes    int64    // of those that wait
	full     int      // chunks refused since the last sweep
	due      []waiter // to announce once more, parents first
}

// waiter is a chunk that was announced before its parent was attached.
type waiter struct {
	feed            *Feed
	at              chunkID
	backend, parent string
	tokens          []uint32
}

func newAttachments() *attachments {
	return &attachments{held: make(map[chunkName]int), attached: make(map[chunkName]bool), fresh: make(map[chunkName]*Delivery),
		waiting: make(map[chunkName][]waiter)}
}

// addChunk counts a chunk that an emitter holds now. If the chunk is attached, those that waited for it are due. known says that
// the parent of the chunk is known.
func (p *attachments) addChunk(w waiter, known bool) {
	at := chunkName{w.at.salt, w.at.hash}
	p.held[at]++
	if !known {
		return
	}
	parent := chunkName{w.at.salt, w.parent}
	if w.parent != "" && !p.attached[parent] {
		if p.waiters == maxWaiters {
			p.sweepWaiters()
		}
		if p.waiters < maxWaiters {
			p.waiting[parent] = append(p.waiting[parent], w)
			p.waiters++
			p.bytes += w.bytes()
		}
		return
	}
	if !p.attached[at] {
		w.feed.recordAttached(at, p)
	}
	for queue := []chunkName{at}; len(queue) > 0; queue = queue[1:] {
		p.attached[queue[0]] = true
		for _, next := range p.waiting[queue[0]] {
			p.waiters--
			p.bytes -= next.bytes()
			if next.held() {
				p.due = append(p.due, next)
				queue = append(queue, chunkName{next.at.salt, next.at.hash})
			}
		}
		delete(p.waiting, queue[0])
	}
}

// held reports whether the emitter still holds the chunk.
func (w *waiter) held() bool {
	c := w.feed.book.chunks[w.at]
	return c != nil && c.whole > 0
}

// bytes returns the memory of a chunk that waits.
func (w *waiter) bytes() int64 { return waitBytes + 4*int64(len(w.tokens)) }

// sweepWaiters forgets waiting chunks that their emitter holds no more. It looks at all of them, so it works only on every
// maxWaiters/16th call.
func (p *attachments) sweepWaiters() {
	if p.full = (p.full + 1) % (maxWaiters / 16); p.full != 1 {
		return
	}
	p.waiters, p.bytes = 0, 0
	for parent, list := range p.waiting {
		list = slices.DeleteFunc(list, func(w waiter) bool { return !w.held() })
		if p.waiting[parent] = list; len(list) == 0 {
			delete(p.waiting, parent)
		}
		p.waiters += len(list)
		for i := range list {
			p.bytes += list[i].bytes()
		}
	}
}

// removeChunk counts a chunk that an emitter holds no more.
func (p *attachments) removeChunk(at chunkID) {
	n := chunkName{at.salt, at.hash}
	if p.held[n]--; p.held[n] == 0 {
		delete(p.held, n)
		delete(p.attached, n)
		delete(p.fresh, n)
	}
}

// announceAgain announces the chunks that are due. It adds their feeds to touched.
func (p *attachments) announceAgain(time float64, touched map[*Feed]bool) {
	for i := range p.due {
		w := &p.due[i]
		w.feed.addStored(w, true, p, time)
		w.feed.recordAttached(chunkName{w.at.salt, w.at.hash}, p)
		w.feed.flushIfFull(time)
		touched[w.feed] = true
	}
	p.due = nil
}
