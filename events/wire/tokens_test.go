package wire

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"testing"
)

// oneByOne reads n integers the slow way, which is what flat has to agree with.
func (d *decoder) oneByOne(n int) ([]uint32, bool) {
	list := make([]uint32, n)
	for j := range list {
		t, ok := d.in.readToken()
		if !ok {
			return nil, false
		}
		list[j] = t
	}
	return list, true
}

// compareFlat reads n integers from p behind a prefix, both ways.
func compareFlat(t *testing.T, p []byte, n int) {
	t.Helper()
	for _, prefix := range []int{0, 1, 2, 3, 7} {
		b := append(bytes.Repeat([]byte{0xff}, prefix), p...)
		fast := decoder{in: cursor{b: b, i: prefix}, lim: DefaultLimits}
		slow := decoder{in: cursor{b: b, i: prefix}, lim: DefaultLimits}
		got, ok := fast.readFlatTokens(n)
		want, wantOK := slow.oneByOne(n)
		if ok != wantOK || !slices.Equal(got, want) {
			t.Fatalf("%d tokens of %x behind %d bytes: got %d, %v, want %d, %v", n, p, prefix, got, ok, want, wantOK)
		}
		if ok && fast.in.i != slow.in.i || (fast.in.err == nil) != (slow.in.err == nil) {
			t.Fatalf("%d tokens of %x behind %d bytes: stopped at %d (%v), want %d (%v)", n, p, prefix, fast.in.i, fast.in.err, slow.in.i,
				slow.in.err)
		}
	}
}

// spell appends v in the given spelling, whether or not it is the shortest one.
func spell(b []byte, v uint32, spelling int) []byte {
	switch spelling {
	case 0:
		return append(b, byte(v&0x7f))
	case 1:
		return append(b, 0xcc, byte(v))
	case 2:
		return binary.BigEndian.AppendUint16(append(b, 0xcd), uint16(v))
	case 3:
		return binary.BigEndian.AppendUint32(append(b, 0xce), v)
	case 4:
		return binary.BigEndian.AppendUint64(append(b, 0xcf), uint64(v))
	case 5:
		return append(b, 0xd0, byte(v))
	case 6:
		return binary.BigEndian.AppendUint16(append(b, 0xd1), uint16(v))
	case 7:
		return binary.BigEndian.AppendUint32(append(b, 0xd2), v)
	case 8:
		return binary.BigEndian.AppendUint64(append(b, 0xd3), uint64(v))
	case 9:
		return append(b, 0xe0|byte(v&0x1f))
	case 10:
		return binary.BigEndian.AppendUint64(append(b, 0xcf), uint64(v)<<8)
	default:
		return append(b, 0xc0)
	}
}

// Every spelling at every place of a chunk, and lists that end anywhere before the
// bytes do, or after.
func TestDecodeFlatTokens(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for length := range 4*chunk + 2 {
		var p []byte
		for range length {
			p = spell(p, rng.Uint32(), rng.IntN(4))
		}
		for _, slack := range []int{0, 1, chunkBytes - 1, chunkBytes, 3 * chunkBytes} {
			compareFlat(t, append(p, make([]byte, slack)...), length)
		}
		compareFlat(t, p, length+1)
		for cut := range p {
			compareFlat(t, p[:cut], length)
		}
	}
	for spelling := range 12 {
		for at := range 3 * chunk {
			var p []byte
			for i := range 3 * chunk {
				if i == at {
					p = spell(p, rng.Uint32(), spelling)
				} else {
					p = spell(p, rng.Uint32(), rng.IntN(4))
				}
			}
			compareFlat(t, append(p, make([]byte, 2*chunkBytes)...), 3*chunk)
		}
	}
	for tag := range 256 {
		p := bytes.Repeat([]byte{byte(tag)}, 4*chunkBytes)
		compareFlat(t, p, 2*chunk)
		clear(p[1:])
		compareFlat(t, p, 2*chunk)
	}
}

// FuzzFlat holds that reading whole chunks changes nothing.
func FuzzFlat(f *testing.F) {
	var p []byte
	for i := range uint32(64) {
		p = spell(p, i*0x9e3779b9, int(i%12))
	}
	f.Add(p, uint16(64))
	f.Add(bytes.Repeat([]byte{0xce, 0, 1, 2, 3}, 40), uint16(32))
	f.Add(bytes.Repeat([]byte{0xcd, 0xcd, 0xce}, 60), uint16(40))
	f.Fuzz(func(t *testing.T, p []byte, n uint16) {
		if int(n) <= len(p) { // the list's header sees to that
			compareFlat(t, p, int(n))
		}
	})
}

// BenchmarkFlat reads lists long enough that no branch predictor learns them.
func BenchmarkFlat(b *testing.B) {
	f := func(name string, next func(*rand.Rand) uint32) {
		rng := rand.New(rand.NewPCG(1, 1))
		const n = 1 << 16
		var p []byte
		for range n {
			switch t := next(rng); {
			case t < 1<<7:
				p = spell(p, t, 0)
			case t < 1<<8:
				p = spell(p, t, 1)
			case t < 1<<16:
				p = spell(p, t, 2)
			default:
				p = spell(p, t, 3)
			}
		}
		b.Run(name, func(b *testing.B) {
			d := decoder{lim: DefaultLimits}
			list := make([]uint32, n)
			for b.Loop() {
				d.in, d.tokens.free = cursor{b: p}, list
				if _, ok := d.readFlatTokens(n); !ok || d.in.bytesLeft() > 0 {
					b.Fatal("not read")
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/token")
		})
	}
	f("uniform", func(r *rand.Rand) uint32 { return r.Uint32N(151936) })
	// Frequent ids are low ones: a tenth single bytes, most below 65,536.
	f("skewed", func(r *rand.Rand) uint32 {
		switch n := r.IntN(100); {
		case n < 12:
			return r.Uint32N(1 << 7)
		case n < 15:
			return 1<<7 + r.Uint32N(1<<7)
		case n < 85:
			return 1<<8 + r.Uint32N(1<<16-1<<8)
		}
		return 1<<16 + r.Uint32N(86000)
	})
	f("small", func(r *rand.Rand) uint32 { return 1<<8 + r.Uint32N(31744) })
}
