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

	"kvconductor/conductor"
	"kvconductor/events/journal"
)

// Fields of a target in a snapshot, next to those of its registration: see docs/formats.md.
const (
	fieldURL       = "discover"
	fieldFleet     = "fleet"     // its name has had several addresses
	fieldEngine    = "engine"    // address or "-", learned block size, ranks with commas
	fieldWithdrawn = "withdrawn" // rank and instance of a source that others have unregistered
)

// Revision changes when Saved does.
func (m *Manager) Revision() uint64 { return m.revision.Load() }

// Saved returns the targets of clients as a snapshot keeps them. Those of the configuration are
// there at the next start anyway.
func (m *Manager) Saved() (all [][]journal.Field) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, t := range m.targets {
		if t.Static {
			continue
		}
		f := append(t.Fields(), journal.Field{Name: fieldURL, Value: t.URL})
		t.shown.Lock()
		f = append(f, t.kept...)
		for _, key := range slices.SortedFunc(maps.Keys(t.withdrawn), compareKeys) {
			f = append(f, journal.Field{Name: fieldWithdrawn, Value: strconv.Itoa(key.Rank) + " " + key.Instance})
		}
		all = append(all, f)
		t.shown.Unlock()
	}
	return all
}

// keep notes what a restart needs of the engines of a target. t.mu is held.
func (m *Manager) keep(t *target) {
	var all []journal.Field
	if t.many {
		all = append(all, journal.Field{Name: fieldFleet, Value: "true"})
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
		all = append(all, journal.Field{Name: fieldEngine, Value: fmt.Sprintf("%s %d %s", text, e.blockSize, strings.Join(ranks, ","))})
	}
	t.shown.Lock()
	defer t.shown.Unlock()
	if !slices.Equal(t.kept, all) {
		t.kept = all
		m.revision.Add(1)
	}
}

func compareKeys(a, b conductor.Key) int {
	return cmp.Or(cmp.Compare(a.Instance, b.Instance), cmp.Compare(a.Rank, b.Rank))
}

// Restore follows a target that Saved returned, whose sources are registered again already. It
// owns those, so that its engine may name other endpoints than before. Its errors are those of
// Add, and an error for fields that cannot be read.
func (m *Manager) Restore(fields []journal.Field) error {
	r, err := conductor.ReadRegistration(fields)
	if err != nil {
		return err
	}
	r.MayAnnounce = nil // a matter of the configuration
	var all []past
	for _, f := range fields {
		p, known, err := pastOf(f)
		if err != nil {
			return fmt.Errorf("the target %q: field %s: %w", r.Instance, f.Name, err)
		}
		if known {
			all = append(all, p)
		}
	}
	return m.add(Target{Registration: r, URL: journal.Value(fields, fieldURL)}, false, func(t *target) {
		t.many = journal.Value(fields, fieldFleet) != ""
		for _, p := range all {
			m.recall(t, p)
		}
		m.keep(t)
	})
}

// past is a field about an engine, or about a source that was withdrawn.
type past struct {
	engine    bool
	addr      netip.Addr
	blockSize int
	ranks     []int
	instance  string
}

// pastOf reads a field. It reports false for fields about something else.
func pastOf(f journal.Field) (p past, known bool, err error) {
	var ranks string
	switch f.Name {
	case fieldEngine:
		part := strings.Split(f.Value, " ")
		if len(part) != 3 {
			return p, false, errors.New("it has no three parts")
		}
		if part[0] != "-" {
			if p.addr, err = netip.ParseAddr(part[0]); err != nil {
				return p, false, err
			}
		}
		if p.blockSize, err = strconv.Atoi(part[1]); err != nil {
			return p, false, err
		}
		p.engine, ranks = true, part[2]
	case fieldWithdrawn:
		ranks, p.instance, _ = strings.Cut(f.Value, " ")
	default:
		return p, false, nil
	}
	for _, text := range strings.FieldsFunc(ranks, func(c rune) bool { return c == ',' }) {
		rank, err := strconv.Atoi(text)
		if err != nil {
			return p, false, err
		}
		p.ranks = append(p.ranks, rank)
	}
	return p, true, nil
}

// recall gives a target back what it knew of an engine.
func (m *Manager) recall(t *target, p past) {
	key := conductor.Key{Instance: p.instance, Tenant: t.Tenant}
	if !p.engine {
		for _, key.Rank = range p.ranks {
			m.withdraw(t, key)
		}
		return
	}
	e := &engine{instance: t.Instance, blockSize: p.blockSize, next: t.began}
	if t.many {
		e.instance += "@" + p.addr.String()
	}
	key.Instance = e.instance
	for _, key.Rank = range p.ranks {
		if _, restarts, ok := m.opts.Registry.Health(key); ok {
			e.keys = append(e.keys, key)
			e.restarts += restarts
		}
	}
	t.engines[p.addr] = e
}
