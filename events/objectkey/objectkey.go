// Package objectkey reads the keys under which engines keep blocks in a
// Mooncake Store. The master announces objects by key alone, without tokens;
// what block an object is a part of is written in its key, in one of these forms
// ([] optional, N a decimal number, hash in hex digits):
//
//	vLLM         [prefix@]model[@name:value...]@tp_rank:N[@pcpN][@dcpN][@pp_rank:N][@group:N]@hash
//	                 the names are those of the layout that engines share, such as store_format
//	vLLM-Ascend  model@pcpN@dcpN@head_or_tp_rank:N[@pp_rank:N][@group:N][@cache_role:kv]
//	                 [@cache_family:word][@layer_id:N]@hash[@layer]
//	             model@tp_rank:N@pp_rank:N@hash
//	             model[@group]@hash@rank                    hash of 16 digits or more
//	SGLang       [namespace_]hash[_tp[_pp]]_k, and _v       hash of 64 digits
//	             [namespace_]hash__k                        one object for keys and values
//	LMCache      fmt@model@world@worker@hash[@dtype][@layer][@k%v...]
//	             model@world@worker@hash@dtype[@layer][@k%v...]
//	none         a decimal or 0x-prefixed hexadecimal u64
//
// Invariants:
//
//  1. The form follows from the text alone, and no text has two. What comes
//     behind the last @ decides: a hash between underscores is SGLang's, a % is
//     LMCache's. Else a tp_rank or head_or_tp_rank makes the key vLLM's or
//     Ascend's, three or four parts Ascend's, more LMCache's, where a dtype,
//     which is never all hex digits, tells whether there is a fmt.
//  2. A Key is made of slices of the text: reading one allocates nothing.
//  3. Numbers are natural, below 2^31, without leading zeros, so that different
//     shards of one block never read the same.
//  4. Releases add parts to their keys. Between the model and the ranks these say
//     what bytes an object has, so objects that differ there never make up one block;
//     among and behind the ranks they say which part of a block it is.
package objectkey

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
)

// A Publisher is who writes keys of a form.
type Publisher uint8

const (
	Plain   Publisher = iota // the key is a number, of no engine in particular
	VLLM                     // vLLM's MooncakeStoreConnector
	Ascend                   // vLLM-Ascend's AscendStore
	SGLang                   // SGLang's HiCache
	LMCache                  // LMCache's Mooncake connector
)

var publishers = [...]string{"plain", "vLLM", "vLLM-Ascend", "SGLang", "LMCache"}

func (p Publisher) String() string { return publishers[p] }

// Kind is what the keys of one kind of object have in common. All blocks of a
// kind are cut into the same shards.
type Kind struct {
	Publisher Publisher
	Axes      Axes // the coordinates the form has
	// Namespace is what a key has before the ranks: vLLM's cache prefix, model and layout, SGLang's tag and model, which
	// text alone cannot tell apart; LMCache's fmt.
	Namespace string
	Model     string // "" where the key does not tell, and vLLM's may be another part of Namespace; see NamesModel
	Family    string // Ascend's cache family
	DType     string // LMCache's
	Tags      string // LMCache's, as they stand: k%v, joined by @
	World     int32  // how many workers there are, Shard.Worker among them; -1 where the key does not tell
	Group     int32  // attention group; -1 where neither the key nor SetGroup tells
	Beside    bool   // SetGroup told Group, not the key
}

// Key is what one object key says.
type Key struct {
	Kind
	Shard
	// Digest is the block's hash as it stands in the key, in hex digits; of a
	// plain key, the whole key. LMCache's may be negative.
	Digest string
	// Hash is the digest as the engine's events have it: SGLang's first eight
	// bytes, everybody else's last, big-endian; a shorter one is padded with
	// zeros on the left, a negative one is its two's complement.
	Hash uint64
}

// Shard says which part of a block an object is. A coordinate the key lacks
// is -1.
type Shard struct {
	TP     int32 // tensor-parallel rank
	Head   int32 // Ascend's head_or_tp_rank: ranks that share heads share objects
	Worker int32 // LMCache's worker, Ascend's bare rank: which axis the key does not say
	PCP    int32 // prefill context parallel rank
	DCP    int32 // decode context parallel rank
	PP     int32 // pipeline rank
	Layer  int32
	Part   Part
	// Further stands for the parts of the key that we do not know, 0 without any.
	Further uint64
}

// Part is keys, values, or both.
type Part uint8

const (
	Whole  Part = iota // the key does not tell: both
	Keys               // SGLang's _k; of MLA, which has no values apart, both
	values             // SGLang's _v
)

// Axes is a set of coordinates.
type Axes uint16

const (
	axisTP Axes = 1 << iota
	axisHead
	axisWorker
	axisPCP
	axisDCP
	axisPP
	axisLayer
	axisPart
	axisFurther
)

// ErrAside is the error of keys that are well-formed and no part of a block of
// the main KV cache: draft models, recurrent state, warm-up.
var ErrAside = errors.New("object is no part of the main KV cache")

// Error is a key in no known form.
type Error struct {
	Key  string
	Want string // what was expected
}

