package master

import (
	"strings"

	"example.com/conductor/lab/sim/digest"
)

// Family is engines that name blocks alike, and write their objects under one
// form of keys.
type Family struct {
	Algorithm digest.Algorithm
	Model     string
}

// event returns the event of one shard of a block, without tier and kind. The key is that
// of vLLM's MooncakeStoreConnector for the share of a tensor-parallel rank, or that of
// SGLang's HiCache for the keys and values of a page.
func (f Family) event(d digest.Digest, shard int) Event {
	if f.Algorithm == digest.Page {
		page := strings.ReplaceAll(f.Model, "/", "-") + "_" + d.Hex()
		return Event{Key: page + [Shards]string{"_0_k", "_0_v"}[shard], Group: "sglang-hicache:" + page}
	}
	rank := [Shards]string{"@tp_rank:0", "@tp_rank:1"}[shard]
	return Event{Key: f.Model + rank + "@pcp0@dcp0@pp_rank:0@" + d.Hex()}
}
