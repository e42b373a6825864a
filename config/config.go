// Package config holds every setting of the server in one struct and builds it from four layers, the later
// ones winning:
//
//	defaults <- file (YAML or JSON) <- CONDUCTOR_… <- flags
//	                |
//	                +-- our keys and Mooncake's own, in one file or apart
//
// Invariants:
//  1. Nothing is guessed: an unknown key, a value of the wrong type or a number without its unit is an
//     error, never a default.
//  2. All errors of all layers are reported at once, each with its place: file:line:column, env NAME or
//     flag --name.
//  3. A setting is written down once, as a field of settings.go with its comment and its tags. One walk over
//     these (walk.go) gives the keys of the file, the variables, the flags, the range checks, the printed
//     defaults and docs/settings.md. The fields of sources are those of conductor/registration, with their rules.
//
// Concurrency: a Config is a plain value; nothing here keeps state. It is read at the start and at a reload.
//
// Cost: the walk and Load take a millisecond for a file of usual size. A file may unfold to maxPairs keys.
package config

// Values of Listener.Dialect.
const (
	Conductor        = "conductor"         // JSON as the published Conductor page has it
	ConductorMsgpack = "conductor-msgpack" // msgpack of Mooncake Conductor's second server
	ConductorJSONV2  = "conductor-json-v2" // the same in JSON, as that server spoke it at first
	Dynamo           = "dynamo"            // JSON of Dynamo's standalone indexer
	GRPC             = "grpc"              // gRPC: kvconductor.v1.Conductor, and what sgl-router calls
)

// Values of several settings.
const (
	Set    = "set"    // Stream.Copies: a block leaves at the first removal; the other value counts copies
	Any    = "any"    // Pool.Completeness: a block counts with any of its objects; the other value wants all
	Auto   = "auto"   // Auth.Anonymous, Auth.Loopback and numbers: the server decides
	Shards = "shards" // Cluster.Mode: each replica follows the sources of its shards; the other value has all follow all
)

// Listener is one port.
type Listener struct {
	Address string `yaml:"address"` // host:port; an empty host is every interface, port 0 any free one
	// what the paths at its root speak; Conductor if a file says nothing
	Dialect string `yaml:"dialect" kind:"dialect"`
}

// Default returns the settings of a server that was told nothing.
func Default() Config {
	var c Config
	for _, s := range allSettings {
		s.assign(&c, s.initial)
	}
	return c
}
