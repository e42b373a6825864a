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
