package registration

import (
	"math"
	"strings"
)

// Some engines publish no KV events: llama.cpp, TGI, TensorRT-LLM without streaming, vLLM where events are
// off. Such an engine is registered with events "none". Nothing is connected to, and what it holds is known
// only from what routers report. Type then says what its blocks are hashed like, and any engine without a
// type of its own is Standard.

const (
	// EventsNone is the value of Registration.Events for an engine that publishes no events.
	EventsNone = "none"
	// ApproximateCount is the value of Registration.Approximate that lets expected blocks count as held.
	ApproximateCount = "count"
)

// IsApproximate reports whether the engine publishes no events. It also holds before normalize.
func (r *Registration) IsApproximate() bool { return strings.EqualFold(r.Events, EventsNone) }

// normalizeEvents brings the fields of an engine that publishes no events to their canonical form. It refuses
// those that say where events come from or what they mean, because a client that sets them expects events.
func (r *Registration) normalizeEvents(bad *faults) {
	switch {
	case r.Events == "":
		const known = "needs events none: what an engine that publishes events holds is known from them"
		if r.CapacityBlocks != 0 {
			bad.add("capacity_blocks", "conflict", "capacity_blocks "+known)
		}
		if r.Approximate != "" {
			bad.add("approximate", "conflict", "approximate "+known)
		}
		return
	case !r.IsApproximate():
		bad.add("events", "invalid_value", "events must be %s, or left out for an engine that publishes them, got %q", EventsNone, r.Events)
		return
	case r.IsPool():
		bad.add("events", "invalid_value", "events is for engines, not for type %s", r.Type)
	}
	r.Events = EventsNone
	switch {
	case r.CapacityBlocks == 0:
		bad.add("capacity_blocks", "missing",
			"capacity_blocks is required with events %s: how many blocks the engine's cache has room for", EventsNone)
	case r.CapacityBlocks < 0 || r.CapacityBlocks > math.MaxInt32:
		bad.add("capacity_blocks", "out_of_range", "capacity_blocks must be in 1..%d, got %d", math.MaxInt32, r.CapacityBlocks)
	}
	if word, ok := canonicalWord("approximate", r.Approximate); ok {
		r.Approximate = word
	} else if r.Approximate != "" {
		bad.add("approximate", "invalid_value", "approximate must be %s, or left out, got %q", ApproximateCount, r.Approximate)
	}
	const follows, means = "there is nothing to follow", "it says what events do"
	for _, f := range []struct {
		field string
		given bool
		why   string
	}{
		{"endpoint", r.Endpoint != "", follows},
		{"replay_endpoint", r.ReplayEndpoint != "", follows},
		{"snapshot_endpoint", r.SnapshotEndpoint != "", follows},
		{"additionalsalt", r.Salt != "", "it is the salt of events without one, and each report names its own"},
		{"copies", r.Copies != "", means},
		{"reports", r.Reports != "", means},
		{"drafter", r.Drafter != "", "its reports tell what the engine has, and no more"},
		{"owned", r.Owned != "", means},
		{"clear", r.Clear != "", means},
		{"may_announce", len(r.MayAnnounce) > 0, "it is about the tenants of events"},
		{"sequence", r.Sequence != "", "it is about the numbers of batches"},
		{"hash_profile", r.Profile != (HashProfile{}), "it says how events name blocks"},
	} {
		if f.given {
			bad.add(f.field, "conflict", "%s must be left out with events %s: %s", f.field, EventsNone, f.why)
		}
	}
	if len(r.MediaTTL) > 0 {
		bad.add("ttl", "conflict", "ttl must be one time with events %s: all blocks count as on the device", EventsNone)
	}
}
