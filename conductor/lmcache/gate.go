package lmcache

// MaxInstances bounds the instances of a tenant that are followed.
const MaxInstances = 1 << 14

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
type gate struct{ cursors map[string]*cursor }

// cursor is how far an instance has come.
type cursor struct{ incarnation, seq uint64 }

// admission is what a batch says about the batches before it.
type admission struct {
	outcome Outcome
	fence   bool // the instance was restarted: its memory is empty
	begins  bool // the first batch of its incarnation
	late    bool // batches before it are missing, none of the instance has come before
	hole    bool // batches before it are missing
}

// admit moves the cursor of an instance to a batch.
func (g *gate) admit(b *Batch) (a admission) {
	at := g.cursors[b.Instance]
	switch {
	case at == nil && len(g.cursors) >= MaxInstances:
		return admission{outcome: Refused}
	case at == nil:
		at = &cursor{incarnation: b.Incarnation}
		if g.cursors == nil {
			g.cursors = make(map[string]*cursor)
		}
		g.cursors[b.Instance] = at
		a.late = b.Seq > 1
	case b.Incarnation < at.incarnation:
		return admission{outcome: Stale}
	case b.Incarnation > at.incarnation:
		*at = cursor{incarnation: b.Incarnation}
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
