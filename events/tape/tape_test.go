package tape

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"example.com/conductor/events/payload"
	"example.com/conductor/internal/must"
)

// create begins a journal that ends with the test.
func create(t *testing.T, o Options) *Tape {
	t.Helper()
	if o.MaxBytes == 0 {
		o.MaxBytes = MinBytes
	}
	w, err := Create(o)
	must.Succeed(t, err)
	t.Cleanup(func() { w.Close() })
	return w
}

// text prints a record without its place and time.
func text(r *Record) string {
	s := fmt.Sprintf("%d %s", r.Source, r.Kind)
	for flag, name := range []string{" standing", " hasseq", " replayed"} {
		if r.Flags&(1<<flag) != 0 {
			s += name
		}
	}
	if r.Epoch != 0 || r.Seq != 0 {
		s += fmt.Sprintf(" %d/%d", r.Epoch, r.Seq)
	}
	switch r.Kind {
	case Settings, Registered, State:
		fields, err := r.Fields()
		if err != nil {
			return s + " " + err.Error()
		}
		for _, f := range fields {
			s += " " + f.Name + "=" + f.Value
		}
	default:
		if len(r.Payload) > 0 {
			s += fmt.Sprintf(" %q", r.Payload)
		}
	}
	return s
}

// Batches without events take a record a minute, and one before what follows them.
func TestWriterThinsEmptyBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		w := create(t, Options{Dir: dir})
		a, b := w.Register("a"), w.Register("b")
		seq := uint64(0)
		for range 24 * 3600 { // a day
			a.RecordIdle(1, seq)
			seq++
			time.Sleep(time.Second)
		}
		b.RecordIdle(1, 0)
		b.RecordIdle(1, 1)
		b.RecordBatch(1, 2, false, []byte("two"), nil)
		b.RecordIdle(1, 3)
		b.RecordIdle(1, 4)
		b.RecordReset(2, "publisher_restarted")
		b.RecordIdle(2, 0)
		a.Unregister()
		w.Close()
		all, _ := contentsOf(t, dir)
		day, rest := 0, []Record(nil)
		for _, r := range all {
			if r.Kind == Idle && r.Source == 1 {
				day++
			} else if r.Kind != Settings && r.Kind != Registered && r.Kind != Begin {
				rest = append(rest, r)
			}
		}
		if day != 24*60+1 {
			t.Errorf("a day took %d records", day)
		}
		want(t, rest, "2 idle 1/0", "2 idle 1/1", `2 batch 1/2 "two"`, "2 idle 1/3", "2 idle 1/4",
			`2 reset 2/0 "publisher_restarted"`, "2 idle 2/0", "1 unregistered")
		// A batch of the run is behind the record that tells of it.
		for _, seq := range []uint64{0, 17, 86399} {
			at, _, err := Locate(dir, nil, Target{Source: "a", Seq: seq}, nil)
			must.Succeed(t, err)
			for _, r := range all {
				if r.At == at && (r.Kind != Idle || r.Seq < seq || r.Seq > seq+60) {
					t.Errorf("batch %d is located at %s", seq, text(&r))
				}
			}
		}
		if _, _, err := Locate(dir, nil, Target{Source: "a", Seq: 86400}, nil); err == nil {
			t.Error("a batch that never was is located")
		}
	})
}

// contentsOf reads a journal.
func contentsOf(t *testing.T, dir string) (all []Record, damage Damage) {
	t.Helper()
	r, err := Open(dir, nil)
	must.Succeed(t, err)
	for {
		var rec Record
		if err := r.Next(&rec); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, rec)
	}
	if read, total := r.Progress(); read > total {
		t.Errorf("%d of %d bytes read", read, total)
	}
	return all, r.Damage()
}

func want(t *testing.T, got []Record, lines ...string) {
	t.Helper()
	var have []string
	for i := range got {
		have = append(have, text(&got[i]))
	}
	if a, b := strings.Join(have, "\n"), strings.Join(lines, "\n"); a != b {
		t.Errorf("the journal holds\n%s\nwant\n%s", a, b)
	}
}

