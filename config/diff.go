package config

import (
	"reflect"
	"slices"
)

// live are the settings that a running server takes over. The others need a restart.
var live = []string{
	"log.level", "log.slow_query", "metrics.per_source", "ready.min_sources", "limits.max_token_id", "limits.max_queries", "limits.query_wait", "limits.max_sources", "limits.max_tenant_sources",
	"limits.max_connections", "limits.connections_per_address", "limits.memory", "limits.client_requests", "limits.client_bytes", "limits.client_changes", "limits.max_watches",
	"auth.file", "auth.anonymous", "auth.loopback", "privacy.salted_only", "register.allow", "shutdown.drain", "feedback.max_error", "expected.max_bytes",
}

// Live reports whether a running server takes over a setting.
func Live(path string) bool { return path == "sources" || slices.Contains(live, path) }

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
	if w, i := showListeners(was.Listeners), showListeners(is.Listeners); w != i {
		all = append(all, Change{Path: "listeners", Was: w, Is: i})
	}
	for _, k := range keys {
		if w, i := k.show(was), k.show(is); w != i {
			all = append(all, Change{k.path, k.hide(w), k.hide(i), Live(k.path)})
		}
	}
	return all
}

// DiffSources returns the sources that one config has and the other lacks, and those of both that
// differ, by their keys.
func DiffSources(was, is *Config) (added, changed, removed []Source) {
	find := func(in []Source, s Source) *Source {
		i := slices.IndexFunc(in, func(other Source) bool { return other.Key() == s.Key() })
		if i < 0 {
			return nil
		}
		return &in[i]
	}
	for _, s := range is.Sources {
		if old := find(was.Sources, s); old == nil {
			added = append(added, s)
		} else if !reflect.DeepEqual(old.withTenant(), s.withTenant()) {
			changed = append(changed, s)
		}
	}
	for _, s := range was.Sources {
		if find(is.Sources, s) == nil {
			removed = append(removed, s)
		}
	}
	return added, changed, removed
}
