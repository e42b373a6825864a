package tape

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"example.com/conductor/internal/alloctest"
	"example.com/conductor/internal/must"
)

// disk of a few bytes: a write beyond them fails like a full disk, after
// the part that fits.
type smallDisk struct {
	mu   sync.Mutex
	free int
	gate chan struct{} // if set, writes wait until it is closed
}

func (d *smallDisk) create(name string) (io.WriteCloser, error) {
	f, err := createFile(name)
	return &smallFile{f, d}, err
}

func (d *smallDisk) room(n int) {
	d.mu.Lock()
	d.free = n
	d.mu.Unlock()
}

type smallFile struct {
	io.WriteCloser
	disk *smallDisk
}

func (f *smallFile) Write(b []byte) (int, error) {
	if f.disk.gate != nil {
		<-f.disk.gate
	}
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	fits := b[:min(len(b), f.disk.free)]
	f.disk.free -= len(fits)
	n, err := f.WriteCloser.Write(fits)
	if err == nil && len(fits) < len(b) {
		err = &os.PathError{Op: "write", Path: "segment", Err: syscall.ENOSPC}
	}
	return n, err
}

// TestDiskFull fills the disk, lets time pass, and makes room again.
func TestDiskFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		disk := &smallDisk{free: 2000}
		var reports []error
		w := create(t, Options{Dir: dir, create: disk.create, Report: func(err error) { reports = append(reports, err) }})
		a, b := w.Register("a|default|0"), w.Register("b|default|0")
		payload := bytes.Repeat([]byte("x"), 500)
		for seq := range uint64(10) { // three fit
			a.RecordBatch(1, seq, false, payload, nil)
			synctest.Wait()
		}
		b.RecordState("synced", "")
		for seq := uint64(10); seq < 200; seq++ { // two minutes without room
			time.Sleep(time.Second)
			a.RecordBatch(1, seq, false, payload, nil)
			synctest.Wait()
		}
		if len(reports) != 1 || !errors.Is(reports[0], syscall.ENOSPC) {
			t.Errorf("reports: %v", reports)
		}
		st := w.Stats()
		if st.Errors < 5 || st.Errors > 15 || st.Dropped != 198 {
			t.Errorf("%+v; want 198 dropped and a retry every 30 s", st)
		}
		if left, _ := segments(dir); len(left) != 1 {
			t.Errorf("segments that could not be opened were left: %v", left)
		}
		disk.room(1 << 30)
		c := w.Register("c|default|0")
		for seq := uint64(200); seq < 300; seq++ {
			time.Sleep(time.Second)
			a.RecordBatch(1, seq, false, payload, nil)
			synctest.Wait()
		}
		b.RecordBatch(1, 0, false, nil, nil)
		c.Unregister()
		w.Close()
		if len(reports) != 2 || reports[1] != nil {
			t.Errorf("reports: %v", reports)
		}
		got, damage := contentsOf(t, dir)
		if damage.Torn != 1 || damage.Skipped > 0 || damage.Foreign > 0 {
			t.Errorf("damage %+v, want one torn tail", damage)
		}
		i := slices.IndexFunc(got, func(r Record) bool { return r.At.Segment > 1 })
		first := slices.IndexFunc(got[i:], func(r Record) bool { return r.Kind == Batch }) + i
		seq, lost := got[first].Seq, uint64(0)
		for _, r := range got {
			if r.Kind == Lost {
				lost += r.Seq
			}
		}
		if seq < 200 || seq > 230 || lost != w.Stats().Dropped-1 { // the registration of c stands in the opening
			t.Errorf("records continue with batch %d, %d are said to be lost of %d", seq, lost, w.Stats().Dropped)
		}
		want(t, got[i:first+1], "0 settings",
			fmt.Sprintf("1 registered standing hasseq 1/%d source=a|default|0", seq-1),
			"2 registered standing 1/0 source=b|default|0", "2 state state=synced reason=",
			"3 registered standing 1/0 source=c|default|0", "0 begin 0/3",
			fmt.Sprintf("1 lost 0/%d", seq-3), fmt.Sprintf("1 batch 1/%d %q", seq, payload))
		want(t, got[len(got)-4:], "1 batch 1/299 "+strconv.Quote(string(payload)), "2 lost 0/1", "2 batch 1/0", "3 unregistered")
	})
}

