package tape

import (
	"bytes"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"example.com/conductor/internal/must"
	"example.com/conductor/keyfile"
)

var (
	testKey  = &keyfile.Key{1, 2, 3}
	otherKey = &keyfile.Key{3, 2, 1}
)

// contentsWith reads a journal with a key.
func contentsWith(t *testing.T, dir string, key *keyfile.Key) (all []Record, damage Damage) {
	t.Helper()
	r, err := Open(dir, key)
	must.Succeed(t, err)
	for rec := (Record{}); r.Next(&rec) == nil; {
		all = append(all, rec)
	}
	return all, r.Damage()
}

// recordLife records one run of two sources over several segments.
func recordLife(t *testing.T, dir string, key *keyfile.Key) *Tape {
	t.Helper()
	w := create(t, Options{Dir: dir, Key: key, Settings: []Field{{"hash.seed", "setting-in-clear"}}})
	a := w.Register("instance-in-clear|default|0", Field{"salt", "salt-in-clear"})
	w.Register("b|default|0")
	a.RecordState("partial", "state-in-clear")
	tokens := bytes.Repeat([]byte("tokens-in-clear "), 20_000)
	for seq := range uint64(20) {
		a.RecordBatch(1, seq, false, tokens, nil)
	}
	a.RecordBatch(1, 20, false, nil, nil)
	a.RecordUndecodable(1, 21, []byte("refused-in-clear"))
	a.RecordReset(2, "reason-in-clear")
	must.Succeed(t, w.Close())
	return w
}

// TestSealedRoundTrip: a sealed journal reads like a plain one of the same life, and its files
// hold no text of a payload.
func TestSealedRoundTrip(t *testing.T) {
	plain, sealed := t.TempDir(), t.TempDir()
	recordLife(t, plain, nil)
	w := recordLife(t, sealed, testKey)
	if n := bytesIn(t, sealed); n != w.disk.total || n != int64(w.Stats().Bytes) || n > MinBytes {
		t.Errorf("%d bytes in files, the writer counts %d and %d", n, w.disk.total, w.Stats().Bytes)
	}
	before, _ := contentsWith(t, plain, nil)
	got, damage := contentsWith(t, sealed, testKey)
	if damage != (Damage{}) || len(got) != len(before) || got[len(got)-1].At.Segment < 3 {
		t.Fatalf("%d records of %d up to segment %d, damage %+v", len(got), len(before), got[len(got)-1].At.Segment, damage)
	}
	for i := range got {
		if a, b := text(&got[i]), text(&before[i]); a != b {
			t.Errorf("record %d is %.80s, want %.80s", i, a, b)
		}
	}
	count := func(dir string) (n int) {
		all, err := segments(dir)
		must.Succeed(t, err)
		for _, s := range all {
			path := Path(dir, s.number)
			data, err := os.ReadFile(path)
			must.Succeed(t, err)
			n += bytes.Count(data, []byte("-in-clear"))
			if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
				t.Errorf("%s has mode %v, %v", path, info.Mode(), err)
			}
		}
		return n
	}
	if n, of := count(sealed), count(plain); n != 0 || of < 1000 {
		t.Errorf("%d texts of %d are readable", n, of)
	}
	at, _, err := Locate(sealed, testKey, Target{Source: "instance-in-clear", Seq: 17}, nil)
	if err != nil || !containsPosition(got, at, 17) {
		t.Errorf("batch 17 is located at %+v: %v", at, err)
	}
	if _, _, err = Locate(sealed, nil, Target{Source: "instance-in-clear", Seq: 17}, nil); err == nil {
		t.Error("a batch is located without the key")
	}
	_, _, err = Locate(sealed, otherKey, Target{Source: "instance-in-clear", Seq: 17}, nil)
	if err == nil || !strings.Contains(err.Error(), "opens none") {
		t.Errorf("a batch under another key: %v", err)
	}
	// A key does not hinder plain segments.
	if again, damage := contentsWith(t, plain, testKey); len(again) != len(before) || damage != (Damage{}) {
		t.Errorf("%d records of a plain journal, damage %+v", len(again), damage)
	}
}

func containsPosition(all []Record, at Position, seq uint64) bool {
	for i := range all {
		if all[i].At == at {
			return all[i].Seq == seq && all[i].Kind == Batch
		}
	}
	return false
}

// TestSealedNeedsKey: no key is an error that names the setting, another key opens no record,
// and the runs of other keys are read.
func TestSealedNeedsKey(t *testing.T) {
	dir := t.TempDir()
	for i, key := range []*keyfile.Key{nil, testKey, otherKey} {
		w := create(t, Options{Dir: dir, Key: key})
		w.Register(fmt.Sprint("source", i))
		w.Close()
	}
	f := func(key *keyfile.Key, damage Damage, lines ...string) {
		t.Helper()
		got, d := contentsWith(t, dir, key)
		want(t, got, lines...)
		if d.Bytes = 0; d != damage {
			t.Errorf("damage %+v, want %+v", d, damage)
		}
	}
	one := Damage{Skipped: 1, Unopened: 3}
	f(testKey, one, "0 settings", "0 begin", "1 registered 1/0 source=source0", "0 settings", "0 begin", "1 registered 1/0 source=source1")
	f(otherKey, one, "0 settings", "0 begin", "1 registered 1/0 source=source0", "0 settings", "0 begin", "1 registered 1/0 source=source2")
	f(&keyfile.Key{}, Damage{Skipped: 2, Unopened: 6}, "0 settings", "0 begin", "1 registered 1/0 source=source0")
	r, err := Open(dir, nil)
	must.Succeed(t, err)
	for err == nil {
		err = r.Next(new(Record))
	}
	for _, part := range []string{Path(dir, 2), "sealed", "journal.key_file", "--key-file"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q lacks %q", err, part)
		}
	}
	data, err := os.ReadFile(Path(dir, 2))
	must.Succeed(t, err)
	if err := Scan(data).Next(new(Record)); err == nil || !strings.Contains(err.Error(), "sealed") {
		t.Errorf("a sealed segment in memory: %v", err)
	}
}

