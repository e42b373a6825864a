package match

import (
	"testing"
	"time"
)

// TestKeptAnswers holds how long answers are kept: for keptFor, as long as there is room, and in the process that made them.
func TestKeptAnswers(t *testing.T) {
	const blocks = 10
	one := keptAnswer{chains: []keptChain{{0, make([]uint64, blocks)}}}
	c := new(Matcher)
	now := time.Now()
	if id := c.kept.add(one, now); id != 0 {
		t.Errorf("without room an answer is kept as %d", id)
	}
	c.KeepAnswers(3 * (keptBytes + 8*blocks))
	kept := func(id uint64) bool {
		_, ok := c.kept.find(id, now)
		return ok
	}
	var ids []uint64
	for range 5 {
		ids = append(ids, c.kept.add(one, now))
	}
	for i, id := range ids {
		if id == 0 || kept(id) != (i >= 2) {
			t.Errorf("answer %d of 5, id %d, kept %v: there is room for 3", i, id, kept(id))
		}
	}
	if got := c.KeptBytes(); got != 3*(keptBytes+8*blocks) {
		t.Errorf("3 answers take %d bytes", got)
	}
	if kept(0) || kept(ids[4]+1) || kept(ids[0]-1) || new(Matcher).kept.first == c.kept.first {
		t.Error("ids that were never given are kept")
	}
	now = now.Add(keptFor - time.Nanosecond)
	late := c.kept.add(one, now)
	if !kept(ids[3]) || kept(ids[2]) || !kept(late) {
		t.Error("before the time is over the newest three are kept")
	}
	now = now.Add(time.Nanosecond)
	if kept(ids[4]) || !kept(late) {
		t.Error("an answer is forgotten when its time is over")
	}
	if c.kept.add(keptAnswer{chains: []keptChain{{0, make([]uint64, 1000)}}}, now) != 0 || !kept(late) {
		t.Error("an answer that is larger than the room is kept, or takes that of others")
	}
	if c.KeepAnswers(0); kept(late) || c.KeptBytes() != 0 {
		t.Error("an answer is kept without room")
	}
}
