package relay

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"iter"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/vmihailenco/msgpack/v5"

	"example.com/conductor/events"
	"example.com/conductor/events/payload"
	"example.com/conductor/events/wire"
	"example.com/conductor/internal/must"
	"example.com/conductor/tiers"
)

// ordered is a map with its keys in order.
type ordered []any

func (o ordered) EncodeMsgpack(enc *msgpack.Encoder) error {
	must := enc.EncodeMapLen(len(o) / 2)
	for _, v := range o {
		if must == nil {
			must = enc.Encode(v)
		}
	}
	return must
}

func pack(t testing.TB, v any) []byte {
	t.Helper()
	var b bytes.Buffer
	enc := msgpack.NewEncoder(&b)
	enc.UseCompactInts(true)
	must.Succeed(t, enc.Encode(v))
	return b.Bytes()
}

// blockPlace is what a follower of either policy knows of one hash in one place.
type blockPlace struct {
	hash   uint64
	medium string
	group  int
	owned  bool
}

// meaning is what an event with tokens says of a block.
type meaning struct {
	parent, tokens, items, names string
}

// oracle is a follower that reads by events/wire.
type oracle struct {
	t       testing.TB
	copies  map[blockPlace]int  // of a follower that counts
	present map[blockPlace]bool // of one that does not
	means   map[uint64]meaning
}

func newOracle(t testing.TB) *oracle {
	return &oracle{t: t, copies: map[blockPlace]int{}, present: map[blockPlace]bool{}, means: map[uint64]meaning{}}
}

func (o *oracle) apply(payload []byte) {
	o.t.Helper()
	b, err := wire.Decode(payload, wire.DefaultLimits)
	must.Succeed(o.t, err)
	if b.Dropped != nil {
		o.t.Fatalf("the decoder drops %v: %s: %q", b.Dropped, b.Note, payload)
	}
	for i := range b.Events {
		o.event(&b.Events[i])
	}
}

func (o *oracle) event(ev *events.Event) {
	if ev.Kind == events.Moved {
		stored, removed := ev.Apart()
		if tiers.ParseMedium(ev.From) != tiers.ParseMedium(ev.Medium) {
			o.event(&stored)
			o.event(&removed)
		}
		return
	}
	medium := tiers.ParseMedium(ev.Medium)
	for i, hash := range ev.Hashes {
		h := blockPlace{hash, medium.Name, max(ev.Group, 0), ev.Owned}
		switch {
		case ev.Kind == events.Stored:
			if o.copies[h] == 0 || !ev.Owned {
				o.copies[h]++
			}
			o.present[h] = true
			o.learn(ev, i)
		case ev.Remaining != nil:
			if o.copies[h] > 0 {
				o.copies[h] = ev.Remaining[i]
				o.present[h] = ev.Remaining[i] > 0
			}
		default:
			o.copies[h] = max(0, o.copies[h]-1)
			delete(o.present, h)
		}
	}
	if ev.Kind == events.Cleared {
		for h := range o.copies {
			if (ev.Medium == "" || h.medium == medium.Name) && (h.owned || !ev.Owned) {
				delete(o.copies, h)
				delete(o.present, h)
			}
		}
	}
}

// learn notes what an event says of block i.
func (o *oracle) learn(ev *events.Event, i int) {
	if len(ev.Tokens) == 0 {
		return
	}
	m := meaning{parent: "none", names: fmt.Sprint(ev.Ahead, ev.Bigram, ev.BlockSize)}
	if i > 0 {
		m.parent = fmt.Sprint(ev.Hashes[i-1])
	} else if ev.HasParent {
		m.parent = fmt.Sprint(ev.Parent)
	}
	size := ev.BlockSize
	m.tokens = fmt.Sprint(ev.Tokens[i*size : (i+1)*size])
	if ev.Items != nil && len(ev.Items[i]) > 0 {
		m.items = fmt.Sprint(ev.Items[i])
	}
	if ev.LoraName != nil {
		m.names += " adapter " + *ev.LoraName
	}
	if ev.Salt != nil && m.parent == "none" {
		m.names += " salt " + *ev.Salt
	}
	o.means[ev.Hashes[i]] = m
}

