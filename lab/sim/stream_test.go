package sim

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-zeromq/zmq4"
	"github.com/vmihailenco/msgpack/v5"

	"example.com/conductor/internal/must"
	"example.com/conductor/lab/sim/truth"
)

// follower rebuilds what one rank holds from the bytes it publishes, and knows
// nothing else about it.
type follower struct {
	known map[uint64]string // hash to the tokens of the whole prefix and of its look-ahead
	path  map[uint64]string // hash to the tokens of the whole prefix
	held  map[truth.Tier]map[uint64]int
}

func newFollower(known map[uint64]string) *follower {
	f := &follower{known: known, path: map[uint64]string{}}
	f.clear()
	return f
}

func (f *follower) clear() {
	f.held = map[truth.Tier]map[uint64]int{truth.Device: {}, truth.Host: {}, truth.Disk: {}}
}

// field reads a key of a map event or a place of an array event.
func field(ev any, key string, place int) any {
	if m, ok := ev.(map[string]any); ok {
		return m[key]
	}
	if a := ev.([]any); place < len(a) {
		return a[place]
	}
	return nil
}

func number(v any) uint64 {
	switch v := v.(type) {
	case int64:
		return uint64(v)
	case uint64:
		return v
	case string: // what the loose decoder makes of a digest
		return binary.BigEndian.Uint64([]byte(v[len(v)-8:]))
	}
	panic(fmt.Sprintf("no number: %T", v))
}

func tierOf(medium any) truth.Tier {
	switch strings.ToUpper(medium.(string)) {
	case "GPU":
		return truth.Device
	case "CPU", "CPU_PINNED":
		return truth.Host
	}
	return truth.Disk
}

func (f *follower) apply(ev any) {
	switch field(ev, "type", 0) {
	case "AllBlocksCleared":
		f.clear()
	case "BlockRemoved":
		for _, h := range field(ev, "block_hashes", 1).([]any) {
			f.held[tierOf(field(ev, "medium", 2))][number(h)]--
		}
	case "BlockStored":
		hashes := field(ev, "block_hashes", 1).([]any)
		tokens := field(ev, "token_ids", 3).([]any)
		held := f.held[tierOf(field(ev, "medium", 6))]
		touches := field(ev, "session_id", math.MaxInt) != nil
		prefix := ""
		if parent := field(ev, "parent_block_hash", 2); parent != nil {
			prefix = f.path[number(parent)]
		}
		behind := lookAhead(ev, hashes, tokens)
		for i, h := range hashes {
			if n := len(tokens) / len(hashes); n > 0 {
				prefix += fmt.Sprint(tokens[i*n : (i+1)*n])
				f.known[number(h)], f.path[number(h)] = prefix+fmt.Sprint(behind[i]), prefix
			}
			if !touches || held[number(h)] == 0 {
				held[number(h)]++
			}
		}
	}
}

// lookAhead returns the tokens behind each block of a stored event, as vLLM's maps list
// them and SGLang's pairs show them. It leaves the first token of each pair.
func lookAhead(ev any, hashes, tokens []any) [][]any {
	behind := make([][]any, len(hashes))
	for i := range tokens {
		if pair, ok := tokens[i].([]any); ok {
			tokens[i] = pair[0]
			if n := len(tokens) / len(hashes); (i+1)%n == 0 {
				behind[i/n] = pair[1:]
			}
		}
	}
	if m, ok := ev.(map[string]any); ok && m["lookahead_token_ids"] != nil {
		for i, list := range m["lookahead_token_ids"].([]any) {
			behind[i] = list.([]any)
		}
	}
	return behind
}

// replayed returns the payloads a rank replays from its first batch on.
func replayed(t *testing.T, endpoint string) [][]byte {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	s := zmq4.NewDealer(ctx)
	defer s.Close()
	must.Succeed(t, s.Dial(endpoint))
	must.Succeed(t, s.SendMulti(zmq4.NewMsgFrom([]byte{}, make([]byte, 8))))
	var payloads [][]byte
	for {
		msg, err := s.Recv()
		if err != nil {
			t.Fatalf("after %d batches: %v", len(payloads), err)
		}
		payload := msg.Frames[len(msg.Frames)-1]
		if len(payload) == 0 {
			return payloads
		}
		payloads = append(payloads, payload)
	}
}

// prefixOf writes the tokens of a prefix as a follower knows them.
func prefixOf(t *truth.Tree, id truth.ID) (text string) {
	tokens := t.Path(id)
	end := len(tokens) - t.Ahead()
	for block := range slices.Chunk(tokens[:end], t.BlockSize()) {
		text += fmt.Sprint(block)
	}
	return text + fmt.Sprint(tokens[end:])
}

// TestStreamTellsAll: the bytes every kind of publisher sent add up to exactly
// what its engine holds, copies included. A fleet whose last requests reset all ranks of
// one look-ahead compares nothing of it, so another fleet follows.
func TestStreamTellsAll(t *testing.T) {
	var blocks map[int]int
	for range 5 {
		blocks = compareStreams(t)
		if blocks[0] > 0 && blocks[1] > 0 && blocks[4] > 0 {
			return
		}
	}
	t.Errorf("a look-ahead was never compared: blocks by look-ahead %v", blocks)
}

// compareStreams runs a fleet, compares what each rank sent with what its engine holds,
// and counts the blocks by look-ahead.
func compareStreams(t *testing.T) (blocks map[int]int) {
	t.Helper()
	c := testConfig(t, 200)
	c.Instances = len(Families)
	s := start(t, c)
	run(t, s)
	blocks = map[int]int{}
	for _, r := range s.f.ranks {
		f := newFollower(map[uint64]string{})
		for _, payload := range replayed(t, r.pub.ReplayEndpoint()) {
			d := msgpack.NewDecoder(strings.NewReader(string(payload)))
			d.UseLooseInterfaceDecoding(true)
			batch, err := d.DecodeSlice()
			if err != nil || len(batch) != 3 || number(batch[2]) != uint64(r.n) {
				t.Fatalf("%s: batch %v: %v", r.describe, batch, err)
			}
			for _, ev := range batch[1].([]any) {
				f.apply(ev)
			}
		}
		got, copies := map[string]truth.Tier{}, 0
		for tier, counts := range f.held {
			for h, n := range counts {
				if n < 0 {
					t.Errorf("%s: block %x was removed from %v more often than stored", r.describe, h, tier)
				} else if n > 0 {
					got[f.known[h]] |= tier
				}
				if tier == truth.Device {
					copies += n
				}
			}
		}
		want := 0
		tree := r.instance.tree
		tree.Each(r.engine.Index, func(id truth.ID, held truth.Tier) {
			want++
			if tiers := got[prefixOf(tree, id)]; tiers != held {
				t.Errorf("%s: the stream says %v of a block on %v", r.describe, tiers, held)
			}
		})
		if device, _, _ := r.engine.Blocks(); len(got) != want || copies != device {
			t.Errorf("%s: the stream tells of %d blocks and %d copies, the engine holds %d and %d",
				r.describe, len(got), copies, want, device)
		}
		blocks[tree.Ahead()] += want
	}
	return blocks
}
