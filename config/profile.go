package config

import (
	"errors"
	"strings"

	"kvconductor/index/hash"
)

// profileComplaint says what is wrong with a source's profile, "" if nothing.
func (s *Source) profileComplaint() (path, message string) {
	if s.HashProfile == (HashProfile{}) {
		return "", ""
	}
	_, err := hash.NewProfile(hash.Settings(s.HashProfile))
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
			p, err := hash.NewProfile(hash.Settings(s.HashProfile))
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
