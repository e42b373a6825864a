package image

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"example.com/conductor/conductor/normalize"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/events"
	"example.com/conductor/events/stream"
	"example.com/conductor/events/tape"
)

// Every field has a version. This list is what readers of each version know, so it only grows: a field that is new here needs a
// version that is not out yet. Without one, a program of today would drop the field and write the rest.
func TestVersionsOfFields(t *testing.T) {
	known := map[uint32]string{
		2: `additionalsalt block_size clear copies dp_rank endpoint hash_profile.algorithm hash_profile.extra_keys
			hash_profile.index_projection hash_profile.python_hash_seed hash_profile.strategy
			instance_id lora_name may_announce modelname owned replay_endpoint sequence serves snapshot_endpoint tenant_id ttl type
			static mark.seq mark.print mark.missing mark.publisher_id parts look_ahead adapter
			registered.by registered.name registered.at gives_way
			source medium group backend_id older unverified`,
		3: `aliases approximate capacity_blocks drafter events reports zero_hash full_reports chunk listed attention_group adapter_version`,
		4: `adapters address role`,
	}
	got := map[uint32]map[string]bool{}
	add := func(name string) {
		v := Version([]tape.Field{{Name: name}})
		if got[v] == nil {
			got[v] = map[string]bool{}
		}
		got[v][name] = true
	}
	full := Source{Static: true, GivesWay: true, Parts: 2, ZeroHash: true, FullReports: true, LookAheads: []int{1}, Adapters: []string{"a"},
		Groups:   []normalize.Spec{{Group: 1, Kind: "mamba"}},
		Versions: []Adapter{{Rank: 1, Lora: "a", Lowest: 1, Highest: 2}}}
	for i := range registration.Table {
		switch v := registration.Table[i].Of(&full.Registration).(type) {
		case *string:
			*v = "x"
		case *int:
			*v = 1
		case *[]string:
			*v = []string{"x"}
		case *time.Duration:
			*v = time.Second
		}
	}
	full.Mark = &stream.Mark{Seq: 1, Print: 2, Missing: "x", ID: events.PublisherID{1}}
	full.By = registration.Registrar{Kind: "x", Name: "x", At: time.Unix(1, 0)}
	holder := Holder{Source: 1, Older: true, Unverified: true,
		Owner: normalize.Owner{Rank: 1, Medium: "x", Group: 1, Backend: "x", Owned: true, Chunk: 1, Listed: true}}
	for _, f := range holder.AppendFields(full.Fields()) {
		add(f.Name)
	}
	for version, names := range known {
		want := strings.Fields(names)
		slices.Sort(want)
		if have := slices.Sorted(maps.Keys(got[version])); !slices.Equal(have, want) {
			t.Errorf("version %d has\n%q, want\n%q", version, have, want)
		}
		delete(got, version)
	}
	for version, names := range got {
		t.Errorf("version %d with %q is not known", version, slices.Sorted(maps.Keys(names)))
	}
}
