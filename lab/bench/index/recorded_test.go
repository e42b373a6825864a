package index

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/vmihailenco/msgpack/v5"

	"example.com/conductor/events/wire"
	"example.com/conductor/index/hash"
	"example.com/conductor/internal/must"
	"example.com/conductor/lab/bench/streams"
)

type values = []any

// recordedFile writes a recording and returns a configuration that replays it.
func recordedFile(t *testing.T, records ...any) Config {
	t.Helper()
	var b bytes.Buffer
	for _, r := range records {
		must.Succeed(t, msgpack.NewEncoder(&b).Encode(r))
	}
	c := small()
	c.Stream = filepath.Join(t.TempDir(), "x.msgpack")
	must.Succeed(t, os.WriteFile(c.Stream, b.Bytes(), 0o600))
	return c
}

var twoEngines = values{
	values{-1, values{1, 2, 3}},
	values{0, values{values{"S", values{11, 12}, nil, values{1, 2}}, values{"S", values{13}, 12, values{3}}}},
	values{1, values{values{"S", values{11, 12}, nil, values{1, 2}}}},
	values{0, values{values{"S", values{12}, nil, values{}, "CPU"}, values{"S", values{11}, nil, values{}, "CPU"}}},
	values{0, values{values{"R", values{13}}, values{"R", values{12}}, values{"R", values{11}}}},
	values{1, values{}},
	values{-1, values{}},
	values{-1, values{1, 2, 4}},
	values{0, values{values{"R", values{11}, "CPU"}}},
	values{-1, values{1, 2}},
}

// TestRecorded requires one operation for each event and prompt, in canonical hashes, and the answers
// of the oracle.
func TestRecorded(t *testing.T) {
	c := recordedFile(t, twoEngines...)
	s, err := openStream(c.Stream, true)
	must.Succeed(t, err)
	if s.owners != 4 || s.tiers != 2 || !s.counted || s.load != len(s.ops) {
		t.Errorf("%d owners of %d tiers, counted %v, %d of %d operations of the load", s.owners, s.tiers, s.counted, s.load, len(s.ops))
	}
	prompt := s.local[:3]
	chain := []uint64{prompt[0], hash.DefaultScheme().Next(prompt[0], prompt[1])}
	chain = append(chain, hash.DefaultScheme().Next(chain[1], prompt[2]))
	type want struct {
		kind   kind
		owner  uint32
		bare   bool
		parent uint64
		blocks []uint64
	}
	var got []want
	for i := range s.ops {
		o := &s.ops[i]
		blocks := s.seq
		if o.kind == remove {
			blocks = s.gone
		}
		got = append(got, want{o.kind, o.owner, o.bare, o.parent, blocks[o.from:o.to]})
		if o.hasParent != (o.parent != 0) {
			t.Errorf("operation %d: parent %x, %v", i, o.parent, o.hasParent)
		}
	}
	other := hash.DefaultScheme().Next(chain[1], s.local[s.ops[9].to-1])
	for i, w := range []want{
		{query, 0, false, 0, chain},
		{store, 0, false, 0, chain[:2]},
		{store, 0, false, chain[1], chain[2:]},
		{store, 2, false, 0, chain[:2]},
		{store, 1, true, 0, chain[1:2]},
		{store, 1, true, 0, chain[:1]},
		{remove, 0, false, 0, chain[2:]},
		{remove, 0, false, 0, chain[1:2]},
		{remove, 0, false, 0, chain[:1]},
		{query, 0, false, 0, []uint64{chain[0], chain[1], other}},
		{remove, 1, true, 0, chain[:1]},
		{query, 0, false, 0, chain[:2]},
	} {
		if i >= len(got) || got[i].kind != w.kind || got[i].owner != w.owner || got[i].bare != w.bare || got[i].parent != w.parent ||
			!slices.Equal(got[i].blocks, w.blocks) {
			t.Errorf("operation %d of %d is not %+v", i, len(got), w)
		}
	}
	c.Verify = true
	if r, err := Run(c); err != nil || r.Verified != 3 || r.Memberships != 3 {
		t.Errorf("%+v, %v", r, err)
	}
}

