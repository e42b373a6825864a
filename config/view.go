package config

import "strings"

// Setting is one setting as operators may see it: without secrets.
type Setting struct {
	Path    string `json:"name"`
	Value   string `json:"value"`
	Default string `json:"default"`
	Changed bool   `json:"changed"` // it differs from the default
	Live    bool   `json:"live"`    // a running server takes a change over
	Help    string `json:"help"`
}

// Settings returns the scalar settings and the listeners, in the order in which they are printed. Sources are
// left out: the server knows how those are.
func (c *Config) Settings() []Setting {
	d := Default()
	var all []Setting
	for _, s := range allSettings {
		is, was := s.format(c), s.format(&d)
		value := s.hideSecrets(is)
		if s.path == "hash.seed" && is != was {
			value = hidden // who knows it can make prompts that seem equal
		}
		all = append(all, Setting{Path: s.path, Value: value, Default: was, Changed: is != was, Live: s.live, Help: s.help})
	}
	return all
}

// hidden stands for a secret.
const hidden = "***"

// hideSecrets returns a shown value without the users, passwords and queries of URLs.
func (s setting) hideSecrets(value string) string {
	urls := []string{value}
	if s.kind.list {
		urls = strings.Split(value, ",")
	}
	for i, u := range urls {
		scheme, rest, isURL := strings.Cut(u, "://")
		if !isURL {
			continue
		}
		if at := strings.LastIndexByte(rest, '@'); at >= 0 {
			rest = hidden + rest[at:]
		}
		if address, _, found := strings.Cut(rest, "?"); found {
			rest = address + "?" + hidden
		}
		urls[i] = scheme + "://" + rest
	}
	return strings.Join(urls, ",")
}

// A Change is one setting that differs between two configs. Was and Is are written as in a file.
type Change struct {
	Path string `json:"path"`
	Was  string `json:"was"`
	Is   string `json:"is"`
	Live bool   `json:"live"` // a running server takes it over
}

// Diff returns the scalar settings and the listeners that differ, in the order in which they are
// printed, without the passwords of URLs. Sources are compared by DiffSources.
func Diff(was, is *Config) (all []Change) {
	for _, s := range allSettings {
		if w, i := s.format(was), s.format(is); w != i {
			all = append(all, Change{s.path, s.hideSecrets(w), s.hideSecrets(i), s.live})
		}
	}
	return all
}
