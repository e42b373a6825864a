package config

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"reflect"
	"strings"

	"example.com/conductor/conductor/registration"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/events/reach"
)

// Names of fields of a source that code here treats apart.
const (
	sourceTTL   = "ttl"
	hashProfile = "hash_profile"
	blockSize   = "block_size"
)

// Source is one subscription known from the start: a registration, whose BlockSize is 0 if the engine is to tell it.
// A field that need not be given may be null in a file, which counts as absent.
type Source struct {
	registration.Registration
	// Discover is the HTTP server of the engine, which is asked for the endpoints; "" where they are given.
	Discover string `yaml:"discover,omitempty"`
}

// Key is the identity of the source.
func (s Source) Key() registration.Key { return s.withTenant().Registration.Key() }

// Learns reports whether settings of the source come from its engine.
func (s *Source) Learns() bool { return s.Discover != "" || s.BlockSize == 0 }

// withTenant returns the source with its tenant written out.
func (s Source) withTenant() Source {
	s.Tenant = cmp.Or(s.Tenant, scope.DefaultTenant)
	return s
}

// complaints lists the broken rules of one source alone: those of every registration, and those of a source whose
// engine is asked.
func (s *Source) complaints() (out []complaint) {
	add := func(path, message string) { out = append(out, complaint{path: path, message: message}) }
	trial, publishes := s.Registration, s.Events == "" // with values in the place of those that the engine tells
	if s.Discover != "" {
		if err := reach.CheckURL(s.Discover); err != nil {
			add("discover", err.Error())
		}
		if !publishes {
			add("discover", "must be left out with events none: there is nothing to ask the engine for")
		}
		for _, e := range s.Endpoints() {
			if publishes && e.Endpoint != "" {
				add(e.Field, "comes from the engine with discover")
			}
		}
		trial.Type, trial.Model = cmp.Or(s.Type, registration.TypeVLLM), cmp.Or(s.Model, "model")
		if publishes {
			trial.Endpoint = cmp.Or(s.Endpoint, "tcp://127.0.0.1:1")
		}
	}
	if s.BlockSize == 0 {
		if trial.BlockSize = 1; !publishes {
			add(blockSize, "must be a number with events none: no event tells it")
		}
	}
	for _, f := range trial.Validate(false) {
		message := f.Message // without the field that it begins with, which the path has
		for _, name := range []string{f.Field, f.Field[strings.LastIndexByte(f.Field, '.')+1:], "endpoint"} {
			message = strings.TrimLeft(strings.TrimPrefix(message, name), ": ")
		}
		add(f.Field, message)
	}
	return out
}

// contradictions lists sources that cannot stand together. Those that a server starts with nevertheless are warnings.
func contradictions(sources []Source) (out []complaint) {
	var all []registration.Registration
	for _, s := range sources {
		all = append(all, s.Registration)
	}
	for _, f := range registration.Faults(all) {
		path := func(source int) string { return fmt.Sprintf("sources[%d].%s", source, f.Field) }
		out = append(out, complaint{path(f.At), f.Reason, path(f.With), f.Finding != ""})
	}
	return out
}

// DiffSources returns the sources that one config has and the other lacks, and those of both that
// differ, by their keys.
func DiffSources(was, is *Config) (added, changed, removed []Source) {
	byKey := func(c *Config) map[registration.Key]Source {
		out := make(map[registration.Key]Source, len(c.Sources))
		for _, s := range c.Sources {
			out[s.Key()] = s.withTenant()
		}
		return out
	}
	before, after := byKey(was), byKey(is)
	for _, s := range is.Sources {
		if old, found := before[s.Key()]; !found {
			added = append(added, s)
		} else if !reflect.DeepEqual(old, s.withTenant()) {
			changed = append(changed, s)
		}
	}
	for _, s := range was.Sources {
		if _, found := after[s.Key()]; !found {
			removed = append(removed, s)
		}
	}
	return added, changed, removed
}

// maxSourceFile bounds a file of sources.
const maxSourceFile = 1 << 20

// ReadSources reads a file that has sources and no other setting. A mistake in one source costs only that source:
// ReadSources then returns the others together with the error, which joins all mistakes. Any other mistake costs the file.
func ReadSources(path string) ([]Source, error) {
	if info, err := os.Stat(path); err != nil {
		return nil, err
	} else if info.Size() > maxSourceFile {
		return nil, fmt.Errorf("%d bytes are more than the %d of a file of sources", info.Size(), maxSourceFile)
	}
	loaded, err := Load(Options{File: path, sourcesApart: true})
	rest := loaded.Config
	rest.Sources = nil
	if !reflect.DeepEqual(rest, Default()) {
		return nil, errors.Join(err, errors.New("a file of sources has no other settings"))
	}
	return loaded.soundSources(), err
}

// soundSources returns the sources that have no mistake, or none if a mistake is in no source.
func (d *Loaded) soundSources() (sound []Source) {
	inSources := 0
	for i, s := range d.Config.Sources {
		name, before := d.loader.nameOf(fmt.Sprintf("sources[%d]", i)), inSources
		for _, mistake := range d.loader.errs {
			if isWithin(mistake.Path, name) {
				inSources++
			}
		}
		if inSources == before {
			sound = append(sound, s)
		}
	}
	if inSources < len(d.loader.errs) {
		return nil
	}
	return sound
}
