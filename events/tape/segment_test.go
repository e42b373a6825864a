package tape

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

func TestScannerFollowsSegment(t *testing.T) {
	s := NewSegment(7, 3, 2, 10, "engine")
	scan, err := NewScanner(s.Bytes(), nil)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	read := func() {
		for rec := (Record{}); scan.Next(&rec); {
			if rec.Kind == Batch {
				got = append(got, fmt.Sprint(rec.Epoch, rec.Seq, string(rec.Payload)))
			}
		}
	}
	read()
	var want []string
	for seq := range uint64(100) {
		payload := fmt.Sprintf("batch %d", seq)
		s.Append(&Record{Kind: Batch, Time: time.Now(), Epoch: 2, Seq: 10 + seq, Payload: []byte(payload)})
		want = append(want, fmt.Sprint(2, 10+seq, payload))
		if seq%3 == 0 {
			scan.Grow(s.Bytes())
			read()
		}
	}
	scan.Grow(s.Bytes())
	read()
	if !slices.Equal(got, want) || scan.Damage() != (Damage{}) {
		t.Errorf("a scanner read %v, %+v", got, scan.Damage())
	}

	r, rec := Scan(s.Bytes()), Record{}
	for n := 0; ; n++ {
		if err := r.Next(&rec); err != nil {
			if n != len(want)+3 {
				t.Errorf("a reader found %d records of %d and an opening", n, len(want))
			}
			break
		}
	}
	if rec.At.Segment != 3 || rec.Run != 7 {
		t.Errorf("the segment is number %d of run %d, not 3 of 7", rec.At.Segment, rec.Run)
	}
}
