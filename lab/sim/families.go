package sim

import (
	"example.com/conductor/lab/sim/digest"
	"example.com/conductor/lab/sim/engine"
	"example.com/conductor/lab/sim/publisher"
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

// habitsOf are the habits of the even and the odd ranks of a family: its two common
// variants, so that two ranks cover it. The modules of vllm-mtp each read one token further.
var habitsOf = map[string][2]habit{
	"vllm-map": {
		{registerAs: "vLLM", describe: "vLLM maps, offload with tokens, full reports", traits: engine.Traits{Report: true, Dedupe: true},
			wire: publisher.VLLMMap{}, topicInReplay: true}, // a second copy would look like a report
		{registerAs: "vLLM", describe: "vLLM maps, offload by hash",
			traits: engine.Traits{OffloadFirst: true, Placeholder: true, RemoveSingly: true},
			wire:   publisher.VLLMMap{}, topic: kvEvents, topicInReplay: true},
	},
	"vllm-array": {
		{registerAs: "vLLM", describe: "vLLM arrays of 12, offload by hash", algorithm: digest.CBOR,
			traits: engine.Traits{OffloadFirst: true, Placeholder: true}, wire: publisher.VLLMArray{Length: 12}},
		{registerAs: "vLLM", describe: "vLLM arrays of 8, digests", algorithm: digest.CBOR, topic: kvEvents,
			wire: publisher.VLLMArray{Length: 8, Digests: true, Media: publisher.Media{Device: "GPU", Host: "cpu", Disk: "disk"}}},
	},
	"vllm-eagle":   drafting("vLLM maps, EAGLE, look-ahead 1", digest.Pickle, 1),
	"vllm-mtp":     drafting("vLLM maps, MTP, look-ahead 4", digest.CBOR, 4),
	"sglang":       sglang("", 0),
	"sglang-eagle": sglang(", EAGLE, look-ahead 1", 1),
}

const kvEvents = "kv-events"

// drafting returns the habits of vLLM with a drafter.
func drafting(describe string, a digest.Algorithm, ahead int) [2]habit {
	h := habit{registerAs: "vLLM", describe: describe, algorithm: a, wire: publisher.VLLMMap{}, topicInReplay: true, ahead: ahead,
		deviceOnly: true}
	odd := h
	odd.traits.RemoveSingly, odd.topic = true, kvEvents
	return [2]habit{h, odd}
}

// sglang returns the habits of SGLang, with a drafter if its blocks have a look-ahead.
func sglang(drafter string, ahead int) [2]habit {
	h := habit{registerAs: "SGLang", describe: "SGLang arrays, write back" + drafter, algorithm: digest.Page,
		traits: engine.Traits{Dedupe: true, OffloadFirst: true}, wire: publisher.SGLang{}, topic: kvEvents, clearsAtStart: true,
		ahead: ahead}
	odd := h
	odd.describe, odd.traits.WriteThrough, odd.wire = "SGLang maps, write through"+drafter, true, publisher.SGLang{Map: true}
	return [2]habit{h, odd}
}