// joining has events that the server joins when it decodes their batch.
var joining = values{
	values{0, values{
		values{"S", values{11, 12}, nil, values{1, 2}},
		values{"S", values{13}, 12, values{3}}, values{"S", values{14}, 13, values{4}}, // joined
		values{"S", values{23}, 12, values{9}}, // another parent
		values{"S", values{24, 25}, 23, values{10, 11}},
		values{"S", values{26}, 25, values{12}},
		values{"S", values{31}, nil, values{20}}, values{"S", values{32}, 31, values{21}},
	}},
	values{0, values{values{"S", values{33}, 32, values{22}}}}, // another batch
	values{0, values{
		values{"R", values{14}}, values{"R", values{33}}, values{"R", values{26}}, // joined
		values{"R", values{25, 24}}, values{"R", values{23}},
		values{"S", values{32}, nil, values{}, "CPU"}, values{"S", values{13}, nil, values{}, "CPU"}, // joined
		values{"R", values{32}, "CPU"}, values{"R", values{32}}, values{"R", values{31}}, // the last two joined
	}},
	values{-1, values{1, 2, 3}}, values{-1, values{20}},
}

// TestRecordedJoins requires that events of a batch become one operation where the server joins them,
// and that answers stay those of the oracle.
func TestRecordedJoins(t *testing.T) {
	c := recordedFile(t, joining...)
	sizes := func(apart bool) (out []uint32) {
		s, err := openStream(c.Stream, apart)
		must.Succeed(t, err)
		for _, o := range s.ops {
			out = append(out, o.to-o.from)
		}
		return out
	}
	if got, want := sizes(true), []uint32{2, 1, 1, 1, 2, 1, 1, 1, 1, 1, 1, 1, 2, 1, 1, 1, 1, 1, 1, 3, 1}; !slices.Equal(got, want) {
		t.Errorf("apart, operations have %v blocks, want %v", got, want)
	}
	if got, want := sizes(false), []uint32{2, 2, 1, 2, 1, 1, 1, 1, 3, 2, 1, 2, 1, 2, 3, 1}; !slices.Equal(got, want) {
		t.Errorf("operations have %v blocks, want %v", got, want)
	}
	c.Verify = true
	r, err := Run(c)
	must.Succeed(t, err)
	c.Apart = true
	apart, err := Run(c)
	must.Succeed(t, err)
	if r.Verified != 2 || r.Memberships != 4 || r.Memberships != apart.Memberships || r.UniqueBlocks != apart.UniqueBlocks {
		t.Errorf("%d answers, %d memberships of %d blocks; apart %d of %d", r.Verified, r.Memberships, r.UniqueBlocks, apart.Memberships,
			apart.UniqueBlocks)
	}
}

// TestRecordedOps requires that the ops file of a recording has the same operations.
func TestRecordedOps(t *testing.T) {
	c := recordedFile(t, twoEngines...)
	name := filepath.Join(t.TempDir(), "x.ops")
	must.Succeed(t, ExportOps(c, name))
	_, want, _ := streamOf(t, c)
	c.Stream, c.Ops = "", name
	_, got, _ := streamOf(t, c)
	if got.print() != want.print() || got.counted != want.counted {
		t.Error("the operations differ")
	}
}

// TestRecordedRefuses requires that events which contradict those before them are refused with
// their place.
func TestRecordedRefuses(t *testing.T) {
	f := func(want string, events ...any) {
		t.Helper()
		c := recordedFile(t, values{-1, values{1}}, values{0, values{values{"S", values{11}, nil, values{1}}}}, values{0, events})
		if _, err := openStream(c.Stream, false); err == nil || !strings.Contains(err.Error(), want) ||
			!strings.Contains(err.Error(), c.Stream+": record 2: event 0: ") {
			t.Errorf("error %v, want one about %q with its place", err, want)
		}
	}
	f("is removed", values{"R", values{12}})
	f("is the parent", values{"S", values{12}, 13, values{2}})
	f("by its hash alone", values{"S", values{12}, nil, values{}, "CPU"})
	f("two different blocks", values{"S", values{11}, nil, values{2}})
	c := recordedFile(t, values{0, values{}})
	if _, err := Run(c); err == nil || !strings.Contains(err.Error(), "no operations") {
		t.Errorf("a recording without operations: error %v", err)
	}
}

