package membership

import (
	"cmp"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"

	"example.com/conductor/conductor/discovery"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/conductor/scope"
)

// Source is an entry of the registry: a source, or an engine that is asked for what its
// registration lacks.
type Source struct {
	registration.Registration
	Discover string // URL that is asked
}

// Asked reports whether an engine is asked for what the registration lacks.
func (s *Source) Asked() bool { return s.Discover != "" || s.BlockSize == 0 }

// equal reports whether two entries say the same. Only the configuration names further tenants.
func (s *Source) equal(other *Source) bool {
	a, b := *s, *other
	a.Tenant, b.Tenant = cmp.Or(a.Tenant, scope.DefaultTenant), cmp.Or(b.Tenant, scope.DefaultTenant)
	return reflect.DeepEqual(a, b)
}

// Name identifies an entry. An engine that is asked has the rank discovery.AllRanks if it tells its
// ranks.
type Name struct {
	registration.Key
	Asked bool
}

// Name returns the name of the entry.
func (s *Source) Name() Name {
	n := Name{Key: s.Key(), Asked: s.Asked()}
	n.Tenant = cmp.Or(n.Tenant, scope.DefaultTenant)
	if s.Discover != "" {
		n.Rank = discovery.AllRanks
	}
	return n
}

// asked marks the names of engines that are asked.
const asked = "asked"

// MarshalJSON returns [instance, tenant, rank], with "asked" behind it for an engine that is asked.
// Texts of names may have any character, so no separator tells them apart.
func (n Name) MarshalJSON() ([]byte, error) {
	all := []any{n.Instance, n.Tenant, n.Rank}
	if n.Asked {
		all = append(all, asked)
	}
	return json.Marshal(all)
}

// UnmarshalJSON reads what MarshalJSON wrote.
func (n *Name) UnmarshalJSON(text []byte) error {
	var word string
	all := []any{&n.Instance, &n.Tenant, &n.Rank, &word}
	if err := json.Unmarshal(text, &all); err != nil {
		return err
	}
	n.Asked = word == asked
	return nil
}

// field returns the name as the field of a hash.
func (n Name) field() string {
	text, _ := n.MarshalJSON() // of strings and a number
	return string(text)
}

// record is a value of the hash sources, but its time, which the store writes in front.
type record struct {
	Gone       bool                       `json:"gone,omitempty"`       // unregistered
	Unheard    bool                       `json:"unheard,omitempty"`    // the replica had not heard of what it unregistered; behind Gone
	Swept      bool                       `json:"swept,omitempty"`      // because no configuration had it any more
	By         string                     `json:"by,omitempty"`         // replica
	Configured bool                       `json:"configured,omitempty"` // from the configuration of a replica
	Discover   string                     `json:"discover,omitempty"`
	Wire       *registration.Registration `json:"source,omitempty"`
}

// source returns the entry of a record that is not gone.
func (r *record) source() Source {
	return Source{Registration: *r.Wire, Discover: r.Discover}
}

// tail returns the record as JSON without its first brace: the store puts the time before it.
func (r *record) tail() string {
	text, err := json.Marshal(r)
	if err != nil {
		panic("BUG: a record cannot be encoded: " + err.Error())
	}
	return string(text[1:])
}

// timed returns the beginning of a text of the store, which has the time.
func timed(at int64) string { return fmt.Sprintf(`{"at":%d,`, at) }

// Reasons why an entry of the store is not taken over.
const (
	reasonSize    = "size"    // it is too long
	reasonSyntax  = "syntax"  // it is not what docs/formats.md says
	reasonTime    = "time"    // it is of more than farAhead after the store's clock
	reasonName    = "name"    // its source has another name than its field
	reasonRefused = "refused" // a client's registration would be refused likewise
)

// maxRecord bounds an entry in bytes: 4,096 served instances of 256 bytes, with their quotes.
const maxRecord = 2 << 20

// parseRecord reads an entry. reason is "" if it can be used. The time has to be where the scripts of the store read it, else
// they would find another one than this replica.
func parseRecord(field, text string) (n Name, at int64, r record, reason string) {
	if text == "" || len(field) > maxRecord || len(text) > maxRecord { // reading returns no text that is too long
		return n, 0, r, reasonSize
	}
	var all struct {
		At int64 `json:"at"`
		record
	}
	if json.Unmarshal([]byte(field), &n) != nil || json.Unmarshal([]byte(text), &all) != nil ||
		all.At <= 0 || !strings.HasPrefix(text, timed(all.At)) || !all.Gone && all.Wire == nil {
		return n, 0, r, reasonSyntax
	}
	r = all.record
	if n.field() != field {
		return n, 0, r, reasonName
	}
	if !r.Gone {
		if s := r.source(); s.Name() != n {
			return n, 0, r, reasonName
		}
	}
	return n, all.At, r, ""
}
