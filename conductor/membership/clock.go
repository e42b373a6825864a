package membership

import "time"

const (
	// drift is how much two clocks move apart, at most: a part in so many of the time that passes. Clocks that are being
	// set slowly move by as much.
	drift = 2000
	// granule is the unit of the times of entries.
	granule = time.Millisecond
	// longestApart bounds how long a client waits for the next moment of the store's clock. Where a beat takes longer than that,
	// the clock is known less well: then two changes that follow each other at once may count in the other order.
	longestApart = 50 * time.Millisecond
)

// storeClock computes the store's time of a moment that this replica has read from its own clock. So a change has
// the time at which it was made, however long it waits for the store and however slowly the store answers then.
//
// It is one reading of the store's clock, by a beat: the store read it at some moment between the request and the
// answer. A reading of a faster beat replaces it; one of a slower beat does once drift has made the old reading
// less exact, or if the two contradict each other, because one of the clocks was set. The zero value has no reading.
type storeClock struct {
	here, there time.Time     // one moment, by the clock of this replica and by that of the store
	within      time.Duration // how far they may be apart
}

// read returns the clock after a beat that was sent and answered at these local times, and read the store's clock between.
func (c storeClock) read(sent, answered, there time.Time) storeClock {
	half := answered.Sub(sent) / 2
	fresh := storeClock{sent.Add(half), there, half}
	if c.here.IsZero() {
		return fresh
	}
	within := c.uncertainty(fresh.here)
	if apart := c.timeOf(fresh.here).Sub(there).Abs(); apart > within+half || within >= half {
		return fresh
	}
	return c
}

// wasSet reports whether the store's clock, or this one's, was set by more than a beat's pause between two beats after which the
// clock was before and now. Another node of the store has another clock.
func wasSet(before, now storeClock) bool {
	return !before.here.IsZero() && before.timeOf(now.here).Sub(now.there).Abs() > before.uncertainty(now.here)+now.within+Pause
}

// timeOf returns the store's time of a local time.
func (c storeClock) timeOf(here time.Time) time.Time { return c.there.Add(here.Sub(c.here)) }

// uncertainty returns how far timeOf may be from the truth.
func (c storeClock) uncertainty(here time.Time) time.Duration {
	return c.within + here.Sub(c.here).Abs()/drift
}

// stamp returns the time of a change, in milliseconds since 1970: the latest at which it can have been made.
func (c storeClock) stamp(made time.Time) int64 {
	return c.timeOf(made).Add(c.uncertainty(made)).UnixMilli()
}

// waitForLaterStamp returns how long after a change the stamp of every other change is later, whichever replica it is made at: two
// stamps are in order if the second change is made once the clock of the store has certainly passed the first stamp.
func (c storeClock) waitForLaterStamp(made time.Time) time.Duration {
	if c.here.IsZero() {
		return 0
	}
	return min(2*c.uncertainty(made)+granule, longestApart)
}
