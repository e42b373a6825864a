package dynamo

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"example.com/conductor/conductor/ingest"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/tiers"
)

// A RouterEvent is one element of a dump: blocks of one worker's rank on one tier,
// each behind the one before.
//
//	{"worker_id": 7, "storage_tier": "device", "residency_domain": "worker",
//	 "event": {"event_id": 0, "dp_rank": 0, "data": {"stored": {"parent_hash": null, "start_position": null,
//	   "blocks": [{"block_hash": 123, "tokens_hash": 456, "mm_extra_info": null}]}}}}
//
// block_hash is the engine hash, tokens_hash the client hash.

// Names of the tiers on the wire.
var tierNames = [...]string{tiers.Device: "device", tiers.Host: "host_pinned", tiers.Disk: "disk", tiers.External: "external"}

// plainHolder reports whether a RouterEvent can name the holder.
func plainHolder(source registration.Registration, medium tiers.Medium) bool {
	_, integer := numeric(source.Instance)
	return integer && !source.IsPool() && medium.Tier < tiers.Other
}

// plainly reports whether a RouterEvent can say the stretch of a plain holder.
func plainly(st *ingest.Stored) bool {
	return !st.Waiting && st.ClientHashes[0] != 0 && (st.Root || st.HasParent)
}

// appendEvent appends the RouterEvent of a plain holder's stretch.
func appendEvent(dst []byte, st *ingest.Stored, id uint64) []byte {
	dst = append(append(dst, `{"worker_id":`...), st.Source.Instance...)
	dst = append(append(dst, `,"storage_tier":"`...), tierNames[st.Medium.Tier]...)
	dst = strconv.AppendUint(append(dst, `","residency_domain":"worker","event":{"event_id":`...), id, 10)
	dst = append(dst, `,"data":{"stored":{"parent_hash":`...)
	if st.HasParent {
		dst = strconv.AppendUint(dst, st.Parent, 10)
	} else {
		dst = append(dst, "null"...)
	}
	dst = append(dst, `,"start_position":null,"blocks":[`...)
	for i, engine := range st.Engine {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = strconv.AppendUint(append(dst, `{"block_hash":`...), engine, 10)
		dst = strconv.AppendUint(append(dst, `,"tokens_hash":`...), st.ClientHashes[i], 10)
		dst = append(dst, `,"mm_extra_info":null}`...)
	}
	dst = append(dst, `]}},"dp_rank":`...)
	return append(strconv.AppendUint(dst, uint64(uint32(st.Rank)), 10), "}}"...)
}

// encode is json.Marshal of what always can be.
func encode(v any) []byte {
	raw, err := json.Marshal(v)
	if err != nil {
		panic("BUG: cannot be encoded: " + err.Error())
	}
	return raw
}

// routerEvent is a RouterEvent as it is read: every form there has been.
type routerEvent struct {
	Worker    *hash64         `json:"worker_id"`
	Tier      *string         `json:"storage_tier"`
	Residency json.RawMessage `json:"residency_domain"`
	Event     *struct {
		Rank uint32          `json:"dp_rank"`
		Data json.RawMessage `json:"data"`
	} `json:"event"`
}

type storedData struct {
	Stored *struct {
		Parent *hash64 `json:"parent_hash"`
		Blocks []struct {
			Block  *hash64 `json:"block_hash"`
			Tokens *hash64 `json:"tokens_hash"`
		} `json:"blocks"`
	} `json:"stored"`
}

// hash64 is an integer of 64 bits, signed or unsigned.
type hash64 uint64

func (h *hash64) UnmarshalJSON(raw []byte) error {
	if u, err := strconv.ParseUint(string(raw), 10, 64); err == nil {
		*h = hash64(u)
		return nil
	}
	i, err := strconv.ParseInt(string(raw), 10, 64)
	if err != nil {
		return fmt.Errorf("%.40q is no integer of 64 bits", raw)
	}
	*h = hash64(i)
	return nil
}

// errOther is an event that a dump may hold and that restores nothing.
var errOther = errors.New("not about blocks of a worker")

// slot is where in a dump an event stands.
type slot struct {
	partition scope.Shard
	blockSize int
}

func (s slot) compare(t slot) int {
	return cmp.Or(
		strings.Compare(s.partition.Model, t.partition.Model), strings.Compare(s.partition.Tenant,
			t.partition.Tenant), cmp.Compare(s.blockSize, t.blockSize),
	)
}

// restorable reads an event of a dump, whose blocks were cut out unless they are nil.
// What it returns is valid as long as they are.
func (e *routerEvent) restorable(at slot, blocks *dumpBlocks) (*ingest.Stored, error) {
	switch {
	case e.Worker == nil || e.Event == nil:
		return nil, errors.New("worker_id and event are required")
	case len(e.Residency) > 0 && !bytes.Equal(e.Residency, []byte(`"worker"`)):
		return nil, errOther
	}
	medium, err := e.medium()
	if err != nil {
		return nil, err
	}
	var data *storedData
	if len(e.Event.Data) > 0 && e.Event.Data[0] == '"' {
		return nil, errOther // "cleared"
	}
	if err := json.Unmarshal(e.Event.Data, &data); err != nil {
		return nil, err
	}
	if data == nil {
		return nil, errors.New("data is required")
	}
	if data.Stored == nil {
		return nil, errOther
	}
	s := data.Stored
	switch {
	case blocks != nil && (s.Blocks == nil || len(s.Blocks) > 0):
		return nil, errElsewhere
	case blocks == nil && len(s.Blocks) == 0:
		return nil, errOther
	}
	if int32(e.Event.Rank) < 0 {
		return nil, fmt.Errorf("dp_rank %d is out of range", e.Event.Rank)
	}
	st := &ingest.Stored{
		Shard: at.partition, BlockSize: at.blockSize, Rank: int32(e.Event.Rank), Medium: medium,
		Source: registration.Registration{
			Instance: strconv.FormatUint(uint64(*e.Worker), 10), Tenant: at.partition.Tenant, Model: at.partition.Model,
			BlockSize: at.blockSize, Rank: int(e.Event.Rank), Type: registration.TypeVLLM,
		},
		Stretch: &ingest.Stretch{Root: s.Parent == nil, HasParent: s.Parent != nil},
	}
	if s.Parent != nil {
		st.Parent = uint64(*s.Parent)
	}
	if blocks != nil {
		st.Engine, st.ClientHashes = blocks.engine, blocks.clientHashes
	}
	for i, b := range s.Blocks {
		if b.Block == nil || b.Tokens == nil {
			return nil, fmt.Errorf("blocks[%d]: block_hash and tokens_hash are required", i)
		}
		st.Engine, st.ClientHashes = append(st.Engine, uint64(*b.Block)), append(st.ClientHashes, uint64(*b.Tokens))
	}
	if i := slices.Index(st.ClientHashes, 0); i >= 0 {
		return nil, fmt.Errorf("blocks[%d]: tokens_hash is 0", i)
	}
	return st, nil
}

// medium reads the tier; none is the device.
func (e *routerEvent) medium() (tiers.Medium, error) {
	if e.Tier == nil {
		return tiers.ParseMedium(""), nil
	}
	for t, name := range tierNames {
		if name == *e.Tier {
			return tiers.ParseMedium([]string{"GPU", "CPU", "DISK", "EXTERNAL"}[t]), nil
		}
	}
	return tiers.Medium{}, fmt.Errorf("storage_tier %.40q is unknown", *e.Tier)
}
