package objectkey

import (
	"fmt"
	"math/bits"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"example.com/conductor/internal/alloctest"
)

func must(t testing.TB, text string) *Key {
	t.Helper()
	k, err := Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return &k
}

// told writes reports down: + for whole, - for no more.
func told(log *[]string) func(Block, bool) {
	return func(b Block, whole bool) {
		*log = append(*log, fmt.Sprintf("%c%d/%d/%x", "-+"[map[bool]int{true: 1}[whole]], b.Pool, b.Tier, b.Hash))
	}
}

func TestShardsScript(t *testing.T) {
	var log []string
	s := NewShards(All, 1<<20, told(&log))
	f := func(step, want string) {
		t.Helper()
		log = log[:0]
		verb, text, _ := strings.Cut(step, " ")
		switch verb {
		case "add":
			if _, ok := s.Add(1, 1, must(t, text)); !ok {
				t.Fatalf("%s: refused", step)
			}
		case "disk":
			if _, ok := s.Add(1, 2, must(t, text)); !ok {
				t.Fatalf("%s: refused", step)
			}
		case "age":
			s.ForgetStale(func(tier Tier) bool { return tier == 1 })
		case "remove":
			s.Remove(1, 1, must(t, text))
		case "clear":
			s.RemoveWhere(func(pool Pool, _ Tier) bool { return pool == 1 })
		case "clear-disk":
			s.RemoveWhere(func(pool Pool, tier Tier) bool { return pool == 1 && tier == 2 })
		}
		s.Check()
		expected := strings.Fields(want)
		slices.Sort(log) // blocks of a kind turn in any order
		if slices.Sort(expected); !slices.Equal(log, expected) {
			t.Errorf("%s: %q, want %q", step, log, expected)
		}
	}
	f("add m@tp_rank:0@0a", "+1/1/a")
	f("add m@tp_rank:0@0a", "")
	f("add m@tp_rank:1@0a", "-1/1/a +1/1/a") // a block has two shards after all
	f("add m@tp_rank:0@0b", "")
	f("disk m@tp_rank:1@0b", "") // not whole on either
	f("add n@tp_rank:0@0b", "+1/1/b")
	f("add m@tp_rank:0@group:1@0b", "+1/1/b") // another kind
	f("add m@tp_rank:1@0b", "+1/1/b")
	f("add m@store_format:x@tp_rank:0@0c", "+1/1/c") // another namespace is another kind
	f("add m@store_format:y@tp_rank:1@0c", "+1/1/c")
	f("add m@store_format:x@tp_rank:1@0d", "-1/1/c")
	f("remove m@store_format:x@tp_rank:1@0d", "")
	f("remove m@store_format:x@tp_rank:0@0c", "")
	f("remove m@store_format:y@tp_rank:1@0c", "-1/1/c")
	f("add m@store_tp:2@store_pp:2@tp_rank:0@pp_rank:0@0c", "") // the layout says of how many shards
	f("add m@store_tp:2@store_pp:2@tp_rank:1@pp_rank:0@0c", "")
	f("add m@store_tp:2@store_pp:2@tp_rank:0@pp_rank:1@0c", "")
	f("add m@store_tp:2@store_pp:2@tp_rank:1@pp_rank:1@0c", "+1/1/c")
	f("remove m@store_tp:2@store_pp:2@tp_rank:0@pp_rank:0@0c", "-1/1/c")
	f("remove m@store_tp:2@store_pp:2@tp_rank:1@pp_rank:0@0c", "")
	f("remove m@store_tp:2@store_pp:2@tp_rank:0@pp_rank:1@0c", "")
	f("remove m@store_tp:2@store_pp:2@tp_rank:1@pp_rank:1@0c", "")
	f("add n@tp_rank:0@ep_rank:0@0c", "+1/1/c") // a part that nobody knows is one of several
	f("add n@tp_rank:0@ep_rank:1@0c", "-1/1/c +1/1/c")
	f("add n@tp_rank:0@ep_rank:0@0d", "")
	f("remove n@tp_rank:0@ep_rank:0@0d", "")
	f("remove n@tp_rank:0@ep_rank:0@0c", "-1/1/c")
	f("remove n@tp_rank:0@ep_rank:1@0c", "")
	f("remove m@tp_rank:0@0a", "-1/1/a")
	f("remove m@tp_rank:0@0a", "")
	f("remove m@tp_rank:7@0a", "")
	f("remove m@tp_rank:0@0c", "")
	f("remove m@tp_rank:1@0a", "")
	f("disk m@tp_rank:0@0b", "+1/2/b")
	f("clear-disk", "-1/2/b")
	f("remove n@tp_rank:0@0b", "-1/1/b")
	f("remove m@tp_rank:0@group:1@0b", "-1/1/b")
	f("clear", "-1/1/b")
	f("add m@tp_rank:0@0a", "+1/1/a") // the pool forgot its second rank
	f("disk m@tp_rank:0@0a", "+1/2/a")
	f("add m@tp_rank:0@0b", "+1/1/b")
	f("age", "")
	f("add m@tp_rank:0@0a", "")
	f("age", "-1/1/b")
	f("add m@tp_rank:1@0a", "-1/1/a -1/2/a +1/1/a") // one shard renews the block
	f("age", "")
	f("age", "-1/1/a")
	f("disk m@tp_rank:1@0a", "+1/2/a")
	f("clear", "-1/2/a")
	if s.Len() != 0 || s.Bytes() != 0 {
		t.Errorf("%d blocks and %d bytes are left", s.Len(), s.Bytes())
	}
}

