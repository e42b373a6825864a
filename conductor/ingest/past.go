package ingest

import (
	"encoding/binary"
	"time"

	"github.com/zeebo/xxh3"

	"example.com/conductor/conductor/inspect"
	"example.com/conductor/conductor/normalize"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/index"
)

// past is what a source lost lately, for Explain. Removals have a place in the ring of losses.
// A clear or an expiry names no blocks: the last one of each holder is kept. Turn guards it.
type past struct {
	losses  *index.Losses // nil for none
	seq     uint64        // of the batch at hand
	at      time.Time     // of the batch or the expiry at hand
	emptied []emptied     // one for each label and cause, oldest first
}

// emptied is the last time that a holder lost all its blocks at once.
type emptied struct {
	label  uint32
	cause  inspect.Reason // Cleared or Expired
	seq    uint64         // of Cleared
	at     time.Time
	blocks int
}

// maxEmptied bounds the list: publishers name adapters and salts as they like.
const maxEmptied = 64

// begin notes which batch the changes that follow belong to.
func (p *past) begin(seq uint64, at time.Time) {
	p.seq, p.at = seq, at
	p.losses.SetMark(seq)
}

// reset forgets everything.
func (p *past) reset() {
	p.losses.Reset()
	p.emptied = nil
}

// recordLosses lets the index record what an owner of a holder loses.
func (p *past) recordLosses(ns *namespace, key normalize.Owner, o index.Owner) {
	if p.losses != nil {
		ns.Deployment.Index.RecordLosses(o, p.losses, lossLabel(ns.Deployment.Key, key.Rank, key.Medium))
	}
}

// lossLabel sums up whose blocks a loss is about. The deployment may be gone when a client asks.
func lossLabel(d scope.Deployment, rank int32, medium string) uint32 {
	text := make([]byte, 0, 128)
	for _, s := range [...]string{d.Tenant, d.Model, medium} {
		text = binary.AppendUvarint(text, uint64(len(s)))
		text = append(text, s...)
	}
	text = binary.AppendVarint(text, int64(d.BlockSize))
	return uint32(xxh3.Hash(binary.AppendVarint(text, int64(rank))))
}

// noteEmptied notes that a holder lost all of its blocks at once.
func (p *past) noteEmptied(cause inspect.Reason, at scope.Deployment, key normalize.Owner, blocks int) {
	if blocks == 0 || p.losses == nil {
		return
	}
	now := emptied{lossLabel(at, key.Rank, key.Medium), cause, p.seq, p.at, blocks}
	for i := range p.emptied {
		if e := &p.emptied[i]; e.label == now.label && e.cause == cause {
			if e.seq == now.seq && e.at.Equal(now.at) { // another group or backend
				now.blocks += e.blocks
			}
			*e = now
			return
		}
	}
	if len(p.emptied) == maxEmptied {
		p.emptied = append(p.emptied[:0], p.emptied[1:]...)
	}
	p.emptied = append(p.emptied, now)
}
