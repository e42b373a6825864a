package fleet

import (
	"strconv"
	"time"

	"kvconductor/conductor"
	"kvconductor/events/journal"
)

// Fields of a change on the disk, next to those of its registration: see docs/formats.md.
const (
	fieldSince    = "since"    // when it was made, in ms since 1970
	fieldSeen     = "seen"     // time of the entry that it was made to, by the clock of the store
	fieldDiscover = "discover" // URL that is asked
	fieldGone     = "gone"     // true: it was unregistered
	fieldAsked    = "asked"    // true: its engine was asked
)

// ofClient reports whether a client made the change. All others are made again after a restart.
func (c *change) ofClient() bool { return !c.configured && c.again == nil && !c.oldest }

// noteKept notes that a change has begun or ended to wait.
func (g *Registry) noteKept(c *change) {
	if c.ofClient() {
		g.kept.Add(1)
	}
}

// Revision changes when Saved does.
func (g *Registry) Revision() uint64 { return g.kept.Load() }

// Saved returns the changes of clients that wait for the store, for Restore. A server that starts would
// else take over what the store says of these entries.
func (g *Registry) Saved() (all [][]journal.Field) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for n, c := range g.pending {
		if !c.ofClient() {
			continue
		}
		var f []journal.Field
		if c.source != nil {
			f = append(c.source.Fields(), journal.Field{Name: fieldDiscover, Value: c.source.Discover})
		} else {
			f = append(conductor.Registration{Instance: n.Instance, Tenant: n.Tenant, Rank: n.Rank}.Fields(),
				journal.Field{Name: fieldGone, Value: "true"}, journal.Field{Name: fieldAsked, Value: strconv.FormatBool(n.Asked)})
		}
		all = append(all, append(f,
			journal.Field{Name: fieldSince, Value: strconv.FormatInt(c.since.UnixMilli(), 10)}, journal.Field{Name: fieldSeen, Value: strconv.FormatInt(c.seen, 10)}))
	}
	return all
}

// Restore lets a change that Saved returned wait for the store again, unless the configuration has its
// entry. Call it before Run.
func (g *Registry) Restore(fields []journal.Field) error {
	r, err := conductor.ReadRegistration(fields)
	if err != nil {
		return err
	}
	since, err := strconv.ParseInt(journal.Value(fields, fieldSince), 10, 64)
	if err != nil {
		return err
	}
	c := &change{since: time.UnixMilli(since)}
	if c.seen, err = strconv.ParseInt(journal.Value(fields, fieldSeen), 10, 64); err != nil {
		return err
	}
	n := Name{Key: r.Key(), Asked: journal.Value(fields, fieldAsked) == "true"}
	if journal.Value(fields, fieldGone) == "" {
		c.source = &Source{Registration: r, Discover: journal.Value(fields, fieldDiscover)}
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
