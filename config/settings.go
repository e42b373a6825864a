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

// Settings returns the scalar settings and the listeners, in the order in which they are printed. Sources are left
// out: the server knows how those are.
func (c *Config) Settings() []Setting {
	d := Default()
	is, was := showListeners(c.Listeners), showListeners(d.Listeners)
	all := []Setting{{Path: "listeners", Value: is, Default: was, Changed: is != was, Help: "addresses that the server listens on, with the dialect of each"}}
	for _, k := range keys {
		is, was := k.show(c), k.show(&d)
		value := k.hide(is)
		if k.path == "hash.seed" && is != was {
			value = hidden // who knows it can make prompts that seem equal
		}
		all = append(all, Setting{Path: k.path, Value: value, Default: was, Changed: is != was, Live: Live(k.path), Help: k.help})
	}
	return all
}

// hidden stands for a secret.
const hidden = "***"

// hide returns a shown value without the users, passwords and queries of URLs.
func (k key) hide(value string) string {
	urls := []string{value}
	if k.kind.list {
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
