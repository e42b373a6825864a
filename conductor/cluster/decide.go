package cluster

import "slices"

// Phase is how far a replica is with a shard.
type Phase int

// The phases. A replica answers for a shard while it serves and while it leaves.
const (
	Absent   Phase = iota // it has nothing of the shard
	Bringing              // it takes over blocks and follows the sources, and answers nothing yet
	Serving
	Leaving // others serve: it answers what they still send, and lets go in a few beats
)

var phaseNames = [...]string{"absent", "bringing", "serving", "leaving"}

func (p Phase) String() string {
	if p < 0 || int(p) >= len(phaseNames) {
		return "unknown"
	}
	return phaseNames[p]
}

// answers reports whether a replica answers for the shard.
func (p Phase) answers() bool { return p == Serving || p == Leaving }

// lingering is how many successful heartbeats a replica keeps answering for a shard that it is giving up. Two are
// needed for its promise: others hear of the first one and may take it back. The rest lets queries that are under way
// arrive.
const lingering = 4

// Fact is what a replica tells of a shard in its beat.
type Fact struct {
	Phase   Phase   `json:"p"`
	Whole   int     `json:"w,omitempty"` // sources that miss nothing
	Queries float64 `json:"q,omitempty"` // answered a second
}

// holding is what a replica knows of a shard of its own.
type holding struct {
	phase Phase
	// settled says that the blocks have been taken over, and that every source either misses
	// nothing or has been given up.
	settled bool
	// waited says that the blocks were taken over a while ago, and that nothing is missing but
	// connections to engines.
	waited bool
	whole  int // sources that miss nothing
	// behind says that another serving replica has had more sources that miss nothing for the time of
	// catching.
	behind bool
	beats  int // answered beats in this phase, without those that were hastened
}

// decidePhase returns the next phase of a shard at replica me. owners are the replicas that are to serve it, and told is what
// the other live replicas have told of it.
//
// Where no replica answers, one that has waited for engines serves without them. Rows of the other
// sources are worth more than no answer, and detail says connecting of those that have no connection,
// as it does on a server without shards.
//
// A replica that misses more than those that serve does not serve next to them: it cannot reach an
// engine that they can. If it serves because the others seemed to be gone, and they come back with more
// than it has, it leaves and takes the shard over from them.
//
// The last replica that serves does not let go. A replica leaves once all new owners serve, or once replicas
// that have more do. It says so in every beat, and serves again as soon as one of them stops serving. The
// store puts beats in an order, so of two replicas that leave for each other's sake the later one sees that
// the other leaves.
func decidePhase(me string, owners []string, told map[string]Fact, own holding) Phase {
	served, answered, best := false, false, 0
	for id, f := range told {
		if id != me && f.Phase == Serving {
			served, best = true, max(best, f.Whole)
		}
		answered = answered || id != me && f.Phase.answers()
	}
	wanted := slices.Contains(owners, me)
	worse := own.behind && served && own.whole < best
	replaced := worse || len(owners) > 0 && !wanted &&
		!slices.ContainsFunc(owners, func(id string) bool { return told[id].Phase != Serving })
	switch own.phase {
	case Absent:
		if wanted {
			return Bringing
		}
	case Bringing:
		switch {
		case !wanted && served:
			return Absent
		case own.settled && (!served || own.whole >= best), own.waited && !answered:
			return Serving
		}
	case Serving:
		if replaced {
			return Leaving
		}
	case Leaving:
		switch {
		case !replaced:
			return Serving
		case own.beats >= lingering:
			return Absent
		}
	}
	return own.phase
}
