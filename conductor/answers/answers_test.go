package answers

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestStore holds how long answers are kept: for keptFor, and as long as there is room.
func TestStore(t *testing.T) {
	const size = 80
	now := time.Now()
	s := New[int](func() time.Time { return now })
	if id := s.Add(1, size); id != 0 {
		t.Errorf("without room an answer is kept as %d", id)
	}
	s.SetLimit(20 * (overhead + size))
	kept := func(id uint64) bool {
		_, ok := s.Find(id)
		return ok
	}
	var ids []uint64
	for n := range 22 {
		ids = append(ids, s.Add(n, size))
	}
	for n, id := range ids {
		if got, ok := s.Find(id); id == 0 || ok != (n >= 2) || ok && got != n {
			t.Errorf("answer %d of 22, id %d, is %d, kept %v: there is room for 20", n, id, got, ok)
		}
	}
	if got := s.Bytes(); got != 20*(overhead+size) {
		t.Errorf("20 answers take %d bytes", got)
	}
	if kept(0) || kept(ids[21]+1) {
		t.Error("ids that were never given are kept")
	}
	if s.Add(1, 2*20*(overhead+size)/keptShare) != 0 || !kept(ids[2]) {
		t.Error("an answer is kept that takes more than its share of the room, or it takes that of others")
	}
	now = now.Add(keptFor - time.Nanosecond)
	late := s.Add(1, size)
	if !kept(ids[3]) || kept(ids[2]) || !kept(late) {
		t.Error("before the time is over the newest 20 are kept")
	}
	now = now.Add(time.Nanosecond)
	if kept(ids[21]) || !kept(late) {
		t.Error("an answer is forgotten when its time is over")
	}
	if s.SetLimit(0); kept(late) || s.Bytes() != 0 {
		t.Error("an answer is kept without room")
	}
}

// TestStoreEmptiesItself holds that the memory of answers is freed without another call.
func TestStoreEmptiesItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New[int](time.Now)
		s.SetLimit(1 << 20)
		s.Add(1, 100)
		time.Sleep(keptFor + 2*tidyEvery)
		synctest.Wait()
		if s.Bytes() != 0 || s.byID != nil || s.tidying {
			t.Errorf("%d bytes are kept, tidying %v", s.Bytes(), s.tidying)
		}
	})
}
