package catalog

import (
	"net"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"example.com/conductor/tiers"
)

// Instances is the registered instances of a deployment as queries see them. It is never
// changed once published; what queries need of it is prepared by the first that does.
type Instances struct {
	All   []Instance // sorted by name
	whole atomic.Pointer[Roster]
	some  sync.Map // adapter -> *Roster of the instances that serve it, never empty
}

// Roster is the instances an answer may have rows of. It never changes.
type Roster struct {
	Instances []Instance // sorted by name
	Fold      *tiers.RowSet
	kept      sync.Map // key -> what Keep was given
}

func newRoster(rows []Instance) *Roster {
	instances := make([]tiers.Instance, len(rows))
	for i := range rows {
		instances[i] = tiers.Instance{ID: rows[i].ID, Ranks: rows[i].Ranks}
	}
	return &Roster{Instances: rows, Fold: tiers.NewRowSet(instances)}
}

// Keep returns what make has made for a key, and calls it once per key and Roster. It is not to be changed.
func (r *Roster) Keep(key any, make func() any) any {
	if v, ok := r.kept.Load(key); ok {
		return v
	}
	v, _ := r.kept.LoadOrStore(key, make())
	return v
}

// Everyone returns the roster of all instances.
func (v *Instances) Everyone() *Roster {
	r := v.whole.Load()
	if r == nil {
		r = newRoster(v.All)
		v.whole.Store(r)
	}
	return r
}

// Serving returns the roster of the instances that serve an adapter, nil if there are
// none.
func (v *Instances) Serving(lora string) *Roster {
	if r, ok := v.some.Load(lora); ok {
		return r.(*Roster)
	}
	var rows []Instance
	for i := range v.All {
		if v.All[i].Serves(lora) {
			rows = append(rows, v.All[i])
		}
	}
	var r *Roster
	switch len(rows) {
	case 0:
		return nil // not kept: anybody may ask for any adapter
	case len(v.All):
		r = v.Everyone()
	default:
		r = newRoster(rows)
	}
	v.some.Store(lora, r)
	return r
}

// Find returns the position of an instance.
func (v *Instances) Find(name string) (int, bool) {
	return slices.BinarySearchFunc(v.All, name, func(r Instance, name string) int { return strings.Compare(r.Name, name) })
}

// workerAddress returns the URL by which routers know an instance: the name of the instance if that
// is a URL, and the URL of a name that is a host and a port. Else it returns "".
func workerAddress(instance string) string {
	if strings.Contains(instance, "://") {
		return instance
	}
	if host, port, err := net.SplitHostPort(instance); err == nil && host != "" && port != "" {
		return "http://" + instance
	}
	return ""
}

// addressIn returns the address for requests that a worker's URL says: without a user, who would see it, and without the slash that
// paths begin with.
func addressIn(worker string) string {
	u, err := url.Parse(worker)
	if err != nil {
		return ""
	}
	u.User = nil
	return strings.TrimRight(u.String(), "/")
}
