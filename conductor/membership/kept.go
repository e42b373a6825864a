package membership

import (
	"strconv"
	"time"

	"example.com/conductor/conductor/registration"
	"example.com/conductor/events/tape"
)

// Fields of a change on the disk, next to those of its registration: see docs/formats.md.
const (
	fieldSince    = "since"    // when it was made, in ms since 1970
	fieldSeen     = "seen"     // time of the store's entry that it changes, by the clock of the store; 0 for none
	fieldDiscover = "discover" // URL of the engine's HTTP server, empty unless the source is discovered
	fieldGone     = "gone"     // true if the client unregistered the source
	fieldAsked    = "asked"    // true if the source is discovered: its engine was asked where it publishes
)

// ofClient reports whether a client made the change. Only these are kept, because a server makes all others
// again after a restart.
func (c *change) ofClient() bool { return c != nil && !c.configured && c.again == nil && !c.oldest }

// noteKept raises the Revision if the disk is to have c, and does nothing for nil. Call it whenever c starts or stops
// waiting for the store.
func (g *Registry) noteKept(c *change) {
	if c.ofClient() && !c.brief {
		g.kept.Add(1)
	}
}

// Revision returns a number that changes whenever the result of Saved does, but for clients that register again what
// the store has, while the store is there: they do not wait for the disk.
func (g *Registry) Revision() uint64 { return g.kept.Load() }

// Saved returns the changes of clients that wait for the store, in the form that Restore reads. Without them,
// a server that restarts would believe the store and undo these changes.
func (g *Registry) Saved() (all [][]tape.Field) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for n, c := range g.pending {
		if !c.ofClient() {
			continue
		}
		var f []tape.Field
		if c.source != nil {
			f = append(c.source.Fields(), tape.Field{Name: fieldDiscover, Value: c.source.Discover})
		} else {
			f = append(registration.Registration{Instance: n.Instance, Tenant: n.Tenant, Rank: n.Rank}.Fields(),
				tape.Field{Name: fieldGone, Value: "true"}, tape.Field{Name: fieldAsked, Value: strconv.FormatBool(n.Asked)})
		}
		all = append(all, append(f,
			tape.Field{Name: fieldSince, Value: strconv.FormatInt(c.since.UnixMilli(), 10)},
			tape.Field{Name: fieldSeen, Value: strconv.FormatInt(c.seen, 10)}))
	}
	return all
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
		g.noteKept(c)
	}
	return nil
}
