package tape

import (
	"math"
	"testing"
	"testing/synctest"
	"time"

	"example.com/conductor/internal/must"
)

// TestWritten has a reader wait for batches that have left the memory and are on their way to the disk.
func TestWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := &smallDisk{free: 1 << 30}
		w := create(t, Options{Dir: t.TempDir(), create: disk.create, Delay: time.Minute, Memory: 1000, Evict: func(*Record) {}})
		s := w.Register("a|default|0")
		wait := func() bool {
			done := w.Written()
			synctest.Wait()
			select {
			case <-done:
				return true
			default:
				return false
			}
		}
		if !wait() {
			t.Fatal("an empty queue is waited for")
		}
		s.RecordBatch(1, 0, false, nil, nil)
		if !wait() {
			t.Fatal("a record waits for others while a reader waits for it")
		}
		disk.gate = make(chan struct{})
		for seq := range uint64(100) {
			s.RecordBatch(1, 1+seq, false, make([]byte, 100), nil)
		}
		second := Range{Epoch: 1, From: 1, To: 1, Limit: math.MaxInt}
		if _, err := s.Visit(second, func(*Record) bool { return true }); err != ErrTooNew {
			t.Fatalf("a batch on its way to the disk: %v", err)
		}
		done, again := w.Written(), w.Written()
		if wait() {
			t.Error("batches are taken for written while the disk hangs")
		}
		close(disk.gate)
		<-done
		<-again
		if got := visited(s, second); len(got) != 1 {
			t.Errorf("of the second batch %v is on the disk", got)
		}
		disk.room(0)
		s.RecordBatch(1, 101, false, make([]byte, 100), nil)
		if !wait() {
			t.Error("a lost batch is waited for")
		}
		must.Succeed(t, w.Close())
		if !wait() {
			t.Error("a closed tape is waited for")
		}
		if w = create(t, Options{}); !wait() {
			t.Error("a tape without a disk is waited for")
		}
	})
}
