// Package lmcache turns what the instances of LMCache report over HTTP into batches of events, one
// stream for each emitter and model.
//
//	Batch --Gate: incarnation, seq--> entries --emitter, model--> Feed
//	                                                               |  Book: shards of a chunk
//	           Chains: the parent of a chunk, by its hash -------->+
//	                                                               v
//	                                                      Delivery --> Receiver
//
// An instance reports keys: one object for each chunk of a prompt and each shard of a model. A
// chunk counts once all shards of its world are there. The emitter of an entry is the
// instance, or pool:<backend> where the storage is shared.
//
// A Hub serves one tenant. Its methods are safe for concurrent use. A Push waits until the
// receivers have applied its events, without a lock: receivers queue deliveries, and a slow one
// holds up those alone that send to it. Locks: Hub.mu, then those of a receiver.
//
// Cost: an entry costs a few map lookups. A chunk whose parent is not the chunk before it in
// the batch costs one BLAKE3 of its tokens for each chunk that ends where it begins, at most
// maxTrials a batch.
package lmcache

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
)

// Type is what happened to the entries of a batch.
type Type string

// Types of batches. Access and Config change nothing here.
const (
	Store  Type = "store"
	Delete Type = "delete"
	Access Type = "access"
	Config Type = "config"
)

// Tiers of LMCache.
const (
	host    = "l1"
	storage = "l2"
)

// poolPrefix begins the emitters of shared storage.
const poolPrefix = "pool:"

// Batch is what an instance reports at once.
type Batch struct {
	Instance    string
	Incarnation uint64 // the start time of the process
	Seq         uint64 // from 1, in each incarnation
	Type        Type
	Tier        string // l1 or l2
	Backend     string
	Shared      bool // several instances use the storage
	Time        float64
	Entries     []Entry
}

// Emitter returns the emitter of the entries, under which sources are registered: the instance, or
// pool:<backend> where the storage is shared.
func (b *Batch) Emitter() string {
	if b.Shared {
		return poolPrefix + b.Backend
	}
	return b.Instance
}

// Entry is one object. Hash and Parent are digests as bytes.
type Entry struct {
	Model  string
	Salt   string
	Hash   string
	Parent string // "" unless reported
	Tokens []uint32
	Offset int // of the first token in its prompt, -1 if not known
	World  int // shards that a chunk has
	Rank   int // which of them the object is, from 0
	Group  int // attention group
}

// Bounds of what a key may say.
const (
	maxName = 256 // bytes of an instance, a backend and a model
	maxSalt = 256
	maxHash = 64
	maxRank = 255
	// MaxBatches bounds the batches of one request.
	MaxBatches = 4096
)

// Fault is a part of a request that has no effect, as POST /lmcache/events answers it.
type Fault struct {
	Message string `json:"error"`
	Reason  string `json:"reason"` // missing, invalid_type, invalid_value, out_of_range, limit
	Field   string `json:"field,omitempty"`
	Batch   int    `json:"index"` // in the request; the handler of the request sets it
}

func (f *Fault) Error() string { return f.Message }

// newFault returns a Fault of a field. The format says what the field must be.
func newFault(field, reason, format string, args ...any) *Fault {
	return &Fault{Field: field, Reason: reason, Message: field + " " + fmt.Sprintf(format, args...)}
}

type wireBatch struct {
	Instance    *string           `json:"instance_id"`
	Incarnation *int64            `json:"incarnation"`
	Seq         *int64            `json:"seq"`
	Type        *Type             `json:"event_type"`
	Tier        *string           `json:"tier"`
	Backend     string            `json:"backend"`
	Shared      bool              `json:"shared"`
	Time        float64           `json:"ts"`
	Entries     []json.RawMessage `json:"entries"`
}

type wireEntry struct {
	Key struct {
		Hash  string  `json:"chunk_hash_hex"`
		Model string  `json:"model_name"`
		Rank  *uint64 `json:"kv_rank"`
		Group int     `json:"object_group_id"`
		Salt  string  `json:"cache_salt"`
	} `json:"key"`
	Tokens []uint32 `json:"token_ids"`
	Offset *int     `json:"token_offset"`
	Parent *string  `json:"parent_hash_hex"`
}

