package config

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
)

// AutoCount is a number that is not set: a block size that the engine or its first events tell, or a bound
// that follows another one.
const AutoCount = math.MinInt32

// Names of fields of a source that code here treats apart.
const (
	sourceTTL      = "ttl"
	hashProfile    = "hash_profile"
	capacityBlocks = "capacity_blocks"
)

// Source is one subscription known from the start, with the fields of POST /register. A field with omitempty
// may be null in a file, which counts as absent.
type Source struct {
	// Endpoint is the PUB socket of the engine, as tcp://host:port or ipc://path. It is "" with Discover.
	Endpoint string `yaml:"endpoint"`
	// Discover is the HTTP server of the engine, which is asked for the endpoints; "" where they are given.
	Discover string `yaml:"discover,omitempty"`
	// ReplayEndpoint is the ROUTER socket that replays batches, "" when the engine has none.
	ReplayEndpoint string `yaml:"replay_endpoint,omitempty"`
	// SnapshotEndpoint is the ROUTER socket for snapshots of the engine's cache, "" when it has none.
	SnapshotEndpoint string `yaml:"snapshot_endpoint,omitempty"`

	Type           string `yaml:"type" words:"vLLM|SGLang|Mooncake|Standard|LMCache"`
	ModelName      string `yaml:"modelname"`
	LoraName       string `yaml:"lora_name,omitempty"`      // "" is the base model
	TenantID       string `yaml:"tenant_id,omitempty"`      // "" is DefaultTenant
	InstanceID     string `yaml:"instance_id"`              // the name that answers give; several ranks may share it
	BlockSize      int    `yaml:"block_size" auto:"yes"`    // tokens a block; AutoCount if the engine tells it
	DPRank         int    `yaml:"dp_rank"`                  // data-parallel rank, 0 where there is one
	AdditionalSalt string `yaml:"additionalsalt,omitempty"` // salt of blocks whose events carry none

	// TTL is how long a block stays after its last announcement; 0 is until it is removed.
	TTL time.Duration `yaml:"ttl,omitempty"`
	// MediaTTL is the same of single media, by the names that engines give them. Files have it as a map under ttl.
	MediaTTL map[string]time.Duration

	// Serves are the instances that a pool is bound to; none is all.
	Serves []string `yaml:"serves,omitempty" kind:"names"`
	// Aliases are further names of the model in queries.
	Aliases []string `yaml:"aliases,omitempty" kind:"names"`
	// Copies is Stream.Copies for this source; "" is that.
	Copies string `yaml:"copies,omitempty" words:"count|set"`
	// Reports is what a store of a block that the engine has means: incremental for a further copy, full for a reuse.
	// With "" its events show it.
	Reports string `yaml:"reports,omitempty" words:"incremental|full"`
	// Owned says whether blocks of the engine's cache runner count or are dropped; "" is count.
	Owned string `yaml:"owned,omitempty" words:"count|drop"`
	// Clear says whether a clear takes all tiers or only the device; "" is all.
	Clear string `yaml:"clear,omitempty" words:"all|device"`
	// MayAnnounce are the tenants that its events may name besides its own.
	MayAnnounce []string `yaml:"may_announce,omitempty" kind:"names"`
	// Sequence says whether the publisher numbers the batches of this source alone or of all its topics; "" is the
	// rule of its type.
	Sequence string `yaml:"sequence,omitempty" words:"own|shared"`

	// Events is none for an engine that publishes no events, else "". CapacityBlocks and Approximate are for such
	// engines: the room of the cache in blocks, and count if expected blocks count as held.
	Events         string `yaml:"events,omitempty" words:"none"`
	CapacityBlocks int    `yaml:"capacity_blocks,omitempty"`
	Approximate    string `yaml:"approximate,omitempty" words:"count"`

	// HashProfile is how the engine names its blocks.
	HashProfile HashProfile `yaml:"hash_profile,omitempty"`
}

// HashProfile says how an engine names its blocks; the zero value is not known. A file that has it must give
// the fields without omitempty.
type HashProfile struct {
	Strategy        string `yaml:"strategy" kind:"filled"`
	Algorithm       string `yaml:"algorithm" kind:"filled"`
	PythonHashSeed  string `yaml:"python_hash_seed" kind:"filled"` // the exact text: "0" is not "00"
	IndexProjection string `yaml:"index_projection" kind:"filled"`
	RootDigest      string `yaml:"root_digest,omitempty"` // lower-case hexadecimal; "" is any
	ExtraKeys       string `yaml:"extra_keys,omitempty"`  // "" is untagged
}

// Key is the identity of a subscription as answers print it: instance|tenant|rank.
func (s Source) Key() string {
	return s.InstanceID + "|" + s.withTenant().TenantID + "|" + strconv.Itoa(s.DPRank)
}

// Learns reports whether settings of the source come from its engine.
func (s *Source) Learns() bool { return s.Discover != "" || s.BlockSize == AutoCount }

// withTenant returns the source with its tenant written out.
func (s Source) withTenant() Source {
	if s.TenantID == "" {
		s.TenantID = DefaultTenant
	}
	return s
}

const (
	leastTTL   = time.Second // the shortest time to live: aging stays rarer than announcing
	maxAliases = 64          // of one source
	push       = "push:"     // endpoint of a source whose publisher calls us
)

