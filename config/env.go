package config

import (
	"regexp"
	"slices"
	"strings"

	"example.com/conductor/spelling"
)

const (
	envPrefix = "CONDUCTOR_"
	envFile   = "CONDUCTOR_CONFIG_PATH"
	envLevel  = "CONDUCTOR_LOG_LEVEL"
	envSeed   = "CONDUCTOR_SEED" // Mooncake documents it as legacy; it never had an effect
)

// Variables of the commands that ask a server.
const (
	EnvServer    = "CONDUCTOR_SERVER"     // the server, unless --server names it
	EnvTokenFile = "CONDUCTOR_TOKEN_FILE" // the file of the token, unless --token-file names it
	EnvWait      = "CONDUCTOR_WAIT"       // how long they wait for a server that does not listen yet
)

// notForServe are variables that mean nothing to a server and are no mistake either: those of commands, of the compose
// files, and of the tests.
var notForServe = []string{EnvServer, EnvTokenFile, EnvWait, "CONDUCTOR_IMAGE", "CONDUCTOR_LAB_IMAGE", "CONDUCTOR_BINARY",
	"CONDUCTOR_PYTHON"}

// serviceLinks are the variables Kubernetes sets in every pod of a namespace that has a service called
// conductor, or conductor-something.
var serviceLinks = regexp.MustCompile(
	`^CONDUCTOR(_[A-Z0-9_]+)?_(SERVICE_(HOST|PORT(_[A-Z0-9_]+)?)|PORT(_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)$`)

// parseEnviron turns NAME=value lines into a map. A later line wins.
func parseEnviron(lines []string) map[string]string {
	env := make(map[string]string, len(lines))
	for _, line := range lines {
		if name, value, ok := strings.Cut(line, "="); ok {
			env[name] = value
		}
	}
	return env
}

// readEnv reads the CONDUCTOR_… variables and Dynamo's. An empty variable is not set. An unknown one is a
// warning, because another program on the machine may own it.
func (l *loader) readEnv(env map[string]string) {
	l.readDynamoEnv(env)
	var known []string
	byName := map[string]setting{}
	for _, s := range allSettings {
		byName[s.env()] = s
		known = append(known, s.env())
	}
	known = append(append(known, envFile), notForServe...)
	var names []string
	for name, value := range env {
		if strings.HasPrefix(name, envPrefix) && value != "" {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		at := placeIn(inEnv, "env "+name)
		s, isSetting := byName[name]
		switch {
		case isSetting:
			l.readText(s, env[name], at)
		case name == envSeed:
			l.warns.addProblem(at, "", "has no effect; %s sets the hash seed", envPrefix+"HASH_SEED")
		case name == envFile || slices.Contains(notForServe, name) || serviceLinks.MatchString(name):
		default:
			l.warns.addProblem(at, "", "unknown variable%s", spelling.DidYouMean(meantVariable(name, known), known))
		}
	}
}

// meantVariable returns the one known variable that begins or ends as an unknown one does: CONDUCTOR_LISTENERS for
// CONDUCTOR_LISTEN, CONDUCTOR_LIMITS_MAX_SOURCES for CONDUCTOR_MAX_SOURCES. If there is none or several, it returns name.
func meantVariable(name string, known []string) string {
	end := "_" + strings.TrimPrefix(name, envPrefix)
	var meant []string
	for _, k := range known {
		if strings.HasPrefix(k, name) || strings.HasSuffix(k, end) {
			meant = append(meant, k)
		}
	}
	if len(meant) != 1 || end == "_" {
		return name
	}
	return meant[0]
}
