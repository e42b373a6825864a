package master

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"

	"example.com/conductor/internal/must"
	"example.com/conductor/lab/sim/digest"
	"example.com/conductor/lab/sim/truth"
)

const blockSize = 4

func newMaster(tree *truth.Tree, inHost, onDisk int) *Master {
	return New(Config{
		Tree: tree, First: 1, Host: inHost, Disk: onDisk,
		Families: []Family{{digest.CBOR, "org/m"}, {digest.Page, "org/m"}},
	})
}

// writes returns the blocks of a prompt as a family's engine names them. The
// caller unpins the last block.
func writes(tree *truth.Tree, family int, tokens []uint32) []Write {
	chain := digest.New([]digest.Algorithm{digest.CBOR, digest.Page}[family], "0")
	var list []Write
	for i, id := range tree.Intern(tokens, nil) {
		w := Write{ID: id, Family: family, Digest: chain.First(tree.Tokens(id))}
		if i > 0 {
			w.Digest = chain.Next(list[i-1].Digest, tree.Tokens(id))
		}
		list = append(list, w)
	}
	return list
}

func count(n int) []uint32 {
	tokens := make([]uint32, n)
	for i := range tokens {
		tokens[i] = uint32(i + 1)
	}
	return tokens
}

// TestKeysOfPublishedVectors: the whole digests of the published vectors, in the forms of the
// engines' connectors.
func TestKeysOfPublishedVectors(t *testing.T) {
	tree := truth.New(blockSize, 0, 1, 2)
	m := newMaster(tree, 9, 9)
	m.Put(writes(tree, 0, count(4))[0])
	m.Put(writes(tree, 1, count(4))[0])
	const vllm = "c9d58ba695280d69b243e1e0df813136ca9196b286fb1a021e0b2e028ef071cb"
	page := writes(tree, 1, count(4))[0].Digest.Hex()
	if !strings.HasPrefix(page, "cf97adeedb59e05b") {
		t.Errorf("SGLang's page is %s", page)
	}
	want := []Event{
		{false, truth.Host, "org/m@tp_rank:0@pcp0@dcp0@pp_rank:0@" + vllm, ""},
		{false, truth.Host, "org/m@tp_rank:1@pcp0@dcp0@pp_rank:0@" + vllm, ""},
		{false, truth.Host, "org-m_" + page + "_0_k", "sglang-hicache:org-m_" + page},
		{false, truth.Host, "org-m_" + page + "_0_v", "sglang-hicache:org-m_" + page},
	}
	if got := m.Step(9); !reflect.DeepEqual(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
}

// TestPressureMovesOldestDown: objects move down and leave one by one, the oldest first, and a
// block counts while both of its are on one tier.
func TestPressureMovesOldestDown(t *testing.T) {
	tree := truth.New(blockSize, 0, 1, 2)
	m := newMaster(tree, 2, 1)
	w := writes(tree, 0, count(5*blockSize))
	for i := range w {
		w[i].Seq = int64(i) // each a run of its own
	}
	short := func(events []Event) (text string) {
		for _, ev := range events {
			verb := "+"
			if ev.Removed {
				verb = "-"
			}
			for i := range w {
				if strings.HasSuffix(ev.Key, w[i].Digest.Hex()) {
					rank := ev.Key[len("org/m@tp_rank:"):][:1]
					text += fmt.Sprintf("%s%v %d.%s ", verb, ev.Tier, i, rank)
				}
			}
		}
		return text
	}
	f := func(n int, events string, held ...truth.Tier) {
		t.Helper()
		if got := short(m.Step(n)); got != events {
			t.Errorf("step %d:\ngot  %s\nwant %s", n, got, events)
		}
		for i := range w {
			if got := tree.Held(w[i].ID, 1); got != held[i] {
				t.Errorf("block %d is on %v, want %v", i, got, held[i])
			}
		}
		must.Report(t, m.Check())
	}
	const h, d = truth.Host, truth.Disk
	for i := range 4 {
		m.Put(w[i])
	}
	f(0, "", 0, 0, 0, 0, 0)
	f(1, "+host 0.0 +host 0.1 ", h, 0, 0, 0, 0) // the first block is written whole
	f(1, "+host 1.0 ", h, 0, 0, 0, 0)
	f(1, "+host 1.1 ", h, h, 0, 0, 0)
	f(1, "-host 0.0 +disk 0.0 +host 2.0 ", 0, h, 0, 0, 0)
	f(1, "-host 0.1 +disk 0.1 +host 2.1 ", d, h, h, 0, 0)
	if m.Get(0, w[3].Digest) || !m.Get(0, w[1].Digest) || m.Get(1, w[1].Digest) {
		t.Error("got what is not there, or not what is")
	}
	// Block 1 was used, so block 2 is the oldest.
	f(1, "-host 2.0 -disk 0.0 +disk 2.0 +host 3.0 ", 0, h, 0, 0, 0)
	if m.Get(0, w[0].Digest) {
		t.Error("got half a block")
	}
	if inHost, onDisk, broken := m.Blocks(); inHost != 1 || onDisk != 0 || broken != 3 {
		t.Errorf("%d blocks in host memory, %d on disk, %d broken", inHost, onDisk, broken)
	}
	m.Put(w[0])
	f(2, "-host 2.1 -disk 2.0 +disk 2.1 +host 3.1 -host 1.0 -disk 0.1 +disk 1.0 +host 0.0 ", 0, 0, 0, h, 0)
	if !m.Get(0, w[1].Digest) {
		t.Error("a block on two tiers was not got")
	}
	m.Put(w[4])
	f(9, "-host 3.0 -disk 2.1 +disk 3.0 +host 0.1 -host 3.1 -disk 1.0 +disk 3.1 +host 4.0 -host 0.0 -disk 3.0 +disk 0.0 +host 4.1 ", 0, 0,
		0, 0, h)
	if got := m.Stats(); got != (Stats{Stored: [2]int{12, 8}, Removed: [2]int{8, 6}, Found: 2}) {
		t.Errorf("%+v", got)
	}
}

// TestFirstShardsComeFirst: of blocks that came at once all first shards come first.
func TestFirstShardsComeFirst(t *testing.T) {
	tree := truth.New(blockSize, 0, 1, 2)
	m := newMaster(tree, 9, 0)
	w := writes(tree, 1, count(6*blockSize))
	for i := range w {
		w[i].Seq = int64(i / 4) // four, then two
		m.Put(w[i])
	}
	f := func(n, waiting int, want ...int) {
		t.Helper()
		m.Step(n)
		var whole []int
		for i := range w {
			if tree.Held(w[i].ID, 2) == truth.Host {
				whole = append(whole, i)
			}
		}
		if _, _, broken := m.Blocks(); fmt.Sprint(append(whole, broken)) != fmt.Sprint(want) || m.Waiting() != waiting {
			t.Errorf("after %d more objects: %v whole, %d broken, %d wait; want %v and %d", n, whole, broken, m.Waiting(), want, waiting)
		}
	}
	f(1, 6, 0, 0) // the first block of the family whole
	f(2, 6, 0, 2)
	f(2, 6, 0, 1, 2)
	f(2, 2, 0, 1, 2, 3, 0)
	f(2, 2, 0, 1, 2, 3, 2)
	f(1, 2, 0, 1, 2, 3, 4, 1)
	f(9, 0, 0, 1, 2, 3, 4, 5, 0)
	if m.Step(9); m.Waiting() != 0 || len(m.events) != 0 {
		t.Errorf("%d blocks wait, %d events", m.Waiting(), len(m.events))
	}
}

// TestAnnouncementMovesWithWrites: the batches that the pool's blocks depend on move with its writes.
func TestAnnouncementMovesWithWrites(t *testing.T) {
	tree := truth.New(blockSize, 0, 1, 2)
	m := newMaster(tree, 9, 0)
	for i, w := range writes(tree, 0, count(3*blockSize)) {
		w.Source, w.Seq = i%2, int64(10+i)
		m.Put(w)
	}
	f := func(n int, want ...int64) {
		t.Helper()
		m.Step(n)
		if got := []int64{m.Announced(0), m.Announced(1)}; !reflect.DeepEqual(got, want) {
			t.Errorf("after %d more objects: %d, want %d", n, got, want)
		}
	}
	f(0, -1, -1)
	f(2, 10, -1)
	f(1, 10, 11)
	f(9, 12, 11)
}

// TestMasterAgainstEvents writes random prompts of two families to small pools and follows
// every event.
func TestMasterAgainstEvents(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	for _, capacity := range [][2]int{{1, 0}, {1, 1}, {3, 0}, {4, 9}, {9, 4}, {200, 200}} {
		tree := truth.New(blockSize, 0, 1, 2)
		m := newMaster(tree, capacity[0], capacity[1])
		held := map[string]truth.Tier{}
		for step := range 600 {
			tokens := make([]uint32, blockSize*(1+rng.IntN(5)))
			for i := range tokens {
				tokens[i] = uint32(rng.IntN(1 + i/7))
			}
			list := writes(tree, rng.IntN(2), tokens)
			for _, w := range list {
				w.Seq = int64(step)
				if rng.IntN(3) > 0 {
					m.Put(w)
				} else {
					m.Get(w.Family, w.Digest)
				}
			}
			tree.Unpin(list[len(list)-1].ID)
			for _, ev := range m.Step(rng.IntN(12)) {
				if ev.Removed != (held[ev.Key] == ev.Tier) || held[ev.Key] != 0 && !ev.Removed {
					t.Fatalf("%v, step %d: %+v, and the object is on %v", capacity, step, ev, held[ev.Key])
				}
				held[ev.Key] = ev.Tier
				if ev.Removed {
					delete(held, ev.Key)
				}
			}
			if err := m.Check(); err != nil {
				t.Fatalf("%v, step %d: %v", capacity, step, err)
			}
		}
		got := map[string]truth.Tier{}
		m.holds(func(key string, tier truth.Tier) { got[key] = tier })
		if !reflect.DeepEqual(got, held) {
			t.Fatalf("%v: the pool holds %v, its events say %v", capacity, got, held)
		}
		for m.Waiting() > 0 {
			m.Step(1)
		}
		pinned := map[truth.ID]bool{}
		for _, b := range m.blocks {
			for id := b.id; id != truth.Root; id = tree.Parent(id) {
				pinned[id] = true
			}
		}
		if tree.Len() != len(pinned) {
			t.Errorf("%v: %d blocks live, the pool needs %d", capacity, tree.Len(), len(pinned))
		}
	}
}

// holds calls f for every object with its tier.
func (m *Master) holds(f func(key string, tier truth.Tier)) {
	for _, b := range m.blocks {
		for i := range b.objects {
			if o := &b.objects[i]; o.tier != nowhere {
				f(m.Families[b.family].event(b.digest, i).Key, tierOf[o.tier])
			}
		}
	}
}
