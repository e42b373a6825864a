package config

import (
	"strings"

	"example.com/conductor/redact"
)

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
		all = append(all, Setting{Path: s.path, Value: s.shown(is), Default: was, Changed: is != was, Live: s.live, Help: s.help})
	}
	return all
}

// shown returns a value as people may see it.
func (s setting) shown(value string) string {
	d := Default()
	switch {
	case s.path == "hash.seed" && value != s.format(&d):
		return redact.Hidden // who knows it can make prompts that seem equal
	case s.kind.list:
		return strings.Join(redact.URLs(strings.Split(value, ",")), ",")
	case strings.Contains(value, "://"):
		return redact.URL(value)
	}
	return value
}

// A Change is one setting that differs between two configs. Was and Is are written as in a file.
type Change struct {
	Path string `json:"path"`
	Was  string `json:"was"`
	Is   string `json:"is"`
	Live bool   `json:"live"` // a running server takes it over
}

// Diff returns the scalar settings and the listeners that differ, in the order in which they are
// printed, without secrets. Sources are compared by DiffSources.
func Diff(was, is *Config) (all []Change) {
	for _, s := range allSettings {
		if w, i := s.format(was), s.format(is); w != i {
			all = append(all, Change{s.path, s.shown(w), s.shown(i), s.live})
		}
	}
	return all
}