// TestRoundTrip records each kind, ends, and records again behind it.
func TestRoundTrip(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	w := create(t, Options{Dir: dir, Settings: []Field{{"hash.seed", "7"}}})
	a := w.Register("a|default|0", Field{"block_size", "16"})
	b := w.Register("b|default|0")
	a.RecordState("replaying", "")
	a.RecordBatch(1, 0, true, []byte("zero"), nil)
	b.RecordUndecodable(1, 3, []byte("?"))
	a.RecordBatch(1, 1, false, nil, nil)
	a.RecordReset(2, "publisher_restarted")
	a.RecordState("partial", "gap_unrecoverable")
	b.RecordAging(time.Hour)
	b.Unregister()
	b.RecordBatch(1, 4, false, []byte("late"), nil)
	must.Succeed(t, w.Close())
	a.RecordBatch(2, 0, false, []byte("behind the end"), nil)
	got, damage := contentsOf(t, dir)
	lines := []string{
		"0 settings hash.seed=7", "0 begin",
		"1 registered 1/0 source=a|default|0 block_size=16", "2 registered 1/0 source=b|default|0",
		"1 state state=replaying reason=", `1 batch replayed 1/0 "zero"`, `2 undecodable 1/3 "?"`, "1 batch 1/1",
		`1 reset 2/0 "publisher_restarted"`, "1 state state=partial reason=gap_unrecoverable", "2 aged 0/3600000000000", "2 unregistered",
	}
	want(t, got, lines...)
	for i := range got {
		if age := time.Since(got[i].Time); age < 0 || age > time.Hour {
			t.Errorf("record %d is %v old", i, age)
		}
	}

	w = create(t, Options{Dir: dir})
	w.Register("c|default|0")
	w.Close()
	again, damage2 := contentsOf(t, dir)
	want(t, again, append(lines, "0 settings", "0 begin", "1 registered 1/0 source=c|default|0")...)
	if last := again[len(again)-1]; last.Run == got[0].Run || last.At.Segment != 2 {
		t.Errorf("the second run is %d in segment %d, the first was %d", last.Run, last.At.Segment, got[0].Run)
	}
	if damage != (Damage{}) || damage2 != (Damage{}) {
		t.Errorf("damage %+v, then %+v", damage, damage2)
	}
	modes := map[string]os.FileMode{dir: 0o700, filepath.Join(dir, segmentName(1)): 0o600, filepath.Join(dir, "lock"): 0o600}
	for path, mode := range modes {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != mode {
			t.Errorf("%s: %v %v, want %v", path, info.Mode(), err, mode)
		}
	}
}

// TestNilWriterDoesNothing holds that no journal costs no ifs.
func TestNilWriterDoesNothing(t *testing.T) {
	var w *Tape
	s := w.Register("a")
	s.RecordBatch(1, 1, false, nil, nil)
	s.Unregister()
	if err := w.Close(); err != nil || w.Stats() != (Stats{}) {
		t.Error(err, w.Stats())
	}
}

// sample writes a segment of ten batches and returns its bytes, and where its
// records begin.
func sample(t *testing.T, dir string) (data []byte, starts []int) {
	t.Helper()
	w := create(t, Options{Dir: dir})
	s := w.Register("a|default|0")
	for i := range uint64(10) {
		s.RecordBatch(1, i, false, bytes.Repeat([]byte{byte(i)}, int(i)*3), nil)
	}
	w.Close()
	all, _ := contentsOf(t, dir)
	for i := range all {
		starts = append(starts, int(all[i].At.Offset))
	}
	data, err := os.ReadFile(filepath.Join(dir, segmentName(1)))
	must.Succeed(t, err)
	return data, starts
}

// TestReaderSkipsTornTail cuts a segment anywhere: whole records are read, the rest is a torn
// tail, and the next segment is read behind it.
func TestReaderSkipsTornTail(t *testing.T) {
	data, starts := sample(t, t.TempDir())
	dir := t.TempDir()
	next := header{run: 5, number: 2}
	rec := Record{Kind: Begin, Time: time.Unix(1, 0)}
	must.Succeed(t, os.WriteFile(filepath.Join(dir, segmentName(2)), next.frame(nil).appendRecord(next.encode(), &rec), 0o600))
	for cut := range data {
		must.Succeed(t, os.WriteFile(filepath.Join(dir, segmentName(1)), data[:cut], 0o600))
		got, damage := contentsOf(t, dir)
		whole, at := 0, headerSize
		for i, start := range starts {
			if start <= cut {
				at = start
				whole = i
			}
		}
		lost := Damage{Torn: 1, Bytes: int64(cut - at)}
		switch {
		case cut < headerSize:
			lost, whole = Damage{Foreign: 1, Bytes: int64(cut)}, 0
		case cut == at:
			lost = Damage{}
		}
		if len(got) != whole+1 || damage != lost {
			t.Fatalf("cut at %d: %d records, damage %+v; want %d, %+v", cut, len(got), damage, whole+1, lost)
		}
	}
}

