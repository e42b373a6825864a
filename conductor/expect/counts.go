package expect

import (
	"math"
	"math/bits"
	"slices"
	"time"

	"example.com/conductor/conductor/steady"
)

// Ending is how the expectation of a block ended.
type Ending int

const (
	Confirmed Ending = iota // the engine has announced it
	Expired                 // it has not, in time
	TakenBack               // the router took its report back
	Dropped                 // its source restarted, was cleared or left, or there was no room
	Evicted                 // it left an approximate target for want of room, or because its time there was over
	Endings                 // how many endings there are
)

// String returns the name of the ending in metrics.
func (e Ending) String() string {
	return [...]string{"confirmed", "expired", "taken_back", "dropped", "evicted"}[e]
}

// State has the blocks that are expected of an instance now, and how its past expectations ended. Counts of blocks are in tokens.
type State struct {
	Reports uint64          // since the instance was registered
	Ended   [Endings]uint64 // likewise
	Pending uint64          // expected now
	TTL     time.Duration   // that a report without one gets, the longest of the ranks
	delays  delays
}

// Add adds the state of other targets of the instance.
func (s *State) Add(o *State) {
	s.Reports += o.Reports
	for why := range Endings {
		s.Ended[why] += o.Ended[why]
	}
	s.Pending += o.Pending
	s.TTL = max(s.TTL, o.TTL)
	s.delays.merge(&o.delays)
}

// Delay returns the time in which a part of the blocks were announced after their report, of late; 0 if none was.
func (s *State) Delay(part float64) time.Duration { return s.delays.quantile(part) }

// Waited returns how many blocks were announced after their report, those that came late too, and how long
// that took in all, since the instance was registered.
func (s *State) Waited() (blocks uint64, all time.Duration) { return s.delays.blocks, s.delays.waited }

// States returns the state of each instance that has had a report, by its number in the deployment.
func (s *Space) States() map[int32]*State {
	all := make(map[int32]*State)
	s.table.mu.RLock()
	defer s.table.mu.RUnlock()
	for at, t := range *s.targets.Load() {
		if t.reports == 0 {
			continue
		}
		if all[at.instance] == nil {
			all[at.instance] = new(State)
		}
		all[at.instance].Add(&State{
			Reports: t.reports, Ended: t.ended, Pending: s.tokensOf(int(t.blocks)), TTL: time.Duration(t.ttl()), delays: t.delays,
		})
	}
	return all
}

// Totals returns the reports, endings and pending tokens of all targets, of those that have left too.
func (t *Table) Totals() State {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.totals
}

// tokensOf returns how many tokens that many blocks have.
func (s *Space) tokensOf(blocks int) uint64 { return uint64(blocks) * uint64(s.blockSize) }

// counts are what became of the reports for a target.
type counts struct {
	reports uint64
	ended   [Endings]uint64 // tokens
	delays  delays
}

// countEnded counts blocks whose expectation has ended.
func (t *Target) countEnded(why Ending, blocks int) {
	tokens := t.space.tokensOf(blocks)
	t.ended[why] += tokens
	t.space.table.totals.Ended[why] += tokens
}

// delays counts how long confirmations took, by steps of a quarter of a power of two of
// milliseconds: up to 25 % apart. Older ones count less and less.
type delays struct {
	steps  [4 * 20]float64 // the last is 15 minutes and more
	sum    float64
	blocks uint64        // since the start, as waited
	waited time.Duration // of all blocks together
}

const (
	// delaysKept is how many blocks are counted before all of them count half.
	delaysKept = 1 << 14
	// delaysEnough is how many blocks must have been confirmed before their delays say how long to wait.
	delaysEnough = 64
)

// add counts blocks that were confirmed after took nanoseconds.
func (d *delays) add(took int64, blocks int) {
	took = max(took, 0)
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
	d.blocks += uint64(blocks)
	d.waited += time.Duration(took) * time.Duration(blocks)
}

// merge adds what other delays counted.
func (d *delays) merge(o *delays) {
	for i, n := range o.steps {
		d.steps[i] += n
	}
	d.sum += o.sum
	d.blocks += o.blocks
	d.waited += o.waited
}

// quantile returns the time in which a part of the blocks were confirmed, rounded up; 0 if none is known.
func (d *delays) quantile(part float64) time.Duration {
	if d.sum == 0 {
		return 0
	}
	below, last := 0.0, 0
	for i, n := range d.steps {
		if n > 0 {
			last = i
		}
		if below += n; below >= part*d.sum {
			break
		}
	}
	return time.Duration(math.Ceil(math.Exp2(float64(last/4))*(1+float64(last%4+1)/4))) * time.Millisecond
}

// ttl returns how long an expectation lasts if its report does not say, in nanoseconds.
func (t *Target) ttl() int64 {
	switch {
	case t.Capacity > 0:
		return int64(t.TTL)
	case t.delays.sum < delaysEnough:
		return int64(FirstTTL)
	}
	return int64(min(max(t.delays.quantile(0.99), LeastTTL), MostTTL))
}

// late is a block that was not announced in time. Its delay is learned if it comes within MostTTL: otherwise
// a ttl that has become too short would stay so.
type late struct {
	key    uint64
	since  int64
	blocks int // that it stands for
}

// maxLate bounds the late blocks of a target. They are a sample: a member stays until it has come or its
// time is over, so that a long delay is found at any pace of reports.
const maxLate = 64

// rememberExpired remembers two blocks of a node that has expired, so that the target still learns from a late announcement
// how long blocks take: the first one, and the last one for all the others, because engines announce a long prompt in parts.
func (t *Target) rememberExpired(p *node) {
	now, n := steady.Nanos(t.space.table.now()), len(p.keys)
	if now-p.since > int64(MostTTL) {
		return
	}
	if len(t.late)+2 > maxLate {
		t.late = slices.DeleteFunc(t.late, func(l late) bool { return now-l.since > int64(MostTTL) })
		if len(t.late)+2 > maxLate {
			return
		}
	}
	t.late = append(t.late, late{p.keys[0], p.since, 1})
	if n > 1 {
		t.late = append(t.late, late{p.keys[n-1], p.since, n - 1})
	}
}

// learnLateBlock counts the delay of a block that was announced after its time.
func (t *Target) learnLateBlock(key uint64, now int64) {
	t.late = slices.DeleteFunc(t.late, func(l late) bool {
		old := now-l.since > int64(MostTTL)
		if l.key == key && !old {
			t.delays.add(now-l.since, l.blocks)
			t.doubt.Late++
		}
		return old || l.key == key
	})
	t.noteAwaits()
}

// noteAwaits updates awaits, by which announcements know without a lock whether there is anything to confirm.
func (t *Target) noteAwaits() {
	awaits := t.Capacity == 0 && (t.blocks > 0 || len(t.late) > 0 || len(t.doubted) > 0)
	switch {
	case t.awaits.Load() == awaits:
		return
	case awaits:
		t.space.awaits.Add(1)
	default:
		t.space.awaits.Add(-1)
	}
	t.awaits.Store(awaits)
}
