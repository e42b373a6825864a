package config

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
)

// Flags and two variables set up Dynamo's indexer. This file reads the variables, and the
// flags that have a key. CONDUCTOR_… wins over the variables. Another package knows the
// grammar of the flags for listeners and sources, and hands them to Load as Options.Dynamo.
const (
	envMinWorkers    = "DYN_ROUTER_MIN_INITIAL_WORKERS"
	envTestEndpoints = "DYN_KV_INDEXER_TEST_ENDPOINTS"

	flagPort    = "port"
	flagWorkers = "workers"
)

// A DynamoServer is the listeners and sources that Dynamo's flags name.
type DynamoServer struct {
	// Address is the address of the one listener of the Dynamo dialect. It replaces those
	// of the layers. "" leaves them.
	Address string
	// Alone leaves out the listeners of other dialects. It needs an Address.
	Alone bool
	// Workers are sources in addition to those of the layers. Their endpoints are checked
	// by rules of Dynamo.
	Workers []Source
}

// DynamoFlags defines the flags of settings that Dynamo's indexer has too, and no
// other.
func DynamoFlags(fs *pflag.FlagSet) {
	for _, s := range settings {
		switch s.path {
		case "dynamo.peers", "dynamo.access_log", "dynamo.trace_id_header", "dynamo.access_log_local_time":
			s.defineFlag(fs)
		}
	}
}

// readDynamoEnv reads Dynamo's own variables.
func (l *loader) readDynamoEnv(env map[string]string) {
	if text := env[envMinWorkers]; text != "" {
		const path = "dynamo.min_initial_workers"
		n, err := strconv.ParseInt(strings.TrimPrefix(strings.TrimSpace(text), "+"), 10, 32)
		if err == nil && n < 0 {
			err = strconv.ErrSyntax
		}
		l.noteOrigin(path, placeIn(inEnv, "env "+envMinWorkers), err == nil)
		if err != nil {
			reason := "invalid digit found in string"
			if errors.Is(err, strconv.ErrRange) {
				reason = "number too large to fit in target type"
			}
			// The words of Dynamo name the variable, so the place has no name.
			l.errs.addProblem(place{layer: inEnv}, "", "%s must be a non-negative integer, got %q: %s", envMinWorkers, text, reason)
		} else {
			l.values.Set(path, int(n))
		}
	}
	if slices.Contains([]string{"1", "true", "yes", "on"}, strings.ToLower(strings.TrimSpace(env[envTestEndpoints]))) {
		const path = "dynamo.test_endpoints"
		l.noteOrigin(path, placeIn(inEnv, "env "+envTestEndpoints), true)
		l.values.Set(path, true)
	}
}

// addDynamoServer lays Dynamo's flags over the merged layers.
func (l *loader) addDynamoServer(d DynamoServer, c *Config) {
	if d.Address != "" {
		l.addDynamoListener(d, c)
	}
	at := placeIn(inFlags, "flag --"+flagWorkers)
	for _, s := range d.Workers {
		path := fmt.Sprintf("sources[%d]", len(c.Sources))
		l.origins[path], l.origins[path+".endpoint"] = origin{place: at}, origin{place: at, vouched: true}
		c.Sources = append(c.Sources, s.withTenant())
	}
}

// addDynamoListener puts the one listener of the dialect behind those that stay.
func (l *loader) addDynamoListener(d DynamoServer, c *Config) {
	at := placeIn(inFlags, "flag --"+flagPort)
	goes := func(one Listener) bool { return d.Alone || one.Dialect == Dynamo }
	if slices.ContainsFunc(c.Listeners, goes) {
		if l.origins["listeners"].layer == inFlags {
			l.errs.addProblem(at, "listeners", "--%s says where the %s dialect listens; keep one of the two", allSettings[0].flag, Dynamo)
			return
		}
		l.dropListeners(c, goes)
	}
	l.origins[fmt.Sprintf("listeners[%d]", len(c.Listeners))] = origin{place: at}
	c.Listeners = append(c.Listeners[:len(c.Listeners):len(c.Listeners)], Listener{d.Address, Dynamo})
}

// dropListeners drops some listeners. What is known of the others is found at their new numbers.
func (l *loader) dropListeners(c *Config, goes func(Listener) bool) {
	var stay []Listener
	numbers := make(map[int]int)
	for i, one := range c.Listeners {
		if !goes(one) {
			numbers[i] = len(stay)
			stay = append(stay, one)
		}
	}
	c.Listeners = stay
	moved := make(map[string]origin)
	for path, from := range l.origins {
		number, member, found := strings.Cut(strings.TrimPrefix(path, "listeners["), "]")
		i, err := strconv.Atoi(number)
		if !found || err != nil || !strings.HasPrefix(path, "listeners[") {
			continue
		}
		delete(l.origins, path)
		if now, stays := numbers[i]; stays {
			moved[fmt.Sprintf("listeners[%d]%s", now, member)] = from
		}
	}
	maps.Copy(l.origins, moved)
}
