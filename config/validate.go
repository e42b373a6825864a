package config

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"example.com/conductor/events/reach"
)

// A Complaint is one broken rule.
type Complaint struct {
	Path    string // the value that breaks it, such as sources[2].endpoint
	Message string
	Other   string // path of the value it clashes with, which the message ends with; "" for none
	Warning bool   // a server starts nevertheless
}

// report turns complaints about a loaded config into errors and warnings. It skips values
// that could not be read: they are reported already.
func (l *loader) report(complaints []Complaint) {
	for _, e := range complaints {
		if l.unreadable(e.Path) || l.vouched[e.Path] {
			continue
		}
		message := e.Message
		if e.Other != "" {
			if l.anyUnreadable(e.Path, e.Other) {
				continue
			}
			message += " " + l.nameOf(e.Other)
			if at := l.placeOf(e.Other).String(); at != "" {
				message += " (" + at + ")"
			}
		}
		to := &l.errs
		if e.Warning {
			to = &l.warns
		}
		to.add(l.placeOf(e.Path), l.nameOf(e.Path), "%s", message)
	}
}

// anyUnreadable reports whether a path or a part of it could not be read, so that a clash
// may not be real.
func (l *loader) anyUnreadable(paths ...string) bool {
	for failed, yes := range l.failed {
		for _, path := range paths {
			if yes && (failed == path || strings.HasPrefix(failed, path+".")) {
				return true
			}
		}
	}
	return false
}