// TestReaderSkipsDamagedRecord damages every byte of a segment in turn: it costs the record it
// is in and no other.
func TestReaderSkipsDamagedRecord(t *testing.T) {
	data, starts := sample(t, t.TempDir())
	for at := headerSize; at < len(data); at++ {
		bad := bytes.Clone(data)
		bad[at] ^= byte(1 + rand.IntN(255))
		s, err := NewScanner(bad, nil)
		must.Succeed(t, err)
		n := 0
		for rec := (Record{}); s.Next(&rec); n++ {
		}
		last := at >= starts[len(starts)-1]
		if n != len(starts)-1 || s.damage.Skipped+s.damage.Torn != 1 || s.damage.Torn == 1 && !last {
			t.Fatalf("byte %d is %#x: %d records of %d, damage %+v", at, bad[at], n, len(starts), s.damage)
		}
	}
	for at := range headerSize {
		bad := bytes.Clone(data)
		bad[at] ^= 1
		if _, err := NewScanner(bad, nil); err == nil {
			t.Errorf("header with byte %d changed is taken", at)
		}
	}
	newer := bytes.Clone(data)
	newer[8] = 2
	dir := t.TempDir()
	os.WriteFile(filepath.Join(dir, segmentName(1)), newer, 0o600)
	r, err := Open(dir, nil)
	must.Succeed(t, err)
	if err := r.Next(new(Record)); err == nil || !strings.Contains(err.Error(), "version 2") {
		t.Errorf("a newer version: %v", err)
	}
}

// TestNotAJournal reads directories that hold none.
func TestNotAJournal(t *testing.T) {
	f := func(dir, want string) {
		t.Helper()
		if _, err := Open(dir, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", dir, err, want)
		}
	}
	dir := t.TempDir()
	f(dir, "holds no journal")
	f(filepath.Join(dir, "none"), "no such file")
	for _, name := range []string{"1.journal", "x.journal", "000000001.journal", "00000001.journal.bak", "notes.txt"} {
		os.WriteFile(filepath.Join(dir, name), []byte("hello"), 0o600)
	}
	f(dir, "holds no journal")
	f(filepath.Join(dir, "notes.txt"), "not a directory")
	os.WriteFile(filepath.Join(dir, segmentName(3)), []byte("hello"), 0o600)
	if got, damage := contentsOf(t, dir); len(got) != 0 || damage != (Damage{Foreign: 1, Bytes: 5}) {
		t.Errorf("%d records, damage %+v", len(got), damage)
	}
}

