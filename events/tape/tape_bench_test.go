package tape

import (
	"testing"
	"time"
)

// BenchmarkAppend encodes a record of 3 KB, a batch of 32 blocks, plain and sealed; compare
// them within one run.
func BenchmarkAppend(b *testing.B) {
	run := func(b *testing.B, h header) {
		frame, buf := h.frame(testKey), make([]byte, 0, pieceBytes)
		rec := Record{Kind: Batch, Source: 1, Time: time.Now(), Epoch: 1, Seq: 1, Payload: make([]byte, 3000)}
		b.SetBytes(int64(len(rec.Payload)))
		b.ReportAllocs()
		for b.Loop() {
			buf = frame.appendRecord(buf[:0], &rec)
		}
	}
	b.Run("plain", func(b *testing.B) { run(b, header{run: 1, number: 1}) })
	b.Run("sealed", func(b *testing.B) { run(b, header{run: 1, number: 1, sealed: true}) })
}