// sealedSample returns a sealed segment and the places of its records.
func sealedSample(t *testing.T) (data []byte, all []Record) {
	t.Helper()
	dir := t.TempDir()
	w := create(t, Options{Dir: dir, Key: testKey})
	s := w.Register("a|default|0")
	for i := range uint64(6) {
		s.RecordBatch(1, i, false, bytes.Repeat([]byte{byte(i)}, int(i)*3), nil)
	}
	w.Close()
	all, _ = contentsWith(t, dir, testKey)
	data, err := os.ReadFile(filepath.Join(dir, segmentName(1)))
	must.Succeed(t, err)
	return data, all
}

// TestSealedDamage changes every byte of a sealed segment in turn, with the checksum of before
// and with one that fits: it costs the record of the byte and no other.
func TestSealedDamage(t *testing.T) {
	data, all := sealedSample(t)
	head, err := decodeHeader(data)
	must.Succeed(t, err)
	frame := head.frame(testKey)
	for i := range all {
		begin, end := int(all[i].At.Offset), len(data)
		if i+1 < len(all) {
			end = int(all[i+1].At.Offset)
		}
		for at := begin; at < end; at++ {
			for _, forged := range []bool{false, true} {
				bad := bytes.Clone(data)
				bad[at] ^= 1
				unopened := 0
				if forged && at >= kindAt+begin { // mark, length and checksum place the record
					frame.setChecksum(bad[begin:end])
					unopened = 1
				}
				again := bytes.Clone(bad)
				for range 2 { // bytes may be parsed again
					s, err := NewScanner(bad, testKey)
					must.Succeed(t, err)
					n := 0
					for rec := (Record{}); s.Next(&rec); n++ {
						if want := &all[n+bit(n >= i)]; text(&rec) != text(want) {
							t.Fatalf("byte %d: record %s, want %s", at-begin, text(&rec), text(want))
						}
					}
					last := i == len(all)-1
					if n != len(all)-1 || s.damage.Unopened != unopened ||
						s.damage.Skipped+s.damage.Torn != 1 || s.damage.Torn == 1 && !last {
						t.Fatalf("byte %d of record %d, forged %v: %d records, damage %+v", at-begin, i, forged, n, s.damage)
					}
				}
				if !bytes.Equal(bad, again) {
					t.Fatal("reading changes the segment")
				}
			}
		}
	}
}

func bit(b bool) int {
	if b {
		return 1
	}
	return 0
}

// TestSealedRecordStays: a record opens in no other segment of its run, and a sealed segment is
// not read as a plain one.
func TestSealedRecordStays(t *testing.T) {
	data, all := sealedSample(t)
	head, err := decodeHeader(data)
	must.Succeed(t, err)
	record := bytes.Clone(data[all[len(all)-1].At.Offset:])
	f := func(head header, unopened int) {
		t.Helper()
		frame := head.frame(testKey)
		copy(record, frame.mark[:])
		frame.setChecksum(record)
		s, err := NewScanner(append(head.encode(), record...), testKey)
		must.Succeed(t, err)
		rec := Record{}
		if read := s.Next(&rec); read != (unopened == 0) || s.damage.Unopened != unopened ||
			read && bytes.HasSuffix(rec.Payload, []byte{5, 5, 5}) != head.sealed {
			t.Errorf("%+v: read %v, damage %+v", head, read, s.damage)
		}
	}
	f(head, 0)
	f(header{run: head.run, number: head.number + 1, sealed: true}, 1)
	f(header{run: head.run + 1, number: head.number, sealed: true}, 1)
	f(header{run: head.run, number: head.number}, 0)
}

// TestHeaderFlags: a flag of later versions is an error, as payloads may have another form.
func TestHeaderFlags(t *testing.T) {
	for _, sealed := range []bool{false, true} {
		h := header{run: 1, number: 2, sealed: sealed}
		if got, err := decodeHeader(h.encode()); err != nil || got != h {
			t.Errorf("%+v %v, want %+v", got, err, h)
		}
	}
	b := header{run: 1, number: 2}.encode()
	b[12] = 4
	b = le.AppendUint32(b[:headerSize-4], crc32.Checksum(b[:headerSize-4], crcs))
	if err := Scan(b).Next(new(Record)); err == nil || !strings.Contains(err.Error(), "flags 0x4") {
		t.Errorf("an unknown flag: %v", err)
	}
}
