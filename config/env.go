package config

import (
	"regexp"
	"slices"
	"strings"
)

const (
	envPrefix    = "CONDUCTOR_"
	envFile      = "CONDUCTOR_CONFIG_PATH"
	envListeners = "CONDUCTOR_LISTENERS"
	envLevel     = "CONDUCTOR_LOG_LEVEL"
	envSeed      = "CONDUCTOR_SEED"   // Mooncake documents it as legacy; it never had an effect
	envPython    = "CONDUCTOR_PYTHON" // names the interpreter for the tests' peers
)

// serviceLinks are the variables Kubernetes sets in every pod of a namespace
// that has a service called conductor, or conductor-something.
var serviceLinks = regexp.MustCompile(`^CONDUCTOR(_[A-Z0-9_]+)?_(SERVICE_(HOST|PORT(_[A-Z0-9_]+)?)|PORT(_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)$`)

// environ turns NAME=value lines into a map. A later line wins.
func environ(lines []string) map[string]string {
	env := make(map[string]string, len(lines))
	for _, line := range lines {
		if name, value, ok := strings.Cut(line, "="); ok {
			env[name] = value
		}
	}
	return env
}

// readEnv reads the CONDUCTOR_… variables. An empty variable is not set. An unknown one is
// a warning, because another program on the machine may own it.
func (l *loader) readEnv(env map[string]string) layer {
	out := layer{}
	l.readDynamoEnv(env, out)
	var names, known []string
	for name, value := range env {
		if strings.HasPrefix(name, envPrefix) && value != "" {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	byName := map[string]key{}
	for _, k := range keys {
		byName[k.env()] = k
		known = append(known, k.env())
	}
	known = append(known, envListeners, envFile)
	for _, name := range names {
		at := place{layer: inEnv, name: "env " + name}
		value := env[name]
		k, isKey := byName[name]
		switch {
		case isKey:
			l.readText(k, value, at, out)
		case name == envListeners:
			l.readListenerTexts(strings.Split(value, ","), at, out)
		case name == envSeed:
			l.warns.add(at, "", "has no effect; %s sets the hash seed", envPrefix+"HASH_SEED")
		case name == envFile || name == envPython || serviceLinks.MatchString(name):
		default:
			l.warns.add(at, "", "unknown variable%s", didYouMean(name, known))
		}
	}
	return out
}

// readText reads a scalar given as text.
func (l *loader) readText(k key, value string, at place, out layer) {
	v, err := k.kind.parse(strings.TrimSpace(value))
	if err != nil && at.layer == inEnv && k.env() == envLevel {
		// Mooncake takes an unknown level for INFO and starts.
		l.warns.add(at, k.path, "%s; taken for \"info\"", err)
		v, err = "info", nil
	}
	l.places[k.path], l.failed[k.path] = at, err != nil
	if err != nil {
		l.errs.add(at, k.path, "%s", err)
		return
	}
	out[k.path] = v
}

// readListenerTexts reads listeners written ADDRESS=DIALECT. ADDRESS alone means the
// Conductor dialect. The listeners replace those of the layers below.
func (l *loader) readListenerTexts(texts []string, at place, out layer) {
	for path := range l.places {
		if strings.HasPrefix(path, "listeners") {
			delete(l.places, path)
			delete(l.failed, path)
		}
	}
	delete(l.names, "listeners[0].address")
	l.places["listeners"] = at
	list := []Listener{}
	for _, text := range texts {
		address, dialect, given := strings.Cut(strings.TrimSpace(text), "=")
		one := Listener{strings.TrimSpace(address), Conductor}
		if given {
			v, err := dialects.parse(strings.TrimSpace(dialect))
			if err != nil {
				l.errs.add(at, "listeners", "%q: dialect %s", text, err)
				continue
			}
			one.Dialect = v.(string)
		}
		list = append(list, one)
	}
	if len(list) == 0 {
		l.failed["listeners"] = true // each was bad and reported
	}
	out["listeners"] = list
}
