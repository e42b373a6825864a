package index

import (
	"math/rand/v2"
	"testing"
)

// TestNameTableUnderChurn holds that entries that come and go leave the table as full as it
// was, near enough.
func TestNameTableUnderChurn(t *testing.T) {
	skipUnderRace(t)
	const live = 50_000
	table, rng := &nameTable{}, rand.New(rand.NewPCG(1, 2))
	var hashes []uint64
	for i := range live {
		hashes = append(hashes, rng.Uint64())
		table.insertEntry(hashes[i], uint64(i+1)*64)
	}
	for range 6 * live {
		i := rng.IntN(live)
		if !table.removeEntry(hashes[i], uint64(i+1)*64) {
			t.Fatalf("entry %d is not found", i)
		}
		hashes[i] = rng.Uint64()
		table.insertEntry(hashes[i], uint64(i+1)*64)
	}
	if each := float64(table.size.Load()) / live; each > 16 {
		t.Errorf("%.1f bytes an entry", each)
	}
	table.clearAll()
}

// TestNameTableOfOneTag holds that hashes with one tag, which no number of buckets spreads, get entries in bounded memory
// and are found, though longer probes must pass them.
func TestNameTableOfOneTag(t *testing.T) {
	for _, n := range []uint64{9, 200, 3000} {
		for _, others := range []uint64{0, 5000} {
			table := new(nameTable)
			for i := range others {
				table.insertEntry(mix(i), 1<<20|i)
			}
			for i := range n {
				table.insertEntry(5<<nameRefBits|i, i+2)
			}
			for i := range n {
				if !table.hasEntry(5<<nameRefBits|i, i+2) {
					t.Fatalf("of %d entries with one tag, %d is not found", n, i)
				}
			}
			if most := max(1024, int64(n+others)*8*5); table.size.Load() > most {
				t.Errorf("%d entries with one tag and %d others have %d bytes, want at most %d", n, others, table.size.Load(), most)
			}
			for i := range n {
				if !table.removeEntry(5<<nameRefBits|i, i+2) {
					t.Fatalf("of %d entries with one tag, %d is not removed", n, i)
				}
			}
			if table.n.Load() != int64(others) {
				t.Errorf("%d entries are left, want %d", table.n.Load(), others)
			}
			table.clearAll()
		}
	}
}