// Parse reads one batch. It leaves out entries that cannot be read, each a *Fault in bad. Only
// the batch as a whole is an error, a *Fault too. Fields that it does not know are ignored.
func Parse(raw []byte) (b Batch, bad []*Fault, err *Fault) {
	var w wireBatch
	if e := json.Unmarshal(raw, &w); e != nil {
		return b, nil, faultOf("", e)
	}
	for _, f := range []struct {
		field   string
		missing bool
	}{{"instance_id", w.Instance == nil}, {"incarnation", w.Incarnation == nil}, {"seq", w.Seq == nil}, {"event_type", w.Type == nil},
		{"tier", w.Tier == nil}} {
		if f.missing {
			return b, nil, newFault(f.field, "missing", "is required")
		}
	}
	hasEntries := *w.Type == Store || *w.Type == Delete
	switch {
	case *w.Instance == "" || len(*w.Instance) > maxName:
		err = newFault("instance_id", "out_of_range", "must have 1 to %d bytes", maxName)
	case *w.Incarnation < 0:
		err = newFault("incarnation", "out_of_range", "must not be negative, got %d", *w.Incarnation)
	case *w.Seq < 1:
		err = newFault("seq", "out_of_range", "must be at least 1, got %d", *w.Seq)
	case !hasEntries && *w.Type != Access && *w.Type != Config:
		err = newFault("event_type", "invalid_value", "must be store, delete, access or config, got %.32q", string(*w.Type))
	case *w.Tier != host && *w.Tier != storage:
		err = newFault("tier", "invalid_value", "must be l1 or l2, got %.32q", *w.Tier)
	case hasEntries && w.Backend == "" || len(w.Backend) > maxName:
		err = newFault("backend", "out_of_range", "must have 1 to %d bytes", maxName)
	}
	if err != nil {
		return b, nil, err
	}
	b = Batch{
		Instance: *w.Instance, Incarnation: uint64(*w.Incarnation), Seq: uint64(*w.Seq), Type: *w.Type,
		Tier: *w.Tier, Backend: strings.ToLower(w.Backend), Shared: w.Shared, Time: w.Time,
	}
	if !hasEntries {
		return b, nil, nil
	}
	b.Entries = make([]Entry, 0, len(w.Entries))
	for i, raw := range w.Entries {
		e, err := parseEntry(raw)
		if err != nil {
			err.Field = fmt.Sprintf("entries[%d].%s", i, err.Field)
			bad = append(bad, err)
			continue
		}
		b.Entries = append(b.Entries, e)
	}
	return b, bad, nil
}

// parseEntry reads one entry.
func parseEntry(raw []byte) (e Entry, err *Fault) {
	var w wireEntry
	if err := json.Unmarshal(raw, &w); err != nil {
		return e, faultOf("", err)
	}
	e = Entry{Model: w.Key.Model, Salt: w.Key.Salt, Tokens: w.Tokens, Offset: -1, World: 1, Group: w.Key.Group}
	if e.Hash, err = parseDigest("key.chunk_hash_hex", w.Key.Hash); err != nil {
		return e, err
	}
	if w.Parent != nil && *w.Parent != "" {
		if e.Parent, err = parseDigest("parent_hash_hex", *w.Parent); err != nil {
			return e, err
		}
	}
	switch {
	case e.Model == "" || len(e.Model) > maxName:
		return e, newFault("key.model_name", "out_of_range", "must have 1 to %d bytes", maxName)
	case len(e.Salt) > maxSalt:
		return e, newFault("key.cache_salt", "out_of_range", "must have at most %d bytes", maxSalt)
	case e.Group < 0:
		return e, newFault("key.object_group_id", "out_of_range", "must not be negative, got %d", e.Group)
	case w.Key.Rank == nil:
		return e, newFault("key.kv_rank", "missing", "is required")
	case w.Offset != nil && (*w.Offset < -1 || *w.Offset > math.MaxInt32):
		return e, newFault("token_offset", "out_of_range", "must be -1 or a place in a prompt, got %d", *w.Offset)
	}
	if w.Offset != nil {
		e.Offset = *w.Offset
	}
	// kv_rank is world_size<<24 | global_rank<<16 | local_world<<8 | local_rank.
	world, rank := *w.Key.Rank>>24, *w.Key.Rank>>16&maxRank
	if world == 0 {
		world = 1 // a key of no world names its only shard
	}
	if world > maxRank+1 || rank >= world {
		return e, newFault("key.kv_rank", "out_of_range", "must name one of 1 to %d ranks, got rank %d of %d", maxRank+1, rank, world)
	}
	e.World, e.Rank = int(world), int(rank)
	return e, nil
}

// parseDigest returns the bytes of a digest in hexadecimal digits.
func parseDigest(field, digits string) (string, *Fault) {
	raw, err := hex.DecodeString(digits)
	if err != nil || len(raw) == 0 || len(raw) > maxHash {
		return "", newFault(field, "invalid_value", "must be 1 to %d bytes in hexadecimal digits, got %.32q", maxHash, digits)
	}
	return string(raw), nil
}

// faultOf words an error of encoding/json.
func faultOf(field string, err error) *Fault {
	var typ *json.UnmarshalTypeError
	if errors.As(err, &typ) {
		if typ.Field != "" {
			field = typ.Field
		}
		return newFault(field, "invalid_type", "must not be a JSON %s", typ.Value)
	}
	return &Fault{Field: field, Reason: "invalid_type", Message: err.Error()}
}
