package config

import (
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// A Change is one difference between two configs. A source that appears has no
// Before, one that goes has no After; for a source that changed both are set.
type Change struct {
	Path     string // key, listeners, or sources[instance|tenant|rank]
	Old, New string // rendered; "" where there was or is nothing
	Live     bool   // can be applied while the server runs
	Before   *Source
	After    *Source
}

// Diff lists what changes from old to new, keys in table order, then sources:
// those gone, then those new or changed, each in the order of its config.
// What is not Live takes effect at the next start.
func Diff(old, new Config) (out []Change) {
	if a, b := showListeners(old.Listeners), showListeners(new.Listeners); a != b {
		out = append(out, Change{Path: "listeners", Old: a, New: b})
	}
	for _, k := range keys {
		if a, b := k.show(&old), k.show(&new); a != b {
			out = append(out, Change{Path: k.path, Old: a, New: b, Live: k.live})
		}
	}
	before, after := byKey(old.Sources), byKey(new.Sources)
	for _, s := range old.Sources {
		if _, stays := after[s.Key()]; !stays {
			out = append(out, Change{Path: "sources[" + s.Key() + "]", Old: s.show(), Live: true, Before: &s})
		}
	}
	for _, s := range new.Sources {
		was, known := before[s.Key()]
		switch {
		case !known:
			out = append(out, Change{Path: "sources[" + s.Key() + "]", New: s.show(), Live: true, After: &s})
		case !reflect.DeepEqual(was, s.withTenant()):
			out = append(out, Change{Path: "sources[" + s.Key() + "]", Old: was.show(), New: s.show(), Live: true, Before: &was, After: &s})
		}
	}
	return out
}

func byKey(list []Source) map[string]Source {
	out := make(map[string]Source, len(list))
	for _, s := range list {
		out[s.Key()] = s.withTenant()
	}
	return out
}

// show renders a source in one line without what is empty.
func (s Source) show() string {
	out := s.Type + " " + s.Endpoint
	if s.ReplayEndpoint != "" {
		out += " replay " + s.ReplayEndpoint
	}
	out += " model " + strconv.Quote(s.ModelName) + " block_size " + strconv.Itoa(s.BlockSize)
	if s.LoraName != "" {
		out += " lora " + strconv.Quote(s.LoraName)
	}
	if s.AdditionalSalt != "" {
		out += " salt " + strconv.Quote(s.AdditionalSalt)
	}
	if s.TTL > 0 {
		out += " ttl " + showDuration(s.TTL)
	}
	for _, medium := range slices.Sorted(maps.Keys(s.MediaTTL)) {
		out += " ttl." + medium + " " + showDuration(s.MediaTTL[medium])
	}
	if len(s.Serves) > 0 {
		out += " serves " + strings.Join(s.Serves, ",")
	}
	for _, f := range []struct{ name, value string }{
		{"copies", s.Copies}, {"owned", s.Owned}, {"clear", s.Clear}, {"may_announce", strings.Join(s.MayAnnounce, ",")},
	} {
		if f.value != "" {
			out += " " + f.name + " " + f.value
		}
	}
	if s.HashProfile != (HashProfile{}) {
		out += " hash_profile " + showProfile(s.HashProfile)
	}
	return out
}
