package membership

import (
	"strconv"
	"time"

	"example.com/conductor/conductor/kept"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/events/tape"
)

// Fields of a change on the disk, next to those of its registration: see docs/formats.md.
const (
	fieldSince    = "since"    // when it was made, in ms since 1970, by the wall clock: see package steady
	fieldSeen     = "seen"     // time of the store's entry that it changes, by the clock of the store; 0 for none
	fieldDiscover = "discover" // URL of the engine's HTTP server, empty unless the source is discovered
	fieldGone     = "gone"     // true if the client unregistered the source
	fieldAsked    = "asked"    // true if the source is discovered: its engine was asked where it publishes
)

// ofClient reports whether a client made the change. Only these are kept, because a server makes all others
// again after a restart.
func (c *change) ofClient() bool { return c != nil && !c.configured && c.again == nil && !c.oldest }

// noteKept notes a change of what Saved returns if c is in it, and does nothing for nil. Call it whenever c starts or stops
// waiting for the store.
func noteKept(log *kept.Log[Name], n Name, c *change) {
	if c.isKept() {
		log.Note(n)
	}
}

// isKept reports whether the disk is to have the change. That of a client which registers again what the store has, while
// the store is there, does not wait for the disk.
func (c *change) isKept() bool { return c.ofClient() && !c.skipsDisk }

// Revision returns a number that changes whenever the result of Saved does.
func (g *Registry) Revision() uint64 { return g.kept.Revision() }

// Saved returns the changes of clients that wait for the store, in the form that Restore reads. Without them,
// a server that restarts would believe the store and undo these changes.
func (g *Registry) Saved() (all []kept.Part) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for n, c := range g.pending {
		if p := savedPart(n, c); p.Fields != nil {
			all = append(all, p)
		}
	}
	return all
}

// SavedSince returns the parts of Saved that have changed since a revision. It returns false if it does not know which ones.
func (g *Registry) SavedSince(revision uint64) (changed []kept.Part, ok bool) {
	names, ok := g.kept.Since(revision)
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, n := range names {
		changed = append(changed, savedPart(n, g.pending[n]))
	}
	return changed, ok
}

// savedPart returns the part of a change, which may be nil. Registry.mu is held.
func savedPart(n Name, c *change) kept.Part {
	p := kept.Part{Name: n.field()}
	if !c.isKept() {
		return p
	}
	if c.source != nil {
		p.Fields = append(c.source.Fields(), tape.Field{Name: fieldDiscover, Value: c.source.Discover})
	} else {
		p.Fields = append(registration.Registration{Instance: n.Instance, Tenant: n.Tenant, Rank: n.Rank}.Fields(),
			tape.Field{Name: fieldGone, Value: "true"}, tape.Field{Name: fieldAsked, Value: strconv.FormatBool(n.Asked)})
	}
	p.Fields = append(p.Fields,
		tape.Field{Name: fieldSince, Value: strconv.FormatInt(c.since.UnixMilli(), 10)},
		tape.Field{Name: fieldSeen, Value: strconv.FormatInt(c.seen, 10)})
	return p
}

// Restore lets a change that Saved returned wait for the store again, unless the configuration now has the
// same source, which then wins. Call it before Run.
func (g *Registry) Restore(fields []tape.Field) error {
	r, err := registration.ReadFields(fields)
	if err != nil {
		return err
	}
	since, err := strconv.ParseInt(tape.Value(fields, fieldSince), 10, 64)
	if err != nil {
		return err
	}
	c := &change{since: time.UnixMilli(since)}
	if c.seen, err = strconv.ParseInt(tape.Value(fields, fieldSeen), 10, 64); err != nil {
		return err
	}
	n := Name{Key: r.Key(), Asked: tape.Value(fields, fieldAsked) == "true"}
	if tape.Value(fields, fieldGone) == "" {
		c.source = &Source{Registration: r, Discover: tape.Value(fields, fieldDiscover)}
		n = c.source.Name()
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if _, has := g.configured[n]; !has && g.pending[n] == nil {
		g.pending[n] = c
		noteKept(&g.kept, n, c)
	}
	return nil
}