func TestShardsAny(t *testing.T) {
	var log []string
	s := NewShards(Any, 1<<20, told(&log))
	s.Add(1, 1, must(t, "m@tp_rank:0@0a"))
	s.Add(1, 1, must(t, "m@tp_rank:1@0a"))
	s.Remove(1, 1, must(t, "m@tp_rank:0@0a"))
	s.Remove(1, 1, must(t, "m@tp_rank:1@0a"))
	if got := strings.Join(log, " "); got != "+1/1/a -1/1/a" {
		t.Error(got)
	}
}

// TestShardsAtTheLimit holds that a refused object changes nothing, and that a
// known one is still updated.
func TestShardsAtTheLimit(t *testing.T) {
	var log []string
	s := NewShards(All, 8<<10, told(&log))
	n := 0
	add := func(text string) bool {
		_, ok := s.Add(1, 1, must(t, text))
		return ok
	}
	for add(fmt.Sprintf("m@tp_rank:0@%08x", n)) {
		n++
	}
	s.Check()
	if n < 10 || len(log) != n || s.Len() != n {
		t.Fatalf("%d added, %d reported, %d held", n, len(log), s.Len())
	}
	if !add("m@tp_rank:0@00000000") {
		t.Error("what is there was refused")
	}
	for i := 1; add(fmt.Sprintf("m@tp_rank:%d@00000000", i)); i++ { // shards cost as well
	}
	s.Remove(1, 1, must(t, "m@tp_rank:0@00000001"))
	if s.Check(); !add("m@tp_rank:0@0000ffff") {
		t.Error("nothing came free")
	}
	if s.ForgetStale(func(Tier) bool { return true }); s.Len() != n {
		t.Errorf("%d blocks are left of %d", s.Len(), n)
	}
	s.ForgetStale(func(Tier) bool { return true })
	if s.Bytes() != 0 {
		t.Errorf("%d bytes are left", s.Bytes())
	}
}

// TestShardsOfManyLayers holds that blocks of more shards than a word has bits
// are whole with the last one, in whatever order they come.
func TestShardsOfManyLayers(t *testing.T) {
	const layers = 200
	whole := make(map[uint64]bool)
	s := NewShards(All, 1<<20, func(b Block, is bool) { whole[b.Hash] = is })
	key := func(hash, layer int) *Key {
		return must(t, fmt.Sprintf("m@pcp0@dcp0@head_or_tp_rank:0@%02x@%d", hash, layer))
	}
	for layer := range layers {
		s.Add(1, 1, key(1, layer))
	}
	for i, layer := range rand.Perm(layers) {
		s.Add(1, 1, key(2, layer))
		if s.Check(); !whole[1] || whole[2] != (i == layers-1) {
			t.Fatalf("after %d layers: %v", i+1, whole)
		}
	}
	for _, layer := range rand.Perm(layers) {
		s.Remove(1, 1, key(1, layer))
		if s.Check(); whole[1] || !whole[2] {
			t.Fatalf("without layer %d: %v", layer, whole)
		}
	}
	if s.Len() != 1 {
		t.Errorf("%d blocks are left", s.Len())
	}
}

