// Package lifetime tells how long blocks stay in the cache of an engine, from a sample of them.
//
//	stored  --hash is in the sample--> held since then
//	removed --hash is in the sample--> an age, and one of the evictions of the last minute
//
// The sample is halved when it is full: one more zero at the end of their mix tells which hashes stay.
package lifetime

import (
	"math"
	"math/bits"
	"slices"
	"strings"
	"sync"
	"time"

	"example.com/conductor/conductor/steady"
)

const (
	// maxHeld bounds the blocks of the sample on one medium: some 25 KB. With 256 to 512 blocks a
	// rate of evictions is known to about 5 percent, and a batch of 80 blocks has one or two of the sample.
	maxHeld = 512
	// firstZeros makes one block in 16 one of the sample.
	firstZeros = 4
	// period is how long evictions are counted together.
	period = 30 * time.Second
	// maxMedia bounds the media of one source.
	maxMedia = 16
	// heldBytes is what a block of the sample takes.
	heldBytes = 48
)

// Ages are counted by powers of two of milliseconds.
type Ages [40]uint64

// Quantile returns the age that a part of the evicted blocks did not outlive, to a factor of
// two; 0 if none was evicted.
func (a *Ages) Quantile(part float64) time.Duration {
	total := uint64(0)
	for _, n := range a {
		total += n
	}
	if total == 0 {
		return 0
	}
	below := uint64(0)
	for i, n := range a {
		if below += n; float64(below) >= part*float64(total) {
			return time.Duration(1) << i * time.Millisecond
		}
	}
	return time.Duration(math.MaxInt64)
}

// Life is what a Tracker knows of a medium.
type Life struct {
	Medium string
	Ages   Ages // at eviction, of the sample
	// Sampled is how many blocks there are to one of the sample.
	Sampled int
	// Hazard is evictions a second for each block that was held, in the last minute
	// (Nelson-Aalen): above 1 where blocks come and go within a second.
	Hazard float64
}

// Stay returns the part of the blocks that is there after some time, if all are as likely to
// leave.
func (l *Life) Stay(after time.Duration) float64 { return math.Exp(-l.Hazard * after.Seconds()) }

// Tracker follows the blocks of one source. The zero value is ready. It is safe for concurrent use.
type Tracker struct {
	mu    sync.Mutex
	media map[string]*medium // guarded by mu
}

// medium has the sample of one medium.
type medium struct {
	zeros int              // that a hash of the sample ends in
	since map[uint64]int64 // see steady.Nanos; 0 is not known
	ages  Ages
	begun time.Time // of the period
	// Hazard of this period and of the one before.
	now, before float64
}

// inSample reports whether a hash, once its bits are mixed, ends in so many zeros that it is in the sample.
func inSample(hash uint64, zeros int) bool {
	return bits.TrailingZeros64((hash^hash>>32)*0x9e3779b97f4a7c15>>20) >= zeros
}

// mediumOf returns a medium, which it makes if need be. It returns nil if there are too many. t.mu is held.
func (t *Tracker) mediumOf(name string) *medium {
	m := t.media[name]
	if m == nil && len(t.media) < maxMedia {
		if t.media == nil {
			t.media = make(map[string]*medium)
		}
		m = &medium{zeros: firstZeros, since: make(map[uint64]int64)}
		t.media[name] = m
	}
	return m
}

// Stored notes stored blocks. live says that they were stored just now, not before.
func (t *Tracker) Stored(name string, hashes []uint64, now time.Time, live bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	m := t.mediumOf(name)
	if m == nil {
		return
	}
	at := int64(0)
	if live {
		at = steady.Nanos(now)
	}
	for _, h := range hashes {
		if !inSample(h, m.zeros) {
			continue
		}
		if m.since[h] = at; len(m.since) > maxHeld {
			m.zeros++
			for h := range m.since {
				if !inSample(h, m.zeros) {
					delete(m.since, h)
				}
			}
		}
	}
}

// Removed notes removed blocks. live says that they were removed just now, not before.
func (t *Tracker) Removed(name string, hashes []uint64, now time.Time, live bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	m := t.media[name]
	if m == nil {
		return
	}
	m.advanceTo(now)
	for _, h := range hashes {
		if !inSample(h, m.zeros) {
			continue
		}
		at, held := m.since[h]
		if !held {
			continue
		}
		if live {
			m.now += 1 / float64(len(m.since))
			if at > 0 {
				m.ages[min(bits.Len64(uint64(max(steady.Nanos(now)-at, 0)/int64(time.Millisecond))), len(m.ages)-1)]++
			}
		}
		delete(m.since, h)
	}
}

// advanceTo ends the period if it is over by now, and begins the one that now is in.
func (m *medium) advanceTo(now time.Time) {
	switch passed := now.Sub(m.begun); {
	case passed < period:
	case passed < 2*period:
		m.begun, m.before, m.now = m.begun.Add(period), m.now, 0
	default:
		m.begun, m.before, m.now = now, 0, 0
	}
}

// Forget drops the blocks, because the source has dropped them all.
func (t *Tracker) Forget() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, m := range t.media {
		clear(m.since)
	}
}

// Lives returns the Life of each medium, by name.
func (t *Tracker) Lives(now time.Time) (all []Life) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for name, m := range t.media {
		m.advanceTo(now)
		passed := min(now.Sub(m.begun), period)
		rate := (m.now + m.before) / (passed + period).Seconds()
		all = append(all, Life{Medium: name, Ages: m.ages, Sampled: 1 << m.zeros, Hazard: rate})
	}
	slices.SortFunc(all, func(a, b Life) int { return strings.Compare(a.Medium, b.Medium) })
	return all
}

// Bytes returns the memory that t takes.
func (t *Tracker) Bytes() (n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, m := range t.media {
		n += 512 + len(m.since)*heldBytes
	}
	return n
}
