package relay

import (
	"bytes"
	"iter"
	"slices"
)

const (
	// An event of a dump has at most this many blocks, a batch this many events.
	maxRun    = 2048
	maxEvents = 16384
)

// dump is a tree at one moment.
type dump struct {
	held     []heldRecord
	frame    frame
	clearing []byte
	size     int64
}

// heldRecord is a record as it was. Removals are those of its place then.
type heldRecord struct {
	*record
	copies  int32
	absent  bool
	removal *form
}

// dump returns what the tree has. Later changes do not show in it.
func (t *tree) dump() *dump {
	d := &dump{held: make([]heldRecord, 0, t.n.Blocks+t.n.Kept), clearing: t.clearing, size: t.n.Bytes}
	d.frame = frame{slices.Clone(t.frame.before), slices.Clone(t.frame.after), t.frame.pairs}
	for _, n := range t.nodes {
		for r := n.records; r != nil; r = r.next {
			d.held = append(d.held, heldRecord{r, r.copies, r.absent, r.place.removal})
		}
	}
	return d
}

// bytes is about how much the batches have.
func (d *dump) bytes() int64 { return d.size }

// read finds the events of a batch, and keeps the rest of it: the time and the rank. Later
// fields name one batch, as the publisher id does.
func (f *frame) read(payload []byte) (list []byte) {
	k, n, size := header(payload)
	head, rest := payload[:size], payload[size:]
	if k == pairs {
		n *= 2
	} else {
		head = appendList(nil, min(n, 3))
	}
	for i := range n {
		var v []byte
		if v, rest = value(rest); v == nil {
			return nil
		}
		if k == pairs && i%2 == 0 && string(word(v)) == "events" || k != pairs && i == 0 {
			if list, rest = value(rest); list == nil {
				return nil
			}
			f.before = append(append(f.before[:0], head...), payload[size:len(payload)-len(list)-len(rest)]...)
			if k != pairs && n > 3 {
				rest, _ = value(rest)
			}
			f.after = append(f.after[:0], rest...)
			return list
		}
	}
	return nil
}

// batch returns a batch of some events.
func (f *frame) batch(events []byte, n int) []byte {
	if f.before == nil { // no batch was seen
		f.before = []byte{0x92, 0xcb, 0, 0, 0, 0, 0, 0, 0, 0}
	}
	b := make([]byte, 0, len(f.before)+len(events)+len(f.after)+5)
	b = appendList(append(b, f.before...), n)
	return append(append(b, events...), f.after...)
}

// empty returns a batch without events.
func (d *dump) empty() []byte { return d.frame.batch(nil, 0) }

// batches yields the dump as batches of about limit bytes: one that clears, those that store,
// parents first, and those that remove.
func (d *dump) batches(limit int) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		w := &writer{frame: &d.frame, limit: limit, yield: yield}
		w.add(d.clear())
		w.end()
		slices.SortFunc(d.held, func(a, b heldRecord) int { return int(int64(a.order - b.order)) })
		for i := 0; i < len(d.held) && !w.stopped; {
			n := d.run(i)
			for range max(1, d.held[i].stores()) {
				w.build = d.stored(w.build[:0], d.held[i:i+n])
				w.add(w.build)
			}
			i += n
		}
		d.removals(w)
		w.end()
	}
}

// writer puts events into batches.
type writer struct {
	frame   *frame
	limit   int
	yield   func([]byte) bool
	events  []byte
	n       int
	build   []byte
	stopped bool
}

func (w *writer) add(event []byte) {
	w.events = append(w.events, event...)
	if w.n++; len(w.events) >= w.limit || w.n >= maxEvents {
		w.end()
	}
}

func (w *writer) end() {
	if w.n > 0 && !w.stopped {
		w.stopped = !w.yield(w.frame.batch(w.events, w.n))
	}
	w.events, w.n = w.events[:0], 0
}

// clear returns an event that clears, in the engine's form.
func (d *dump) clear() []byte {
	const name = "AllBlocksCleared"
	switch {
	case d.clearing != nil:
		return d.clearing
	case d.frame.pairs:
		return appendWord(appendWord(appendPairs(nil, 1), "type"), name)
	}
	return appendWord(appendList(nil, 1), name)
}

// stores returns how many stores lead to a record: one for each copy, and one that a removal
// takes back.
func (r *heldRecord) stores() int { return int(r.copies) + r.removes() }

func (r *heldRecord) removes() int {
	if r.absent || r.copies == 0 {
		return 1
	}
	return 0
}

// run returns how many records from i on make one event.
func (d *dump) run(i int) int {
	n := 1
	for ; i+n < len(d.held) && n < maxRun; n++ {
		a, b := &d.held[i+n-1], &d.held[i+n]
		if b.template.linked && (b.first || b.order != a.order+1) {
			break
		}
		if a.template != b.template || a.place != b.place || b.parent != a.node || a.stores() != b.stores() || !bytes.Equal(a.fields().hash, b.fields().parent) {
			break
		}
	}
	return n
}

// own is the bytes of a record, apart.
type own struct{ parent, hash, tokens, lists []byte }

func (r *heldRecord) fields() (o own) {
	rest := r.own
	if r.parent != nil {
		o.parent, rest = value(rest)
	}
	o.hash, rest = value(rest)
	o.tokens, rest = values(rest, r.template.size)
	o.lists = rest
	return o
}

// values splits n values off b.
func values(b []byte, n int) (v, rest []byte) {
	rest = b
	for range n {
		_, rest = value(rest)
	}
	return b[:len(b)-len(rest)], rest
}

// stored appends an event that stores a run of records.
func (d *dump) stored(dst []byte, run []heldRecord) []byte {
	t := run[0].template
	f := fill{blocks: len(run), perBlock: make([][]byte, t.lists)}
	for i := range run {
		o := run[i].fields()
		if i == 0 {
			f.parent = o.parent
		}
		f.hashes = append(f.hashes, o.hash...)
		f.tokens = append(f.tokens, o.tokens...)
		f.nTokens += t.size
		for j, rest := 0, o.lists; j < t.lists; j++ {
			var v []byte
			v, rest = value(rest)
			f.perBlock[j] = append(f.perBlock[j], v...)
		}
	}
	return f.event(dst, &t.form)
}

// removals writes the removals, of one place after the other.
func (d *dump) removals(w *writer) {
	byPlace := make(map[*place][]*heldRecord)
	var order []*place
	for i := range d.held {
		if r := &d.held[i]; r.removes() > 0 {
			if byPlace[r.place] == nil {
				order = append(order, r.place)
			}
			byPlace[r.place] = append(byPlace[r.place], r)
		}
	}
	for _, p := range order {
		for run := range slices.Chunk(byPlace[p], maxRun) {
			f := fill{blocks: len(run)}
			for _, r := range run {
				f.hashes = append(f.hashes, r.fields().hash...)
			}
			w.build = f.event(w.build[:0], run[0].removal)
			w.add(w.build)
		}
	}
}
