package normalize

import (
	"slices"

	"example.com/conductor/events"
)

const (
	// maxParked bounds the events of one group that wait for its kind to be known.
	// A group's kind comes with its first self-describing event, so few ever wait.
	maxParked = 1024
	// maxAllParked bounds those of all groups of a source.
	maxAllParked = 4 * maxParked
	// maxGroups bounds the groups of all ranks of a source whose kind is learned:
	// publishers choose the numbers of both. Events of others tell their kind
	// themselves, or are left out.
	maxGroups = 1024
)

// MainGroup reports whether blocks of an attention kind are indexed. Sliding
// windows and state-space groups keep other blocks than the prefix they name.
func MainGroup(kind string) bool {
	switch kind {
	case "full_attention", "mla_attention", "sink_full_attention":
		return true
	}
	return false
}

// groupKey names one KV-cache group of one publisher rank.
type groupKey struct {
	rank  int32
	group int
}

// groupState is the state of one group.
type groupState struct {
	kind   string // "" while unknown
	parked []parkedEvent
}

// parkedEvent waits for the kind of its group.
type parkedEvent struct {
	event events.Event
	rank  int32
}

// groups learns, per rank and group of one source, which groups are indexed.
// The zero value is ready; it belongs to the source's goroutine.
type groups struct {
	states map[groupKey]*groupState
	parked int // events of all states
	window int // largest announced by a group that is not indexed, in tokens
}

// verdict says what to do with an event.
type verdict uint8

const (
	admit    verdict = iota // index it
	park                    // wait for the kind of its group
	skip                    // another group's
	overflow                // would wait, but too many do
)

// ruling is what judgeEvent has decided about one event.
type ruling struct {
	verdict verdict
	// ready holds events that waited for what this one taught, in order; they
	// are applied before it.
	ready []parkedEvent
	// purge is true when blocks of the group were indexed and must not be.
	purge bool
	// learned is true when the event told the kind of its group.
	learned bool
	// lost counts waiting events that turned out to be of another group.
	lost int
}

// judgeEvent learns the kind of its group from an event that names it, and decides what becomes of the event.
func (g *groups) judgeEvent(e *events.Event, rank int32) ruling {
	if e.Group < 0 && e.GroupKind == "" {
		return ruling{verdict: admit}
	}
	key := groupKey{rank: rank, group: max(e.Group, 0)}
	st := g.states[key]
	if st == nil {
		if g.states == nil {
			g.states = make(map[groupKey]*groupState)
		}
		st = &groupState{}
		if len(g.states) < maxGroups {
			g.states[key] = st
		}
	}
	var r ruling
	if e.GroupKind != "" && e.GroupKind != st.kind {
		st.kind = e.GroupKind
		r.learned = true
		if MainGroup(st.kind) {
			r.ready = st.parked
		} else {
			r.purge = true
			for i := range st.parked {
				r.lost += st.parked[i].event.Count()
			}
		}
		g.parked -= len(st.parked)
		st.parked = nil
	}
	if st.kind != "" && !MainGroup(st.kind) {
		g.window = max(g.window, e.Window)
	}
	switch {
	case MainGroup(st.kind), len(e.Hashes) == 0: // it names no block, so it changes nothing
		r.verdict = admit
	case st.kind != "":
		r.verdict = skip
	case key.group == 0:
		r.verdict = admit
	case len(st.parked) >= maxParked, g.parked >= maxAllParked, g.states[key] == nil:
		r.verdict = overflow
	default:
		// Its batch will be released.
		own := *e
		own.Hashes, own.Tokens = slices.Clone(e.Hashes), slices.Clone(e.Tokens)
		st.parked = append(st.parked, parkedEvent{event: own, rank: rank})
		g.parked++
		r.verdict = park
	}
	return r
}

// knowsGroup reports whether a rank has announced anything in a group.
func (g *groups) knowsGroup(rank int32, group int) bool {
	return g.states[groupKey{rank: rank, group: max(group, 0)}] != nil
}

// dropParked forgets the waiting stores that a cleared event takes away: those of the rank on media for which on returns true.
// If the event is limited to a tenant, a model or the like, it forgets none. At worst a block then stays until its removal.
func (g *groups) dropParked(e *events.Event, rank int32, on func(medium string) bool) {
	if e.Tenant != nil || e.Model != nil || e.Backend != nil || e.LoraName != nil || e.Salt != nil {
		return
	}
	for key, st := range g.states {
		if key.rank == rank {
			before := len(st.parked)
			st.parked = slices.DeleteFunc(st.parked, func(p parkedEvent) bool {
				return on(p.event.Medium) && (p.event.Owned || !e.Owned)
			})
			g.parked -= before - len(st.parked)
		}
	}
}
