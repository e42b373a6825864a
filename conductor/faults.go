package conductor

import (
	"errors"
	"strings"

	"kvconductor/index/hash"
)

// A Fault is a mistake in one registration of several that stand together.
type Fault struct {
	At     int    // index of the registration
	Field  string // such as hash_profile.algorithm
	Reason string // names no registration; the reader of the fault appends With
	With   int    // index of the registration that it contradicts, -1 for none
}

// Faults reports mistakes in the hash profiles of registrations that stand together.
// Registrations need their defaults; those with other mistakes are passed over.
func Faults(all []Registration) (faults []Fault) {
	type scope struct {
		deployment deploymentKey
		lora       string
	}
	type named struct {
		by      int
		profile hash.Profile
	}
	scopes := make(map[scope]named)
	// Engines come first: a pool has the profile of the engines that it serves.
	for _, pools := range []bool{false, true} {
		for i, r := range all {
			if r.pool() != pools || r.Profile == (HashProfile{}) {
				continue
			}
			p, err := hash.NewProfile(r.Profile)
			if err != nil {
				var bad *hash.ProfileError
				errors.As(err, &bad)
				faults = append(faults, Fault{i, "hash_profile." + bad.Field, strings.TrimPrefix(bad.Reason, bad.Field+" "), -1})
				continue
			}
			at := scope{r.deploymentKey(), r.Lora}
			switch first, known := scopes[at]; {
			case known && first.profile != p:
				faults = append(faults, Fault{i, "hash_profile", "engines of one tenant, model, adapter and block size, and their pools, name blocks alike; another profile is at", first.by})
			case !known && !pools:
				scopes[at] = named{i, p}
			}
		}
	}
	return faults
}