// TestCreateRefuses begins journals where none can be.
func TestCreateRefuses(t *testing.T) {
	f := func(dir string, bytes int64, want string) {
		t.Helper()
		if w, err := Create(Options{Dir: dir, MaxBytes: bytes}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", dir, err, want)
			w.Close()
		}
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	os.WriteFile(file, nil, 0o600)
	f(file, MinBytes, "not a directory")
	f(filepath.Join(file, "below"), MinBytes, "not a directory")
	f(dir, MinBytes-1, "too few")
	w := create(t, Options{Dir: dir})
	f(dir, MinBytes, "another running server")
	w.Close()
	create(t, Options{Dir: dir}).Close()
}

// TestWriterStaysWithinBytes writes four times what may stay.
func TestWriterStaysWithinBytes(t *testing.T) {
	dir := t.TempDir()
	os.WriteFile(filepath.Join(dir, "notes.txt"), []byte("not ours"), 0o600)
	w := create(t, Options{Dir: dir})
	a, b := w.Register("a|default|0"), w.Register("b|default|0")
	a.RecordState("synced", "")
	payload := bytes.Repeat([]byte("x"), 10_000)
	const batches = 4 * MinBytes / 10_000
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for seq := range uint64(batches) {
		a.RecordBatch(1, seq, false, payload, nil)
		if seq%100 == 0 { // about the size of a segment
			for w.Stats().Bytes < (seq+1)*10_000 {
				<-tick.C
			}
			if n := bytesIn(t, dir); n > MinBytes {
				t.Fatalf("%d bytes behind batch %d", n, seq)
			}
		}
	}
	b.RecordReset(2, "x")
	w.Close()
	if n := bytesIn(t, dir); n > MinBytes || n < MinBytes*3/4 {
		t.Errorf("%d bytes at the end", n)
	}
	if _, err := os.Stat(filepath.Join(dir, "notes.txt")); err != nil {
		t.Error(err)
	}
	got, damage := contentsOf(t, dir)
	if damage != (Damage{}) || w.Stats().Dropped != 0 || w.Stats().Errors != 0 {
		t.Errorf("damage %+v, %+v", damage, w.Stats())
	}
	first := got[5]
	want(t, got[:5], "0 settings", fmt.Sprintf("1 registered standing hasseq 1/%d source=a|default|0", first.Seq-1),
		"1 state state=synced reason=", "2 registered standing 1/0 source=b|default|0", "0 begin 0/2")
	next := first.Seq
	for i := range got {
		switch r := got[i]; {
		case r.Kind == Batch && r.Seq != next:
			t.Fatalf("batch %d follows %d", r.Seq, next-1)
		case r.Kind == Batch:
			next++
		}
	}
	if next != batches || first.Seq == 0 {
		t.Errorf("batches %d to %d of %d", first.Seq, next-1, batches)
	}
	// Existing files count from the start on.
	w = create(t, Options{Dir: dir})
	w.Register("c").RecordBatch(1, 0, false, bytes.Repeat(payload, 150), nil)
	w.Close()
	if n := bytesIn(t, dir); n > MinBytes {
		t.Errorf("%d bytes after another run", n)
	}
}

// bytesIn adds up the segments.
func bytesIn(t *testing.T, dir string) (n int64) {
	t.Helper()
	all, err := segments(dir)
	must.Succeed(t, err)
	for _, s := range all {
		n += s.size
	}
	return n
}

// The journal has a reference to the block of a batch until the batch is written.
func TestBlocksAreRetained(t *testing.T) {
	dir := t.TempDir()
	w := create(t, Options{Dir: dir})
	s := w.Register("a|default|0")
	block := payload.TakeBlock(100)
	raw := append(block.Bytes[:0], "what the engine sent"...)
	s.RecordBatch(1, 0, false, raw, block)
	block.Release() // by the stream
	w.Close()
	got, _ := contentsOf(t, dir)
	if string(got[len(got)-1].Payload) != "what the engine sent" {
		t.Errorf("the journal has %q", got[len(got)-1].Payload)
	}
	defer func() {
		if recover() == nil {
			t.Error("the journal keeps its reference after the batch is written")
		}
	}()
	block.Release()
}

// TestScanReadsMemory holds that segments in memory read like the files they are copies of,
// whole and damaged.
func TestScanReadsMemory(t *testing.T) {
	dir := t.TempDir()
	data, starts := sample(t, dir)
	want, _ := contentsOf(t, dir)
	f := func(records int, damage Damage, segments ...[]byte) {
		t.Helper()
		r, n := Scan(segments...), 0
		for rec := (Record{}); r.Next(&rec) == nil; n++ {
			if w := &want[n%len(want)]; text(&rec) != text(w) || rec.At.Offset != w.At.Offset || rec.Run != w.Run {
				t.Fatalf("record %d is %s, want %s", n, text(&rec), text(w))
			}
		}
		if n != records || r.Damage() != damage {
			t.Errorf("%d records, damage %+v; want %d, %+v", n, r.Damage(), records, damage)
		}
	}
	f(0, Damage{})
	f(len(starts), Damage{}, data)
	f(2*len(starts), Damage{}, data, data)
	f(len(starts)-1, Damage{Torn: 1, Bytes: int64(len(data)-starts[len(starts)-1]) - 1}, data[:len(data)-1])
	f(0, Damage{Foreign: 2, Bytes: 5}, []byte("hello"), nil)
	newer := bytes.Clone(data)
	newer[8] = 2
	if err := Scan(newer).Next(new(Record)); err == nil || !strings.Contains(err.Error(), "version 2") {
		t.Errorf("a newer version: %v", err)
	}
}