// announced is an event as vLLM publishes it: a map with the keys of its structures, in their order, or an
// array of the same values in older releases.
type announced struct {
	Type      string   `msgpack:"type"`
	Hashes    []uint64 `msgpack:"block_hashes"`
	Parent    any      `msgpack:"parent_block_hash"`
	Tokens    []uint32 `msgpack:"token_ids"`
	BlockSize int      `msgpack:"block_size"`
	LoraID    any      `msgpack:"lora_id"`
	Medium    string   `msgpack:"medium"`
	LoraName  any      `msgpack:"lora_name"`
	ExtraKeys []any    `msgpack:"extra_keys"`
	Group     int      `msgpack:"group_idx"`
	Kind      string   `msgpack:"kv_cache_spec_kind"`
}

type announcedRemoval struct {
	Type   string   `msgpack:"type"`
	Hashes []uint64 `msgpack:"block_hashes"`
	Medium string   `msgpack:"medium"`
	Group  int      `msgpack:"group_idx"`
}

// announce encodes a batch of a recording as an engine publishes it, its events as arrays or as maps.
func announce(t *testing.T, rec *streams.Record, arrays bool) []byte {
	t.Helper()
	list := values{}
	for _, e := range rec.Events {
		medium := e.Medium
		if medium == "" {
			medium = "GPU"
		}
		if e.Removed {
			list = append(list, announcedRemoval{Type: "BlockRemoved", Hashes: e.Hashes, Medium: medium})
			continue
		}
		stored := announced{
			Type: "BlockStored", Hashes: e.Hashes, Tokens: []uint32{}, BlockSize: streams.BlockSize, Medium: medium,
			ExtraKeys: make([]any, len(e.Hashes)), Kind: "full_attention",
		}
		if e.HasParent {
			stored.Parent = e.Parent
		}
		for _, local := range e.Locals {
			stored.Tokens = streams.AppendTokens(stored.Tokens, local)
		}
		list = append(list, stored)
	}
	var payload bytes.Buffer
	e := msgpack.NewEncoder(&payload)
	e.UseArrayEncodedStructs(arrays)
	must.Succeed(t, e.Encode(values{float64(1), list, 0}))
	return payload.Bytes()
}

// TestRecordedJoinsAsDecoder requires that the operations of each recorded batch have as many blocks as the
// events that the server's decoder makes of it, because recording.joins repeats the decoder's rules.
func TestRecordedJoinsAsDecoder(t *testing.T) {
	f := func(file string, most, leastJoined int) {
		t.Helper()
		joined := 0 // events that the decoder joined, of both encodings
		r := recording{s: new(Stream), media: []string{""}, seq: map[uint64]uint64{}}
		batches := 0
		for rec, err := range streams.ReadRecords(file) {
			must.Succeed(t, err)
			before := len(r.s.ops)
			must.Succeed(t, r.addRecord(&rec))
			if rec.Engine < 0 {
				continue
			}
			var got []int
			for _, o := range r.s.ops[before:] {
				got = append(got, int(o.to-o.from))
			}
			for _, arrays := range []bool{false, true} {
				b, err := wire.Decode(announce(t, &rec, arrays), wire.DefaultLimits)
				must.Succeed(t, err)
				if len(b.Dropped) > 0 {
					t.Fatalf("%s: batch %d: the decoder drops %v", file, batches, b.Dropped)
				}
				var want []int
				for i := range b.Events {
					want = append(want, len(b.Events[i].Hashes))
					joined += b.Events[i].Joined
				}
				if !slices.Equal(got, want) {
					t.Fatalf("%s: batch %d: operations have %v blocks, decoded events %v; arrays: %v", file, batches, got, want, arrays)
				}
			}
			if batches++; batches == most {
				break
			}
		}
		if joined < leastJoined {
			t.Errorf("%s: %d events of %d batches are joined, want at least %d", file, joined, batches, leastJoined)
		}
	}
	f(recordedFile(t, joining...).Stream, 3, 10)
	f("../streams/vllm-offload.msgpack.zst", 2000, 20_000)
	f("../streams/sglang.msgpack.zst", 1000, 0)
}
