package conductor

import (
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"example.com/conductor/tiers"
)

// view is the registered instances of a deployment as queries see them. It is never
// changed once published; what queries need of it is prepared by the first that does.
type view struct {
	rows  []row // sorted by name
	whole atomic.Pointer[Roster]
	some  sync.Map // adapter -> *Roster of the instances that serve it, never empty
}

// Roster is the instances an answer may have rows of. It never changes.
type Roster struct {
	rows  []row // sorted by name
	zeros []Row // of each, all zeros
	fold  *tiers.Roster
	kept  sync.Map // key -> what Keep was given
}

func newRoster(rows []row) *Roster {
	instances := make([]tiers.Instance, len(rows))
	for i := range rows {
		instances[i] = tiers.Instance{ID: rows[i].id, Ranks: rows[i].ranks}
	}
	r := &Roster{rows: rows, zeros: make([]Row, len(rows)), fold: tiers.NewRoster(instances)}
	for i, zero := range r.fold.Zeros() {
		r.zeros[i] = Row{Instance: rows[i].name, Row: zero, Approximate: rows[i].approximate, at: int32(i)}
	}
	return r
}

// Keep returns what make has made of the rows of instances that hold nothing, and calls
// it once per key and Roster. Neither is changed afterwards.
func (r *Roster) Keep(key any, make func(zeros []Row) any) any {
	if v, ok := r.kept.Load(key); ok {
		return v
	}
	v, _ := r.kept.LoadOrStore(key, make(r.zeros))
	return v
}

// everyone returns the roster of all instances.
func (v *view) everyone() *Roster {
	r := v.whole.Load()
	if r == nil {
		r = newRoster(v.rows)
		v.whole.Store(r)
	}
	return r
}

// serving returns the roster of the instances that serve an adapter, nil if there are
// none.
func (v *view) serving(lora string) *Roster {
	if r, ok := v.some.Load(lora); ok {
		return r.(*Roster)
	}
	var rows []row
	for i := range v.rows {
		if v.rows[i].serves(lora) {
			rows = append(rows, v.rows[i])
		}
	}
	var r *Roster
	switch len(rows) {
	case 0:
		return nil // not kept: anybody may ask for any adapter
	case len(v.rows):
		r = v.everyone()
	default:
		r = newRoster(rows)
	}
	v.some.Store(lora, r)
	return r
}

// find returns the position of an instance.
func (v *view) find(name string) (int, bool) {
	return slices.BinarySearchFunc(v.rows, name, func(r row, name string) int { return strings.Compare(r.name, name) })
}
