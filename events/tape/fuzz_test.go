package tape

import (
	"bytes"
	"testing"
	"time"
)

// FuzzSegment reads any bytes as a segment: every byte is a record's or damage,
// and the records that are read encode to the bytes that were there.
func FuzzSegment(f *testing.F) {
	h := header{run: 0x0102030405060708, number: 9}
	sealed := header{run: h.run, number: h.number, sealed: true}
	s, under := h.frame(nil), sealed.frame(testKey)
	data, hidden := h.encode(), sealed.encode()
	for i, r := range []Record{
		{Kind: Settings, Payload: AppendFields(nil, Field{"hash.seed", "1337"})},
		{Kind: Registered, Flags: Standing | HasSeq, Source: 1, Epoch: 3, Seq: 4, Payload: AppendFields(nil, Field{"source", "a|b|0"})},
		{Kind: Begin, Seq: 1},
		{Kind: Batch, Source: 1, Epoch: 3, Seq: 5, Payload: []byte("\x04\x03\x02\x01 a mark inside")},
		{Kind: Unregistered, Source: 1},
	} {
		r.Time = time.Unix(int64(i), 0)
		data = s.appendRecord(data, &r)
		hidden = under.appendRecord(hidden, &r)
	}
	f.Add(data, 0, byte(0))
	f.Add(data, 60, byte(1))
	f.Add(data[:len(data)-3], 200, byte(255))
	f.Add(hidden, 0, byte(0))
	f.Add(hidden, 100, byte(1))
	f.Add(hidden[:len(hidden)-3], 200, byte(255))
	f.Add([]byte("KVJRNL\r\n\x02\x00\x00\x00"), 0, byte(0))
	f.Fuzz(func(t *testing.T, in []byte, at int, change byte) {
		if at >= 0 && at < len(in) {
			in = bytes.Clone(in)
			in[at] ^= change
		}
		check(t, in)
		// Behind a sound header anything is met more often.
		check(t, append(h.encode(), in...))
		check(t, append(sealed.encode(), in...))
		// A payload that the key has not sealed does not open, even if the checksum fits.
		forger := under
		forger.aead = nil
		forged := forger.appendRecord(sealed.encode(), &Record{Kind: Batch, Source: 1, Payload: in})
		if damage := check(t, forged); damage.Unopened != 1 {
			t.Fatalf("a forged record is read, damage %+v", damage)
		}
	})
}

func check(t *testing.T, in []byte) Damage {
	s, err := NewScanner(in, testKey)
	if err != nil {
		return Damage{}
	}
	taken, end := int64(headerSize), int64(headerSize)
	for rec := (Record{}); s.Next(&rec); {
		again := s.frame.appendRecord(nil, &rec)
		place := in[rec.At.Offset:][:len(again)]
		if s.head.sealed { // with another nonce
			place = s.reopened(t, place, again)
		}
		if rec.At.Offset < end || !bytes.Equal(again[recordSize:], place[recordSize:]) {
			t.Fatalf("record %+v is not the one at its place", rec)
		}
		// Bytes 14 and 15 are for later versions and may be anything.
		if place[14]|place[15] == 0 && !bytes.Equal(again, place) {
			t.Fatalf("record %+v encodes to other bytes", rec)
		}
		end = rec.At.Offset + int64(len(again))
		taken += int64(len(again))
		if fields, err := rec.Fields(); err == nil && len(fields)*2 > len(rec.Payload) {
			t.Fatalf("%d fields in %d bytes", len(fields), len(rec.Payload))
		}
	}
	if taken+s.damage.Bytes != int64(len(in)) {
		t.Fatalf("%d bytes of records and %d of damage in %d", taken, s.damage.Bytes, len(in))
	}
	if s.damage.Unopened > 0 && s.damage.Skipped == 0 {
		t.Fatalf("damage %+v", s.damage)
	}
	if s.damage.Torn > 1 || s.damage.Bytes > 0 && s.damage.Torn+s.damage.Skipped == 0 {
		t.Fatalf("damage %+v", s.damage)
	}
	return s.damage
}

// reopened returns again if both encoded records open to the same one, else place.
func (s *Scanner) reopened(t *testing.T, place, again []byte) []byte {
	t.Helper()
	var a, b Record
	if n, err := s.frame.parseRecord(again, &a); n != len(place) || err != nil {
		t.Fatalf("a sealed record does not open: %d bytes of %d, %v", n, len(place), err)
	}
	s.frame.parseRecord(place, &b)
	if !a.Time.Equal(b.Time) || text(&a) != text(&b) {
		return place
	}
	return again
}