// complaints lists the broken rules of one source alone.
func (s *Source) complaints() (out []Complaint) {
	add := func(path, format string, args ...any) {
		out = append(out, Complaint{Path: path, Message: fmt.Sprintf(format, args...)})
	}
	pool := strings.EqualFold(s.Type, "Mooncake") || strings.EqualFold(s.Type, "LMCache")
	out = s.endpointComplaints()

	types := kindNamed(sourceFields, "type")
	if s.Type != "" {
		if _, err := types.parse(s.Type); err != nil {
			add("type", "%s", err)
		}
	} else if s.Discover == "" { // else the engine tells it
		add("type", "is required; it is %s", types.wants)
	}
	if s.ModelName == "" && s.Discover == "" {
		add("modelname", "is required")
	}
	if s.InstanceID == "" {
		add("instance_id", "is required")
	}
	if s.BlockSize == 0 {
		add("block_size", "is required; it is the engine's tokens a block")
	} else if s.BlockSize < 0 && s.BlockSize != AutoCount {
		add("block_size", "%d is out of range 1 to 2147483647", s.BlockSize)
	}
	if s.DPRank < 0 {
		add("dp_rank", "%d is out of range 0 to 2147483647", s.DPRank)
	}

	checkTTL := func(path string, ttl time.Duration) {
		if ttl != 0 && ttl < leastTTL {
			add(path, "%s is too short; the least is %s", ttl, leastTTL)
		}
	}
	checkTTL(sourceTTL, s.TTL)
	for _, medium := range slices.Sorted(maps.Keys(s.MediaTTL)) {
		checkTTL(sourceTTL+"."+medium, s.MediaTTL[medium])
	}

	// What is for pools alone, and what for engines alone.
	if len(s.Serves) > 0 && !pool {
		add("serves", "is for types Mooncake and LMCache; blocks of an engine are its own")
	}
	if len(s.Aliases) > maxAliases {
		add("aliases", "%d names are too many; the most are %d", len(s.Aliases), maxAliases)
	}
	for _, f := range []struct {
		path  string
		given bool
	}{
		{"aliases", len(s.Aliases) > 0}, {"copies", s.Copies != ""}, {"reports", s.Reports != ""}, {"owned", s.Owned != ""},
		{"clear", s.Clear != ""}, {"snapshot_endpoint", s.SnapshotEndpoint != ""}, {"events", s.Events != ""},
	} {
		if f.given && pool {
			add(f.path, "is for engines, not for type %s", s.Type)
		}
	}
	if s.SnapshotEndpoint != "" && s.Copies == Set {
		add("copies", "must be count with a snapshot_endpoint")
	}
	return append(out, s.eventlessComplaints()...)
}

// endpointComplaints lists what is wrong with the addresses of a source.
func (s *Source) endpointComplaints() (out []Complaint) {
	add := func(path, message string) { out = append(out, Complaint{Path: path, Message: message}) }
	switch {
	case s.Discover != "":
		if err := checkURL(s.Discover); err != nil {
			add("discover", err.Error())
		}
		if s.Endpoint != "" && s.Events == "" {
			add("endpoint", "comes from the engine with discover")
		}
	case s.Endpoint == "" && s.Events == "":
		add("endpoint", "is required")
	case s.Endpoint == push:
		if !strings.EqualFold(s.Type, "LMCache") {
			add("endpoint", push+" is for type LMCache")
		}
	case s.Endpoint != "":
		if err := checkLiveEndpoint(s.Endpoint); err != nil {
			add("endpoint", err.Error())
		}
	}
	for _, f := range []struct{ path, endpoint string }{
		{"replay_endpoint", s.ReplayEndpoint}, {"snapshot_endpoint", s.SnapshotEndpoint},
	} {
		if f.endpoint == "" {
			continue
		}
		if s.Discover != "" && s.Events == "" {
			add(f.path, "comes from the engine with discover")
		}
		if err := checkEndpoint(f.endpoint); err != nil {
			add(f.path, err.Error())
		}
	}
	return out
}

// eventlessComplaints lists the broken rules of fields for engines that publish no events.
func (s *Source) eventlessComplaints() (out []Complaint) {
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
		{"endpoint", s.Endpoint != ""}, {"discover", s.Discover != ""}, {"replay_endpoint", s.ReplayEndpoint != ""},
		{"snapshot_endpoint", s.SnapshotEndpoint != ""}, {"additionalsalt", s.AdditionalSalt != ""}, {"copies", s.Copies != ""},
		{"reports", s.Reports != ""}, {"owned", s.Owned != ""}, {"clear", s.Clear != ""}, {"may_announce", len(s.MayAnnounce) > 0},
		{"sequence", s.Sequence != ""}, {hashProfile, s.HashProfile != (HashProfile{})},
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

// maxSourceFile bounds a file of sources.
const maxSourceFile = 1 << 20

// ReadSources reads a file that has sources and no other setting. The error joins all mistakes.
func ReadSources(path string) ([]Source, error) {
	if info, err := os.Stat(path); err != nil {
		return nil, err
	} else if info.Size() > maxSourceFile {
		return nil, fmt.Errorf("%d bytes are more than the %d of a file of sources", info.Size(), maxSourceFile)
	}
	loaded, err := Load(Options{File: path})
	if err != nil {
		return nil, err
	}
	rest := loaded.Config
	sources := rest.Sources
	rest.Sources = nil
	if !reflect.DeepEqual(rest, Default()) {
		return nil, errors.New("a file of sources has no other settings")
	}
	return sources, nil
}