// naive keeps every object, and counts again for every question.
type naive struct {
	need    Completeness
	objects map[object]bool
	old     map[object]bool // blocks, without a shard
	seen    map[poolKind]map[Shard]bool
}

type object struct {
	poolKind
	tier   Tier
	digest string
	shard  Shard
}

func (n *naive) add(pool Pool, tier Tier, k *Key) {
	at := poolKind{pool, k.Kind}
	o := object{at, tier, k.Digest, k.Shard}
	n.objects[o], n.old[o.block()] = true, false
	if n.seen[at] == nil {
		n.seen[at] = make(map[Shard]bool)
	}
	n.seen[at][k.Shard] = true
}

func (o object) block() object {
	o.shard = Shard{}
	return o
}

// age takes away the old blocks of a tier and makes the others old.
func (n *naive) age(tier Tier) {
	n.remove(func(o object) bool { return o.tier == tier && n.old[o.block()] })
	for o := range n.objects {
		if o.tier == tier {
			n.old[o.block()] = true
		}
	}
}

func (n *naive) remove(goes func(object) bool) {
	left := make(map[poolKind]bool)
	for o := range n.objects {
		if goes(o) {
			delete(n.objects, o)
		} else {
			left[o.poolKind] = true
		}
	}
	for at := range n.seen {
		if !left[at] {
			delete(n.seen, at)
		}
	}
}

// whole counts whole blocks by what a report tells of them.
func (n *naive) whole() map[string]bool {
	has := make(map[object]int)
	for o := range n.objects {
		has[o.block()]++
	}
	set := make(map[string]bool)
	for o, count := range has {
		if n.need == Any || count == len(n.seen[o.poolKind]) {
			set[fmt.Sprint(o.pool, o.tier, o.kind, o.digest)] = true
		}
	}
	return set
}

