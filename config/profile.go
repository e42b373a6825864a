package config

import (
	"errors"
	"strings"

	"go.yaml.in/yaml/v3"

	"kvconductor/index/hash"
)

// HashProfile says how an engine names its blocks; the zero value is not known.
type HashProfile = hash.Settings

const hashProfile = "hash_profile"

// A profileField is one key of a hash_profile.
type profileField struct {
	name     string
	required bool
	field    func(*HashProfile) *string
}

var profileFields = []profileField{
	{"strategy", true, func(p *HashProfile) *string { return &p.Strategy }},
	{"algorithm", true, func(p *HashProfile) *string { return &p.Algorithm }},
	{"python_hash_seed", true, func(p *HashProfile) *string { return &p.PythonHashSeed }},
	{"index_projection", true, func(p *HashProfile) *string { return &p.IndexProjection }},
	{"root_digest", false, func(p *HashProfile) *string { return &p.RootDigest }},
	{"extra_keys", false, func(p *HashProfile) *string { return &p.ExtraKeys }},
}

// readProfile reads the hash_profile of the source at path; null is none.
func (l *loader) readProfile(t *tree, path string, n *yaml.Node) (out HashProfile) {
	path = join(path, hashProfile)
	l.places[path] = t.at(n)
	if isNull(n) {
		return out
	}
	pairs, ok := t.mapping(n, l.nameOf(path), &l.errs)
	l.failed[path] = !ok
	if !ok {
		return out
	}
	given := make(map[string]bool)
	for _, p := range pairs {
		f := findProfileField(p.name)
		if f == nil {
			l.unknown(t, p, l.nameOf(path), profileNames())
			continue
		}
		at := join(path, f.name)
		l.places[at] = t.at(p.value)
		if given[f.name] = true; !f.required && isNull(p.value) {
			continue
		}
		v, ok := t.scalar(p.value, l.nameOf(at), text(), &l.errs)
		if ok && f.required && v == "" {
			l.errs.add(t.at(p.value), l.nameOf(at), "must not be empty")
			ok = false
		}
		if !ok {
			l.failed[path] = true // what the others mean depends on it
			continue
		}
		*f.field(&out) = v.(string)
	}
	for _, f := range profileFields {
		if f.required && !given[f.name] {
			l.errs.add(t.at(n), l.nameOf(join(path, f.name)), "is required")
			l.failed[path] = true
		}
	}
	return out
}

func findProfileField(name string) *profileField {
	for i := range profileFields {
		if profileFields[i].name == name {
			return &profileFields[i]
		}
	}
	return nil
}

func profileNames() (names []string) {
	for _, f := range profileFields {
		names = append(names, f.name)
	}
	return names
}

// profileComplaint says what is wrong with a source's profile, "" if nothing.
func (s *Source) profileComplaint() (path, message string) {
	if s.HashProfile == (HashProfile{}) {
		return "", ""
	}
	_, err := hash.NewProfile(s.HashProfile)
	var bad *hash.ProfileError
	if !errors.As(err, &bad) {
		return "", ""
	}
	return join(hashProfile, bad.Field), strings.TrimPrefix(bad.Reason, bad.Field+" ")
}

// profileScope is what has one profile.
type profileScope struct {
	tenant, model, lora string
	blockSize           int
}

// profileClashes calls clash for every source whose profile is not that of the first
// engine of its scope. Engines first: a pool has the profile of those it serves.
func (c *Config) profileClashes(clash func(source, first int)) {
	type named struct {
		by      int
		profile hash.Profile
	}
	scopes := make(map[profileScope]named)
	for _, pools := range []bool{false, true} {
		for i := range c.Sources {
			s := c.Sources[i].withTenant()
			p, err := hash.NewProfile(s.HashProfile)
			if err != nil || strings.EqualFold(s.Type, "Mooncake") != pools {
				continue
			}
			scope := profileScope{s.TenantID, s.ModelName, s.LoraName, s.BlockSize}
			switch first, known := scopes[scope]; {
			case known && first.profile != p:
				clash(i, first.by)
			case !known && !pools:
				scopes[scope] = named{i, p}
			}
		}
	}
}

// profileNode renders a profile as a map, without what is empty.
func profileNode(p HashProfile) *yaml.Node {
	m := &yaml.Node{Kind: yaml.MappingNode}
	for _, f := range profileFields {
		if v := *f.field(&p); v != "" {
			put(m, f.name, textNode(v))
		}
	}
	return m
}