// TestCannotCreate takes the directory away and gives it back.
func TestCannotCreate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		broken := false
		var reports []error
		create := func(name string) (io.WriteCloser, error) {
			if broken {
				return nil, os.ErrPermission
			}
			return createFile(name)
		}
		w, err := Create(Options{Dir: dir, MaxBytes: MinBytes, create: create, Report: func(err error) { reports = append(reports, err) }})
		must.Succeed(t, err)
		a := w.Register("a|default|0")
		broken = true
		payload := make([]byte, w.disk.limit-1000)
		for seq := range uint64(4) {
			a.RecordBatch(1, seq, false, payload, nil)
			synctest.Wait()
		}
		broken = false
		time.Sleep(time.Minute)
		a.RecordBatch(1, 4, false, payload, nil)
		w.Close()
		if len(reports) != 2 || !errors.Is(reports[0], os.ErrPermission) || reports[1] != nil {
			t.Errorf("reports: %v", reports)
		}
		got, _ := contentsOf(t, dir)
		if n := len(got); got[n-1].Seq != 4 || text(&got[n-2]) != "1 lost 0/3" || w.Stats().Dropped != 3 {
			t.Errorf("the journal ends with %s, %s; %+v", text(&got[n-2]), text(&got[n-1]), w.Stats())
		}
	})
}

// TestSlowDisk stops the disk: no source waits for it, memory is bounded, and the
// journal marks the missing records.
func TestSlowDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		disk := &smallDisk{free: 1 << 30}
		w := create(t, Options{Dir: dir, create: disk.create, queueBytes: 100_000})
		a, b := w.Register("a|default|0"), w.Register("b|default|0")
		synctest.Wait()
		disk.gate = make(chan struct{})
		payload := bytes.Repeat([]byte("x"), 1000)
		a.RecordBatch(1, 0, false, payload, nil)
		synctest.Wait() // the writer hangs with it
		for seq := uint64(1); seq < 1000; seq++ {
			a.RecordBatch(1, seq, false, payload, nil)
		}
		b.Unregister()
		c := w.Register("c|default|0")
		c.RecordReset(2, "x")
		if w.queue.bytes > 100_000 {
			t.Errorf("%d bytes wait", w.queue.bytes)
		}
		close(disk.gate)
		synctest.Wait()
		c.RecordBatch(2, 0, true, nil, nil)
		a.RecordBatch(1, 1000, false, nil, nil)
		synctest.Wait()
		if n := len(w.queue.entries); n > 0 || w.queue.bytes != 0 {
			t.Errorf("the writer sleeps beside %d entries, %d bytes", n, w.queue.bytes)
		}
		w.Close()
		got, damage := contentsOf(t, dir)
		i := slices.IndexFunc(got, func(r Record) bool { return r.At.Segment > 1 })
		held := got[i-1].Seq + 1
		dropped := 1000 - held + 3
		if w.Stats().Dropped != dropped || held < 50 || damage != (Damage{}) {
			t.Errorf("%d batches were held; %+v; damage %+v", held, w.Stats(), damage)
		}
		want(t, got[i:], "0 settings", "1 registered standing hasseq 1/999 source=a|default|0",
			"3 registered standing 2/0 source=c|default|0", "0 begin 0/2",
			fmt.Sprintf("1 lost 0/%d", 1000-held), "3 lost 0/1", "3 batch replayed 2/0", "1 batch 1/1000")
	})
}

// TestTooLarge records a message that the journal has no room for.
func TestTooLarge(t *testing.T) {
	dir := t.TempDir()
	w := create(t, Options{Dir: dir, Report: func(err error) { t.Error(err) }})
	a := w.Register("a|default|0")
	a.RecordBatch(1, 0, false, []byte("kept"), nil)
	a.RecordBatch(1, 1, false, make([]byte, MinBytes), nil)
	a.RecordBatch(1, 2, false, nil, nil)
	w.Close()
	got, _ := contentsOf(t, dir)
	want(t, got[3:], `1 batch 1/0 "kept"`, "1 lost 0/1", "1 batch 1/2")
}

// TestWriterGathersRecords holds that records wait for others, unless there are many.
func TestWriterGathersRecords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := create(t, Options{Dir: t.TempDir(), Delay: time.Minute, queueBytes: 10_000})
		written := func() uint64 { synctest.Wait(); return w.Stats().Bytes }
		a := w.Register("a|default|0")
		before := written()
		time.Sleep(time.Minute)
		if n := written(); n == before {
			t.Errorf("%d bytes after a minute", n)
		}
		before = written()
		for a.RecordBatch(1, 0, false, nil, nil); written() == before; a.RecordBatch(1, 1, false, make([]byte, 1000), nil) {
		}
		if w.Stats().Dropped > 0 {
			t.Errorf("%+v", w.Stats())
		}
		before = w.Stats().Bytes
		a.RecordBatch(1, 2, false, nil, nil)
		start := time.Now()
		w.Close()
		if waited := time.Since(start); waited > 0 || w.Stats().Bytes == before {
			t.Errorf("the end waited %v, %d bytes", waited, w.Stats().Bytes-before)
		}
	})
}

// TestBatchAllocates nothing: it is called for every batch.
func TestBatchAllocates(t *testing.T) {
	w := create(t, Options{Dir: t.TempDir()})
	a := w.Register("a|default|0")
	payload := make([]byte, 100)
	if n := alloctest.PerRun(10_000, func() { a.RecordBatch(1, 1, false, payload, nil) }); n != 0 {
		t.Errorf("%v allocations a batch", n)
	}
}