func TestShardsModel(t *testing.T) {
	for _, need := range []Completeness{All, Any} {
		seed := uint64(time.Now().UnixNano())
		r := rand.New(rand.NewPCG(seed, uint64(need)))
		digests := make(map[[2]uint64]string) // by what a report tells
		now := make(map[string]bool)
		s := NewShards(need, 1<<30, func(b Block, whole bool) {
			name := fmt.Sprint(b.Pool, b.Tier, *b.Kind, digests[[2]uint64{b.Hash, b.Rest}])
			if now[name] == whole {
				t.Fatalf("seed %d: %s is reported %v twice", seed, name, whole)
			}
			if now[name] = whole; !whole {
				delete(now, name)
			}
		})
		n := &naive{need: need, objects: make(map[object]bool), old: make(map[object]bool), seen: make(map[poolKind]map[Shard]bool)}
		numbers := make(map[object]Number) // of blocks
		ranks := 3
		for step := range 6000 {
			if step == 4000 {
				ranks = 150 // more than one word of bits
			}
			// one Hash, many digests
			text := fmt.Sprintf("%s@tp_rank:%d@%x1e0b2e028ef071cb", []string{"m", "n"}[r.IntN(2)], r.IntN(ranks), 16+r.IntN(4))
			if r.IntN(4) == 0 {
				text = fmt.Sprintf("%s_%d_%s", digest, r.IntN(ranks), []string{"k", "v"}[r.IntN(2)])
			}
			k := must(t, text)
			who := memberOf(0, k)
			digests[[2]uint64{who.hash, who.rest}] = k.Digest
			pool, tier := Pool(r.IntN(2)), Tier(r.IntN(2))
			switch x := r.IntN(100); {
			case x < 62:
				number, ok := s.Add(pool, tier, k)
				if !ok {
					t.Fatalf("seed %d: refused", seed)
				}
				n.add(pool, tier, k)
				numbers[object{poolKind{pool, k.Kind}, tier, k.Digest, Shard{}}] = number
			case x < 97:
				s.Remove(pool, tier, k)
				gone := object{poolKind{pool, k.Kind}, tier, k.Digest, k.Shard}
				n.remove(func(o object) bool { return o == gone })
			case x == 97:
				s.ForgetStale(func(t Tier) bool { return t == tier })
				n.age(tier)
			case x == 98:
				s.RemoveWhere(func(p Pool, t Tier) bool { return p == pool && t == tier })
				n.remove(func(o object) bool { return o.pool == pool && o.tier == tier })
			default:
				s.RemoveWhere(func(p Pool, _ Tier) bool { return p == pool })
				n.remove(func(o object) bool { return o.pool == pool })
			}
			s.Check()
			there := make(map[object]bool)
			for o := range n.objects {
				there[o.block()] = true
			}
			for o := range numbers {
				if !there[o] {
					delete(numbers, o)
				}
			}
			for o := range there {
				if !s.KnowsBlock(numbers[o]) {
					t.Fatalf("seed %d, step %d: block %v has number %d, which is not known", seed, step, o, numbers[o])
				}
			}
			want := n.whole()
			if len(want) != len(now) {
				t.Fatalf("seed %d, step %d: whole are %v, want %v", seed, step, now, want)
			}
			for name := range want {
				if !now[name] {
					t.Fatalf("seed %d, step %d: %s is whole, and was not reported", seed, step, name)
				}
			}
		}
	}
}

func TestShardsAllocateOnlyForWhatIsNew(t *testing.T) {
	s := NewShards(All, 1<<20, func(Block, bool) {})
	k, other := must(t, "m@tp_rank:0@0a"), must(t, "m@tp_rank:1@0a")
	s.Add(1, 1, k)
	s.Add(1, 1, other)
	if n := alloctest.PerRun(100, func() { s.Remove(1, 1, k); s.Add(1, 1, k) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkShards(b *testing.B) {
	s := NewShards(All, 1<<30, func(Block, bool) {})
	keys := make([]*Key, 0, 8192)
	for i := range cap(keys) {
		keys = append(keys, must(b, fmt.Sprintf("org/model@tp_rank:%d@pcp0@dcp0@pp_rank:0@group:0@%s%016x", i%8, digest[16:], i/8)))
	}
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		k := keys[i%len(keys)]
		if i/len(keys)%2 == 0 {
			s.Add(1, 1, k)
		} else {
			s.Remove(1, 1, k)
		}
		i++
	}
}

// Check panics if the held objects break an invariant.
func (s *Shards) Check() {
	blocks, counts, held := 0, 0, int64(0)
	for at, m := range s.kinds {
		whole := 0
		held += m.kind.countBytes() + int64(len(m.number))*shardBytes
		for _, in := range m.sets {
			size := bits.OnesCount64(in.first)
			for _, w := range in.more {
				size += bits.OnesCount64(w)
			}
			if size != int(in.size) || size == 0 || size > len(m.number) {
				panic("BUG: a block's shards are miscounted")
			}
			if s.numbered[in.number] != in {
				panic("BUG: a block is not at its number")
			}
			if s.isWhole(m, in) {
				whole++
			}
			held += blockBytes + int64(len(in.more))*wordBytes
		}
		counts += whole
		if blocks += len(m.sets); len(m.sets) == 0 || whole != m.whole || at.kind != m.kind {
			panic("BUG: a kind without blocks, or with whole ones it does not count")
		}
	}
	if blocks != s.blocks || blocks-counts != s.Incomplete() || held != s.held || held > s.limit {
		panic("BUG: blocks or bytes are miscounted")
	}
	if len(s.numbered) != blocks+len(s.free) {
		panic("BUG: a number is neither a block's nor free")
	}
}
