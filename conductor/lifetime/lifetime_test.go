package lifetime

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// TestLives plays a cache that is full and evicts the oldest block for each new one, and holds
// that ages and the rate are those of the cache.
func TestLives(t *testing.T) {
	for _, c := range []struct{ blocks, perSecond int }{{1000, 100}, {100_000, 2000}, {50_000, 50_000}} {
		var tr Tracker
		rng := rand.New(rand.NewPCG(1, 2))
		now := time.Unix(1e9, 0)
		var held []uint64
		fill := make([]uint64, c.blocks)
		for i := range fill {
			fill[i] = rng.Uint64()
		}
		tr.Stored("GPU", fill, now, false)
		held = fill
		for range 2*c.blocks/c.perSecond + 120 {
			now = now.Add(time.Second)
			fresh := make([]uint64, c.perSecond)
			for i := range fresh {
				fresh[i] = rng.Uint64()
			}
			tr.Removed("GPU", held[:c.perSecond], now, true)
			tr.Stored("GPU", fresh, now, true)
			held = append(held[c.perSecond:], fresh...)
		}
		l := tr.Lives(now)[0]
		age := time.Duration(c.blocks/c.perSecond) * time.Second
		if q := l.Ages.Quantile(0.5); q < age || q > 2*age {
			t.Errorf("%+v: half of the blocks leave before %s, want %s to %s", c, q, age, 2*age)
		}
		rate := float64(c.perSecond) / float64(c.blocks)
		if rate < 1 && (l.Hazard < rate*0.7 || l.Hazard > rate*1.4) || rate == 1 && l.Stay(time.Second) > 0.01 {
			t.Errorf("%+v: %.4f leave in a second, want %.4f", c, l.Hazard, rate)
		}
		if got, want := l.Stay(time.Second), math.Exp(-l.Hazard); got != want {
			t.Errorf("%v stay, want %v", got, want)
		}
		if n := len(tr.media["GPU"].since); n > maxHeld {
			t.Errorf("%d blocks of the sample", n)
		}
		if l := tr.Lives(now.Add(time.Hour))[0]; l.Hazard != 0 {
			t.Errorf("an hour later %v leave in a second", l.Hazard)
		}
		if tr.Forget(); len(tr.media["GPU"].since) != 0 {
			t.Error("blocks that were forgotten")
		}
	}
}

// TestHistory holds that a replay of the past says nothing about ages and evictions of now.
func TestHistory(t *testing.T) {
	var tr Tracker
	now := time.Unix(1e9, 0)
	hashes := make([]uint64, 1000)
	for i := range hashes {
		hashes[i] = uint64(i) * 0x9e3779b97f4a7c15
	}
	tr.Stored("GPU", hashes, now, false)
	tr.Removed("GPU", hashes[:500], now, false)
	tr.Removed("GPU", hashes[500:], now.Add(time.Second), true)
	l := tr.Lives(now.Add(time.Second))[0]
	if l.Ages != (Ages{}) || l.Ages.Quantile(0.5) != 0 || l.Hazard == 0 {
		t.Errorf("%+v", l)
	}
	for i := range 100 {
		tr.Stored(string(rune('a'+i)), hashes, now, true)
	}
	if n := len(tr.Lives(now)); n != maxMedia {
		t.Errorf("%d media", n)
	}
	tr.Removed("none", hashes, now, true)
}

func BenchmarkEvents(b *testing.B) {
	var tr Tracker
	now := time.Unix(1e9, 0)
	hashes := make([]uint64, 32)
	rng := rand.New(rand.NewPCG(1, 2))
	for b.Loop() {
		for i := range hashes {
			hashes[i] = rng.Uint64()
		}
		tr.Stored("GPU", hashes, now, true)
		tr.Removed("GPU", hashes, now, true)
	}
}
