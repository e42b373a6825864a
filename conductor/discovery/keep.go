package discovery

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"example.com/conductor/conductor/kept"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/events/tape"
)

// Fields of a target in a snapshot, next to those of its registration: see docs/formats.md.
const (
	fieldURL       = "discover"
	fieldGivesWay  = "gives_way" // see Target
	fieldFleet     = "fleet"     // its name has had several addresses
	fieldEngine    = "engine"    // address or "-", learned block size, ranks with commas
	fieldWithdrawn = "withdrawn" // rank and instance of a source that others have unregistered
)

// Revision changes when Saved does.
func (m *Manager) Revision() uint64 { return m.changes.Revision() }

// Saved returns the targets of clients as a snapshot keeps them. Those of the configuration are
// there at the next start anyway.
func (m *Manager) Saved() (all []kept.Part) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for name, t := range m.targets {
		if p := savedPart(name, t); p.Fields != nil {
			all = append(all, p)
		}
	}
	return all
}

// SavedSince returns the parts of Saved that have changed since a revision. It returns false if it does not know which ones.
func (m *Manager) SavedSince(revision uint64) (changed []kept.Part, ok bool) {
	names, ok := m.changes.Since(revision)
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, name := range names {
		changed = append(changed, savedPart(name, m.targets[name]))
	}
	return changed, ok
}

// savedPart returns the part of a target, which may be nil. Manager.mu is held.
func savedPart(name registration.Key, t *target) kept.Part {
	p := kept.Part{Name: name.Unique()}
	if t == nil || t.Static {
		return p
	}
	p.Fields = append(t.Fields(), tape.Field{Name: fieldURL, Value: t.URL})
	if t.givesWay.Load() {
		p.Fields = append(p.Fields, tape.Field{Name: fieldGivesWay, Value: "true"})
	}
	t.shown.Lock()
	defer t.shown.Unlock()
	p.Fields = append(p.Fields, t.kept...)
	for _, key := range slices.SortedFunc(maps.Keys(t.withdrawn), compareKeys) {
		p.Fields = append(p.Fields, tape.Field{Name: fieldWithdrawn, Value: strconv.Itoa(key.Rank) + " " + key.Instance})
	}
	return p
}

// recordKept writes into kept what a restart has to know of the engines of a target. t.mu is held.
func (m *Manager) recordKept(t *target) {
	var all []tape.Field
	if t.many {
		all = append(all, tape.Field{Name: fieldFleet, Value: "true"})
	}
	for _, addr := range slices.SortedFunc(maps.Keys(t.engines), netip.Addr.Compare) {
		e, text := t.engines[addr], "-"
		if addr.IsValid() {
			text = addr.String()
		}
		var ranks []string
		for _, key := range e.keys {
			ranks = append(ranks, strconv.Itoa(key.Rank))
		}
		all = append(all, tape.Field{Name: fieldEngine, Value: fmt.Sprintf("%s %d %s", text, e.blockSize, strings.Join(ranks, ","))})
	}
	t.shown.Lock()
	defer t.shown.Unlock()
	if !slices.Equal(t.kept, all) {
		t.kept = all
		m.changes.Note(t.Name())
	}
}

func compareKeys(a, b registration.Key) int {
	return cmp.Or(cmp.Compare(a.Instance, b.Instance), cmp.Compare(a.Rank, b.Rank))
}

// Restore follows a target that Saved returned, whose sources are registered again already. It
// owns those, so that its engine may name other endpoints than before. Its errors are those of
// Add, and an error for fields that cannot be read.
func (m *Manager) Restore(fields []tape.Field) error {
	r, err := registration.ReadFields(fields)
	if err != nil {
		return err
	}
	r.MayAnnounce = nil // a matter of the configuration
	t := Target{Registration: r, URL: tape.Value(fields, fieldURL), GivesWay: tape.Value(fields, fieldGivesWay) != ""}
	key, many := t.Name(), tape.Value(fields, fieldFleet) != ""
	engines, withdrawn := make(map[netip.Addr]*engine), make(map[registration.Key]bool)
	for _, f := range fields {
		switch f.Name {
		case fieldEngine:
			var addr netip.Addr
			var e *engine
			if addr, e, err = m.restoreEngine(f.Value, &t, many); err == nil {
				engines[addr] = e
			}
		case fieldWithdrawn:
			var rank string
			rank, key.Instance, _ = strings.Cut(f.Value, " ")
			key.Rank, err = strconv.Atoi(rank)
			withdrawn[key] = true
		}
		if err != nil {
			return fmt.Errorf("the target %q: field %s: %w", r.Instance, f.Name, err)
		}
	}
	return m.addTarget(t, false, func(t *target) {
		t.many, t.engines, t.withdrawn = many, engines, withdrawn
		m.recordKept(t)
	})
}

// restoreEngine reads the field of an engine.
func (m *Manager) restoreEngine(text string, t *Target, many bool) (addr netip.Addr, e *engine, err error) {
	part := strings.Split(text, " ")
	if len(part) != 3 {
		return addr, nil, errors.New("it has no three parts")
	}
	if part[0] != "-" {
		if addr, err = netip.ParseAddr(part[0]); err != nil {
			return addr, nil, err
		}
	}
	e = &engine{instance: t.Instance, next: m.opts.Now()}
	if e.blockSize, err = strconv.Atoi(part[1]); err != nil {
		return addr, nil, err
	}
	if many {
		e.instance += "@" + addr.String()
	}
	key := registration.Key{Instance: e.instance, Tenant: t.Name().Tenant}
	for rank := range strings.SplitSeq(part[2], ",") {
		if rank == "" { // it has no sources
			continue
		}
		if key.Rank, err = strconv.Atoi(rank); err != nil {
			return addr, nil, err
		}
		if _, restarts, ok := m.opts.Registry.Health(key); ok {
			e.keys = append(e.keys, key)
			e.restarts += restarts
		}
	}
	return addr, e, nil
}
