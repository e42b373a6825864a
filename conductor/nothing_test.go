package conductor_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"example.com/conductor/index/hash"
)

// TestFindNothingCounts: a source of which next to nothing counts in answers has a finding that says why, whatever the reason.
func TestFindNothingCounts(t *testing.T) {
	stored := func(i int, set map[string]any) map[string]any {
		e := map[string]any{"type": "BlockStored", "block_hashes": []any{uint64(1000 + i)}, "parent_block_hash": nil, "block_size": 16,
			"token_ids": tokensOf(fmt.Sprint(i), 16), "medium": "gpu"}
		for k, v := range set {
			e[k] = v
		}
		return e
	}
	object := func(key string, i int) map[string]any {
		return map[string]any{"event_type": "stored", "tenant_id": "default", "backend_id": "b", "medium": "cpu",
			"object_key": fmt.Sprintf(key, i), "seq_hashes": []any{}}
	}
	const key = "m@tp_rank:0@pcp0@dcp0@pp_rank:0@%064x"
	long := make([]uint64, 16)
	for i := range long {
		long[i] = 1<<40 + uint64(i)
	}
	cases := []struct {
		name, register string
		event          func(i int) map[string]any
		want           string // part of the finding; "" for none of this code
	}{
		{"usual engine", "", func(i int) map[string]any { return stored(i, nil) }, ""},
		{"hashes of tokens", "", func(i int) map[string]any { return stored(i, map[string]any{"token_ids": long}) }, "bad_token"},
		{"no tokens", "", func(i int) map[string]any { return stored(i, map[string]any{"token_ids": []any{}}) },
			"80 of 80 blocks are known by their hash alone, because their events have no token ids"},
		{"words for tokens", "", func(i int) map[string]any { return stored(i, map[string]any{"token_ids": []any{"a", "b"}}) },
			"80 of 80 blocks are known by their hash alone, because their events have no token ids"},
		{"more tokens than the size says", "",
			func(i int) map[string]any { return stored(i, map[string]any{"token_ids": tokensOf(fmt.Sprint(i), 24)}) },
			"another number of tokens than block_size times their hashes"},
		{"fewer tokens than the size says", "",
			func(i int) map[string]any { return stored(i, map[string]any{"token_ids": tokensOf(fmt.Sprint(i), 8)}) },
			"another number of tokens than block_size times their hashes"},
		{"windows alone", "", func(i int) map[string]any {
			return stored(i, map[string]any{"group_idx": 1, "kv_cache_spec_kind": "sliding_window", "kv_cache_spec_sliding_window": 128})
		}, ""},
		{"layers of encoders alone", "", func(i int) map[string]any {
			return stored(i, map[string]any{"group_idx": 1, "kv_cache_spec_kind": "encoder_only_attention"})
		}, "80 of the last 80 events are left out as other_group"},
		{"one group of nine", "", func(i int) map[string]any {
			kind := "sliding_window"
			if i%9 == 0 {
				kind = "full_attention"
			}
			return stored(i, map[string]any{"group_idx": i % 9, "kv_cache_spec_kind": kind})
		}, ""},
		{"unknown types", "", func(i int) map[string]any { return stored(i, map[string]any{"type": "BlockMade"}) }, "unknown_type"},
		{"another tenant", "", func(i int) map[string]any {
			return map[string]any{"event_type": "stored", "tenant_id": "theirs", "seq_hashes": []any{i}, "block_size": 16,
				"token_ids": tokensOf(fmt.Sprint(i), 16), "medium": "gpu"}
		}, ""}, // foreign_tenant says it
		{"another block size", "", func(i int) map[string]any {
			return stored(i, map[string]any{"block_size": 24, "token_ids": tokensOf(fmt.Sprint(i), 24)})
		}, ""}, // block_size_mismatch says it
		{"unknown parents", "", func(i int) map[string]any { return stored(i, map[string]any{"parent_block_hash": uint64(i + 5000)}) },
			""}, // unknown_parents says it
		{"numbers that do not rise", " type=Standard", func(i int) map[string]any {
			return map[string]any{"event_type": "stored", "event_id": 7, "seq_hashes": []any{i}, "block_size": 16, "medium": "gpu",
				"token_ids": tokensOf(fmt.Sprint(i), 16)}
		}, "79 of the last 80 events are left out as repeated_event"},
		{"keys of an unknown form", " type=Mooncake", func(i int) map[string]any { return object("weights/layer-%d", i) },
			`left out as unknown_object: keys such as "weights/layer-0" name no block`},
		{"a pool whose hashes nobody announces", " type=Mooncake", func(i int) map[string]any { return object(key, i+1) },
			`no engine of model "m" has announced these hashes with tokens`},
		{"a pool of halves", " type=Mooncake", func(i int) map[string]any {
			if i == 0 {
				return object("m@tp_rank:1@pcp0@dcp0@pp_rank:0@%064x", 1<<40)
			}
			return object(key, i+1)
		}, "blocks lack objects or shards"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *bench) {
				b.run("register s replay=no" + c.register)
				for from := 0; from < 80; from += 8 { // a message of 80 would be one of another size
					var list []any
					for i := from; i < from+8; i++ {
						list = append(list, c.event(i))
					}
					b.publish(args{word: "s"}, list...)
				}
				synctest.Wait()
				if found := b.finding("nothing_counts"); found != "" {
					t.Errorf("found before it is clear: %s", found)
				}
				time.Sleep(3 * time.Minute)
				synctest.Wait()
				found := b.finding("nothing_counts")
				if (found == "") != (c.want == "") || !strings.Contains(found, c.want) {
					t.Errorf("found %q, want %q, among %s", found, c.want, b.findings())
				}
			})
		})
	}
}

