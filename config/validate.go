package config

import (
	"fmt"
	"strings"

	"example.com/conductor/conductor/registration"
)

// A complaint is one broken rule.
type complaint struct {
	path    string // the value that breaks it, such as sources[2].endpoint
	message string
	other   string // path of the value it clashes with, which the message ends with; "" for none
	warning bool   // a server starts nevertheless
}

// maxMistakes is how many mistakes are reported before the rest is not checked, as of a file that cannot be read.
const maxMistakes = 1000

// reportComplaints turns complaints about a loaded config into errors and warnings. It skips values
// that could not be read: they are reported already.
func (l *loader) reportComplaints(complaints []complaint) {
	for _, e := range complaints {
		if len(l.errs) >= maxMistakes {
			if len(l.errs) == maxMistakes {
				l.errs.addProblem(l.placeOf(e.path), "", "more than %d mistakes: the rest is not checked", maxMistakes)
			}
			return
		}
		if l.isUnreadable(e.path) || l.origins[e.path].vouched {
			continue
		}
		message := e.message
		if e.other != "" {
			if l.anyUnreadable(e.path, e.other) {
				continue
			}
			message += " " + l.nameOf(e.other)
			if at := l.placeOf(e.other).String(); at != "" {
				message += " (" + at + ")"
			}
		}
		to := &l.errs
		if e.warning {
			to = &l.warns
		}
		to.addProblem(l.placeOf(e.path), l.nameOf(e.path), "%s", message)
	}
}

// anyUnreadable reports whether a path or a part of it could not be read, so that a clash
// may not be real.
func (l *loader) anyUnreadable(paths ...string) bool {
	for at, o := range l.origins {
		for _, path := range paths {
			if o.failed && (at == path || strings.HasPrefix(at, path+".")) {
				return true
			}
		}
	}
	return false
}

// complaints lists every broken rule that is about more than one setting, about listeners or about sources. Each layer
// has checked the settings alone when it read them.
func (c *Config) complaints() (out []complaint) {
	add := func(path, format string, args ...any) {
		out = append(out, complaint{path: path, message: fmt.Sprintf(format, args...)})
	}
	clash := func(path, other, message string) {
		out = append(out, complaint{path: path, message: message, other: other})
	}

	if len(c.Listeners) == 0 {
		add("listeners", "no listener; without one nobody can ask")
	}
	addresses := map[string]string{}
	for i, one := range c.Listeners {
		path := fmt.Sprintf("listeners[%d]", i)
		port, err := checkAddress(one.Address)
		if err != nil {
			add(path+".address", "%s", err)
			continue
		}
		if first, twice := addresses[one.Address]; twice && port != 0 {
			clash(path, first, fmt.Sprintf("the same address %q as", one.Address))
		}
		addresses[one.Address] = path
	}

	if c.Stream.QueueBytesTotal/2 < c.Limits.MaxPayload { // half is for live batches
		clash("stream.queue_bytes_total", "limits.max_payload", "too small to hold two messages of the size allowed by")
	}
	if c.Cluster.Mode == Shards && c.Store.URL == "" {
		clash("cluster.mode", "store.url", "replicas share shards by a store: set")
	}

	if strings.HasPrefix(c.Store.URL, "redis://") {
		for _, f := range []struct{ path, file string }{
			{"store.cacert", c.Store.CACert}, {"store.cert", c.Store.Cert}, {"store.key", c.Store.Key},
		} {
			if f.file != "" {
				clash(f.path, "store.url", "is for TLS; write rediss:// in")
			}
		}
	}

	identities := map[registration.Key]string{}
	for i, s := range c.Sources {
		path := fmt.Sprintf("sources[%d]", i)
		for _, e := range s.complaints() {
			add(path+"."+e.path, "%s", e.message)
		}
		if s.Instance == "" {
			continue
		}
		if first, twice := identities[s.Key()]; twice {
			clash(path, first, fmt.Sprintf("the same instance, tenant and rank %q as", s.Key().String()))
			continue
		}
		identities[s.Key()] = path
	}
	if n := len(c.Sources); n > c.Limits.MaxSources {
		clash("sources", "limits.max_sources", fmt.Sprintf("%d are more than the %d allowed by", n, c.Limits.MaxSources))
	}
	return out
}
