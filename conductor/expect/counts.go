package expect

import (
	"math"
	"math/bits"
	"time"
)

// Ending is how the expectation of a block ended.
type Ending int

const (
	Confirmed Ending = iota // the engine has announced it
	Expired                 // it has not, in time
	TakenBack               // the router took its report back
	Dropped                 // its source restarted, was cleared or left, or there was no room
	Evicted                 // it left an approximate target, which has no room for more
	endings
)

// Counts are what became of reports since the target was made, in blocks.
type Counts struct {
	Reports  uint64
	Expected uint64
	Ended    [endings]uint64
}

func (c *Counts) end(why Ending, blocks int) { c.Ended[why] += uint64(blocks) }

// State is what a target is at and was up to.
type State struct {
	Counts
	Pending uint64           // blocks expected now
	Delay   [3]time.Duration // p50, p90 and p99 from report to confirmation, of late; 0 where none is known
	TTL     time.Duration    // that a report without one gets
}

// State returns the state of the target.
func (t *Target) State() State {
	t.space.table.mu.RLock()
	defer t.space.table.mu.RUnlock()
	s := State{Counts: t.counts, Pending: uint64(t.blocks), TTL: time.Duration(t.ttl())}
	for i, part := range [...]float64{0.5, 0.9, 0.99} {
		s.Delay[i] = t.delays.quantile(part)
	}
	return s
}

// Targets returns the targets of the space, in no order.
func (s *Space) Targets() (all []*Target) {
	for _, t := range *s.targets.Load() {
		all = append(all, t)
	}
	return all
}

// delays counts how long confirmations took, by steps of a quarter of a power of two of
// milliseconds: up to 19 % apart. Older ones count less and less.
type delays struct {
	steps [4 * 16]float64 // the last is 46 s and more
	sum   float64
}

const (
	// delaysKept is how many blocks are counted before all of them count half.
	delaysKept = 1 << 14
	// delaysEnough is how many blocks must have been confirmed before their delays say how long to wait.
	delaysEnough = 64
)

// add counts blocks that took some nanoseconds.
func (d *delays) add(took int64, blocks int) {
	ms := max(took/int64(time.Millisecond), 1)
	power := bits.Len64(uint64(ms)) - 1
	quarter := int(uint64(ms) << 2 >> power & 3)
	d.steps[min(4*power+quarter, len(d.steps)-1)] += float64(blocks)
	if d.sum += float64(blocks); d.sum > delaysKept {
		for i := range d.steps {
			d.steps[i] /= 2
		}
		d.sum /= 2
	}
}

// quantile returns the time in which a part of the blocks were confirmed, rounded up; 0 if none is known.
func (d *delays) quantile(part float64) time.Duration {
	if d.sum == 0 {
		return 0
	}
	below := 0.0
	for i, n := range d.steps {
		if below += n; below >= part*d.sum {
			return time.Duration(math.Ceil(math.Exp2(float64(i/4))*(1+float64(i%4+1)/4))) * time.Millisecond
		}
	}
	return MostTTL
}

// ttl returns how long an expectation lasts whose report does not say it, in nanoseconds.
func (t *Target) ttl() int64 {
	switch {
	case t.Capacity > 0:
		return int64(t.TTL)
	case t.delays.sum < delaysEnough:
		return int64(FirstTTL)
	}
	return int64(min(max(t.delays.quantile(0.99), LeastTTL), MostTTL))
}

// late is a block that was not announced in time. Its delay is learned if it comes within MostTTL, else expectations that
// are too short would never be found to be so.
type late struct {
	key    uint64
	since  int64
	blocks int // that ended with it
}

// maxLate bounds the late blocks of a target.
const maxLate = 64

// watch notes the first block of a piece that has expired.
func (t *Target) watch(p *piece) {
	if len(t.late) >= maxLate {
		t.late = append(t.late[:0], t.late[1:]...)
	}
	t.late = append(t.late, late{p.keys[0], p.since, len(p.keys)})
}

// arrived learns from a block that was announced late.
func (t *Target) arrived(key uint64, now int64) {
	kept := t.late[:0]
	for _, l := range t.late {
		switch {
		case now-l.since > int64(MostTTL):
		case l.key == key:
			t.delays.add(now-l.since, l.blocks)
		default:
			kept = append(kept, l)
		}
	}
	t.late = kept
	t.noteAwaits()
}

// noteAwaits tells announcements whether there is anything to confirm.
func (t *Target) noteAwaits() {
	if awaits := t.Capacity == 0 && (t.blocks > 0 || len(t.late) > 0); t.awaits.Load() != awaits {
		t.awaits.Store(awaits)
	}
}
