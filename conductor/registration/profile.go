package registration

import (
	"errors"

	"example.com/conductor/index/hash"
)

// HashProfile is how engines name their blocks; the zero value is none. It compares
// with ==, and the one of a registered source has its root and its extra keys filled
// in.
type HashProfile = hash.Settings

// resolveProfile checks the profile and fills in what it leaves open.
func (r *Registration) resolveProfile(bad *faults) {
	if r.Profile == (HashProfile{}) {
		return
	}
	p, err := hash.NewProfile(r.Profile)
	if err != nil {
		bad.add("hash_profile."+profileField(err), "invalid_value", "%s", err)
		return
	}
	r.Profile = p.Settings()
}

// profileField returns the field that an error of hash.NewProfile is about.
func profileField(err error) string {
	var bad *hash.ProfileError
	if !errors.As(err, &bad) {
		panic("BUG: an error that names no field of a profile: " + err.Error())
	}
	return bad.Field
}

// ResolvedProfile returns the profile of a registration without faults, the zero one if it
// has none.
func (r *Registration) ResolvedProfile() hash.Profile {
	if r.Profile == (HashProfile{}) {
		return hash.Profile{}
	}
	p, err := hash.NewProfile(r.Profile)
	if err != nil {
		panic("BUG: a registration has a hash profile that is none: " + err.Error())
	}
	return p
}

// DiffProfiles names the first field in which b differs from a, "" when they are
// equal.
func DiffProfiles(a, b HashProfile) (field, have, got string) {
	for _, f := range [...]struct{ name, a, b string }{
		{"strategy", a.Strategy, b.Strategy},
		{"algorithm", a.Algorithm, b.Algorithm},
		{fieldHashSeed, a.PythonHashSeed, b.PythonHashSeed},
		{"index_projection", a.IndexProjection, b.IndexProjection},
		{"extra_keys", a.ExtraKeys, b.ExtraKeys},
	} {
		if f.a != f.b {
			return f.name, f.a, f.b
		}
	}
	return "", "", ""
}
