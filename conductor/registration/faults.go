package registration

import (
	"strconv"

	"example.com/conductor/conductor/doctor"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/index/hash"
)

// A Fault is a mistake in one registration of several that stand together.
type Fault struct {
	At     int    // index of the registration
	Field  string // endpoint, instance_id or hash_profile
	Reason string // names no registration, and ends so that the reader of the fault can append With
	With   int    // index of the registration that it contradicts
	// Finding is the code of the finding that the doctor reports; "" means that Register
	// refuses the registration.
	Finding string
}

// Faults reports mistakes in registrations that stand together: in their hash profiles,
// and endpoints of one publisher. Registrations need their defaults; those with other
// mistakes are passed over.
func Faults(all []Registration) []Fault {
	return append(profileFaults(all), endpointFaults(all)...)
}

// endpointFaults reports sources that follow the publisher of an earlier one.
func endpointFaults(all []Registration) (faults []Fault) {
	first := make(map[Publisher]int)
	for i, r := range all {
		switch by, taken := first[r.Publisher()]; {
		case r.Endpoint == "":
		case !taken:
			first[r.Publisher()] = i
		case all[by].Tenant == r.Tenant && TopicConflict(&r, &all[by]) != nil:
			faults = append(faults, Fault{i, "instance_id", "names with @ make the topic " + strconv.Quote(r.Topic()) +
				", which is also that of", by, ""})
		case all[by].Key() != r.Key():
			faults = append(faults, Fault{i, "endpoint", "several sources follow one publisher, which the server reports as " +
				doctor.FindingRank + "; another is", by, doctor.FindingRank})
		}
	}
	return faults
}

// profileFaults reports profiles that contradict others.
func profileFaults(all []Registration) (faults []Fault) {
	type context struct {
		deployment scope.Deployment
		lora       string
	}
	type named struct {
		by      int
		profile hash.Profile
	}
	scopes := make(map[context]named)
	// Engines come first: a pool has the profile of the engines that it serves.
	for _, pools := range []bool{false, true} {
		for i, r := range all {
			if r.IsPool() != pools || r.Profile == (HashProfile{}) {
				continue
			}
			p, err := hash.NewProfile(r.Profile)
			if err != nil {
				continue // Normalize says so
			}
			at := context{r.Deployment(), r.Lora}
			switch first, known := scopes[at]; {
			case known && first.profile != p:
				faults = append(faults, Fault{i, "hash_profile",
					"engines of one tenant, model, adapter and block size, and their pools, name blocks alike; another profile is at",
					first.by, ""})
			case !known && !pools:
				scopes[at] = named{i, p}
			}
		}
	}
	return faults
}
