package fleet

import (
	"kvconductor/cmd/internal/fleet/digest"
	"kvconductor/cmd/internal/fleet/engine"
	"kvconductor/cmd/internal/fleet/publisher"
)

// Families are the kinds of publisher an instance can be.
var Families = []string{"vllm-map", "vllm-array", "sglang"}

// habit is everything in which one rank's publisher differs from another's.
type habit struct {
	registerAs    string // "type" of the registration
	describe      string // for the table
	algorithm     digest.Algorithm
	traits        engine.Traits
	wire          publisher.Wire
	topic         string
	topicInReplay bool
	clearsAtStart bool // SGLang announces an empty cache as its first batch
}

// habits returns how rank n of an instance publishes. Even and odd ranks of a
// family show its two common variants, so that two ranks cover it.
func habits(family string, n int) (habit, bool) {
	odd := n%2 == 1
	switch family {
	case "vllm-map":
		if odd {
			return habit{
				registerAs:    "vLLM",
				describe:      "vLLM maps, offload by hash",
				traits:        engine.Traits{OffloadFirst: true, Placeholder: true, RemoveSingly: true},
				wire:          publisher.VLLMMap{},
				topic:         "kv-events",
				topicInReplay: true,
			}, true
		}
		return habit{
			registerAs:    "vLLM",
			describe:      "vLLM maps, offload with tokens, full reports",
			traits:        engine.Traits{Report: true},
			wire:          publisher.VLLMMap{},
			topicInReplay: true,
		}, true
	case "vllm-array":
		if odd {
			return habit{
				registerAs: "vLLM",
				describe:   "vLLM arrays of 8, digests",
				algorithm:  digest.CBOR,
				wire: publisher.VLLMArray{
					Length:  8,
					Digests: true,
					Media:   publisher.Media{Device: "GPU", Host: "cpu", Disk: "disk"},
				},
				topic: "kv-events",
			}, true
		}
		return habit{
			registerAs: "vLLM",
			describe:   "vLLM arrays of 12, offload by hash",
			algorithm:  digest.CBOR,
			traits:     engine.Traits{OffloadFirst: true, Placeholder: true},
			wire:       publisher.VLLMArray{Length: 12},
		}, true
	case "sglang":
		h := habit{
			registerAs:    "SGLang",
			describe:      "SGLang arrays, write back",
			algorithm:     digest.Page,
			traits:        engine.Traits{Dedupe: true, OffloadFirst: true},
			wire:          publisher.SGLang{},
			topic:         "kv-events",
			clearsAtStart: true,
		}
		if odd {
			h.describe = "SGLang maps, write through"
			h.traits.WriteThrough = true
			h.wire = publisher.SGLang{Map: true}
		}
		return h, true
	}
	return habit{}, false
}
