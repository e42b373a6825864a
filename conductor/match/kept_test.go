package match

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestKeptAnswers holds how long answers are kept: for keptFor, and as long as there is room.
func TestKeptAnswers(t *testing.T) {
	const blocks = 10
	one := keptAnswer{chains: []keptChain{{0, make([]uint64, blocks)}}}
	const size = keptBytes + 8*blocks
	c := new(Matcher)
	now := time.Now()
	clock := func() time.Time { return now }
	if id := c.kept.add(one, clock); id != 0 {
		t.Errorf("without room an answer is kept as %d", id)
	}
	c.KeepAnswers(20 * size)
	kept := func(id uint64) bool {
		_, ok := c.kept.find(id, now)
		return ok
	}
	var ids []uint64
	for range 22 {
		ids = append(ids, c.kept.add(one, clock))
	}
	for i, id := range ids {
		if id == 0 || kept(id) != (i >= 2) {
			t.Errorf("answer %d of 22, id %d, kept %v: there is room for 20", i, id, kept(id))
		}
	}
	if got := c.KeptBytes(); got != 20*size {
		t.Errorf("20 answers take %d bytes", got)
	}
	if kept(0) || kept(ids[21]+1) {
		t.Error("ids that were never given are kept")
	}
	if c.kept.add(keptAnswer{chains: []keptChain{{0, make([]uint64, 2*20*size/keptShare/8)}}}, clock) != 0 || !kept(ids[2]) {
		t.Error("an answer is kept that takes more than its share of the room, or it takes that of others")
	}
	now = now.Add(keptFor - time.Nanosecond)
	late := c.kept.add(one, clock)
	if !kept(ids[3]) || kept(ids[2]) || !kept(late) {
		t.Error("before the time is over the newest 20 are kept")
	}
	now = now.Add(time.Nanosecond)
	if kept(ids[21]) || !kept(late) {
		t.Error("an answer is forgotten when its time is over")
	}
	if c.KeepAnswers(0); kept(late) || c.KeptBytes() != 0 {
		t.Error("an answer is kept without room")
	}
}

// TestKeptNamesCount holds that a query's names, which clients choose, count as memory.
func TestKeptNamesCount(t *testing.T) {
	c := new(Matcher)
	c.KeepAnswers(1 << 20)
	const long = 50_000
	text := strings.Repeat("x", long)
	for _, q := range []Query{{Salt: text}, {Lora: text}, {Model: text}, {Tenant: text}} {
		for range 100 {
			c.kept.add(keptAnswer{query: q, chains: []keptChain{{0, nil}}}, time.Now)
		}
		if n := len(c.kept.queue); n == 0 || n*long > 1<<20 || c.KeptBytes() > 1<<20 {
			t.Errorf("%d answers with %d bytes of names each are kept as %d bytes", n, long, c.KeptBytes())
		}
	}
}

// TestKeptAnswersEndAlone holds that the memory of answers is freed without another call.
func TestKeptAnswersEndAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := new(Matcher)
		c.KeepAnswers(1 << 20)
		c.kept.add(keptAnswer{chains: []keptChain{{0, make([]uint64, 10)}}}, time.Now)
		time.Sleep(keptFor + 2*time.Second)
		synctest.Wait()
		if c.KeptBytes() != 0 || c.kept.byID != nil || c.kept.tidying {
			t.Errorf("%d bytes are kept, tidying %v", c.KeptBytes(), c.kept.tidying)
		}
	})
}