// TestFindPlacelessBlocks: an engine with sliding windows alone keeps the ends of prompts, and its events do not say which blocks these
// are. A source that announces every block has no such finding, nor has one with a hash profile.
func TestFindPlacelessBlocks(t *testing.T) {
	for _, c := range []struct {
		register string
		blocks   int // that an event has the tokens of
		want     bool
	}{{"", 3, true}, {"", 1, false}, {" profile=sha256_cbor/0", 3, false}} {
		inBubble(t, func(t *testing.T, b *bench) {
			b.run("register s replay=no" + c.register)
			for i := range 80 {
				b.publish(args{word: "s"}, map[string]any{"type": "BlockStored", "block_hashes": []any{uint64(1000 + i)},
					"parent_block_hash": nil, "block_size": 16, "token_ids": tokensOf(fmt.Sprint(i), 16*c.blocks), "medium": "gpu",
					"group_idx": 0, "kv_cache_spec_kind": "sliding_window", "kv_cache_spec_sliding_window": 17})
			}
			time.Sleep(3 * time.Minute)
			synctest.Wait()
			if found := b.finding("unknown_layers"); strings.Contains(found, "register its hash_profile") != c.want {
				t.Errorf("%q, events of %d blocks: found %q", c.register, c.blocks, found)
			}
		})
	}
}

// TestFindNamelessGroups: events that number their attention group and never name its kind wait, and a finding says so.
func TestFindNamelessGroups(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		b.run("register s")
		b.run("store s path=a/b group=0")
		for i := range 4 {
			b.run(fmt.Sprintf("store s path=a/b%d group=1", i))
		}
		time.Sleep(3 * time.Minute)
		synctest.Wait()
		if found := b.finding("unknown_layers"); !strings.Contains(found, "4 events wait, because no event names the kind") {
			t.Errorf("found %q", found)
		}
		b.run("store s path=a/b group=2 kind=chunked_local_attention")
		b.run("store s path=a/b group=1 kind=full_attention")
		time.Sleep(3 * time.Minute)
		synctest.Wait()
		if found := b.finding("unknown_layers"); !strings.Contains(found, "attention group 2 of rank 0: events do not say how long") {
			t.Errorf("found %q where one kind is known and another group has chunks", found)
		}
	})
}

// TestFindSizelessGroups: events below the device that name blocks by hashes alone wait until their group says how large its blocks
// are, and a finding says so.
func TestFindSizelessGroups(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		b.run("register s")
		b.run("store s path=a/b group=0 kind=full_attention")
		for i := range 4 {
			b.publish(args{word: "s"}, map[string]any{"type": "BlockStored", "block_hashes": []any{uint64(1000 + i)},
				"parent_block_hash": nil, "block_size": 0, "token_ids": []int{}, "medium": "CPU",
				"group_idx": 1, "kv_cache_spec_kind": "sliding_window", "kv_cache_spec_sliding_window": 17})
		}
		time.Sleep(3 * time.Minute)
		synctest.Wait()
		if found := b.finding("unknown_layers"); !strings.Contains(found, "4 events below the device wait, because no event says") {
			t.Errorf("found %q", found)
		}
		b.run("store s path=a/b group=1 kind=sliding_window window=17")
		time.Sleep(3 * time.Minute)
		synctest.Wait()
		if found := b.finding("unknown_layers"); found != "" {
			t.Errorf("found %q although the size is known", found)
		}
	})
}

