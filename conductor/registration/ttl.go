package registration

import (
	"maps"
	"slices"
	"strings"
	"time"

	"example.com/conductor/conductor/pool"
	"example.com/conductor/tiers"
)

// minTTL keeps aging rarer than announcing.
const minTTL = time.Second

// TTLOn returns the time to live of blocks on a medium, by its canonical name.
func (r *Registration) TTLOn(medium string) time.Duration {
	if d, named := r.MediaTTL[medium]; named {
		return d
	}
	return r.TTL
}

// TTLs returns the times to live that some medium has, 0 left out.
func (r *Registration) TTLs() []time.Duration {
	all := append(slices.Collect(maps.Values(r.MediaTTL)), r.TTL)
	slices.Sort(all)
	return slices.DeleteFunc(slices.Compact(all), func(d time.Duration) bool { return d == 0 })
}

// ttlText returns the times to live in one line.
func (r *Registration) ttlText() string {
	var out []string
	if r.TTL > 0 || len(r.MediaTTL) == 0 {
		out = append(out, r.TTL.String())
	}
	for _, medium := range slices.Sorted(maps.Keys(r.MediaTTL)) {
		out = append(out, medium+" "+r.MediaTTL[medium].String())
	}
	return strings.Join(out, ", ")
}

// normalizeTTL checks the times to live and gives media their canonical names.
func (r *Registration) normalizeTTL(bad *faults) {
	check := func(field string, d time.Duration) {
		if d != 0 && d < minTTL {
			bad.add(field, "out_of_range", "%s must be at least %s, or 0 for none, got %s", field, minTTL, d)
		}
	}
	if len(r.MediaTTL) > pool.MaxMedia {
		bad.add("ttl", "out_of_range", "ttl names %d media, at most %d are allowed", len(r.MediaTTL), pool.MaxMedia)
		return
	}
	var media map[string]time.Duration
	for _, raw := range slices.Sorted(maps.Keys(r.MediaTTL)) {
		d, field := r.MediaTTL[raw], "ttl."+raw
		if raw == "" {
			bad.add("ttl", "invalid_value", "ttl must not name an empty medium")
			continue
		}
		check(field, d)
		medium := tiers.ParseMedium(raw).Name
		if other, twice := media[medium]; twice && other != d {
			bad.add(field, "conflict", "%s is the medium %s, which has the time %s under another name", field, medium, other)
		}
		if media == nil {
			media = make(map[string]time.Duration, len(r.MediaTTL))
		}
		media[medium] = d
	}
	r.MediaTTL = media
	check("ttl", r.TTL)
}