func (e *Error) Error() string { return fmt.Sprintf("object key %q: expected %s", e.Key, e.Want) }

func unlikeKey(text, want string) (Key, error) { return Key{}, &Error{Key: text, Want: want} }

const (
	wantAny    = "parts between @ (vLLM, vLLM-Ascend, LMCache), a page hash of 64 hex digits with a suffix like _0_k (SGLang), or a u64"
	wantHash   = "a hash of an even number of hex digits at the end"
	wantModel  = "a model before the ranks"
	warmupHead = "sglang_mooncake_store_warmup_key"
)

// Parse reads an object key. The error is ErrAside or an *Error.
func Parse(text string) (Key, error) {
	var k Key
	var err error
	at := strings.LastIndexByte(text, '@')
	tail := text[at+1:]
	tagged := at >= 0 && strings.IndexByte(tail, '%') >= 0
	if hash := pageHash(tail); hash >= 0 && !tagged {
		k, err = parsePage(text, at+1+hash)
	} else if at < 0 {
		k, err = parsePlain(text)
	} else if tagged {
		k, err = parseChunk(text)
	} else if strings.Contains(text, "@tp_rank:") || strings.Contains(text, "@head_or_tp_rank:") {
		k, err = parseLabelled(text)
	} else if strings.Count(text, "@") <= 3 {
		k, err = parseCompact(text)
	} else {
		k, err = parseChunk(text)
	}
	if err != nil {
		return Key{}, err
	}
	k.Axes = k.Shard.axesOf()
	return k, nil
}

// parsePlain reads what has no @ and no page hash.
func parsePlain(text string) (Key, error) {
	if strings.HasPrefix(text, warmupHead) {
		return Key{}, ErrAside
	}
	k := blankKey(Plain)
	k.Digest = text
	var ok bool
	if digits, found := strings.CutPrefix(text, "0x"); found {
		k.Hash, ok = low64(digits)
		ok = ok && len(digits) <= 16
	} else {
		k.Hash, ok = decimal(text)
	}
	if !ok {
		return unlikeKey(text, wantAny)
	}
	return k, nil
}

// NamesModel reports whether the key names the model. vLLM may put a prefix in front
// and a layout behind. SGLang writes - for / and may put a tag in front.
func (k *Key) NamesModel(model string) bool {
	if k.Publisher != SGLang {
		return model != "" && (k.Model == model || k.Publisher != LMCache && namesModel(k.Namespace, model))
	}
	tag := len(k.Namespace) - len(model)
	if model == "" || tag < 0 || tag > 0 && k.Namespace[tag-1] != '_' {
		return false
	}
	for i := range len(model) {
		c := model[i]
		if c == '/' {
			c = '-'
		}
		if c != k.Namespace[tag+i] {
			return false
		}
	}
	return true
}

// NamedKey returns the key of an object that is all there is of a block, whose hash came
// next to it.
func NamedKey(digest string, hash uint64) Key {
	k := blankKey(Plain)
	k.Digest, k.Hash = digest, hash
	return k
}

// SetGroup sets the attention group that an event states next to the key, -1 for none.
// A group in the key wins.
func (k *Kind) SetGroup(group int32) {
	if k.Group < 0 || k.Beside {
		k.Group, k.Beside = group, group >= 0
	}
}

// AppendID appends the identity of the key's object to dst. Two keys have one identity if
// and only if they name the same shard of the same block, however they are spelled. The
// identity leaves out a group that SetGroup told.
func (k *Key) AppendID(dst []byte) []byte {
	kind, who := k.Kind, memberOf(0, k)
	kind.SetGroup(-1)
	dst = append(dst, byte(kind.Publisher), byte(k.Part))
	for _, text := range [...]string{kind.Namespace, kind.Model, kind.Family, kind.DType, kind.Tags} {
		dst = binary.AppendUvarint(dst, uint64(len(text)))
		dst = append(dst, text...)
	}
	for _, n := range [...]int32{kind.World, kind.Group, k.TP, k.Head, k.Worker, k.PCP, k.DCP, k.PP, k.Layer} {
		dst = binary.LittleEndian.AppendUint32(dst, uint32(n))
	}
	for _, n := range [...]uint64{k.Further, who.hash, who.rest} {
		dst = binary.LittleEndian.AppendUint64(dst, n)
	}
	return dst
}

// HasDigest reports whether the key's digest is the one of these hex digits.
func (k *Key) HasDigest(digits string) bool { return strings.EqualFold(k.Digest, digits) }

func blankKey(p Publisher) Key {
	return Key{
		Kind:  Kind{Publisher: p, World: -1, Group: -1},
		Shard: Shard{TP: -1, Head: -1, Worker: -1, PCP: -1, DCP: -1, PP: -1, Layer: -1},
	}
}

func (s *Shard) axesOf() Axes {
	var set Axes
	for i, at := range [...]int32{s.TP, s.Head, s.Worker, s.PCP, s.DCP, s.PP, s.Layer} {
		if at >= 0 {
			set |= 1 << i
		}
	}
	if s.Part != Whole {
		set |= axisPart
	}
	if s.Further != 0 {
		set |= axisFurther
	}
	return set
}
