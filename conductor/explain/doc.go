// Package explain answers what people ask of a fleet: why a prompt matches no further, what a fleet would lose with an
// instance, which prefixes and contexts there are, how long blocks stay, what would let a source claim the messages of a topic.
//
//	prompt --match--> rows, runs of blocks                             explain.go
//	first missing block --source's past, room, state--> reasons        reasons.go
//	prompt --all adapters, salts and deployments in view--> elsewhere  elsewhere.go
//	topics that no source claims --> what to register                  unclaimed.go
//
// An Inspector belongs to one client: it sees the client's tenants alone, and shows the salts that the client may see. Its
// calls walk indexes and take the turns of sources, one at a time, which no query does: a call costs up to seconds on a
// large index. What explanations look like is in package inspect.
package explain
