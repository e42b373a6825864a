package lmcache

import "time"

const (
	// MaxInstances bounds the instances of a tenant that are followed.
	MaxInstances = 1 << 14
	// forgetAfter is how long an instance without a source of its own is remembered.
	forgetAfter = time.Hour
	// sweepEvery is how often the gate looks for instances to forget.
	sweepEvery = time.Minute
)

// Outcome is what became of a batch.
type Outcome uint8

// String returns the name that metrics use.
func (o Outcome) String() string {
	return [...]string{"refused", "stale", "duplicate", "applied"}[o]
}

// Outcomes of a batch.
const (
	Refused   Outcome = iota // one instance too many
	Stale                    // of an earlier incarnation
	Duplicate                // of a number that was there
	Applied
)

// gate lets each batch of an instance pass once, and notices restarts and holes.
type gate struct {
	cursors map[string]*cursor
	swept   time.Time
	bytes   int64 // of the cursors
}

// cursor is how far an instance has come.
type cursor struct {
	incarnation, seq uint64
	heard            time.Time // when its last batch came
}

// admission is what a batch says about the batches before it.
type admission struct {
	outcome Outcome
	fence   bool // the instance was restarted: its memory is empty
	begins  bool // the first batch of its incarnation
	late    bool // batches before it are missing, none of the instance has come before
	hole    bool // batches before it are missing
}

// forgetSilent drops the cursors of instances that have reported nothing for forgetAfter, except those in keep. It returns
// their names.
func (g *gate) forgetSilent(now time.Time, keep map[string]bool) (gone []string) {
	g.swept = now
	for instance, at := range g.cursors {
		if now.Sub(at.heard) >= forgetAfter && !keep[instance] {
			delete(g.cursors, instance)
			g.bytes -= cursorBytes + int64(len(instance))
			gone = append(gone, instance)
		}
	}
	return gone
}

// admitBatch decides whether a batch is applied, and moves the cursor of its instance to it.
func (g *gate) admitBatch(b *Batch, now time.Time) (a admission) {
	at := g.cursors[b.Instance]
	if at != nil {
		at.heard = now
	}
	switch {
	case at == nil && len(g.cursors) >= MaxInstances:
		return admission{outcome: Refused}
	case at == nil:
		at = &cursor{incarnation: b.Incarnation, heard: now}
		if g.cursors == nil {
			g.cursors = make(map[string]*cursor)
		}
		g.cursors[b.Instance] = at
		g.bytes += cursorBytes + int64(len(b.Instance))
		a.late = b.Seq > 1
	case b.Incarnation < at.incarnation:
		return admission{outcome: Stale}
	case b.Incarnation > at.incarnation:
		*at = cursor{incarnation: b.Incarnation, heard: now}
		a.fence = true
		a.hole = b.Seq > 1
	case b.Seq <= at.seq:
		return admission{outcome: Duplicate}
	default:
		a.hole = b.Seq > at.seq+1
	}
	at.seq = b.Seq
	a.outcome, a.begins = Applied, b.Seq == 1
	return a
}