// state is what the follower holds, and what it knows of each block held and of those above.
func (o *oracle) state() string {
	var lines []string
	for h, n := range o.copies {
		if n > 0 {
			lines = append(lines, fmt.Sprintf("%+v %d copies, present %t%s", h, n, o.present[h], o.chain(h.hash)))
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

func (o *oracle) chain(hash uint64) string {
	var b strings.Builder
	for range 100 {
		m, ok := o.means[hash]
		if !ok {
			break
		}
		fmt.Fprintf(&b, " <- %+v", m)
		if _, err := fmt.Sscan(m.parent, &hash); err != nil {
			break
		}
	}
	return b.String()
}

// teller makes up what an engine says, in one of the forms there are.
type teller struct {
	t       testing.TB
	r       *rand.Rand
	pairs   bool
	bytes   bool // hashes are digests
	size    int
	ahead   int // look-ahead
	bigram  bool
	fields  int // of an array
	tail    int // elements of a batch behind its events
	oracle  *oracle
	parents map[uint64]uint64 // 0 for none
	order   []uint64
}

func newTeller(t testing.TB, r *rand.Rand) *teller {
	w := &teller{t: t, r: r, pairs: r.IntN(2) == 0, bytes: r.IntN(3) == 0, size: 1 + r.IntN(3), tail: r.IntN(3),
		fields: []int{6, 7, 8, 9, 10, 12}[r.IntN(6)], oracle: newOracle(t), parents: map[uint64]uint64{}}
	switch r.IntN(4) {
	case 0:
		if w.pairs {
			w.ahead = 1 + r.IntN(w.size)
		}
	case 1:
		w.bigram = true
	}
	return w
}

func (w *teller) hash(h uint64) any {
	if w.bytes {
		return binary.BigEndian.AppendUint64(bytes.Repeat([]byte{0xaa}, 24), h)
	}
	return h
}

func (w *teller) hashes(all []uint64) []any {
	out := []any{}
	for _, h := range all {
		out = append(out, w.hash(h))
	}
	return out
}

// token is token i of a block: a function of both, so that a block always has the same.
func (w *teller) token(h uint64, i int) any {
	return uint32(h*uint64(1+i)) % 100_000
}

// holds returns hashes that are held, with tokens or not.
func (w *teller) holds() (all []uint64) {
	for _, h := range w.order {
		for k, n := range w.oracle.copies {
			if k.hash == h && n > 0 {
				all = append(all, h)
				break
			}
		}
	}
	return all
}

// chainBelow makes up new blocks, or takes blocks that were there before.
func (w *teller) chainBelow(parent uint64) (all []uint64) {
	if len(w.order) > 0 && w.r.IntN(4) == 0 {
		h := w.order[w.r.IntN(len(w.order))] // again, down from where its parent is
		if p := w.parents[h]; p == 0 || slices.Contains(w.holds(), p) {
			return []uint64{h}
		}
	}
	for range 1 + w.r.IntN(4) {
		h := w.r.Uint64()>>1 | 1
		w.parents[h] = parent
		w.order = append(w.order, h)
		all = append(all, h)
		parent = h
	}
	return all
}

func (w *teller) medium() string { return []string{"GPU", "GPU", "CPU", ""}[w.r.IntN(4)] }

func (w *teller) store() any {
	held := w.holds()
	parent := uint64(0)
	if len(held) > 0 && w.r.IntN(3) > 0 {
		parent = held[w.r.IntN(len(held))]
	}
	all := w.chainBelow(parent)
	above := any(nil)
	if p := w.parents[all[0]]; p != 0 {
		above = w.hash(p)
	}
	list := []any{}
	for _, h := range all {
		for i := range w.size {
			list = append(list, w.token(h, i))
		}
	}
	if w.bigram {
		flat := append(slices.Clone(list), uint32(w.r.Uint32N(9)))
		for i := range list {
			list[i] = []any{flat[i], flat[i+1]}
		}
	}
	var more []any
	for i := range all {
		var of []any
		for j := range w.ahead {
			switch {
			case i < len(all)-1:
				of = append(of, w.token(all[i+1], j))
			default:
				of = append(of, uint32(1000+j+int(w.r.Uint32N(3))))
			}
		}
		more = append(more, of)
	}
	return w.stored(all, above, list, more, w.medium())
}

// again stores held blocks elsewhere, by their hashes alone.
func (w *teller) again() any {
	held := w.holds()
	if len(held) == 0 || !w.pairs && w.fields < 7 {
		return nil
	}
	h := held[w.r.IntN(len(held))]
	return w.stored([]uint64{h}, nil, []any{}, nil, "CPU")
}

func (w *teller) stored(all []uint64, above any, list, more []any, medium string) any {
	root := all[0]
	for w.parents[root] != 0 {
		root = w.parents[root]
	}
	extra, adapter := any(nil), any(nil)
	if root&2 == 0 && len(list) > 0 {
		keys := make([]any, len(all))
		if root == all[0] {
			keys[0] = []any{"salt of a chain"}
		}
		extra = keys
	}
	if root&4 == 0 {
		adapter = "adapter"
	}
	if !w.pairs {
		e := []any{"BlockStored", w.hashes(all), above, list, w.size, nil, medium, adapter, extra, 0, "full_attention", nil}
		return e[:w.fields]
	}
	e := ordered{"type", "BlockStored", "block_hashes", w.hashes(all), "parent_block_hash", above, "token_ids", list,
		"block_size", w.size, "lora_id", nil, "medium", medium, "lora_name", adapter,
		"new_field", map[string]int{"of an engine to come": 7}}
	if extra != nil {
		e = append(e, "extra_keys", extra)
	}
	if w.ahead > 0 && len(list) > 0 {
		e = append(e, "lookahead_token_ids", more)
	}
	switch w.r.IntN(6) {
	case 0:
		e = append(e, "session_id", fmt.Sprint("session ", w.r.IntN(3)))
	case 1:
		e = append(e, "ownership", "kvcr")
	case 2:
		e = append(e, "group_idx", w.r.IntN(2))
	}
	return e
}

func (w *teller) remove() any {
	var some []blockPlace
	for k, n := range w.oracle.copies {
		if n > 0 {
			some = append(some, k)
		}
	}
	slices.SortFunc(some, func(a, b blockPlace) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
	if len(some) == 0 {
		return nil
	}
	k := some[w.r.IntN(len(some))]
	all := []uint64{k.hash}
	for _, o := range some {
		if o.medium == k.medium && o.group == k.group && o.owned == k.owned && o != k && w.r.IntN(3) == 0 {
			all = append(all, o.hash)
		}
	}
	if w.r.IntN(4) == 0 {
		all = append(all, w.r.Uint64())
	}
	if !w.pairs {
		return []any{"BlockRemoved", w.hashes(all), k.medium, k.group}
	}
	e := ordered{"type", "BlockRemoved", "block_hashes", w.hashes(all), "medium", k.medium}
	if k.group > 0 || w.r.IntN(2) == 0 {
		e = append(e, "group_idx", k.group)
	}
	if k.owned {
		e = append(e, "ownership", "kvcr")
	}
	if w.r.IntN(5) == 0 {
		counts := []any{}
		for range all {
			counts = append(counts, w.r.IntN(2))
		}
		e = append(e, "remaining_copy_counts", counts)
	}
	return e
}

// move moves a block that is held to another medium, or to its own.
func (w *teller) move() any {
	var some []blockPlace
	for k, n := range w.oracle.copies {
		if n > 0 {
			some = append(some, k)
		}
	}
	slices.SortFunc(some, func(a, b blockPlace) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
	if len(some) == 0 {
		return nil
	}
	k := some[w.r.IntN(len(some))]
	all := []uint64{k.hash}
	if w.r.IntN(4) == 0 {
		all = append(all, w.r.Uint64())
	}
	to := []string{"GPU", "CPU", "DISK"}[w.r.IntN(3)]
	if !w.pairs {
		return []any{"BlockTransferred", w.hashes(all), k.medium, to, k.group}
	}
	e := ordered{"type", "BlockTransferred", "block_hashes", w.hashes(all), "from_medium", k.medium, "to_medium", to, "group_idx", k.group}
	if k.owned {
		e = append(e, "ownership", "kvcr")
	}
	return e
}

func (w *teller) clear() any {
	switch {
	case w.pairs && w.r.IntN(2) == 0:
		return ordered{"type", "AllBlocksCleared", "ownership", "kvcr"}
	case w.pairs:
		return ordered{"type", "AllBlocksCleared"}
	case w.r.IntN(2) == 0:
		return []any{"TierBlocksCleared", "CPU"}
	}
	return []any{"AllBlocksCleared"}
}

// batch makes up a batch.
func (w *teller) batch() []byte {
	var list []any
	for range w.r.IntN(4) {
		var e any
		switch n := w.r.IntN(60); {
		case n == 0:
			e = w.clear()
		case n < 25:
			e = w.remove()
		case n < 35:
			e = w.again()
		case n < 42:
			e = w.move()
		default:
			e = w.store()
		}
		if e == nil {
			continue
		}
		list = append(list, e)
		w.oracle.apply(pack(w.t, []any{0.0, []any{e}}))
	}
	return pack(w.t, append([]any{float64(w.r.IntN(1000)), append([]any{}, list...)}, []any{0, "later"}[:w.tail]...))
}

// TestPastModel compares what a follower holds that heard all with what one holds that heard a
// dump and the rest.
func TestPastModel(t *testing.T) {
	worlds := 150
	if testing.Short() || payload.PoisonsReleased { // the race detector takes ten times as long
		worlds = 30
	}
	for seed := range uint64(worlds) {
		if !t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) { pastWorld(t, rand.New(rand.NewPCG(seed, 7))) }) {
			return
		}
	}
}

func pastWorld(t *testing.T, r *rand.Rand) {
	w := newTeller(t, r)
	past, follower := newPast(), newOracle(t)
	cut, limit := r.IntN(80), []int{1, 300, 1 << 20}[r.IntN(3)]
	dumped := false
	for i := range 120 {
		b := w.batch()
		past.applyBatch(b)
		if dumped {
			follower.apply(b)
		}
		if i == cut {
			dumped = true
			w.check(past)
			for p := range dumpOf(past, limit) {
				follower.apply(p)
			}
			w.compare("at the cut", follower)
			follower.apply(past.frame.Wrap())
		}
	}
	w.compare("at the end", follower)
	w.check(past)
	if past.doubtful {
		t.Fatal("the past is doubtful")
	}
	later := newOracle(t)
	for p := range dumpOf(past, limit) {
		later.apply(p)
	}
	w.compare("of a second dump", later)
}

func (w *teller) compare(when string, follower *oracle) {
	w.t.Helper()
	if got, want := follower.state(), w.oracle.state(); got != want {
		w.t.Fatalf("%s the follower of the dump holds\n%s\nwhere one that heard all holds\n%s", when, got, want)
	}
}

// dumpOf yields the batches of a dump.
func dumpOf(p *past, limit int) iter.Seq[[]byte] {
	return p.packDump(p.compact(), limit)
}

// check compares what a past holds with the follower that heard all, and verifies that it keeps what it needs alone.
func (w *teller) check(p *past) {
	w.t.Helper()
	for k, h := range p.held {
		at := p.places[k.place]
		of := blockPlace{k.hash, at.medium, at.group, at.owned}
		if h.copies <= 0 || int(h.copies) != w.oracle.copies[of] || (h.absent > 0) == w.oracle.present[of] {
			w.t.Fatalf("the past holds %+v as %+v", of, h)
		}
	}
	n := 0
	for _, copies := range w.oracle.copies {
		if copies > 0 {
			n++
		}
	}
	p.compact()
	bytes := 0
	for _, raw := range p.kept {
		bytes += len(raw)
	}
	before := len(p.kept)
	p.compact()
	if len(p.held) != n || p.bytes != int64(bytes) || len(p.kept) != before || len(p.kept) > 0 && len(p.held) == 0 {
		w.t.Fatalf("the past holds %d blocks of %d, and keeps %d events of %d, %d bytes of %d",
			len(p.held), n, len(p.kept), before, p.bytes, bytes)
	}
}

// TestPastForgets churns through ten times what the engine holds.
func TestPastForgets(t *testing.T) {
	past := newPast()
	var held []uint64
	for i := range 10_000 {
		var all []any
		var list []any
		for j := range 8 {
			h := uint64(i*8+j) + 1
			held = append(held, h)
			all = append(all, h)
			list = append(list, h, h)
		}
		past.applyBatch(pack(t, []any{0.5, []any{ordered{"type", "BlockStored", "block_hashes", all, "parent_block_hash", nil,
			"token_ids", list, "block_size", 2, "session_id", fmt.Sprint(i)}}}))
		if len(held) > 8000 {
			past.applyBatch(pack(t, []any{0.5, []any{ordered{"type", "BlockRemoved", "block_hashes", held[:8]}}}))
			held = held[8:]
		}
	}
	if past.bytes > 2*minCompaction {
		t.Errorf("the past keeps %d events, most of which nobody needs", len(past.kept))
	}
	if past.compact(); len(past.held) != 8000 || past.dead != 0 || len(past.kept) != 1000 {
		t.Errorf("the past has %d blocks and %d more in %d events", len(past.held), past.dead, len(past.kept))
	}
}

// TestDumpKeepsFields: what the past does not know comes back as it was, in events as large as
// the engine's. What follows the rank in a batch is about that batch alone, as its publisher id.
func TestDumpKeepsFields(t *testing.T) {
	for _, event := range []any{
		ordered{"type", "BlockStored", "block_hashes", []any{1, 2, 3}, "parent_block_hash", nil, "token_ids", []any{1, 2, 3},
			"block_size", 1,
			"new", []any{"x", nil}, "extra_keys", []any{[]any{"a"}, nil, []any{"b", 3}}},
		[]any{"BlockStored", []any{1, 2, 3}, 9, []any{1, 2, 3}, 1, nil, "GPU", nil, []any{nil, []any{"a"}, nil},
			0, "full_attention", nil, "LOCAL", 7},
	} {
		payload := pack(t, []any{1.5, []any{event}, 3})
		past := newPast()
		past.applyBatch(pack(t, []any{1.5, []any{event}, 3, "publisher"}))
		var got [][]byte
		for p := range dumpOf(past, 1<<20) {
			got = append(got, p)
		}
		if len(got) != 2 || !bytes.Equal(got[1], payload) {
			t.Errorf("a dump of %q is %q", payload, got)
		}
	}
}

// FuzzPast feeds any bytes. A dump is a number of batches that decode whole.
func FuzzPast(f *testing.F) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 20 {
		w := newTeller(f, r)
		a, b := w.batch(), w.batch()
		f.Add(a, b)
	}
	f.Fuzz(func(t *testing.T, a, b []byte) {
		past := newPast()
		for _, p := range [][]byte{a, b, a} {
			past.applyBatch(p)
			for p := range dumpOf(past, 500) {
				if _, err := wire.Decode(p, wire.DefaultLimits); err != nil {
					t.Fatalf("a batch of a dump: %v: %q", err, p)
				}
			}
		}
	})
}

// BenchmarkPast stores chains of 32 blocks of 16 tokens in vLLM's maps, and removes the oldest.
func BenchmarkPast(b *testing.B) {
	const n, blocks, size = 2000, 32, 16
	var stores, removals [][]byte
	for i := range n {
		var all, list []any
		for j := range blocks {
			all = append(all, uint64(i*blocks+j)<<32+77)
			for k := range size {
				list = append(list, 100*k+i)
			}
		}
		stores = append(stores, pack(b,
			[]any{0.5, []any{ordered{"type", "BlockStored", "block_hashes", all, "parent_block_hash", nil, "token_ids", list,
				"block_size", size, "lora_id", nil, "medium", "GPU", "lora_name", nil, "group_idx", 0}}, 0}))
		removed := ordered{"type", "BlockRemoved", "block_hashes", all, "medium", "GPU", "group_idx", 0}
		removals = append(removals, pack(b, []any{0.5, []any{removed}, 0}))
	}
	past := newPast()
	b.Run("apply", func(b *testing.B) {
		for b.Loop() {
			for i := range stores {
				past.applyBatch(stores[i])
			}
			for i := range removals {
				past.applyBatch(removals[i])
			}
		}
		b.ReportMetric(float64(b.N)*n*blocks/b.Elapsed().Seconds(), "blocks/s")
	})
	for i := range stores {
		past.applyBatch(stores[i])
	}
	b.Run("dump", func(b *testing.B) {
		bytes := 0
		for b.Loop() {
			for p := range dumpOf(past, maxBatch) {
				bytes += len(p)
			}
		}
		b.ReportMetric(float64(b.N)*n*blocks/b.Elapsed().Seconds(), "blocks/s")
		b.ReportMetric(float64(bytes)/float64(b.N*n*blocks), "bytes/block")
	})
}