// TestNothingIsTheSources: a publisher whose topics are no source's is followed by a source that takes one topic alone.
func TestNothingIsTheSources(t *testing.T) {
	for topic, want := range map[string]bool{"": true, "kv-events": true, "kv@other@m": false} {
		inBubble(t, func(t *testing.T, b *bench) {
			b.run("register s replay=no type=LMCache")
			b.network.PublisherAt(endpoint(args{word: "s"})).Topic = topic
			for i := range 80 {
				b.run(fmt.Sprintf("store s path=p%d", i))
			}
			time.Sleep(3 * time.Minute)
			synctest.Wait()
			if found := b.finding("nothing_counts"); strings.Contains(found, `none of its 80 batches has the topic "kv@s@m"`) != want {
				t.Errorf("topic %q: found %q", topic, found)
			}
		})
	}
}

// finding returns the line of the findings with a code, "" if there is none.
func (b *bench) finding(code string) string {
	for _, line := range strings.Split(b.findings(), "\n") {
		if strings.Contains(line, " "+code+": ") {
			return line
		}
	}
	return ""
}

// TestNothingCountsEnds: the finding goes once enough counts, or once queries ask in the way that finds the blocks.
func TestNothingCountsEnds(t *testing.T) {
	bare := func(b *bench, engine string, n int) {
		a := &announcer{bench: b}
		for range n {
			a.blocks(engine, "gpu", "BlockStored", 1)
		}
	}
	later := func() {
		time.Sleep(3 * time.Minute)
		synctest.Wait()
	}
	inBubble(t, func(t *testing.T, b *bench) {
		b.run("register s replay=no")
		bare(b, "s", 3)
		later()
		if found := b.finding("nothing_counts"); found != "" {
			t.Errorf("three blocks tell nothing: %s", found)
		}
		bare(b, "s", 100)
		later()
		if b.finding("nothing_counts") == "" {
			t.Error("nothing counts, and it is not found")
		}
		for i := range 40 {
			b.run(fmt.Sprintf("store s path=p%d", i))
		}
		later()
		if found := b.finding("nothing_counts"); found != "" {
			t.Errorf("a third counts: %s", found)
		}
	})
	inBubble(t, func(t *testing.T, b *bench) {
		b.run("register few replay=no")
		bare(b, "few", 5)
		time.Sleep(13 * time.Minute)
		synctest.Wait()
		if b.finding("nothing_counts") == "" {
			t.Error("few blocks of long ago count for nothing, and it is not found")
		}
		b.run(`post /query_by_hash {"model":"m","block_size":16,"seq_hashes":[1,2]}`)
		later()
		if b.finding("nothing_counts") == "" {
			t.Error("canonical hashes find no block that came by its hash alone")
		}
		b.run(`post /query_by_hash {"model":"m","block_size":16,"hash":"vllm","seq_hashes":[1,2]}`)
		later()
		if found := b.finding("nothing_counts"); found != "" {
			t.Errorf("queries bring digests: %s", found)
		}
	})
	// A few conversations whose beginning came before the server are no error.
	inBubble(t, func(t *testing.T, b *bench) {
		b.run("register s replay=no")
		for i := range 4 {
			b.run(fmt.Sprintf("store s path=old%d/new%d from=1", i, i))
		}
		time.Sleep(15 * time.Minute)
		synctest.Wait()
		if found := b.finding("nothing_counts"); found != "" {
			t.Errorf("they wait for their parents: %s", found)
		}
	})
	// Most of a pool is cold: no engine has announced it since the server began. That some is known shows that all fits.
	inBubble(t, func(t *testing.T, b *bench) {
		a := &announcer{bench: b}
		b.run("register s replay=no")
		b.run("register pool type=Mooncake replay=no")
		a.objects("pool", "cpu", "stored", 100)
		later()
		if b.finding("nothing_counts") == "" {
			t.Error("no engine announces anything of the pool")
		}
		for i := range 4 {
			b.publish(args{word: "s"}, map[string]any{"type": "BlockStored", "block_hashes": []any{uint64(i + 1)}, "medium": "gpu",
				"parent_block_hash": nil, "block_size": 16, "token_ids": tokensOf(fmt.Sprint(i), 16)})
		}
		later()
		if found := b.finding("nothing_counts"); found != "" {
			t.Errorf("the rest is cold: %s", found)
		}
	})
	inBubble(t, func(t *testing.T, b *bench) {
		b.run("register s replay=no profile=" + hash.AlgorithmSHA256 + "/0")
		bare(b, "s", 100)
		later()
		if found := b.finding("nothing_counts"); found != "" {
			t.Errorf("a profile names the blocks: %s", found)
		}
	})
}