// complaints lists every broken rule in the order of the struct.
func (c *Config) complaints() (out []Complaint) {
	add := func(path, format string, args ...any) {
		out = append(out, Complaint{Path: path, Message: fmt.Sprintf(format, args...)})
	}
	clash := func(path, other, message string) {
		out = append(out, Complaint{Path: path, Message: message, Other: other})
	}

	if len(c.Listeners) == 0 {
		add("listeners", "no listener; without one nobody can ask")
	}
	addresses := map[string]string{}
	for i, one := range c.Listeners {
		path := fmt.Sprintf("listeners[%d]", i)
		if _, err := dialects.parse(one.Dialect); err != nil {
			add(path+".dialect", "%s", err)
		}
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

	for _, k := range keys {
		v := reflect.ValueOf(k.value(c))
		switch {
		case v.Kind() == reflect.String || k.kind.list:
			if _, err := k.kind.parse(k.show(c)); err != nil {
				add(k.path, "%s", err)
			}
		case v.CanInt() && v.Int() < k.min && !(k.kind.literal == Auto && k.value(c) == AutoCount):
			least := reflect.New(v.Type()).Elem()
			least.SetInt(k.min)
			add(k.path, "%s is too small; the least is %s", k.show(c), show(least.Interface()))
		}
	}
	if c.Stream.QueueBytesTotal/2 < c.Limits.MaxPayload { // half is for live batches
		clash("stream.queue_bytes_total", "limits.max_payload", "too small to hold two messages of the size allowed by")
	}
	if c.Cluster.Mode == Shards && c.Store.URL == "" {
		clash("cluster.mode", "store.url", "replicas share shards by a store: set")
	}

	if strings.HasPrefix(c.Store.URL, "redis://") {
		for _, f := range []struct{ path, file string }{{"store.cacert", c.Store.CACert}, {"store.cert", c.Store.Cert}, {"store.key", c.Store.Key}} {
			if f.file != "" {
				clash(f.path, "store.url", "is for TLS; write rediss:// in")
			}
		}
	}

	identities := map[string]string{}
	for i, s := range c.Sources {
		path := fmt.Sprintf("sources[%d]", i)
		for _, e := range s.complaints() {
			add(path+"."+e.Path, "%s", e.Message)
		}
		if s.InstanceID == "" {
			continue
		}
		if first, twice := identities[s.Key()]; twice {
			clash(path, first, fmt.Sprintf("the same instance, tenant and rank %q as", s.Key()))
			continue
		}
		identities[s.Key()] = path
	}
	if n := len(c.Sources); n > c.Limits.MaxSources {
		clash("sources", "limits.max_sources", fmt.Sprintf("%d are more than the %d allowed by", n, c.Limits.MaxSources))
	}
	return out
}

// maxAliases is the most aliases of a source.
const maxAliases = 64

// push is the endpoint of a source whose publisher calls us.
const push = "push:"

// complaints lists the broken rules of one source alone.
func (s *Source) complaints() (out []Complaint) {
	add := func(path, message string) { out = append(out, Complaint{Path: path, Message: message}) }
	for _, f := range []struct{ path, endpoint string }{{"endpoint", s.Endpoint}, {"replay_endpoint", s.ReplayEndpoint}, {"snapshot_endpoint", s.SnapshotEndpoint}} {
		if s.Discover != "" && f.endpoint != "" && s.Events == "" {
			add(f.path, "comes from the engine with discover")
		}
	}
	if s.Discover != "" {
		if err := checkURL(s.Discover); err != nil {
			add("discover", err.Error())
		}
	} else if s.Endpoint == "" && s.Events == none {
		// there is nothing to follow
	} else if s.Endpoint == "" {
		add("endpoint", "is required")
	} else if s.Endpoint == push {
		if !strings.EqualFold(s.Type, "LMCache") {
			add("endpoint", push+" is for type LMCache")
		}
	} else if err := checkLiveEndpoint(s.Endpoint); err != nil {
		add("endpoint", err.Error())
	}
	for _, f := range []struct{ path, endpoint string }{{"replay_endpoint", s.ReplayEndpoint}, {"snapshot_endpoint", s.SnapshotEndpoint}} {
		if f.endpoint == "" {
			continue
		}
		if err := checkEndpoint(f.endpoint); err != nil {
			add(f.path, err.Error())
		}
	}
	if s.SnapshotEndpoint != "" && s.Copies == Set {
		add("copies", "must be count with a snapshot_endpoint")
	}
	if s.Type == "" && s.Discover != "" {
		// the engine tells it
	} else if s.Type == "" {
		add("type", "is required; it is "+sourceTypes.wants)
	} else if _, err := sourceTypes.parse(s.Type); err != nil {
		add("type", err.Error())
	}
	if s.ModelName == "" && s.Discover == "" {
		add("modelname", "is required")
	}
	if s.InstanceID == "" {
		add("instance_id", "is required")
	}
	if s.BlockSize == AutoCount {
		// the engine tells it
	} else if s.BlockSize == 0 {
		add("block_size", "is required; it is the engine's tokens a block")
	} else if s.BlockSize < 0 {
		add("block_size", fmt.Sprintf("%d is out of range 1 to 2147483647", s.BlockSize))
	}
	least := func(path string, ttl time.Duration) {
		if ttl != 0 && ttl < leastTTL {
			add(path, fmt.Sprintf("%s is too short; the least is %s", ttl, leastTTL))
		}
	}
	least(sourceTTL, s.TTL)
	for _, medium := range slices.Sorted(maps.Keys(s.MediaTTL)) {
		least(sourceTTL+"."+medium, s.MediaTTL[medium])
	}
	pool := strings.EqualFold(s.Type, "Mooncake") || strings.EqualFold(s.Type, "LMCache")
	if len(s.Serves) > 0 && !pool {
		add("serves", "is for types Mooncake and LMCache; blocks of an engine are its own")
	}
	if len(s.Aliases) > 0 && pool {
		add("aliases", "is for engines, not for type "+s.Type)
	}
	if len(s.Aliases) > maxAliases {
		add("aliases", fmt.Sprintf("%d names are too many; the most are %d", len(s.Aliases), maxAliases))
	}
	for _, f := range []struct{ name, value string }{{"copies", s.Copies}, {"reports", s.Reports}, {"owned", s.Owned}, {"clear", s.Clear}, {"snapshot_endpoint", s.SnapshotEndpoint}} {
		if f.value != "" && pool {
			add(f.name, "is for engines, not for type "+s.Type)
		}
	}
	out = append(out, s.eventComplaints(pool)...)
	if s.DPRank < 0 {
		add("dp_rank", fmt.Sprintf("%d is out of range 0 to 2147483647", s.DPRank))
	}
	return out
}

// eventComplaints lists the broken rules of fields for engines that publish no events.
func (s *Source) eventComplaints(pool bool) (out []Complaint) {
	add := func(path, message string) { out = append(out, Complaint{Path: path, Message: message}) }
	if s.Events == "" {
		if s.CapacityBlocks != 0 {
			add(capacityBlocks, "needs events none")
		}
		if s.Approximate != "" {
			add("approximate", "needs events none")
		}
		return out
	}
	if pool {
		add("events", "is for engines, not for type "+s.Type)
	}
	if s.CapacityBlocks == 0 {
		add(capacityBlocks, "is required with events none; it is how many blocks the engine's cache has room for")
	} else if s.CapacityBlocks < 0 {
		add(capacityBlocks, fmt.Sprintf("%d is out of range 1 to 2147483647", s.CapacityBlocks))
	}
	if s.BlockSize == AutoCount {
		add("block_size", "must be a number with events none; no event tells it")
	}
	for _, f := range []struct {
		path  string
		given bool
	}{
		{"endpoint", s.Endpoint != ""}, {"discover", s.Discover != ""}, {"replay_endpoint", s.ReplayEndpoint != ""}, {"snapshot_endpoint", s.SnapshotEndpoint != ""},
		{"additionalsalt", s.AdditionalSalt != ""}, {"copies", s.Copies != ""}, {"reports", s.Reports != ""}, {"owned", s.Owned != ""}, {"clear", s.Clear != ""},
		{"may_announce", len(s.MayAnnounce) > 0}, {"sequence", s.Sequence != ""}, {hashProfile, s.HashProfile != (HashProfile{})},
	} {
		if f.given {
			add(f.path, "must be left out with events none; there is nothing to follow, and no event that it could be about")
		}
	}
	if len(s.MediaTTL) > 0 {
		add(sourceTTL, "must be one time with events none; all blocks count as on the device")
	}
	return out
}

// checkExpanded returns an error that names the first variable in an address.
func checkExpanded(address string) error {
	if err := reach.CheckExpanded(address); err != nil {
		return fmt.Errorf("%q %w", address, err)
	}
	return nil
}

// checkAddress checks host:port and returns the port.
func checkAddress(address string) (port int, err error) {
	if address == "" {
		return 0, errors.New("is required; it is host:port, such as \":13333\"")
	}
	if err := checkExpanded(address); err != nil {
		return 0, err
	}
	_, text, err := net.SplitHostPort(address)
	if err != nil {
		return 0, fmt.Errorf("%q is no host:port: %s", address, splitReason(err))
	}
	port, err = strconv.Atoi(text)
	if err != nil || port < 0 || port > 65535 {
		return 0, fmt.Errorf("%q has no port from 0 to 65535", address)
	}
	return port, nil
}

// checkLiveEndpoint checks the endpoint of live events: an address to connect to, or a
// bound one that publishers connect to.
func checkLiveEndpoint(endpoint string) error {
	bound, ok := strings.CutPrefix(endpoint, "bind:")
	if !ok {
		return checkEndpoint(endpoint)
	}
	rest, ok := strings.CutPrefix(bound, "tcp://")
	if !ok {
		return fmt.Errorf("%q cannot be bound to; write bind:tcp://*:port", endpoint)
	}
	return checkTCP(endpoint, rest, reach.IsWildcard)
}

// checkEndpoint checks a ZMQ address that can be connected to.
func checkEndpoint(endpoint string) error {
	scheme, rest, ok := strings.Cut(endpoint, "://")
	switch {
	case !ok:
		return fmt.Errorf("%q has no transport; write tcp://host:port or ipc://path", endpoint)
	case scheme == "ipc" && rest == "":
		return fmt.Errorf("%q has no path", endpoint)
	case scheme == "ipc":
		return checkExpanded(endpoint)
	case scheme != "tcp":
		return fmt.Errorf("%q has the transport %q; tcp and ipc reach another process", endpoint, scheme)
	}
	return checkTCP(endpoint, rest, func(string) bool { return false })
}

// checkTCP checks host and port of an endpoint. A host may be what CheckHost refuses if free says so.
func checkTCP(endpoint, rest string, free func(host string) bool) error {
	if err := checkExpanded(endpoint); err != nil {
		return err
	}
	host, port, err := net.SplitHostPort(rest)
	if err != nil {
		return fmt.Errorf("%q is no tcp://host:port: %s", endpoint, splitReason(err))
	}
	if err := reach.CheckHost(host); err != nil && !free(host) {
		return fmt.Errorf("%q %w", endpoint, err)
	}
	if err := reach.CheckPort(port); err != nil {
		return fmt.Errorf("%q %w", endpoint, err)
	}
	return nil
}

// splitReason returns the reason of an error of net.SplitHostPort without the address,
// which the caller prints.
func splitReason(err error) string {
	var e *net.AddrError
	if errors.As(err, &e) {
		return e.Err
	}
	return err.Error()
}
