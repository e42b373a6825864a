package fleet

import (
	"kvconductor/cmd/internal/fleet/digest"
	"kvconductor/cmd/internal/fleet/engine"
	"kvconductor/cmd/internal/fleet/publisher"
)

// Families are the kinds of publisher an instance can be. vllm-eagle, vllm-mtp and
// sglang-eagle have a drafter, so their blocks have a look-ahead.
var Families = []string{"vllm-map", "vllm-array", "sglang", "vllm-eagle", "vllm-mtp", "sglang-eagle"}

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
	ahead         int  // look-ahead in tokens, the same for all ranks of a family
	deviceOnly    bool // no tier below the device: vLLM has no look-ahead with a KV connector
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
	case "vllm-eagle", "vllm-mtp":
		h := habit{
			registerAs:    "vLLM",
			describe:      "vLLM maps, EAGLE, look-ahead 1",
			wire:          publisher.VLLMMap{},
			topicInReplay: true,
			ahead:         1,
			deviceOnly:    true,
		}
		if family == "vllm-mtp" { // each of its modules reads one token further
			h.describe, h.algorithm, h.ahead = "vLLM maps, MTP, look-ahead 4", digest.CBOR, 4
		}
		if odd {
			h.traits.RemoveSingly = true
			h.topic = "kv-events"
		}
		return h, true
	case "sglang", "sglang-eagle":
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
		if family == "sglang-eagle" {
			h.describe += ", EAGLE, look-ahead 1"
			h.ahead = 1
		}
		return h, true
	}
	return habit{}, false
}
